"""Arenas are made once, in a private place, with all of their memory; or it is said why not."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import (
    ConfigError,
    NotFoundError,
    TierDenied,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers import arena_file, numa
from ckptflow.tiers.arena import (
    ArenaDamagedError,
    _changes,
    _word,
    format_arena,
    is_formatted,
    slots_of,
)
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.probe import probe
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

PIB = 1 << 50


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    SharedMemoryTier(name, capacity_bytes=MIB).remove()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 4 MiB, bound to NUMA node 0 where the kernel can."""
    place = tmp_path / "tmpfs"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=1777", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount")
    if done.returncode:
        pytest.skip(f"may not mount a tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def save_once(tiers: list[Tier]) -> None:
    with Checkpointer(tiers) as ckpt:
        ckpt.restore({"x": np.ones(3)})
        ckpt.save(1, {"x": np.ones(3)}).wait(tiers[-1].level)


def test_file_and_folder_are_private(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=MIB)
    tier.put("key", [b"x"])
    assert tier.file == Path("/dev/shm") / f"ckptflow-{os.geteuid()}" / f"{name}.arena"
    assert stat.S_IMODE(tier.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(tier.file.parent.stat().st_mode) == 0o700


def test_all_of_the_memory_is_there_from_the_start(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=4 * MIB)
    tier.put("key", [b"x"])
    assert tier.file.stat().st_blocks * 512 >= 4 * MIB


def test_reading_makes_nothing(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=MIB)
    assert list(tier.iter_keys("")) == []
    assert tier.sweep() == 0
    tier.delete("key")
    with pytest.raises(NotFoundError, match="'key'"):
        tier.get("key")
    assert not tier.file.exists()
    assert tier.placement == f"{tier.file}, not made yet"


def test_without_room_the_next_tier_takes_over(name: str, tmp_path: Path) -> None:
    memory = SharedMemoryTier(name, capacity_bytes=PIB)
    tiers: list[Tier] = [memory, PosixTier(tmp_path / "store", name="disk")]
    with pytest.warns(CheckpointWarning, match=f"No room for 1.00 PiB for {memory.file}"):
        save_once(tiers)
    assert list(tiers[1].iter_keys("")) != []
    assert not memory.file.exists()


def test_a_small_memory_file_system_is_full_and_stays_empty(tmpfs: Path) -> None:
    tier = SharedMemoryTier("ram", capacity_bytes=8 * MIB, path=tmpfs)
    with pytest.raises(TierFull, match=r"No room for 8.00 MiB .*4.00 MiB are free"):
        tier.put("key", [b"x"])
    assert list(tier.file.parent.iterdir()) == []
    fits = SharedMemoryTier("ram", capacity_bytes=3 * MIB, path=tmpfs)
    fits.put("key", [os.urandom(2 * MIB)])
    with pytest.raises(TierFull, match=r"2.00 MiB of 'other'.*arena of 3.00 MiB"):
        fits.put("other", [os.urandom(2 * MIB)])
    fits.delete("key")
    fits.put("other", [os.urandom(2 * MIB)])


def test_to_try_it_out_leaves_no_memory_taken(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=2 * MIB)
    assert probe(tier).problem is None
    assert not tier.file.exists()
    tier.put("key", [b"value"])
    other = SharedMemoryTier(name, capacity_bytes=2 * MIB)
    assert "used" in probe(other).placement
    assert probe(tier).problem is None
    assert tier.get("key") == other.get("key") == b"value"


def test_a_half_made_arena_is_made_anew(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=2 * MIB)
    arena_file.make_own_folder(tier.file.parent)
    with tier.file.open("wb") as file:
        file.truncate(MIB)
    assert list(tier.iter_keys("")) == []
    tier.put("key", [b"value"])
    assert SharedMemoryTier(name, capacity_bytes=2 * MIB).get("key") == b"value"
    assert tier.file.stat().st_size == 2 * MIB


def test_something_else_is_not_overwritten(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=MIB)
    arena_file.make_own_folder(tier.file.parent)
    tier.file.write_bytes(b"precious" * 1000)
    for use in (lambda: tier.put("key", [b"x"]), lambda: tier.get("key")):
        with pytest.raises(TierDenied, match="something else than an arena lies there"):
            use()
    assert tier.file.read_bytes() == b"precious" * 1000


def test_a_link_is_not_followed(name: str, tmp_path: Path) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=MIB)
    arena_file.make_own_folder(tier.file.parent)
    (tmp_path / "other").write_bytes(b"")
    tier.file.symlink_to(tmp_path / "other")
    with pytest.raises(TierUnavailable, match=r"write 'key'.*symbolic links"):
        tier.put("key", [b"x"])
    assert (tmp_path / "other").read_bytes() == b""


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ckptflow"
    arena_file.make_own_folder(folder)
    folder.chmod(0o770)
    with pytest.raises(TierDenied, match="is not a folder of user"):
        arena_file.make_own_folder(folder)


def test_a_damaged_header_is_said() -> None:
    with arena_file.mmap.mmap(-1, MIB) as memory:
        assert not is_formatted(memory[:4096], MIB)
        format_arena(memory, MIB)
        assert is_formatted(memory[:4096], MIB)
        for end in range(0, 32, 8):  # Whoever made it died before it was done.
            half = bytes(8) + memory[8 : 8 + end] + bytes(4096 - 8 - end)
            assert not is_formatted(half, MIB)
        with pytest.raises(ArenaDamagedError, match="something else"):
            is_formatted(bytes(4095) + b"x", MIB)
        for at in range(24):
            broken = bytearray(memory[:4096])
            broken[at] ^= 4
            with pytest.raises(ArenaDamagedError, match=r"damaged|something else"):
                is_formatted(bytes(broken), MIB)
        with pytest.raises(ArenaDamagedError, match="damaged"):
            is_formatted(memory[:4096], MIB - 1)  # The file was cut.


def test_what_is_damaged_in_the_index_is_not_there(name: str) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=MIB)
    for key in ("a", "b", "c"):
        tier.put(key, [key.encode() * 100])
    mapped = tier._open()
    assert mapped is not None
    mapped.arena._rows[1, 1] += 64  # The size of b.
    start = int(mapped.arena._rows[2, 0])
    mapped.arena.bytes[start] ^= 1  # The key of c.
    again = SharedMemoryTier(name, capacity_bytes=MIB)
    assert list(again.iter_keys("")) == ["a"]
    assert again.get("a") == b"a" * 100
    assert again.sweep() == 2
    assert again.sweep() == 0
    again.put("b", [b"new"])
    assert list(again.iter_keys("")) == ["a", "b"]


def test_whatever_bits_of_the_index_flip_no_value_is_wrong(name: str) -> None:
    """A key that was deleted must not come back with the bytes of another."""
    rng = random.Random(3)
    tier = SharedMemoryTier(name, capacity_bytes=MIB)
    for key in ("old", "a", "b", "gone"):
        tier.put(key, [key.encode() * 1000])
    tier.delete("old")
    tier.delete("gone")
    tier.put("c", [b"c" * 2500])  # Where the old one was.
    mapped = tier._open()
    assert mapped is not None
    arena = mapped.arena
    index = arena.bytes[4096 : arena._first_bytes + 4000]
    good, places = index.copy(), [*range(48), *range(4096 * 8, 4096 * 8 + 4 * 32)]
    for number in range(400):
        for at in rng.sample(places, 1 + number % 3):
            index[at] ^= 1 << rng.randrange(8)
        again = SharedMemoryTier(name, capacity_bytes=MIB)
        found = {key: again.get(key) for key in again.iter_keys("")}
        again.sweep()
        assert found.items() <= {"a": b"a" * 1000, "b": b"b" * 1000, "c": b"c" * 2500}.items()
        arena_of = again._open()
        assert arena_of is not None
        arena_of.arena.close()
        index[:] = good


def test_every_bit_of_a_state_counts() -> None:
    for word in (_word(5, 12, 2), _word(0, 1, 0)):
        slot = 5 if word & 3 else 0
        assert _word(slot, _changes(word), word & 3) == word
        for bit in range(64):
            broken = word ^ 1 << bit
            assert _word(slot, _changes(broken), broken & 3) != broken


def test_an_arena_that_is_there_keeps_its_size(name: str) -> None:
    SharedMemoryTier(name, capacity_bytes=MIB).put("key", [b"x"])
    tier = SharedMemoryTier(name, capacity_bytes=8 * MIB)
    assert tier.get("key") == b"x"
    with pytest.raises(TierFull, match=r"an arena of 1.00 MiB.*remove .*\.arena"):
        tier.put("large", [bytes(2 * MIB)])
    assert tier.notes[0].startswith(f"Tier {name!r} has 1.00 MiB instead of 8.00 MiB")


def test_it_has_to_be_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(f"22 1 {number} / {tmp_path} rw - ext4 /dev/x rw,mpol=bind:1\n")
    assert arena_file.file_system_of(tmp_path, mounts) == ("ext4", "rw,mpol=bind:1\n".strip())
    if arena_file.file_system_of(tmp_path)[0] in arena_file.MEMORY_FILE_SYSTEMS:
        pytest.skip("the folder of the tests is memory itself")
    with pytest.raises(ConfigError, match=r"is on .*, which is no memory"):
        SharedMemoryTier(capacity_bytes=MIB, path=tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        SharedMemoryTier(capacity_bytes=MIB, path=tmp_path / "nothing")


@pytest.mark.parametrize("how", [{"node": 1023}, {"device": "/dev/dax99.0"}])
def test_what_cannot_be_had_falls_back_with_a_word(name: str, how: dict[str, object]) -> None:
    tier = SharedMemoryTier(name, capacity_bytes=MIB, **how)  # type: ignore[arg-type]
    (note,) = tier.notes
    assert note.startswith(f"Tier {name!r} uses ordinary shared memory: ")
    assert ("NUMA node 1023" in note) or ("/dev/dax99.0" in note)
    assert how.items() <= tier.spec.items()  # Elsewhere it may be had.
    with pytest.warns(CheckpointWarning, match="uses ordinary shared memory"):
        save_once([tier])
    assert list(SharedMemoryTier(name, capacity_bytes=MIB).iter_keys("")) != []
    with pytest.raises(ConfigError, match="cannot be as strict as asked"):
        SharedMemoryTier(name, capacity_bytes=MIB, strict=True, **how)  # type: ignore[arg-type]


def test_pages_are_on_the_node_that_was_named(name: str) -> None:
    if reason := numa.why_not(0):
        pytest.skip(reason)
    tier = SharedMemoryTier(name, capacity_bytes=2 * MIB, node=0, strict=True)
    tier.put("key", [b"x" * MIB])
    assert tier.placement.endswith("used, NUMA nodes: 0")
    assert tier.spec["node"] == 0


def test_the_size_of_a_device_is_that_of_the_kernel(tmp_path: Path) -> None:
    found = Path("/dev/null").stat().st_rdev
    folder = tmp_path / f"{os.major(found)}:{os.minor(found)}"
    folder.mkdir()
    (folder / "size").write_text(f"{5 * MIB}\n")
    assert arena_file.device_size_bytes(Path("/dev/null"), tmp_path) == 4 * MIB
    with pytest.raises(ConfigError, match="is no memory device"):
        arena_file.device_size_bytes(Path("/dev/zero"), tmp_path)
    with pytest.raises(ConfigError, match="is not a character device"):
        arena_file.device_size_bytes(tmp_path, tmp_path)


def test_the_number_of_values_grows_with_the_size() -> None:
    assert slots_of(MIB) == 4096
    assert slots_of(8 << 30) == 131_072
    assert slots_of(1 << 50) == 1 << 20


@pytest.mark.parametrize(
    "how",
    [
        {"capacity_bytes": 1000},
        {"capacity_bytes": MIB, "arena": "../x"},
        {"capacity_bytes": MIB, "node": -1},
        {"capacity_bytes": MIB, "node": 0, "device": "/dev/dax0.0"},
    ],
)
def test_what_makes_no_sense_is_refused(how: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"capacity|name of an arena|NUMA node|node of its own"
    ):
        SharedMemoryTier("ram", **how)  # type: ignore[arg-type]
