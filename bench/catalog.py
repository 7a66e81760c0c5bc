"""How long it takes to find the newest of very many checkpoints, against listing their folder.

The lineage has a hundred thousand names of manifests, empty but for the newest. What is timed
is what a task does when it starts: the newest checkpoint that is valid, with its manifest. The
yardstick is `os.listdir` of the folder, which no program on a file system can do without.

A second table has a prune after a save, of a lineage that keeps some hundred checkpoints: as
the first of a process, which reads every manifest, and as a later one, which remembers them.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require, show, time_in_turn

from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.inventory import Known
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.prune import prune
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier

LINEAGE = LineageId("bench", "catalog")
COUNT, LATEST_S_MAX, LISTINGS_MAX = 100_000, 0.05, 2.0
KEPT = 300


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__)
    count, kept = (10_000, 50) if given.quick else (COUNT, KEPT)
    with tempfile.TemporaryDirectory() as folder:
        latest = time_latest(Path(folder), count)
    with tempfile.TemporaryDirectory() as folder:
        pruned = time_prune(Path(folder), kept)
    show("a prune after a save", [pruned])
    claims = [
        Claim("latest_s", float(latest["latest_s"]), "<=", LATEST_S_MAX),
        Claim("latest_x_listing", float(latest["latest_x_listing"]), "<=", LISTINGS_MAX),
    ]
    finish("the newest of many", [latest], claims, given.json_path, details=[pruned])


def time_latest(folder: Path, count: int) -> Row:
    """Time the newest checkpoint of ``count``."""
    tier = fill(folder, count)
    require(newest(tier).id.step == count, "the newest checkpoint is the last one")
    manifests = folder / LINEAGE.prefix / "manifests"

    def listing() -> list[str]:
        return os.listdir(manifests)  # noqa: PTH208 - it is the yardstick

    seconds = time_in_turn({"latest": lambda: newest(tier), "listing": listing}, rounds=9)
    return {
        "checkpoints": count,
        "latest_s": statistics.median(seconds["latest"]),
        "listing_s": statistics.median(seconds["listing"]),
        "latest_x_listing": ratio(seconds["latest"], seconds["listing"]),
    }


def time_prune(folder: Path, kept: int) -> Row:
    """Time the prune after a save, when ``kept`` checkpoints stay."""
    tier, state = PosixTier(folder, level=3), np.random.default_rng(0).standard_normal(20_000)
    ensure_store(tier)
    lineage, known, rules = Lineage([tier], LINEAGE), Known(), Retention(kept)
    base: Base | None = None
    seconds: dict[str, list[float]] = {"first": [], "later": []}
    for step in range(kept + 8):
        state[step : step + 50] += 1
        base = save(tier, step, state, base)
        if step < kept:
            prune(lineage, tier, rules, known=known)
            continue
        for name, memory in (("later", known), ("first", Known())):
            began = time.perf_counter()
            plan = prune(lineage, tier, rules, known=memory)
            seconds[name].append(time.perf_counter() - began)
            staying = sum(verdict.keep for verdict in plan.verdicts)
            require(staying == kept, "as many stay as shall")
    return {
        "kept": kept,
        "first_s": statistics.median(seconds["first"]),
        "later_s": statistics.median(seconds["later"]),
        "first_x_later": ratio(seconds["first"], seconds["later"]),
    }


def fill(folder: Path, count: int) -> PosixTier:
    """Make a lineage of ``count`` names before one checkpoint."""
    tier = PosixTier(folder, level=3)
    ensure_store(tier)
    manifests = folder / LINEAGE.prefix / "manifests"
    manifests.mkdir(parents=True)
    parent = os.open(manifests, os.O_RDONLY)
    for step in range(count):
        name = CheckpointId(step, 1).manifest_key.rpartition("/")[2]
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=parent))
    os.close(parent)
    save(tier, count, np.arange(1000.0), None)
    return tier


def save(tier: PosixTier, step: int, state: NDArray[np.float64], base: Base | None) -> Base:
    """Save a state."""
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=["dict"],
        regions=[NamedRegion("r", memoryview(state).cast("B"), 8)],
        base=base,
        chunk_bytes=4096,
    )


def newest(tier: PosixTier) -> Manifest:
    """Return the newest manifest."""
    lineage = Lineage([tier], LINEAGE)
    found = lineage.newest()
    require(found is not None, "there is a newest checkpoint")
    assert found is not None
    return lineage.manifest(found)


if __name__ == "__main__":
    main()
