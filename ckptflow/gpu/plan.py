"""Which kernels a diff on a device launches, with what, and how much memory that takes.

Pure: no device is touched here. Names and parameters of the kernels are read from their
source, so a launch cannot name one that does not exist or leave out an argument. A diff is
one list of launches, one look at four counts, and a second list; together at most
`LAUNCHES_MAX`, whatever the size of the region and however much of it has changed:
``tests/gpu_emulated/test_plan.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ckptflow.data.buffers import Bytes
from ckptflow.data.ckh128 import level0_keys
from ckptflow.errors import ConfigError

NATIVE = Path(__file__).resolve().parent.parent / "native"

LAUNCHES_MAX = 12  # of one diff
THREADS = 256  # of a block; CK_THREADS of the kernels
CHUNK_BYTES_MAX = 1 << 20  # Keys of the second level have to fit into shared memory.
CELLS_MAX = (1 << 32) - 1  # Lists hold numbers of cells as 32 bits.
CHUNKS_PER_BLOCK_MIN = 16  # Fewer are not worth another block.

STAGING_BYTES_MIN, STAGING_BYTES_MAX = 64 << 10, 64 << 20
PIECES = 2  # of a capture, one on its way to the host while the other is collected
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 1 << 20, 64 << 20
BYTES_PER_NUMBER = {"digests": 16, "kinds": 1, "refs": 8, "list": 4}
_DIGEST, _NUMBER, _SLOT, _COUNT = 16, 4, 8, 8  # bytes on the device
_ROW = 48  # of a capture: six numbers of 64 bits
COUNTS = ("chunk_counts", "cell_counts", "new_counts", "run_counts")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of chunks and cells, which are fixed when the kernels are compiled.

    Raises:
        ConfigError: no region can be cut this way, or the kernels cannot.
    """

    chunk_bytes: int
    cell_bytes: int

    def __post_init__(self) -> None:
        chunk, cell = self.chunk_bytes, self.cell_bytes
        if cell < 16 or cell % 8:
            raise ConfigError(
                f"cell_bytes must be a multiple of 8 and at least 16, got {cell}."
            )
        if chunk < cell or chunk % cell:
            raise ConfigError(
                f"chunk_bytes must be a multiple of cell_bytes, got {chunk} and {cell}."
            )
        if chunk > CHUNK_BYTES_MAX:
            raise ConfigError(
                f"chunk_bytes must be at most {CHUNK_BYTES_MAX} on a GPU, got {chunk}."
            )

    @property
    def cells_are_chunks(self) -> bool:
        """Whether there is one size only, so that each digest is computed once."""
        return self.chunk_bytes == self.cell_bytes

    @property
    def cells_per_chunk(self) -> int:
        """Cells of a whole chunk."""
        return self.chunk_bytes // self.cell_bytes

    def chunks(self, size_bytes: int) -> int:
        """Return how many chunks a region has; the last may be short."""
        return -(-size_bytes // self.chunk_bytes)

    def cells(self, size_bytes: int) -> int:
        """Return how many cells a region has; the last may be short."""
        return -(-size_bytes // self.cell_bytes)

    def numbers(self, size_bytes: int) -> int:
        """Return how many cells are numbered if every chunk of a region has changed."""
        return self.chunks(size_bytes) * self.cells_per_chunk


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with its arguments, each a 64-bit number or address."""

    kernel: str
    blocks: int
    arguments: tuple[int, ...]


@cache
def source() -> str:
    """Return the source of the kernels as one text, with what it includes.

    CuPy keeps compiled kernels by the text that it is given, so this has to be all of it.
    """
    seen: set[str] = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (NATIVE / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        return re.sub(
            r'^#include "([^"]+)"$', lambda found: expand(found[1]), text, flags=re.MULTILINE
        )

    return expand("kernels.cu")


@cache
def parameters() -> Mapping[str, tuple[str, ...]]:
    """Return the names of the parameters of each kernel, as its source has them."""
    found = re.findall(r"^CK_KERNEL (\w+)\(([^)]*)\)", source(), flags=re.MULTILINE)
    return {
        name: tuple(re.findall(r"(\w+)\s*(?:,|$)", declared.strip()))
        for name, declared in found
    }


def kernels(shape: Shape) -> list[str]:
    """Return the kernels that there are for one shape."""
    absent = {"ck_find_fills"}
    if shape.cells_are_chunks:
        absent = {"ck_scan_cells", "ck_scan_cells_any", "ck_list_cells"}
    if shape.chunk_bytes % 16:
        absent |= {"ck_scan_chunks"}
    if shape.cell_bytes % 16:
        absent |= {"ck_scan_cells"}
    return [name for name in parameters() if name not in absent]


def options(shape: Shape) -> tuple[str, ...]:
    """Return what the compiler of the kernels has to be told."""
    return (
        "-std=c++17",
        f"-DCK_CHUNK={shape.chunk_bytes}",
        f"-DCK_CELL={shape.cell_bytes}",
        f"-DCK_THREADS={THREADS}",
    )


def launch(kernel: str, blocks: int, values: Mapping[str, int]) -> Launch:
    """Return a launch that takes each argument from ``values`` by its name."""
    return Launch(kernel, blocks, tuple(values[name] for name in parameters()[kernel]))


def block_count(shape: Shape, size_bytes: int, blocks_max: int) -> int:
    """Return how many blocks every launch for one region has."""
    return max(1, min(blocks_max, -(-shape.chunks(size_bytes) // CHUNKS_PER_BLOCK_MIN)))


def find(shape: Shape, blocks: int, values: Mapping[str, int]) -> list[Launch]:
    """Return what finds the changes of a region and leaves the four counts.

    ``values`` has every name that the source of the kernels explains; ``data`` decides by
    its alignment whether the fast kernels can be used.
    """
    aligned = values["data"] % 16 == 0
    whole_chunks = aligned and shape.chunk_bytes % 16 == 0
    whole_cells = aligned and shape.cell_bytes % 16 == 0
    scan = ["ck_scan_chunks" if whole_chunks else "ck_scan_chunks_any", "ck_list_chunks"]
    if shape.cells_are_chunks:
        scan += ["ck_find_fills"]
    else:
        scan += ["ck_scan_cells" if whole_cells else "ck_scan_cells_any", "ck_list_cells"]
    order = [*scan, "ck_insert", "ck_resolve", "ck_number", "ck_count_runs"]
    return [launch(kernel, blocks, values) for kernel in order]


def hand_over(blocks: int, values: Mapping[str, int]) -> list[Launch]:
    """Return what gives the host the runs, the digests of changed chunks, and new bytes."""
    order = ["ck_emit_runs", "ck_emit_chunks", "ck_gather"]
    return [launch(kernel, blocks, values) for kernel in order]


def key_bytes() -> Bytes:
    """Return the keys of the first level, as ``ckh128_keys.inc`` has them."""
    passes = level0_keys()  # Each of the four is shifted by two numbers of 64 bits.
    return np.concatenate([passes[0], passes[3][-6:]]).astype("<u8").view(np.uint8)


# --- memory ------------------------------------------------------------------------------


def staging_bytes(shape: Shape, state_bytes: int) -> int:
    """Return the size of the buffer for new bytes on the device, a multiple of a cell."""
    wanted = min(max(state_bytes // 1024, STAGING_BYTES_MIN), STAGING_BYTES_MAX)
    return -(-wanted // shape.cell_bytes) * shape.cell_bytes


def slot_count(cells: int, history_limit: int) -> int:
    """Return the size of the table: at most four fifths of it can ever be in use."""
    return (cells + history_limit) * 5 // 4 + 1


def region_sizes(shape: Shape, size_bytes: int) -> dict[str, int]:
    """Return bytes of what one region keeps on the device."""
    chunks = shape.chunks(size_bytes) * _DIGEST
    if shape.cells_are_chunks:
        return {"old_chunks": chunks}
    cells = shape.cells(size_bytes) * _DIGEST
    return {"old_chunks": chunks, "new_chunks": chunks, "old_cells": cells}


def shared_sizes(
    shape: Shape,
    sizes_bytes: Sequence[int],
    history_limit: int,
    blocks: int,
    numbers: int | None = None,
) -> dict[str, int]:
    """Return bytes of what all regions share on the device.

    ``numbers``: how many cells are numbered if that is more than these regions need.
    """
    if numbers is None:
        numbers = sum(shape.numbers(size) for size in sizes_bytes)
    chunk_list = 0 if shape.cells_are_chunks else numbers // shape.cells_per_chunk * _NUMBER
    return {
        "changed": max((shape.chunks(size) for size in sizes_bytes), default=0),
        "chunk_list": chunk_list,
        **{name: numbers * each for name, each in BYTES_PER_NUMBER.items()},
        "log": history_limit * _DIGEST,
        "slots": slot_count(numbers, history_limit) * _SLOT,
        "staging": staging_bytes(shape, sum(sizes_bytes)),
        "counts": len(COUNTS) * blocks * _COUNT,
        "keys": len(key_bytes()),
    }


def device_bytes(
    shape: Shape, sizes_bytes: Sequence[int], history_limit: int, blocks: int
) -> int:
    """Return all memory that a diff of these regions takes on the device, at any time."""
    shared = shared_sizes(shape, sizes_bytes, history_limit, blocks)
    regions = [region_sizes(shape, size) for size in sizes_bytes]
    return sum(shared.values()) + sum(sum(region.values()) for region in regions)


def default_history_limit(shape: Shape, state_bytes: int) -> int:
    """Return a limit that keeps the memory within 0.3 of the state at cells of 256 bytes.

    At cells of 4 KiB it is within 0.02. The history then remembers half of the state.
    """
    return max(1024, shape.cells(state_bytes) // 2)


# --- capture -----------------------------------------------------------------------------


def scan_all(blocks: int, values: Mapping[str, int]) -> list[Launch]:
    """Return what digests and compares all rows of a capture, and counts what is held."""
    return [launch(kernel, blocks, values) for kernel in ("ck_scan_rows", "ck_hold_grains")]


def list_held(shape: Shape, blocks: int, values: Mapping[str, int]) -> Launch:
    """Return what lists the chunks that are held, after `scan_all` and on as many blocks."""
    as_a_region = {
        "changed": values["held"],
        "length": values["chunk_total"] * shape.chunk_bytes,
        "chunk_counts": values["held_counts"],
        "first_number": 0,
    }
    return launch("ck_list_chunks", blocks, {**values, **as_a_region})


def piece_chunks(shape: Shape, chunks: int) -> int:
    """Return how many chunks of so many a piece has: a 128th, within limits."""
    wanted = min(max(chunks * shape.chunk_bytes // 128, PIECE_BYTES_MIN), PIECE_BYTES_MAX)
    return max(1, min(wanted // shape.chunk_bytes, chunks))


def piece_bytes(shape: Shape, chunks: int) -> int:
    """Return how long a piece of so many chunks is, with their digests and numbers."""
    return chunks * (_DIGEST + shape.chunk_bytes + _NUMBER)


def capture_sizes(shape: Shape, rows: int, chunks: int, blocks: int) -> dict[str, int]:
    """Return bytes of each array that a capture of so many regions keeps on the device."""
    piece = piece_bytes(shape, piece_chunks(shape, chunks))
    return {
        "rows": rows * _ROW,
        "row_of": chunks * _NUMBER,
        "old_chunks": chunks * _DIGEST,
        "new_chunks": chunks * _DIGEST,
        "changed": chunks,
        "held": chunks,
        "listed": chunks * _NUMBER,
        "counts": 2 * blocks * _COUNT,
        "keys": len(key_bytes()),
        **{f"piece{number}": piece for number in range(PIECES)},
    }
