"""Bytes and speed of increments on states of all kinds, against compressing each state whole.

For every state of `state_sources.py`, in percent of its size: what zstd-1 and zstd-3 make of a
whole checkpoint, and what a save writes to a tier, packs and manifest together: for a full
checkpoint, for an increment as the mean of five, and for the last of these, since the size of
cells takes some saves to settle. Each is saved in the ways of `VARIANTS`.

The times are those of an increment, as a multiple of copying the state once, and of writing it
to a file as it is, both written with fsync; and of restoring the last increment, as a multiple
of restoring a full checkpoint of the same state. Peak is the most memory that Python and NumPy
take during one save, in percent of the state as well.

Files are in a temporary folder of ``TMPDIR``; reads come from the page cache. Every checkpoint
is restored and compared with the state.
"""

from __future__ import annotations

import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from report import Claim, Row, Value, arguments, finish, ratio, require, time_in_turn
from state_sources import CHECKPOINTS, STATES, State

from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to save.

    Attributes:
        options: arguments of `write_checkpoint`.
        parent_at_hand: whether the bytes of the checkpoint before are still in memory, as
            they are where a checkpointer has room for two, so that differences can be stored.
    """

    options: Mapping[str, Any]
    parent_at_hand: bool


VARIANTS = {
    "alone": Variant(options={"chunk_bytes": 4096}, parent_at_hand=False),
    "parent": Variant(options={"chunk_bytes": 4096}, parent_at_hand=True),
    "small": Variant(options={"chunk_bytes": 4096, "goal": "small"}, parent_at_hand=True),
}

LEVELS = (1, 3)  # Of zstd.


class Lineage:
    """Checkpoints of one state, written one after the other with the same arguments."""

    def __init__(self, folder: Path, variant: Variant) -> None:
        self.folder, self.variant = folder, variant
        self.tier = PosixTier(folder)
        self.base: Base | None = None
        self.count = 0

    def save(self, state: State) -> None:
        """Write the next checkpoint."""
        self.base = write_checkpoint(
            self.tier,
            LineageId("states", "task"),
            CheckpointId(self.count, 1),
            structure=None,
            regions=[
                NamedRegion(name, flat(array).data, array.itemsize)
                for name, array in state.items()
            ],
            base=self.base,
            **self.variant.options,
        )
        self.count += 1

    def keep(self, state: State) -> None:
        """Leave a copy of the state where the next save looks for the bytes of its parent."""
        if self.variant.parent_at_hand:
            assert self.base is not None
            self.base.memory.bytes_at_hand = {
                name: flat(array).copy().data for name, array in state.items()
            }

    def restore(self, into: State) -> None:
        """Read the newest checkpoint back."""
        assert self.base is not None
        buffers = [flat(array).data for array in into.values()]
        read_checkpoint([self.tier], self.base.manifest, buffers)

    def check(self, state: State, buffers: State) -> None:
        """Require that the newest checkpoint is the state."""
        for array in buffers.values():
            flat(array)[:] = 0xA5
        self.restore(buffers)
        same = all(np.array_equal(flat(state[name]), flat(buffers[name])) for name in state)
        require(same, "a checkpoint does not restore to the state that was saved")

    def stored_bytes(self) -> int:
        """Return the size of everything written until now."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


@dataclass(slots=True)
class Series:
    """What the checkpoints of one state took; one entry a checkpoint, the full one first."""

    bytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Saved(Series):
    """The same of ckptflow's, and what its last checkpoint took besides."""

    peak_bytes: int = 0
    restore_over_full: float = 0.0


@dataclass(slots=True)
class Measured:
    """All that was measured of one state."""

    size_bytes: int = 0
    copied_s: list[float] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    zstd: dict[int, Series] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)


def main() -> None:
    args = arguments(__doc__)
    rows: list[Row] = []
    for name, source in STATES.items():
        with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
            measured = measure(Path(folder), source(args.quick))
        rows += [row(name, variant, measured) for variant in VARIANTS]
    delta_pct = {
        row["state"]: float(row["delta_pct"]) for row in rows if row["saved"] == "alone"
    }
    claims = [
        Claim("unchanged_delta_pct", delta_pct["noise, unchanged"], "<=", 0.1),
        Claim("all_new_delta_pct", delta_pct["noise, all new"], "<=", 100.5),
    ]
    finish("Checkpoints of states of all kinds", rows, claims, args.json_path)


def measure(folder: Path, states: Iterator[State]) -> Measured:
    """Save every checkpoint in all ways, in turn, and restore it."""
    found = Measured(
        zstd={level: Series() for level in LEVELS}, saved={name: Saved() for name in VARIANTS}
    )
    lineages = {name: Lineage(folder / name, variant) for name, variant in VARIANTS.items()}
    buffers: State = {}
    for number, state in enumerate(states):
        if not buffers:
            buffers = {name: np.zeros_like(array) for name, array in state.items()}
            found.size_bytes = sum(array.nbytes for array in state.values())
        found.copied_s.append(timed(copy, state, buffers))
        found.written_s.append(timed(write, state, folder / "plain"))
        for level, series in found.zstd.items():
            squeeze(state, level, series)
        for name, lineage in lineages.items():
            save(lineage, state, found.saved[name], trace=number == CHECKPOINTS - 1)
            lineage.keep(state)
            lineage.check(state, buffers)
    for name, lineage in lineages.items():
        full = Lineage(folder / f"{name}, full", VARIANTS[name])
        full.save(state)
        full.check(state, buffers)
        found.saved[name].restore_over_full = restores(lineage, full, buffers)
    return found


def save(lineage: Lineage, state: State, found: Saved, *, trace: bool) -> None:
    """Save; with ``trace`` watch the memory and leave the time out, as watching takes some."""
    before = lineage.stored_bytes()
    if trace:
        tracemalloc.start()
        lineage.save(state)
        found.peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    else:
        found.seconds.append(timed(lineage.save, state))
    found.bytes.append(lineage.stored_bytes() - before)


def squeeze(state: State, level: int, found: Series) -> None:
    """Compress the state as one stream."""
    whole = np.concatenate([flat(array) for array in state.values()])
    compressor = zstandard.ZstdCompressor(level=level)
    began = time.perf_counter()
    found.bytes.append(len(compressor.compress(whole.data)))
    found.seconds.append(time.perf_counter() - began)


def restores(last: Lineage, full: Lineage, buffers: State) -> float:
    taken = time_in_turn(
        {"last": lambda: last.restore(buffers), "full": lambda: full.restore(buffers)},
        rounds=5,
    )
    return ratio(taken["last"], taken["full"])


def row(state: str, variant: str, found: Measured) -> Row:
    saved, size_bytes = found.saved[variant], found.size_bytes
    pct = 100 / size_bytes
    cells: dict[str, Value] = {"state": state, "MB": size_bytes / 1e6}
    for level, series in found.zstd.items():
        cells[f"zstd-{level}_pct"] = pct * fmean(series.bytes[1:])
        cells[f"zstd-{level}_MB/s"] = round(size_bytes / median(series.seconds[1:]) / 1e6)
    increments = slice(1, len(saved.seconds))
    return cells | {
        "saved": variant,
        "full_pct": pct * saved.bytes[0],
        "delta_pct": pct * fmean(saved.bytes[1:]),
        "last_pct": pct * saved.bytes[-1],
        "save_x_memcpy": ratio(saved.seconds[1:], found.copied_s[increments]),
        "save_x_write": ratio(saved.seconds[1:], found.written_s[increments]),
        "restore_x_full": saved.restore_over_full,
        "peak_pct": pct * saved.peak_bytes,
    }


def timed(action: Callable[..., object], *given: object) -> float:
    began = time.perf_counter()
    action(*given)
    return time.perf_counter() - began


def copy(state: State, buffers: State) -> None:
    for name, array in state.items():
        np.copyto(buffers[name], array)


def write(state: State, path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for array in state.values():
            file.write(array.data)
        os.fsync(file.fileno())


def flat(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous array, not a copy."""
    return array.reshape(-1).view(np.uint8)


if __name__ == "__main__":
    main()
