"""From which size on naming a piece in a gather list is cheaper than copying it.

Three mixes of pieces, as a state may consist of: values of a cache (most are smaller than 512
bytes), the weights and moments of a small transformer, and half of each. Each is written with
several thresholds, from "name all" to "copy all", and with the one that was measured for this
process, to memory (tmpfs), to a folder on disk without waiting for the device, and to nowhere.
What arrives is compared bit by bit. Cornflakes (Raghavan et al., SOSP 2023) found a hybrid to
be better than either for messages on a network card; here the kernel copies in any case, so
what is to be seen is that the hybrid is never worse than the better of the two.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from report import Claim, Row, finish, parser, ratio, require, time_in_turn

from ckptflow.tiers.disk import DISK
from ckptflow.tiers.durable import write_all
from ckptflow.tiers.gathering import gather_list, measured_threshold

ALL = 1 << 62
THRESHOLDS = (0, 64, 128, 256, 512, 1024, 4096, ALL)
GOAL = 0.9  # Of the speed of the better of the two pure ways: less is noise.
MEMORY = Path("/dev/shm")  # tmpfs; files have no names there for long.


def cache_values(count: int) -> list[int]:
    """Return sizes that are log-normal, with a median of 120 bytes."""
    return (
        np.random.default_rng(1).lognormal(np.log(120), 1.1, count).astype(int).clip(1).tolist()
    )


def transformer(width: int, layers: int) -> list[int]:
    """Return sizes of the weights of a transformer and of their two moments, in float32."""
    block = [4 * width * width] * 4 + [16 * width * width] * 2 + [4 * width] * 6
    return (block * layers) * 3


def pieces(sizes: Sequence[int]) -> list[memoryview]:
    """Return pieces of these sizes, in an order that mixes them, apart from each other."""
    order = np.random.default_rng(2).permutation(len(sizes))
    return [
        memoryview(np.random.default_rng(number).bytes(sizes[number]))
        for number in order.tolist()
    ]


@contextmanager
def opened(target: str, folder: Path) -> Iterator[int]:
    """Open what is written to: a file that nobody else sees, or nothing at all."""
    if target == "nowhere":
        descriptor = os.open("/dev/null", os.O_WRONLY)
        yield descriptor
        os.close(descriptor)
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        yield file.fileno()


def write(descriptor: int, parts: Sequence[memoryview], copy_bytes: int) -> None:
    """Write all pieces from the start of a file on."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    write_all(DISK, descriptor, gather_list(parts, copy_bytes))


def measure(
    mix: str, target: str, parts: list[memoryview], folder: Path, rounds: int
) -> tuple[Row, float]:
    """Return a row of times, and how fast the chosen threshold is over the best pure way."""
    chosen = measured_threshold()
    size_bytes, whole = sum(map(len, parts)), b"".join(parts)
    with opened(target, folder) as descriptor:
        if target != "nowhere":
            for copy_bytes in (*THRESHOLDS, chosen):
                write(descriptor, parts, copy_bytes)
                os.lseek(descriptor, 0, os.SEEK_SET)
                require(
                    os.pread(descriptor, size_bytes + 1, 0) == whole,
                    f"{mix} on {target} with {copy_bytes}: other bytes arrived",
                )
        names = {copy_bytes: _name(copy_bytes) for copy_bytes in THRESHOLDS}
        actions = {
            name: partial(write, descriptor, parts, copy_bytes)
            for copy_bytes, name in names.items()
        }
        actions["chosen"] = partial(write, descriptor, parts, chosen)
        seconds = time_in_turn(actions, rounds=rounds)
    best = min((seconds["0"], seconds["all"]), key=np.median)
    times: dict[str, float] = {
        name: float(np.median(taken)) * 1e3 for name, taken in seconds.items()
    }
    return {"mix": mix, "target": target, "pieces": len(parts), **times}, ratio(
        best, seconds["chosen"]
    )


def _name(copy_bytes: int) -> str:
    return "all" if copy_bytes == ALL else str(copy_bytes)


def main() -> None:
    """Sweep the thresholds."""
    made = parser(__doc__)
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = made.parse_args()
    small, width = (20_000, 128) if given.quick else (200_000, 256)
    rounds = 5 if given.quick else 11
    values, weights = pieces(cache_values(small)), pieces(transformer(width, 8))
    mixes = {
        "cache": values,
        "transformer": weights,
        "half": [*values[: small // 2], *weights[: len(weights) // 2]],
    }
    rows, claims = [], []
    for mix, parts in mixes.items():
        for target in ("memory", "disk", "nowhere"):
            folder = MEMORY if target == "memory" and MEMORY.is_dir() else given.folder
            row, speed = measure(mix, target, parts, folder, rounds)
            rows.append(row)
            if target == "memory":
                claims.append(Claim(f"gather_{mix}_over_best_pure", speed, ">=", GOAL))
    title = f"Milliseconds by threshold in bytes; measured: {measured_threshold()}"
    finish(title, rows, claims, given.json)


if __name__ == "__main__":
    main()
