"""The kernels find what the CPU finds, whatever the sizes, the alignment and the schedule.

Method: `twin.Twin` feeds a device and the CPU the same states and compares runs, ids,
digests and new bytes after each. The device is an emulator that runs the kernels as they
are; with a seed, its threads run in random order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import EmulatedDevice, aligned, compiler, on_device
from numpy.typing import NDArray
from twin import Twin, edited

from ckptflow.data.digest import digest_bytes, use
from ckptflow.errors import ConfigError, StateError
from ckptflow.gpu import plan
from ckptflow.gpu.device import DeviceArray
from ckptflow.gpu.diff import DeviceDiff, kept
from ckptflow.gpu.plan import Shape

Bytes = NDArray[np.uint8]
PAGE, CELLS, SMALL, WORDS = Shape(4096, 4096), Shape(4096, 256), Shape(192, 64), Shape(72, 24)
LONG = Shape(70_000, 70_000)


def noise(size_bytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8)


# --- digests -------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 4, 1])
@pytest.mark.parametrize("shape", [PAGE, CELLS, LONG], ids=str)
def test_the_golden_digests(repository: Path, shape: Shape, offset: int) -> None:
    golden = json.loads((repository / "tests" / "golden" / "ckh128.json").read_text())
    checked = 0
    for length, expected in golden["digests"].items():
        size = int(length)
        if not 0 < size <= shape.chunk_bytes:
            continue
        i = np.arange(size)
        message = aligned(((7 * i * i + 3 * i + (i >> 8)) % 256).astype(np.uint8), offset)
        diff = DeviceDiff(EmulatedDevice(shape), history_limit=10)
        found = diff.diff(on_device(message))
        assert digest_bytes(found.chunk_digests).hex() == expected
        checked += 1
    assert checked >= 14


# --- the same as the CPU -------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1], ids=["in order", "shaken"])
@pytest.mark.parametrize("shape", [PAGE, CELLS, SMALL, WORDS], ids=str)
def test_every_length_up_to_three_chunks(shape: Shape, seed: int) -> None:
    step = shape.cell_bytes if shape.chunk_bytes < 1000 else shape.chunk_bytes // 2
    whole = range(0, 3 * shape.chunk_bytes + 1, step)
    lengths = sorted({length + odd for length in whole for odd in (0, 1, 8, 13)})
    for number, length in enumerate(lengths):
        twin = Twin(EmulatedDevice(shape, blocks_max=2, seed=seed))
        data = np.repeat(noise(length // 16 + 1), 16)[:length]
        twin.diff(data, on_device(aligned(data, offset=(0, 4, 3)[number % 3])))
        twin.commit()
        if length:
            data = data.copy()
            data[-1] ^= 1
        twin.diff(data, on_device(aligned(data)))


@pytest.mark.parametrize("seed", [0, 3], ids=["in order", "shaken"])
@pytest.mark.parametrize("shape", [PAGE, CELLS, SMALL, WORDS], ids=str)
def test_edits_commits_and_rollbacks(shape: Shape, seed: int) -> None:
    rng = np.random.default_rng([shape.cell_bytes, seed])
    limit = 4 * shape.cells_per_chunk
    twin = Twin(EmulatedDevice(shape, blocks_max=5, seed=seed), history_limit=limit)
    states = {"a": noise(3 * shape.chunk_bytes + 11), "b": np.zeros(0, np.uint8)}
    for _ in range(30):
        changed = {name: edited(data, shape.chunk_bytes, rng) for name, data in states.items()}
        for name, data in changed.items():
            offset = int(rng.choice([0, 0, 0, 4, 1]))
            twin.diff(data, on_device(aligned(data, offset)), name)
        if rng.integers(0, 4):
            twin.commit()
            states = changed
        else:
            twin.rollback()
    assert twin.gpu.first_id > 0, "nothing was forgotten, so the limit was not tried"


def test_the_oracle_of_the_cpu_agrees() -> None:
    with use("numpy"):
        test_edits_commits_and_rollbacks(CELLS, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", [PAGE, CELLS, SMALL, WORDS, Shape(48, 16)], ids=str)
def test_many_edits(shape: Shape, seed: int) -> None:
    test_edits_commits_and_rollbacks(shape, seed + 10)


@pytest.mark.parametrize("shape", [PAGE, CELLS], ids=str)
def test_nothing_depends_on_the_number_of_blocks(shape: Shape) -> None:
    data = np.repeat(noise(40 * 1024), 4)[: 39 * 4096 + 100]
    data[4096:8192] = data[8192:12288]
    for blocks in (1, 2, 3, 7):
        twin = Twin(EmulatedDevice(shape, blocks_max=blocks))
        twin.diff(data, on_device(aligned(data)))
        twin.commit()
        changed = data.copy()
        changed[::9000] ^= 1
        twin.diff(changed, on_device(aligned(changed)))


@pytest.mark.parametrize("shape", [PAGE, CELLS], ids=str)
def test_more_new_bytes_than_are_staged(shape: Shape) -> None:
    """Some go to the staging buffer, the others straight to the host, in one launch."""
    data = noise(5 * plan.STAGING_BYTES_MIN // 2 + 3)
    device = EmulatedDevice(shape)
    Twin(device).diff(data, on_device(aligned(data)))
    staged = plan.STAGING_BYTES_MIN
    assert device.fetched_bytes == staged + len(plan.COUNTS) * 8 * device.blocks_used


def test_an_unchanged_region_hands_over_nothing() -> None:
    data = noise(9 * 4096 + 5)
    device = EmulatedDevice(CELLS)
    twin = Twin(device)
    twin.diff(data, on_device(aligned(data)))
    twin.commit()
    device.launched.clear()
    found = twin.diff(data, on_device(aligned(data)))
    assert len(found.runs) == len(found.payload) == 0
    assert "ck_gather" not in device.launched


def test_regions_share_first_occurrences() -> None:
    data = noise(4096)
    twin = Twin(EmulatedDevice(CELLS))
    first = twin.diff(data, on_device(aligned(data)), "a")
    second = twin.diff(data, on_device(aligned(data)), "b")
    assert len(first.payload) == 4096
    assert len(second.payload) == 0
    assert second.runs.ref.tolist() == [first.first_id]


def test_a_region_that_is_forgotten_starts_anew() -> None:
    data = noise(4096)
    twin = Twin(EmulatedDevice(CELLS))
    twin.diff(data, on_device(aligned(data)), "a")
    with pytest.raises(StateError, match=r"call commit\(\) or rollback\(\) first"):
        twin.gpu.forget("a")
    twin.commit()
    twin.forget("a")
    assert len(twin.diff(data, on_device(aligned(data)), "a").runs) == 1


@pytest.mark.parametrize("first_id", [1, 39, 10**12])
def test_ids_go_on_after_a_restart(first_id: int) -> None:
    twin = Twin(EmulatedDevice(CELLS), history_limit=40, first_id=first_id)
    for step in range(4):
        data = noise(6000, seed=step % 3)
        found = twin.diff(data, on_device(aligned(data)))
        assert step or found.first_id == first_id
        twin.commit()


@pytest.mark.parametrize("shape", [PAGE, CELLS], ids=str)
def test_a_region_that_is_larger_than_there_is_room_for(shape: Shape) -> None:
    """What shared memory held of earlier regions moves, and the table is filled anew."""
    device = EmulatedDevice(shape)
    twin = Twin(device)
    data = noise(90_000)
    twin.diff(data[:5000], on_device(aligned(data[:5000])), "a")
    device.launched.clear()
    found = twin.diff(data, on_device(aligned(data)), "b")
    assert device.launched[0] == "ck_enter_pending"
    assert len(found.payload) == 90_000 - 5000 // shape.cell_bytes * shape.cell_bytes
    twin.commit()
    data = data.copy()
    data[4999] ^= 1
    for name, size in (("b", 90_000), ("a", 5000), ("c", 200_000)):
        part = np.resize(data, size)
        twin.diff(part, on_device(aligned(part)), name)


@pytest.mark.parametrize("shape", [PAGE, CELLS], ids=str)
def test_a_diff_that_breaks_off_can_be_rolled_back(shape: Shape) -> None:
    """The device fails before every launch in turn; after a rollback all is as before."""
    data, other = noise(20_000), noise(30_000, seed=1)

    class Broken(EmulatedDevice):
        left = 1000

        def launch(self, launch: plan.Launch) -> None:
            self.left -= 1
            if self.left < 0:
                raise MemoryError
            super().launch(launch)

    for launches in range(plan.LAUNCHES_MAX - (2 if shape.cells_are_chunks else 1)):
        device = Broken(shape)
        twin = Twin(device)
        twin.diff(data, on_device(aligned(data)))
        twin.commit()
        twin.gpu.reserve({"": 30_000})
        device.left = launches
        with pytest.raises(MemoryError):
            twin.gpu.diff(on_device(aligned(other)))
        device.left = 1000
        with pytest.raises(StateError, match=r"broke off with an error.*call rollback\(\)"):
            twin.gpu.commit()
        with pytest.raises(StateError, match="broke off with an error"):
            twin.gpu.diff(on_device(aligned(other)))
        twin.rollback()
        twin.diff(other, on_device(aligned(other)))
        twin.commit()
        twin.diff(data, on_device(aligned(data)))


GUARDED = """
import ctypes, mmap, sys
import numpy as np
from emulated import EmulatedDevice, on_device
from twin import Twin
from ckptflow.gpu.plan import Shape

memory = mmap.mmap(-1, 64 * mmap.PAGESIZE)
view = np.frombuffer(memory, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
last = view[-mmap.PAGESIZE :].ctypes.data
assert libc.mprotect(ctypes.c_void_p(last), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
usable = view[: -mmap.PAGESIZE]
usable[:] = np.random.default_rng(0).integers(0, 256, usable.size, dtype=np.uint8)
for sizes in ((4096, 256), (72, 24)):
    twin = Twin(EmulatedDevice(Shape(*sizes)))
    for length in (1, 7, 15, 23, 4096, 5000, 9001, 8192):
        data = usable[usable.size - length :]
        twin.diff(data, on_device(data))
        twin.commit()
print("nothing beyond was read")
"""


def test_nothing_beyond_the_end_of_a_region_is_read() -> None:
    """The page after it cannot be read: in a process of its own, which would die."""
    compiler()
    result = subprocess.run(
        [sys.executable, "-c", GUARDED],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "nothing beyond was read\n", result.stderr


@pytest.mark.parametrize(
    ("held", "limit", "left"), [(5, 5, 5), (6, 5, 3), (7, 5, 3), (23, 5, 5), (100, 1, 1)]
)
def test_the_older_half_is_forgotten(held: int, limit: int, left: int) -> None:
    assert kept(held, limit) == left


# --- launches and memory -------------------------------------------------------------------


@pytest.mark.parametrize("shape", [PAGE, CELLS, WORDS], ids=str)
@pytest.mark.parametrize("chunks", [1, 50])
def test_launches_of_a_diff(shape: Shape, chunks: int) -> None:
    device = EmulatedDevice(shape)
    twin = Twin(device, history_limit=4000)  # Forgetting takes one launch more.
    data = noise(chunks * shape.chunk_bytes + 1)
    for _ in range(2):
        device.launched.clear()
        twin.diff(data, on_device(aligned(data)))
        assert len(device.launched) == (10 if shape.cells_are_chunks else 11)
        assert len(device.launched) <= plan.LAUNCHES_MAX
        device.launched.clear()
        twin.commit()
        assert device.launched == ["ck_commit"]
        data = noise(len(data), seed=1)


@pytest.mark.parametrize("shape", [PAGE, CELLS], ids=str)
def test_nothing_is_allocated_in_steady_state(shape: Shape) -> None:
    device = EmulatedDevice(shape)
    twin = Twin(device, history_limit=40)
    sizes = {"a": 20 * 4096 + 7, "b": 3000}
    for step in range(8):
        for name, size in sizes.items():
            data = noise(size, seed=step)  # Everything is new, which takes the most.
            twin.diff(data, on_device(aligned(data)), name)
        if step == 3:
            twin.rollback()
        else:
            twin.commit()
        if step == 1:
            device.allocations.clear()
    assert device.allocations == {}


@pytest.mark.parametrize("shape", [PAGE, CELLS, WORDS], ids=str)
def test_the_memory_is_what_the_plan_says(shape: Shape) -> None:
    sizes = {"a": 100_001, "b": 30_000, "c": 5}
    device = EmulatedDevice(shape)
    diff = DeviceDiff(device, history_limit=500)
    diff.reserve(sizes)
    expected = plan.device_bytes(shape, list(sizes.values()), 500, device.blocks_max)
    assert diff.memory_bytes == expected
    before = device.allocations["device"]
    for name, size in sizes.items():
        diff.diff(on_device(noise(size)), region=name)
    diff.commit()
    assert diff.memory_bytes == expected
    assert device.allocations["device"] == before


# --- errors --------------------------------------------------------------------------------


def test_a_region_is_compared_once_between_two_commits() -> None:
    diff = DeviceDiff(EmulatedDevice(CELLS), history_limit=10)
    array = on_device(noise(100))
    diff.diff(array, region="u")
    with pytest.raises(StateError, match=r"'u' was compared already; call commit\(\)"):
        diff.diff(array, region="u")
    diff.rollback()
    diff.diff(array, region="u")


def test_an_array_of_another_device_is_refused() -> None:
    diff = DeviceDiff(EmulatedDevice(CELLS), history_limit=10)
    with pytest.raises(StateError, match="device 1, not on device 0"):
        diff.diff(on_device(noise(100), device=1))
    assert diff.diff(on_device(noise(100))).first_id == 0


def test_more_cells_than_can_be_numbered_are_refused() -> None:
    device = EmulatedDevice(WORDS)
    diff = DeviceDiff(device, history_limit=10)
    with pytest.raises(ConfigError, match=r"too many cells of 24 bytes.*Use larger cells"):
        diff.diff(DeviceArray(0, 24 << 32, 0, None, None))
    assert device.launched == []


def test_a_history_needs_room_for_something() -> None:
    with pytest.raises(ConfigError, match="history_limit must be at least 1 cell, got 0"):
        DeviceDiff(EmulatedDevice(CELLS), history_limit=0)
