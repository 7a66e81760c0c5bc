"""What a capture on a device asks of it: launches, memory, copies; and what if it fails.

``test_capture_laws.py`` shows that what comes of it is right.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from both import Both
from emulated import EmulatedDevice, HostArray, LateDevice, aligned, compiler, on_device
from numpy.typing import NDArray

from ckptflow.data.digest import chunk_digests
from ckptflow.data.snapshot import DIGEST, NOTHING, WHOLE, Parent, Places, Snapshot
from ckptflow.errors import ConfigError
from ckptflow.gpu import plan
from ckptflow.gpu.capture import DeviceCapture
from ckptflow.gpu.plan import Launch, Shape

Bytes = NDArray[np.uint8]
PAGE, WORDS = Shape(4096, 4096), Shape(72, 24)
LAUNCHES = ["ck_scan_rows", "ck_hold_grains", "ck_list_chunks", "ck_take_chunks"]


def noise(size_bytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8)


def both_on(device: EmulatedDevice) -> Both:
    return Both(device, lambda data: on_device(aligned(data)))


def changed(data: Bytes, *at: int) -> Bytes:
    data = data.copy()
    data[list(at)] ^= 1
    return data


# --- the device --------------------------------------------------------------------------


@pytest.mark.parametrize("regions", [1, 300])
def test_launches_do_not_depend_on_the_number_of_regions(regions: int) -> None:
    device = EmulatedDevice(WORDS)
    both = both_on(device)
    both.see({str(n): noise(100 + n) for n in range(regions)})
    both.take(np.full(regions, DIGEST))
    assert device.launched == LAUNCHES
    device.launched.clear()
    both.keep()
    both.begin()
    both.take(np.full(regions, DIGEST))
    assert device.launched == LAUNCHES[:2], "nothing changed, so nothing is collected"


def test_only_what_changed_goes_to_the_host() -> None:
    device = EmulatedDevice(PAGE)
    both = both_on(device)
    data = noise(100 * 4096)
    both.see({"a": data})
    both.take(np.array([DIGEST]))
    both.keep()
    both.see({"a": changed(data, 5 * 4096, 50 * 4096)})
    device.fetched_bytes, counts = 0, 2 * 8 * device.blocks_max
    assert both.take(np.array([DIGEST])) == 2 * 4096
    assert device.fetched_bytes == plan.piece_bytes(PAGE, 2) + counts


def test_more_than_two_pieces_take_turns() -> None:
    """With a device that copies late: a buffer that is used too early has the wrong bytes."""
    device = LateDevice(PAGE)
    both = both_on(device)
    data = noise(7 * plan.PIECE_BYTES_MIN // 2 + 3)
    both.see({"a": data})
    both.take(np.array([WHOLE]))
    assert device.launched.count("ck_take_chunks") == 4


def test_nothing_is_allocated_or_uploaded_in_steady_state() -> None:
    written: list[int] = []

    class Watched(EmulatedDevice):
        def write(self, target: HostArray, data: Bytes) -> None:
            written.append(len(data))
            super().write(target, data)

    device = Watched(PAGE)
    both = both_on(device)
    both.see({"a": noise(40 * 4096 + 9), "b": noise(10)})
    for step in range(4):
        both.take(np.full(2, DIGEST))
        both.keep()
        both.begin()
        both.arrays[0].owner[step] ^= 1
        both.data[0][step] ^= 1
        if step == 1:
            written.clear()
            device.allocations.clear()
    assert (written, device.allocations) == ([], {})


@pytest.mark.parametrize("shape", [PAGE, WORDS], ids=str)
def test_the_memory_is_what_the_plan_says(shape: Shape) -> None:
    device = EmulatedDevice(shape)
    capture = DeviceCapture(device)
    places = Places.of([100_001, 30_000, 5], shape.chunk_bytes)
    capture.prepare(places, np.arange(3))
    chunks = sum(shape.chunks(size) for size in (100_001, 30_000, 5))
    expected = plan.capture_sizes(shape, 3, chunks, device.blocks_max)
    assert capture.memory_bytes == sum(expected.values())
    assert device.allocations["host"] == plan.PIECES


@pytest.mark.parametrize("chunks", [1 << 18, 1 << 24])
def test_memory_as_a_part_of_the_state(chunks: int) -> None:
    needed = sum(plan.capture_sizes(PAGE, 1000, chunks, 3 * 132).values())
    assert needed / (chunks * 4096) < 0.027


def test_more_chunks_than_can_be_numbered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = DeviceCapture(EmulatedDevice(WORDS))
    monkeypatch.setattr(plan, "CELLS_MAX", 99)  # Else the table alone would take gigabytes.
    message = "have 100 chunks of 72 bytes; 99 can be captured there. Use larger chunks"
    with pytest.raises(ConfigError, match=message):
        capture.prepare(Places.of([7200], 72), np.arange(1))
    capture.prepare(Places.of([7100], 72), np.arange(1))


# --- snapshots ---------------------------------------------------------------------------


def test_no_more_is_held_than_there_is_room_for() -> None:
    both = both_on(LateDevice(WORDS))
    both.see({"a": noise(1000)})
    assert both.take(np.array([DIGEST]), limit_bytes=999) is None
    assert both.take(np.array([DIGEST | WHOLE]), limit_bytes=1000) == 1000


def test_some_regions_now_and_others_later() -> None:
    """Both parts of a snapshot are compared with the one before, and the next with both."""
    device = LateDevice(WORDS)
    both = both_on(device)
    state = {name: noise(1000, seed) for seed, name in enumerate("abc")}
    parts = [np.array([DIGEST, NOTHING, DIGEST]), np.array([NOTHING, DIGEST, NOTHING])]
    for step in range(3):
        both.see(state)
        ready = both.capture.now(both.regions)
        both.take(parts[0])
        both.take(parts[1], after=ready, spoil=False)
        held = both.gpu.held.sum()
        assert held == (both.places.chunks if step == 0 else 3)
        assert both.capture.torn(both.gpu, both.regions, np.ones(3, np.bool_), ready) == []
        both.keep()
        state = {name: changed(data, 3) for name, data in state.items()}


def test_a_region_that_was_written_to_is_found() -> None:
    both = both_on(LateDevice(WORDS))
    both.see({name: noise(1000, seed) for seed, name in enumerate("abcd")}, on_host=["a"])
    both.take(np.full(4, DIGEST))
    both.arrays[1].owner[999] ^= 1
    both.arrays[2].owner[0] ^= 1
    every = np.ones(4, np.bool_)
    assert both.capture.torn(both.gpu, both.regions, every) == [2, 3]
    assert both.capture.torn(both.gpu, both.regions, np.arange(4) < 3) == [2]
    both.keep()
    both.begin()
    both.arrays[1].owner[999] ^= 1
    both.arrays[2].owner[0] ^= 1
    assert both.take(np.full(4, DIGEST)) == 0, "what is compared with is the snapshot"


def test_digests_that_others_computed_are_brought_to_the_device() -> None:
    """A copy is digested by who writes it; so is a checkpoint that was restored."""
    both = both_on(LateDevice(WORDS))
    data = {"a": noise(1000), "b": noise(500)}
    both.see(data)
    both.take(np.array([WHOLE, DIGEST]))
    for snapshot in (both.cpu, both.gpu):
        snapshot.learn(0, chunk_digests(data["a"], 72))
    both.keep()
    both.see({"a": changed(data["a"], 100), "b": changed(data["b"], 0)})
    assert both.take(np.full(2, DIGEST)) == 2 * 72


def test_digests_of_long_ago_are_not_compared_with() -> None:
    """They lie where those of the snapshot before would, but nobody knows these."""
    both = both_on(LateDevice(WORDS))
    both.see({"a": noise(1000), "b": noise(500)})
    for how, taken in ((DIGEST, 1500), (DIGEST, 0), (WHOLE, 1500), (DIGEST, 1500)):
        both.begin()
        assert both.take(np.full(2, how)) == taken
        both.keep()


def test_a_transfer_that_a_later_one_took_the_place_of_is_not_finished() -> None:
    both = both_on(LateDevice(WORDS))
    both.see({"a": noise(1000)})
    arguments = {
        "parent": Parent(both.gpu, None), "grain": np.ones(1, np.uint64), "limit_bytes": 9999
    }  # fmt: skip
    arenas = np.zeros((2, both.places.arena_bytes), np.uint8)
    how = np.array([WHOLE])
    first, second = (
        both.capture.capture(both.gpu, both.regions, how, arena=arena, **arguments)
        for arena in arenas
    )
    assert first is not None
    assert second is not None
    with pytest.raises(AssertionError, match="a later capture has taken its place"):
        first.finish()
    second.finish()
    assert not arenas[0].any()
    np.testing.assert_array_equal(arenas[1][:1000], both.data[0])


def test_a_capture_that_breaks_off_leaves_the_next_as_it_would_be() -> None:
    """The device fails before every launch and every copy in turn."""

    class Broken(LateDevice):
        left = 1000

        def launch(self, launch: Launch) -> None:
            self.left -= 1
            if self.left < 0:
                raise MemoryError
            super().launch(launch)

        def read(self, source: HostArray, size_bytes: int) -> Bytes:
            self.left -= 1
            if self.left < 0:
                raise MemoryError
            return super().read(source, size_bytes)

    data = noise(2000)
    for left in range(len(LAUNCHES) + 1):
        device = Broken(WORDS)
        both = both_on(device)
        both.see({"a": data})
        both.take(np.array([DIGEST]))
        both.keep()
        both.see({"a": changed(data, 100, 900)})
        device.left = left
        with pytest.raises(MemoryError):
            both.take(np.array([DIGEST]))
        device.left = 1000
        both.see({"a": changed(data, 200, 900)})
        assert both.take(np.array([DIGEST])) == 2 * 72


GUARDED = """
import ctypes, mmap, sys
import numpy as np
from both import Both
from emulated import EmulatedDevice, on_device
from ckptflow.data.snapshot import DIGEST
from ckptflow.gpu.plan import Shape

memory = mmap.mmap(-1, 64 * mmap.PAGESIZE)
view = np.frombuffer(memory, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
last = view[-mmap.PAGESIZE :].ctypes.data
assert libc.mprotect(ctypes.c_void_p(last), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
usable = view[: -mmap.PAGESIZE]
usable[:] = np.random.default_rng(0).integers(0, 256, usable.size, dtype=np.uint8)
for chunk_bytes in (4096, 72):
    both = Both(EmulatedDevice(Shape(chunk_bytes, chunk_bytes)), on_device)
    for length in (1, 7, 15, 23, 4096, 5000, 9001, 8192):
        both.see({"a": usable[usable.size - length :]})
        both.take(np.array([DIGEST]), np.array([2], np.uint64), spoil=False)
print("nothing beyond was read")
"""


def test_nothing_beyond_the_end_of_a_region_is_read() -> None:
    """The page after it cannot be read: in a process of its own, which would die."""
    compiler()
    result = subprocess.run(
        [sys.executable, "-c", GUARDED],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "nothing beyond was read\n", result.stderr


def test_a_snapshot_of_a_state_that_moved_and_grew() -> None:
    both = both_on(LateDevice(WORDS))
    data = noise(1000)
    both.see({"a": data, "b": noise(300)})
    both.take(np.full(2, DIGEST))
    both.keep()
    both.see({"new": noise(5000, 1), "a": np.append(changed(data, 0), data), "b": data[:0]})
    taken = both.take(np.full(3, DIGEST))
    assert taken == 5000 + 2000 - 12 * 72
    assert isinstance(both.gpu, Snapshot)
