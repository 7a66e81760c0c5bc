"""The kernels compile for every GPU that is in use, and to the code that they were written for.

No driver and no device is needed. Without the wheels of the extra ``dev`` these tests are
skipped and name the one that is missing.
"""

from __future__ import annotations

from functools import cache

import pytest

from ckptflow.gpu import plan
from ckptflow.gpu.cuda import BLOCKS_PER_MULTIPROCESSOR
from ckptflow.gpu.plan import Shape
from ckptflow.testing import gpu_code
from ckptflow.testing.gpu_code import ARCHITECTURES, Code, DoesNotCompile, NotHere

CELLS = Shape(4096, 256)
FAST = {70, 90, 120}  # the oldest, the one that is looked into, the newest
REGISTERS = 65_536  # of a multiprocessor
SCANS = ["ck_scan_chunks", "ck_scan_cells", "ck_scan_rows"]
LANES_PER_S = 132 * 128 * 1.98e9  # instructions that all lanes of an H200 can issue
MEMORY_BYTES_PER_S = 4.3e12  # that its memory can read


@cache
def compiled(shape: Shape, architecture: int) -> bytes:
    try:
        return gpu_code.compile_kernels(shape, architecture)
    except NotHere as error:
        pytest.skip(str(error))


@cache
def code(shape: Shape) -> dict[str, Code]:
    try:
        return gpu_code.read_code(compiled(shape, 90))
    except NotHere as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(number, id=f"sm_{number}", marks=[pytest.mark.slow] * (number not in FAST))
        for number in ARCHITECTURES
    ],
)
def test_the_kernels_compile(architecture: int) -> None:
    assert compiled(CELLS, architecture).startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [Shape(72, 24), Shape(1 << 20, 1 << 20), Shape(64, 16)])
def test_other_shapes_compile(shape: Shape) -> None:
    assert set(code(shape)) == set(plan.kernels(shape))


def test_what_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(CELLS, 90)
    monkeypatch.setattr(plan, "source", lambda: "int f() { return nothing; }")
    with pytest.raises(DoesNotCompile, match='identifier "nothing" is undefined'):
        gpu_code.compile_kernels(CELLS, 90)


@pytest.mark.parametrize(
    "shape", [CELLS, pytest.param(Shape(4096, 64), marks=pytest.mark.slow)], ids=str
)
def test_no_kernel_spills(shape: Shape) -> None:
    found = code(shape)
    assert set(found) == set(plan.kernels(shape))
    assert {name: kernel.spills for name, kernel in found.items() if kernel.spills} == {}
    assert {name: kernel for name, kernel in found.items() if kernel.stack_bytes} == {}


@pytest.mark.parametrize("kernel", SCANS)
def test_enough_blocks_fit_on_a_multiprocessor(kernel: str) -> None:
    registers = code(CELLS)[kernel].registers
    assert 32 < registers <= REGISTERS / (BLOCKS_PER_MULTIPROCESSOR * plan.THREADS)


@pytest.mark.parametrize("kernel", SCANS)
def test_the_hot_loop_reads_units_of_16_bytes(kernel: str) -> None:
    loop = code(CELLS)[kernel].loops[0]
    assert loop.loads == 8
    # Eight multiplications are what the digest of 16 bytes is.
    assert 64 <= loop.multiplications <= 70


@pytest.mark.parametrize("kernel", ["ck_gather", "ck_take_chunks"])
def test_new_bytes_are_copied_in_units_of_16_bytes(kernel: str) -> None:
    assert code(CELLS)[kernel].wide_loads


@pytest.mark.parametrize("kernel", ["ck_scan_chunks", "ck_scan_rows"])
def test_instructions_leave_room_above_the_speed_of_memory(kernel: str) -> None:
    each = gpu_code.instructions_per_byte(code(CELLS)[kernel], 4096)
    assert each > 2, "less than the multiplications alone: the loops were misread"
    assert LANES_PER_S / each >= 1.5 * MEMORY_BYTES_PER_S
