"""What consolidating buys: restores of a late checkpoint before and after, against a full one.

A lineage of many small changes, stored small, so that packs and delta layers pile up to their
bounds. Restores are timed in turn, from the page cache, and compared with the state; the cost
is that of reading and writing the state once, against a plain write and sync of its bytes.
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
from report import Claim, Row, arguments, finish, ratio, require, time_in_turn

from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import consolidate, shape_of
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier

LINEAGE = LineageId("bench", "consolidation")
RATIO_MAX = 1.3  # Of a restore of any checkpoint to that of a full one.
SAVES, STATE_BYTES = 60, 256 << 20


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__)
    saves, state_bytes = (20, 32 << 20) if given.quick else (SAVES, STATE_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), saves, state_bytes)
    claim = Claim("restore_x_full", float(row["after_x_full"]), "<=", RATIO_MAX)
    finish("restores before and after", [row], [claim], given.json_path)


def measure(folder: Path, saves: int, state_bytes: int) -> Row:
    """Write a lineage, consolidate its last checkpoint, and time restores."""
    tier, rng = PosixTier(folder, level=3), np.random.default_rng(0)
    ensure_store(tier)
    state, base = rng.standard_normal(state_bytes // 8), None
    for step in range(saves):
        state[rng.integers(0, len(state), len(state) // 50)] *= 1 + 1e-9
        base = save(tier, step, state, base, goal="small")
        base.memory.bytes_at_hand = {"w": memoryview(state.copy()).cast("B")}
    assert base is not None
    old, full = base.manifest, save(tier, saves + 1, state, None).manifest
    before = restore_over_full(tier, old, full, state)
    began = time.perf_counter()
    consolidate(Lineage([tier], LINEAGE), tier, old.id, force=True)
    took_s = time.perf_counter() - began
    new = Lineage([tier], LINEAGE).manifest_on(tier, old.id)
    after = restore_over_full(tier, new, full, state)
    return {
        "saves": saves,
        "packs": shape_of(old).packs,
        "layers": shape_of(old).layers,
        "before_x_full": before,
        "after_x_full": after,
        "consolidate_x_write": took_s / plain_write_s(folder / "plain", state),
    }


def save(
    tier: PosixTier,
    step: int,
    state: NDArray[np.float64],
    base: Base | None,
    goal: str = "auto",
) -> Base:
    """Save a state."""
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=["dict"],
        regions=[NamedRegion("w", memoryview(state).cast("B"), 8)],
        base=base,
        chunk_bytes=4096,
        goal="small" if goal == "small" else "auto",
    )


def restore_over_full(
    tier: PosixTier, manifest: Manifest, full: Manifest, right: NDArray[np.float64]
) -> float:
    """Return how long a restore takes, as a multiple of that of a full checkpoint."""
    out = np.empty_like(right)
    buffer = memoryview(out).cast("B")
    read_checkpoint([tier], manifest, [buffer])
    require(out.tobytes() == right.tobytes(), "the restored state is the saved one")
    seconds = time_in_turn(
        {
            "this": lambda: read_checkpoint([tier], manifest, [buffer]),
            "full": lambda: read_checkpoint([tier], full, [buffer]),
        },
        rounds=5,
    )
    return ratio(seconds["this"], seconds["full"])


def plain_write_s(path: Path, state: NDArray[np.float64]) -> float:
    """Return the seconds that a write and sync of the bytes take."""

    def write() -> None:
        with path.open("wb") as file:
            file.write(memoryview(state).cast("B"))
            os.fsync(file.fileno())

    return statistics.median(time_in_turn({"write": write}, rounds=3)["write"])


if __name__ == "__main__":
    main()
