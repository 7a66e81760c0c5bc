"""The states and updates that ways to save are compared on, and the floors beside them.

States are arrays of normal fp32 numbers, no two of which are alike, each in memory of its own:
few large ones, or many small ones. An update changes some of the words in place, as a program
does between two saves, and says how many bytes it changed. The floors are what no way to save
can do without: one copy of the state, and one file of the bytes, written and synced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.float32]
State: TypeAlias = dict[str, Words]
Kind: TypeAlias = Literal["large", "small"]
Scale: TypeAlias = Literal["full", "quick", "tiny"]
Update: TypeAlias = Literal[
    "unchanged", "1 % contiguous", "5 % of rows", "1 % of words", "all words"
]

UPDATES: tuple[Update, ...] = get_args(Update)
WORD_BYTES = 4
ROW_WORDS = 1024  # Of 4 KiB, as rows of an embedding are.
SMALLEST_WORDS, LARGEST_WORDS = 1024, 16384  # Of the many small arrays: 4 to 64 KiB.
LARGE_WORDS: dict[Scale, tuple[int, int]] = {  # How many arrays, and how long.
    "full": (8, 16 << 20),
    "quick": (8, 2 << 20),
    "tiny": (4, 64 << 10),
}
SMALL_COUNT: dict[Scale, int] = {"full": 20_000, "quick": 2_000, "tiny": 100}

MATRIX = 256  # Rows and columns of what a step multiplies.
PIECES_A_CALL = 1024  # IOV_MAX of Linux.
CALL_BYTES = 64 << 20


def make_state(kind: Kind, scale: Scale) -> State:
    """Return a new state; equal arguments give equal states."""
    rng = np.random.default_rng(0)
    if kind == "large":
        count, words = LARGE_WORDS[scale]
        sizes = [words] * count
    else:
        logs = rng.uniform(np.log(SMALLEST_WORDS), np.log(LARGEST_WORDS), SMALL_COUNT[scale])
        sizes = [int(words) for words in np.exp(logs)]
    numbers = rng.standard_normal(max(sizes), dtype=np.float32)
    # Scaled differently, no two arrays have a row in common, and none compresses by another.
    scales = 1 + rng.permutation(len(sizes)) / len(sizes)
    return {
        f"layer{number:05d}.weight": numbers[:words] * np.float32(scale)
        for number, (words, scale) in enumerate(zip(sizes, scales, strict=True))
    }


def size_bytes(state: State) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for array in state.values())


class Updater:
    """Changes the words of one state, each time at other places."""

    def __init__(self, state: State, seed: int) -> None:
        self._arrays = list(state.values())
        self._ends = np.cumsum([len(array) for array in self._arrays])
        self._row_ends = np.cumsum([len(array) // ROW_WORDS for array in self._arrays])
        self._rng = np.random.default_rng(seed)
        self._grow = True
        self._ways: dict[Update, Callable[[], int]] = {
            "unchanged": lambda: 0,
            "1 % contiguous": self._contiguous,
            "5 % of rows": lambda: self._rows(0.05),
            "1 % of words": self._words,
            "all words": self._all,
        }

    def apply(self, update: Update) -> int:
        """Change the state; return how many bytes of it are others now."""
        return WORD_BYTES * self._ways[update]()

    def change_rows(self, share: float) -> int:
        """Change a share of the rows; return how many bytes these are."""
        return WORD_BYTES * self._rows(share)

    def _contiguous(self) -> int:
        total = int(self._ends[-1])
        count = total // 100
        start = int(self._rng.integers(0, total - count + 1))
        for array, begin, end in self._parts(np.array([start, start + count])):
            array[begin:end] = self._numbers(end - begin)
        return count

    def _parts(self, span: NDArray[np.int64]) -> Iterator[tuple[Words, int, int]]:
        """Yield what a span of all words, start and end, is of each array."""
        starts = self._ends - [len(array) for array in self._arrays]
        for number in np.flatnonzero((starts < span[1]) & (self._ends > span[0])):
            array, start = self._arrays[number], int(starts[number])
            yield array, max(0, int(span[0]) - start), min(len(array), int(span[1]) - start)

    def _rows(self, share: float) -> int:
        total = int(self._row_ends[-1])
        chosen = np.sort(self._rng.choice(total, int(total * share), replace=False))
        for array, rows in self._split(chosen, self._row_ends):
            whole = array[: len(array) // ROW_WORDS * ROW_WORDS].reshape(-1, ROW_WORDS)
            whole[rows] = self._numbers(rows.size * ROW_WORDS).reshape(-1, ROW_WORDS)
        return chosen.size * ROW_WORDS

    def _words(self) -> int:
        """Change one word of each hundred."""
        count = int(self._ends[-1]) // 100
        chosen = 100 * np.arange(count) + self._rng.integers(0, 100, count)
        for array, words in self._split(chosen, self._ends):
            array[words] = self._numbers(words.size)
        return count

    def _all(self) -> int:
        """Change every word, as an optimizer does; there and back, so that nothing grows."""
        factor = np.float32(1.001 if self._grow else 1 / 1.001)
        self._grow = not self._grow
        for array in self._arrays:
            np.multiply(array, factor, out=array)
        return int(self._ends[-1])

    def _split(
        self, chosen: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[tuple[Words, NDArray[np.int64]]]:
        """Yield each array with the sorted places ``chosen`` that lie in it."""
        cuts = np.concatenate([[0], np.searchsorted(chosen, ends)])
        starts = np.concatenate([[0], ends[:-1]])
        for number in np.flatnonzero(np.diff(cuts)):
            yield (
                self._arrays[number],
                chosen[cuts[number] : cuts[number + 1]] - starts[number],
            )

    def _numbers(self, count: int) -> Words:
        return self._rng.standard_normal(count, dtype=np.float32)


def negate(state: State) -> None:
    """Change the sign of every word, the last array first; twice leaves the same bits."""
    for array in reversed(state.values()):
        np.negative(array, out=array)


def copy(state: State, into: State) -> None:
    """Copy the state by one thread, array by array, to memory that is already there."""
    for array, target in zip(state.values(), into.values(), strict=True):
        np.copyto(target, array)


def write_synced(path: Path, state: State, count_bytes: int | None = None) -> None:
    """Write a new file of the bytes of a state, or of its first ``count_bytes``; sync it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for batch in batches(state, count_bytes):
            left = batch
            while left:
                left = _without(left, os.writev(file, left))
        os.fsync(file)
    finally:
        os.close(file)
    sync_path(path.parent)


def read_raw(path: Path, into: State) -> None:
    """Read such a file into the arrays of a state."""
    with path.open("rb", buffering=0) as file:
        for batch in batches(into, None):
            left = batch
            while left:
                read = os.readv(file.fileno(), left)
                if not read:
                    raise EOFError(f"{path} is shorter than the state.")
                left = _without(left, read)


def batches(state: State, count_bytes: int | None) -> Iterator[list[memoryview]]:
    """Yield pieces of the state, as many as one call of the system takes."""
    left = size_bytes(state) if count_bytes is None else count_bytes
    batch: list[memoryview] = []
    room = CALL_BYTES
    for array in state.values():
        view = memoryview(array).cast("B")[:left]
        left -= len(view)
        while len(view):
            batch.append(view[:room])
            view, room = view[room:], room - min(room, len(view))
            if not room or len(batch) == PIECES_A_CALL:
                yield batch
                batch, room = [], CALL_BYTES
    if batch:
        yield batch


def _without(pieces: list[memoryview], done: int) -> list[memoryview]:
    """Return what is left of the pieces after their first ``done`` bytes."""
    left = []
    for piece in pieces:
        if done < len(piece):
            left.append(piece[done:])
        done = max(0, done - len(piece))
    return left


def sync_path(path: Path) -> None:
    """Sync a file or a folder, if it is still there."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Compute:
    """A step: one thread multiplies small matrices, and often needs the interpreter."""

    def __init__(self, step_s: float) -> None:
        rng = np.random.default_rng(1)
        self._a = rng.standard_normal((MATRIX, MATRIX), dtype=np.float32)
        self._b = rng.standard_normal((MATRIX, MATRIX), dtype=np.float32)
        self._out = np.empty_like(self._a)
        self._count = 10
        self.step()  # Pages and threads are there from now on.
        for _ in range(2):
            self._count = max(1, int(self._count * step_s / timed(self.step)))

    def step(self) -> None:
        """Compute for about ``step_s``."""
        for _ in range(self._count):
            np.matmul(self._a, self._b, out=self._out)


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    with Timed() as taken:
        action()
    return taken.seconds


class Timed:
    """Seconds of a ``with`` block, and when it began."""

    began = seconds = 0.0

    def __enter__(self) -> Self:
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.began
