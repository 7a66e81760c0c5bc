"""Save until durable, against a plain file of the same bytes that is written and synced.

All of the state is new in each round, so both write as many bytes, in turn, in a temporary
folder of `TMPDIR`. The plain file is new each time, too, and written by calls of 64 MiB. `packs
only` is what `PosixTier.put` needs for the same bytes: what lies between it and the save is
capture, digests and the manifest.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require

from ckptflow.checkpointer import Checkpointer
from ckptflow.tiers.posix import PosixTier

PACK_BYTES = 256 << 20
CALL_BYTES = 64 << 20


def main() -> None:
    args = arguments(__doc__)
    size_bytes = (256 if args.quick else 1024) << 20
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
        rows, claims = measure(Path(folder), size_bytes, rounds=3 if args.quick else 5)
    finish(f"save until durable, {size_bytes >> 20} MiB", rows, claims, args.json_path)


def measure(folder: Path, size_bytes: int, *, rounds: int) -> tuple[list[Row], list[Claim]]:
    rng = np.random.default_rng(0)
    state = {"w": rng.standard_normal(size_bytes // 8)}
    view, tier = memoryview(state["w"]).cast("B"), PosixTier(folder / "packs")
    seconds: dict[str, list[float]] = {"plain file": [], "packs only": [], "save": []}
    with Checkpointer(folder / "store", keep=1, rng=False, budget_bytes=2 * size_bytes) as ckpt:
        actions: dict[str, Callable[[int], object]] = {
            "plain file": lambda number: write_plain(folder / f"plain{number}", view),
            "packs only": lambda number: put_packs(tier, number, view),
            "save": lambda number: ckpt.save(number + 1, state).wait(),
        }
        for number in range(rounds + 1):
            rng.standard_normal(out=state["w"])  # Nothing to find again, nothing to encode.
            for name, action in actions.items():
                os.sync()  # Nobody pays for the writes of another.
                began = time.perf_counter()
                action(number)
                seconds[name] += [time.perf_counter() - began] if number else []
            clean(folder, tier)
        back = Checkpointer(folder / "store", rng=False).restore(
            {"w": np.zeros_like(state["w"])}
        )
        require(np.array_equal(back["w"], state["w"]), "the last save restores")
    rows: list[Row] = []
    for what, taken in seconds.items():
        median_s = statistics.median(taken)
        rate = size_bytes / median_s / 1e9
        rows.append({"what": what, "median_s": median_s, "GB_per_s": rate, "runs": len(taken)})
    rate = ratio(seconds["plain file"], seconds["save"])
    return rows, [Claim("save_rate_over_plain_file", rate, ">=", 0.9)]


def write_plain(path: Path, view: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done : done + CALL_BYTES])
    os.fsync(descriptor)
    os.close(descriptor)


def put_packs(tier: PosixTier, number: int, view: memoryview) -> None:
    for start in range(0, len(view), PACK_BYTES):
        tier.put(f"{number}/{start}", [view[start : start + PACK_BYTES]])


def clean(folder: Path, tier: PosixTier) -> None:
    for path in folder.glob("plain*"):
        path.unlink()
    for key in list(tier.iter_keys("")):
        tier.delete(key)


if __name__ == "__main__":
    main()
