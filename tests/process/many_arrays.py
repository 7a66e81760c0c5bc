"""Save and restore many small arrays with few file descriptors; prints what came back."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

import numpy as np  # noqa: E402 - the limit holds from the start.

from ckptflow import Checkpointer  # noqa: E402


def state(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    blob = rng.integers(0, 256, 64 * count, dtype=np.uint8)
    return {f"a{i}": blob[64 * i : 64 * i + 1 + i % 64].copy() for i in range(count)}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    with Checkpointer(folder) as ckpt:
        first = state(count, 1)
        ckpt.save(1, first).wait()
        for name in list(first)[::7]:
            first[name] += 1
        ckpt.save(2, first).wait()
    with Checkpointer(folder) as ckpt:
        print("anew", same(ckpt.restore(), first))
    with Checkpointer(folder) as ckpt:
        target = state(count, 2)
        arrays = list(target.values())
        print("in place", same(ckpt.restore(target), first))
        print("kept", all(a is b for a, b in zip(arrays, target.values(), strict=True)))


if __name__ == "__main__":
    main()
