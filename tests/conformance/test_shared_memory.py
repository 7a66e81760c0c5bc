"""A tier in shared memory passes the suite, on its own and seen from two processes' sides."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from ckptflow.errors import AlreadyExists, ConfigError, TierFull
from ckptflow.site import Site
from ckptflow.site.tiers import open_tiers, tier_model
from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB


@pytest.fixture
def shared() -> Iterator[SharedMemoryTier]:
    tier = SharedMemoryTier(f"test-{uuid.uuid4().hex}", capacity_bytes=4 * MIB)
    yield tier
    tier.remove()


class TestSharedMemoryTier(TierConformance):
    @pytest.fixture
    def tier(self, shared: SharedMemoryTier) -> Tier:
        return shared


def versioned(number: int) -> bytes:
    """Return a value in which every byte tells which one it is."""
    return bytes([number % 251]) * (100_000 + number)


def test_readers_never_see_what_a_writer_puts_in_the_place_of_a_value(
    shared: SharedMemoryTier,
) -> None:
    """The memory of what is replaced is used again at once, while it is being read."""
    rounds, stop, wrong = 300, threading.Event(), []
    reads = [0, 0]
    shared.put("key", [versioned(0)])

    def read(number: int, tier: SharedMemoryTier) -> None:
        try:
            while not stop.is_set():
                data = tier.get("key")
                assert data == versioned(len(data) - 100_000)
                head = bytearray(90_000)
                tier.read_into("key", head)
                assert len(set(head)) == 1
                reads[number] += 1
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            wrong.append(error)

    other = SharedMemoryTier(shared.name, capacity_bytes=4 * MIB)
    readers = [
        threading.Thread(target=read, args=(number, tier))
        for number, tier in enumerate((shared, other))
    ]
    for reader in readers:
        reader.start()
    number = 0
    while not wrong and (number < rounds or min(reads) < 20):
        number += 1
        shared.put("key", [versioned(number)])
        shared.put(f"noise/{number % 5}", [bytes([number % 251]) * 70_000])
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_create_has_one_winner_among_processes_sides(shared: SharedMemoryTier) -> None:
    tiers = [SharedMemoryTier(shared.name, capacity_bytes=4 * MIB) for _ in range(4)]
    barrier, winners = threading.Barrier(4), []

    def compete(tier: SharedMemoryTier, number: int) -> None:
        barrier.wait()
        for key in range(50):
            try:
                tier.create(f"claims/{key}", b"%d" % number)
            except AlreadyExists:
                continue
            winners.append((key, number))

    threads = [
        threading.Thread(target=compete, args=(tier, number))
        for number, tier in enumerate(tiers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in winners) == list(range(50))
    assert all(shared.get(f"claims/{key}") == b"%d" % number for key, number in winners)


def test_whoever_comes_first_makes_it(shared: SharedMemoryTier) -> None:
    tiers = [SharedMemoryTier(shared.name, capacity_bytes=4 * MIB) for _ in range(8)]
    barrier = threading.Barrier(len(tiers))

    def put(number: int) -> None:
        barrier.wait()
        tiers[number].put(str(number), [b"%d" % number])

    threads = [threading.Thread(target=put, args=(number,)) for number in range(len(tiers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [shared.get(str(number)) for number in range(8)] == [b"%d" % n for n in range(8)]


def test_what_is_freed_is_used_again_before_fresh_memory(shared: SharedMemoryTier) -> None:
    for number in range(50):
        shared.put(f"values/{number}", [bytes(300_000)])
        if number >= 2:
            shared.delete(f"values/{number - 2}")
    mapped = shared._open()
    assert mapped is not None
    used_to = int(mapped.arena._header[9])
    assert used_to - mapped.arena._first_bytes <= 4 * 300_500


def test_it_is_full_by_room_not_by_count_and_says_how_much_is_left(
    shared: SharedMemoryTier,
) -> None:
    for number in range(3):
        shared.put(str(number), [os.urandom(MIB)])
    with pytest.raises(TierFull, match=r"no room for the 1.00 MiB of '3'.*largest free range"):
        shared.put("3", [os.urandom(MIB)])
    shared.put("1", [shared.get("1")])  # The same bytes need no second room.
    with pytest.raises(AlreadyExists, match="'1'"):
        shared.create("1", os.urandom(MIB))
    shared.delete("1")
    shared.put("3", [os.urandom(MIB)])
    assert list(shared.iter_keys("")) == ["0", "2", "3"]


def test_all_slots_can_be_taken(shared: SharedMemoryTier) -> None:
    for number in range(4096):
        shared.put(str(number), [b"x"])
    with pytest.raises(TierFull, match="all 4096 slots are taken"):
        shared.put("more", [b"x"])
    shared.delete("17")
    shared.put("more", [b"y"])
    assert shared.get("more") == b"y"


def test_a_spec_and_an_address_open_the_same_arena(shared: SharedMemoryTier) -> None:
    shared.put("key", [b"value"])
    again = open_tier(shared.spec)
    assert again.spec == shared.spec
    assert again.get("key") == b"value"
    spec = spec_of(f"shm://{shared.name}?capacity=4MiB")
    assert spec["capacity_bytes"] == 4 * MIB
    assert open_tier(spec).get("key") == b"value"


@pytest.mark.parametrize("url", ["shm://", "shm://a", "shm://a/b?capacity=1GiB", "shm://../x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write shm://NAME\?capacity=8GiB"):
        spec_of(url)


def test_a_site_gives_each_store_an_arena_of_its_own(tmp_path: Path) -> None:
    def file_of(store: str, **more: object) -> Path:
        models = [
            tier_model({"kind": "shared_memory", "name": "ram", "capacity": "1 MiB", **more}),
            tier_model({"kind": "posix", "name": "pfs", "level": 3, "path": tmp_path / store}),
        ]
        tier = open_tiers(models)[0]
        assert isinstance(tier, SharedMemoryTier)
        return tier.file

    assert file_of("a") == file_of("a") != file_of("b")
    assert file_of("a", arena="mine") == file_of("b", arena="mine")


def test_a_site_of_memory_alone_is_for_threads_only() -> None:
    ram = {"kind": "shared_memory", "name": "ram", "capacity": "1 MiB"}
    with pytest.raises(ValidationError, match="give the site a tier outside of memory"):
        Site.model_validate({"name": "a", "tiers": [ram]})
    site = Site.model_validate({"name": "a", "tiers": [ram], "executor": {"kind": "threads"}})
    assert site.open_tiers()[0].spec["arena"] == "ram"
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Site.model_validate({"name": "a", "tiers": [{**ram, "level": 3}]})
