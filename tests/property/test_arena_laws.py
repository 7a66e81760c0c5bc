"""An arena whose writers die before any of their stores, next to others that live on.

A process that dies is one whose stores stop: `Crash` is raised before the first that is not
made, and before all later ones. The kernel would then give its locks back, which closing does
here. Real processes are killed in ``tests/process/test_shared_memory.py``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ckptflow.errors import AlreadyExists, NotFoundError, TierFull
from ckptflow.testing.faults import Crash
from ckptflow.tiers.arena import Arena, ArenaDamagedError
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.units import MIB

KEYS = ["a", "b/c", "b/d", "e" * 150]


def opened(arena: str) -> SharedMemoryTier:
    return SharedMemoryTier("shm", arena=arena, capacity_bytes=MIB)


def arena_of(tier: SharedMemoryTier) -> Arena:
    mapped = tier._open(make=True)
    assert mapped is not None
    return mapped.arena


def value(number: int, size_bytes: int) -> bytes:
    return random.Random(number).randbytes(size_bytes)


class Dying:
    """Counts the stores of a tier, and dies before one of them."""

    def __init__(self, tier: SharedMemoryTier, at: int | None = None) -> None:
        self.tier, self.at, self.stores = tier, at, 0
        arena_of(tier)._before_store = self.count

    def count(self, _what: str) -> None:
        self.stores += 1
        if self.at is not None and self.stores > self.at:
            raise Crash

    def bury(self) -> None:
        arena_of(self.tier).close()


def contents(tier: SharedMemoryTier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys("")}


def extents(tier: SharedMemoryTier) -> int:
    """Return what the values take, by the format."""
    return sum(
        -(-len(key) // 64) * 64 + -(-tier.size(key) // 64) * 64 for key in contents(tier)
    )


def taken(tier: SharedMemoryTier) -> int:
    arena = arena_of(tier)
    return arena.used_bytes() - arena._first_bytes


@pytest.fixture
def arena() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    opened(name).remove()


STORY = [
    ("put", "a", value(1, 1000)),
    ("put", "b/c", value(2, 70_000)),
    ("create", "b/d", value(3, 10)),
    ("put", "a", value(4, 500)),
    ("delete", "b/c", b""),
    ("put", "b/c", value(5, 300_000)),
    ("put", "b/c", value(6, 200_000)),
    ("delete", "a", b""),
]


def tell(tier: SharedMemoryTier, done: list[dict[str, bytes]]) -> None:
    """Do what the story says; keep what is there after each of its steps."""
    for verb, key, data in STORY:
        now = dict(done[-1])
        match verb:
            case "put":
                tier.put(key, [data[:7], data[7:]])
                now[key] = data
            case "create":
                tier.create(key, data)
                now[key] = data
            case "delete":
                tier.delete(key)
                del now[key]
        done.append(now)


def test_death_before_every_store_leaves_before_or_after(arena: str) -> None:
    undisturbed = Dying(opened(arena))
    states: list[dict[str, bytes]] = [{}]
    tell(undisturbed.tier, states)
    assert undisturbed.stores > 40
    for at in range(undisturbed.stores):
        opened(arena).remove()
        dying, done = Dying(opened(arena), at), [{}]
        witness = opened(arena)
        contents(witness)
        with pytest.raises(Crash):
            tell(dying.tier, done)
        dying.bury()
        before, after = states[len(done) - 1], states[len(done)]
        for tier in (witness, opened(arena)):
            assert contents(tier) in (before, after), at
            tier.sweep()
            assert taken(tier) == extents(tier), at
        witness.put("goes-on", [b"x"])
        assert opened(arena).get("goes-on") == b"x"


class ArenaMachine(RuleBasedStateMachine):
    """Three processes use one arena; now and then one dies half way and a new one comes."""

    processes = st.integers(0, 2)
    keys = st.sampled_from(KEYS)
    sizes = st.one_of(st.integers(0, 200), st.integers(0, 300_000))

    def __init__(self) -> None:
        super().__init__()
        self.arena = f"test-{uuid.uuid4().hex}"
        self.model: dict[str, bytes] = {}
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.tiers = [opened(self.arena) for _ in range(3)]
        for tier in self.tiers:
            arena_of(tier)

    def teardown(self) -> None:
        opened(self.arena).remove()

    def fresh(self, size_bytes: int) -> bytes:
        self.number += 1
        return value(self.number, size_bytes)

    @rule(process=processes, key=keys, size=sizes)
    def put(self, process: int, key: str, size: int) -> None:
        data = self.fresh(size)
        try:
            self.tiers[process].put(key, [data])
        except TierFull:
            return
        self.model[key] = data

    @rule(process=processes, key=keys)
    def put_the_same_again(self, process: int, key: str) -> None:
        if key in self.model:
            self.tiers[process].put(key, [self.model[key]])

    @rule(process=processes, key=keys, size=sizes)
    def create(self, process: int, key: str, size: int) -> None:
        data = self.fresh(size)
        try:
            self.tiers[process].create(key, data)
        except TierFull:
            assert key not in self.model
        except AlreadyExists:
            assert key in self.model
        else:
            assert key not in self.model
            self.model[key] = data

    @rule(process=processes, key=keys)
    def delete(self, process: int, key: str) -> None:
        self.tiers[process].delete(key)
        self.model.pop(key, None)

    @rule(process=processes, key=keys, size=sizes, at=st.integers(0, 14), deletes=st.booleans())
    def die(self, process: int, key: str, size: int, at: int, *, deletes: bool) -> None:
        data, dying = self.fresh(size), Dying(self.tiers[process], at)
        try:
            if deletes:
                dying.tier.delete(key)
            else:
                dying.tier.put(key, [data])
        except (Crash, TierFull):
            pass
        dying.bury()
        self.tiers[process] = opened(self.arena)
        found = contents(self.tiers[(process + 1) % 3])
        changed = {**self.model, key: data}
        if deletes:
            changed.pop(key)
        assert found in (self.model, changed)
        self.model = found

    @rule(process=processes)
    def sweep(self, process: int) -> None:
        self.tiers[process].sweep()
        assert taken(self.tiers[process]) == extents(self.tiers[process])

    @rule(process=processes, key=keys, start=st.integers(0, 400), size=st.integers(0, 400))
    def get_a_range(self, process: int, key: str, start: int, size: int) -> None:
        try:
            found = self.tiers[process].get(key, start_bytes=start, size_bytes=size)
        except NotFoundError:
            assert key not in self.model
        else:
            assert found == self.model[key][start : start + size]

    @invariant()
    def all_see_the_same(self) -> None:
        for tier in getattr(self, "tiers", []):
            assert contents(tier) == self.model


def test_processes_that_die_at_random_agree_with_a_model() -> None:
    run_state_machine_as_test(ArenaMachine)


@pytest.mark.parametrize("seen_from", ["another process", "the same process"])
def test_room_of_a_writer_that_lives_is_its_own(arena: str, seen_from: str) -> None:
    writer = opened(arena)
    entry = arena_of(writer).reserve("slow", 700_000)
    other = opened(arena) if seen_from == "another process" else writer
    assert other.sweep() == 0
    with pytest.raises(TierFull, match="no room"):
        other.put("large", [bytes(500_000)])
    arena_of(writer).view(entry)[:] = 7
    arena_of(writer).publish(entry, "slow")
    assert other.get("slow") == b"\7" * 700_000


def test_room_of_a_dead_writer_is_found_when_it_is_needed(arena: str) -> None:
    writer, other = opened(arena), opened(arena)
    arena_of(writer).reserve("slow", 700_000)
    arena_of(other)
    arena_of(writer).close()
    other.put("large", [value(1, 500_000)])
    assert contents(opened(arena)) == {"large": value(1, 500_000)}


def test_a_slot_that_was_damaged_while_it_was_written_is_not_published(arena: str) -> None:
    tier, other = opened(arena), opened(arena)
    entry = arena_of(tier).reserve("key", 1000)
    arena_of(tier)._states[entry.slot] ^= 1 << 20
    assert other.sweep() == 1
    other.put("other", [b"x" * 1000])
    with pytest.raises(ArenaDamagedError, match="changed while it was written"):
        arena_of(tier).publish(entry, "key")
    arena_of(tier).abandon(entry)
    assert contents(tier) == {"other": b"x" * 1000}
