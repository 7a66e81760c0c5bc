"""What twenty checkpoints in a row cost: to save, to store and to restore.

One state of random doubles, and ways to change 5 % of it or less between checkpoints, from one
block to single words all over it. Restores are those of the second, the tenth and the
twentieth checkpoint, against that of a full checkpoint of the same state on the same tier, in
turn, from the page cache; every restore is compared with the state.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require, time_in_turn

from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier

LINEAGE = LineageId("bench", "lineage")
SAVES, LOOKED_AT = 20, (2, 10, 20)

State = NDArray[np.float64]
Change = Callable[[State, np.random.Generator], None]


def block(state: State, rng: np.random.Generator) -> None:
    """Change 5 % in one piece."""
    size = len(state) // 20
    start = int(rng.integers(0, len(state) - size))
    state[start : start + size] += 1


def parts(item_bytes: int, fraction: float) -> Change:
    """Return what changes a fraction of all items of a size, drawn at random."""

    def change(state: State, rng: np.random.Generator) -> None:
        items = state.reshape(-1, item_bytes // 8)
        items[rng.choice(len(items), int(len(items) * fraction), replace=False)] += 1

    return change


CHANGES: dict[str, Change] = {
    "5 %, one block": block,
    "5 % of 64 KiB blocks": parts(64 << 10, 0.05),
    "5 % of 4 KiB chunks": parts(4096, 0.05),
    "1 % of 256 B rows": parts(256, 0.01),
    "0.1 % of words": parts(8, 0.001),
}


def main() -> None:
    args = arguments(__doc__)
    state_bytes = (32 if args.quick else 256) << 20
    rows = [measure(name, change, state_bytes) for name, change in CHANGES.items()]
    by_change = {str(row["change"]): row for row in rows}
    contiguous = by_change["5 %, one block"]
    blocks = by_change["5 % of 64 KiB blocks"]
    finish(
        f"{SAVES} checkpoints of {state_bytes >> 20} MiB of random doubles",
        rows,
        [
            Claim(
                "restore_20th_over_full_block",
                number(contiguous, "restore_20_x_full"),
                "<=",
                1.3,
            ),
            Claim(
                "restore_20th_over_full_64KiB", number(blocks, "restore_20_x_full"), "<=", 1.3
            ),
            Claim("delta_pct_of_5_pct_block", number(contiguous, "delta_pct"), "<=", 5.5),
        ],
        args.json_path,
    )


def number(row: Row, column: str) -> float:
    """Return a number of a row."""
    return float(row[column])


def measure(name: str, change: Change, state_bytes: int) -> Row:
    """Return the row of one way to change."""
    rng = np.random.default_rng(0)
    state = rng.standard_normal(state_bytes // 8)
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
        tier = PosixTier(folder)
        manifests: list[Manifest] = []
        states: dict[int, State] = {}
        seconds, stored = [], []
        base: Base | None = None
        for save in range(1, SAVES + 1):
            began = time.perf_counter()
            base = write(tier, save, state, base)
            seconds.append(time.perf_counter() - began)
            stored.append(base.manifest.written_bytes)
            manifests.append(base.manifest)
            if save in LOOKED_AT:
                states[save] = state.copy()
            change(state, rng)
        copied = np.empty_like(state)
        memcpy = time_in_turn({"copy": lambda: np.copyto(copied, state)}, rounds=5)["copy"]
        against_full = {}
        for save, right in states.items():
            full = write(tier, 1000 + save, right, None).manifest
            against_full[save] = restore_over_full(tier, manifests[save - 1], full, right)
    return {
        "change": name,
        "save_x_memcpy": statistics.median(seconds[2:]) / statistics.median(memcpy),
        "delta_pct": 100 * statistics.mean(stored[2:]) / state_bytes,
        "packs": len(manifests[-1].packs),
        "rows": len(manifests[-1].extents),
        **{f"restore_{save}_x_full": value for save, value in against_full.items()},
    }


def write(tier: PosixTier, save: int, state: State, base: Base | None) -> Base:
    """Save a state."""
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(save, 1),
        structure=None,
        regions=[NamedRegion("w", memoryview(state).cast("B"), 8)],
        base=base,
        chunk_bytes=4096,
    )


def restore_over_full(
    tier: PosixTier, manifest: Manifest, full: Manifest, right: State
) -> float:
    """Return how long a restore takes, as a multiple of that of a full checkpoint."""
    out = np.empty_like(right)
    buffer = memoryview(out).cast("B")

    def restore(one: Manifest) -> Callable[[], object]:
        return lambda: read_checkpoint([tier], one, [buffer])

    restore(manifest)()
    require(np.array_equal(out, right), "the restored state is the saved one")
    seconds = time_in_turn({"delta": restore(manifest), "full": restore(full)}, rounds=7)
    return ratio(seconds["delta"], seconds["full"])


if __name__ == "__main__":
    main()
