"""The emulator notices what would go wrong on a device.

Method: one barrier of the kernels is taken away at a time, or the atomic operation that
settles which of equal cells is the first, and the comparison with the CPU has to fail. The
states have many equal cells. Two kernels of our own show that a barrier which not all threads
reach is told, and that atomics of several blocks add up.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from both import Both
from emulated import Deadlock, EmulatedDevice, aligned, build, compiler, on_device
from numpy.typing import NDArray
from twin import Twin, edited

from ckptflow.data.snapshot import DIGEST
from ckptflow.gpu import plan
from ckptflow.gpu.plan import Shape

SHAPE = Shape(96, 48)
NEEDED = re.compile(r"__syncthreads\(\);|if \(seen & CK_PENDING\) atomicMin\(.*\);")
FILES = ("kernels.cu", "gpu_order.cuh", "gpu_table.cuh", "gpu_capture.cuh")


def needed() -> list[tuple[str, int]]:
    """The file and the place in it of every barrier, and of the atomic minimum."""
    return [
        (name, found.start())
        for name in FILES
        for found in NEEDED.finditer((plan.NATIVE / name).read_text())
    ]


def without(statement: tuple[str, int], folder: Path) -> Path:
    """A copy of the sources that lacks a statement."""
    for path in plan.NATIVE.glob("*"):
        if path.suffix in {".cu", ".cuh", ".h", ".hpp", ".inc"}:
            shutil.copy(path, folder)
    name, start = statement
    text = (folder / name).read_text()
    (folder / name).chmod(0o644)
    (folder / name).write_text(text[:start] + NEEDED.sub("", text[start:], count=1))
    return folder


def agrees_with_the_cpu(kernels: ctypes.CDLL) -> bool:
    rng = np.random.default_rng(7)
    for seed in range(12):
        device = EmulatedDevice(SHAPE, blocks_max=1 + seed % 3, seed=seed, kernels=kernels)
        twin = Twin(device)
        cells = rng.integers(0, 256, (40, SHAPE.cell_bytes), dtype=np.uint8)
        data = cells[rng.integers(0, 40, 1300)].ravel()
        try:
            for offset in (0, 8, 4):
                twin.diff(data, on_device(aligned(data, offset)))
                twin.commit()
                data = edited(data, SHAPE.chunk_bytes, rng)
                data[::991] ^= 1
            captures(device, data)
        except (AssertionError, Deadlock):
            return False
    return True


def captures(device: EmulatedDevice, data: NDArray[np.uint8]) -> None:
    both = Both(device, lambda data: on_device(aligned(data)))
    for _ in range(2):
        both.see({"a": data, "b": data[:777]})
        both.take(np.full(2, DIGEST), np.array([3, 1], np.uint64))
        both.keep()
        data = data.copy()
        data[::991] ^= 1


def test_there_is_something_to_take_away() -> None:
    assert {name for name, _ in needed()} == set(FILES)


def test_with_all_of_it_the_kernels_agree_with_the_cpu() -> None:
    assert agrees_with_the_cpu(build(SHAPE))


def every_third_is_fast(number: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (number % 3 != 0)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            statement, id=f"{statement[0]} {number}", marks=every_third_is_fast(number)
        )
        for number, statement in enumerate(needed())
    ],
)
def test_what_is_missing_is_caught(statement: tuple[str, int], tmp_path: Path) -> None:
    """In a process of its own: wrong numbers may be wrong addresses."""
    compiler()
    script = (
        "import sys, test_emulator as t\n"
        f"kernels = t.build(t.SHAPE, t.without({statement}, t.Path({str(tmp_path)!r})))\n"
        "sys.exit(0 if t.agrees_with_the_cpu(kernels) else 77)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong, crashed = result.returncode == 77, result.returncode < 0
    assert wrong or crashed, result.stderr


OWN_KERNELS = """
#include "emulator.hpp"

extern "C" __global__ void half_wait(unsigned *out) {
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void lowest(unsigned long long *out) {
    for (unsigned i = 0; i < 50; i++) atomicMin(out, 1000ull * gridDim.x - blockIdx.x);
    unsigned long long seen;
    do seen = out[1]; while (atomicCAS(out + 1, seen, seen + 1) != seen);
}
extern "C" int run(int which, unsigned threads, unsigned long long seed, void *out) {
    return emulator::launch(9, threads, 2, seed, [=] {
        if (which == 0) half_wait((unsigned *)out);
        if (which == 1) lowest((unsigned long long *)out);
    });
}
"""


@pytest.fixture(scope="module")
def own_kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.cpp").write_text(OWN_KERNELS)
    command = [compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread"]
    command += ["-U_FORTIFY_SOURCE", f"-I{plan.NATIVE}", "own.cpp", "-o", "own.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "own.so"))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_barrier_that_some_threads_never_reach_is_told(
    own_kernels: ctypes.CDLL, seed: int
) -> None:
    out = (ctypes.c_uint * 64)()
    assert own_kernels.run(0, 64, ctypes.c_uint64(seed), out) == 0


def test_a_deadlock_names_the_kernel() -> None:
    class Stuck:
        def emulate(self, *_: object) -> int:
            return 1

    device = EmulatedDevice(SHAPE, kernels=Stuck())  # type: ignore[arg-type]
    with pytest.raises(Deadlock, match="ck_commit"):
        device.launch(plan.Launch("ck_commit", 1, ()))


@pytest.mark.parametrize("seed", [0, 1])
def test_atomics_of_all_blocks_count(own_kernels: ctypes.CDLL, seed: int) -> None:
    out = (ctypes.c_uint64 * 2)(1 << 60, 0)
    assert own_kernels.run(1, 64, ctypes.c_uint64(seed), out) == 1
    assert list(out) == [9 * 1000 - 8, 9 * 64]


def test_blocks_of_different_sizes_follow_each_other(own_kernels: ctypes.CDLL) -> None:
    """In a process of its own: a stack that is too small is no error but a crash."""
    script = f"""
import ctypes
kernels = ctypes.CDLL({own_kernels._name!r})
for threads in (32, 64, 1024, 64, 256):
    out = (ctypes.c_uint64 * 2)(1 << 60, 0)
    assert kernels.run(1, threads, ctypes.c_uint64(1), out) == 1
    assert out[1] == 9 * threads, (threads, out[1])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, (result.returncode, result.stderr)
