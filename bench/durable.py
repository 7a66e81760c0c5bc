"""Save until durable, against a plain file of the same bytes that is written and synced.

Two states: random bytes, which are written as they are, and numbers of half the precision,
which may be encoded. All of a state is new in each round, so both ways take in as many bytes,
in turn, in a temporary folder of `TMPDIR`. The plain file is new each time, too, and written by
calls of 64 MiB. `pack only` is what `PosixTier.put` needs for the bytes as they are: what lies
between it and the save of random bytes is capture, digests and the manifest.
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
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require

from ckptflow.checkpointer import Checkpointer
from ckptflow.tiers.posix import PosixTier

PACK_BYTES = 256 << 20
CALL_BYTES = 64 << 20

Words = NDArray[np.uint64]


def main() -> None:
    args = arguments(__doc__)
    size_bytes = (256 if args.quick else 1024) << 20
    rows: list[Row] = []
    claims: list[Claim] = []
    for name, fill in (("random bytes", fill_random), ("half precision", fill_numbers)):
        with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
            seconds = measure(Path(folder), size_bytes, fill, rounds=7 if args.quick else 5)
        rows += rows_of(name, seconds, size_bytes)
        rate = ratio(seconds["plain file"], seconds["save"])
        claims.append(Claim(f"save_{name}_over_plain_file".replace(" ", "_"), rate, ">=", 0.9))
    finish(f"save until durable, {size_bytes >> 20} MiB", rows, claims, args.json_path)


def measure(
    folder: Path, size_bytes: int, fill: Callable[[Words, int], None], *, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each way, by round; a first round warms up."""
    state = {"w": np.zeros(size_bytes // 8, np.float64)}
    words, view = state["w"].view(np.uint64), memoryview(state["w"]).cast("B")
    tier = PosixTier(folder / "packs")
    seconds: dict[str, list[float]] = {"plain file": [], "pack only": [], "save": []}
    with Checkpointer(folder / "store", keep=1, rng=False, budget_bytes=2 * size_bytes) as ckpt:
        actions: dict[str, Callable[[int], object]] = {
            "plain file": lambda number: write_plain(folder / f"plain{number}", view),
            "pack only": lambda number: put_packs(tier, number, view),
            "save": lambda number: ckpt.save(number + 1, state).wait(),
        }
        for number in range(rounds + 1):
            fill(words, number)
            for name, action in actions.items():
                os.sync()  # Nobody pays for the writes of another.
                began = time.perf_counter()
                action(number)
                seconds[name] += [time.perf_counter() - began] if number else []
                clean(folder, tier)  # The next finds as much warm memory for its pages.
    target = {"w": np.zeros_like(state["w"])}
    with Checkpointer(folder / "store", rng=False) as ckpt:
        ckpt.restore(target)
    require(np.array_equal(target["w"].view(np.uint64), words), "the last save restores")
    return seconds


def fill_random(words: Words, number: int) -> None:
    """Nothing to find again, nothing to encode."""
    step = CALL_BYTES // 8
    for start in range(0, len(words), step):
        rng = np.random.default_rng([number, start])
        words[start : start + step] = rng.integers(0, 1 << 64, step, np.uint64)


def fill_numbers(words: Words, number: int) -> None:
    """Doubles whose lower halves are zero."""
    np.random.default_rng(number).standard_normal(out=words.view(np.float64))
    words &= np.uint64(0xFFFF_FFFF_0000_0000)


def rows_of(name: str, seconds: dict[str, list[float]], size_bytes: int) -> list[Row]:
    return [
        {
            "state": name,
            "what": what,
            "median_s": statistics.median(taken),
            "least_s": min(taken),
            "GB_per_s": size_bytes / statistics.median(taken) / 1e9,
            "runs": len(taken),
        }
        for what, taken in seconds.items()
    ]


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
