"""What a diff launches on a device, and how much memory it takes there."""

from __future__ import annotations

import re

import pytest

from ckptflow.errors import ConfigError
from ckptflow.gpu import plan
from ckptflow.gpu.plan import Shape

SHAPES = [Shape(4096, 4096), Shape(4096, 256), Shape(4096, 64), Shape(72, 24), Shape(24, 24)]
GIB = 1 << 30
BLOCKS = 3 * 132  # of the largest GPUs of today


class EveryName(dict[str, int]):
    """Stands for the arguments of the kernels."""

    def __missing__(self, name: str) -> int:
        return 0


# --- launches ------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [0, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_diff_takes_at_most_twelve_launches(shape: Shape, address: int) -> None:
    values = EveryName(data=address)
    launches = [*plan.find(shape, 3, values), *plan.hand_over(3, values)]
    assert len(launches) == (10 if shape.cells_are_chunks else 11)
    assert len(launches) <= plan.LAUNCHES_MAX == 12
    known = plan.kernels(shape)
    assert [launch.kernel for launch in launches if launch.kernel not in known] == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fast_kernels_read_whole_units_of_aligned_memory_only(shape: Shape) -> None:
    def scans(address: int) -> list[str]:
        launches = plan.find(shape, 3, EveryName(data=address))
        return [launch.kernel for launch in launches if "_scan_" in launch.kernel]

    assert all(name.endswith("_any") for name in scans(8))
    fast = [name for name in scans(16) if not name.endswith("_any")]
    sizes = {"ck_scan_chunks": shape.chunk_bytes, "ck_scan_cells": shape.cell_bytes}
    assert [name for name in fast if sizes[name] % 16] == []


def test_every_parameter_has_64_bits_and_is_explained() -> None:
    declared = re.findall(r"^CK_KERNEL \w+\(([^)]*)\)", plan.source(), flags=re.MULTILINE)
    parameters = [text.strip() for kernel in declared for text in kernel.split(",")]
    assert [text for text in parameters if "*" not in text and "ckh_u64 " not in text] == []
    names = {name for kernel in plan.parameters().values() for name in kernel}
    text = plan.source()
    assert {name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2} == set()


def test_the_source_is_one_text() -> None:
    assert '#include "' not in plan.source()
    assert "#pragma once" not in plan.source()
    assert plan.source().count("ckh_final(ckh_u64 w0") == 1


@pytest.mark.parametrize(
    ("size_bytes", "blocks"),
    [(0, 1), (1, 1), (16 * 4096, 1), (16 * 4096 + 1, 2), (GIB, BLOCKS)],
)
def test_small_regions_take_few_blocks(size_bytes: int, blocks: int) -> None:
    assert plan.block_count(Shape(4096, 4096), size_bytes, BLOCKS) == blocks


# --- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("state_bytes", [GIB, GIB + 777, 64 * GIB])
@pytest.mark.parametrize(("cell_bytes", "goal"), [(4096, 0.02), (256, 0.3)])
def test_extra_memory_on_the_device(state_bytes: int, cell_bytes: int, goal: float) -> None:
    shape = Shape(4096, cell_bytes)
    limit = plan.default_history_limit(shape, state_bytes)
    needed = plan.device_bytes(shape, [state_bytes], limit, BLOCKS)
    assert 0.5 * goal < needed / state_bytes <= goal


@pytest.mark.parametrize("cell_bytes", [4096, 256])
def test_many_regions_need_no_more_than_one(cell_bytes: int) -> None:
    shape = Shape(4096, cell_bytes)
    limit = plan.default_history_limit(shape, GIB)
    one = plan.device_bytes(shape, [GIB], limit, BLOCKS)
    many = plan.device_bytes(shape, [GIB // 64] * 64, limit, BLOCKS)
    assert many <= one


@pytest.mark.parametrize("limit", [1, 1000, 10**6])
def test_a_fifth_of_the_table_stays_empty(limit: int) -> None:
    for cells in (0, 1, 999, 10**6):
        assert 5 * (cells + limit) <= 4 * plan.slot_count(cells, limit)


# --- sizes that cannot be ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk_bytes", "cell_bytes", "message"),
    [
        (4096, 0, "cell_bytes must be a multiple of 8 and at least 16, got 0"),
        (4096, 8, "cell_bytes must be a multiple of 8 and at least 16, got 8"),
        (4096, 100, "cell_bytes must be a multiple of 8 and at least 16, got 100"),
        (4096, 8192, "chunk_bytes must be a multiple of cell_bytes, got 4096 and 8192"),
        (4096, 48, "chunk_bytes must be a multiple of cell_bytes, got 4096 and 48"),
        (1 << 21, 256, "chunk_bytes must be at most 1048576 on a GPU, got 2097152"),
    ],
)
def test_sizes_that_cannot_be(chunk_bytes: int, cell_bytes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Shape(chunk_bytes, cell_bytes)
