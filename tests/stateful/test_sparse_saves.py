"""Snapshots that hold only what changed, on tiers that fail: what is durable is what was saved.

A state machine drives a checkpointer whose regions change, grow, come and go, in all modes of
capture, over two tiers that fail at any call, or for a while; whenever a ticket calls a save
durable, a restore of it gives the bits of the call. And a sparse save is killed before each of
its writes.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import ckptflow as cf
from ckptflow.data import snapshot as snapshots
from ckptflow.data.regions import flatten
from ckptflow.data.snapshot import Parent, Places, Snapshot
from ckptflow.errors import CheckpointError, TierUnavailable
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.completion import NO_SOURCES, Sources
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.crashes import crash_everywhere
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

CHUNK, SIZE_MAX = 64, 2000
NAMES = ["a", "b", "c"]
EDITS = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.integers(0, SIZE_MAX), min_size=1, max_size=3)
)
MODES = ["diff-first", "lazy", {"a": "lazy", "b": "diff-first", "*": "copy"}]


class Trouble:
    """Makes calls to a tier fail: from the one with a certain number on, and how many."""

    def __init__(self) -> None:
        self.after, self.left = 0, 0

    def __call__(self, operation: str, key: str) -> None:
        if self.after:
            self.after -= 1
        elif self.left:
            self.left -= 1
            raise TierUnavailable(f"{operation} {key} was made to fail")


def bits(state: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: data.tobytes() for name, data in state.items()}


class SparseSaves(RuleBasedStateMachine):
    """One task that saves what it likes; the model keeps a copy of each saved state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [MemoryTier("near", level=1), MemoryTier("far", level=2)]
        self.trouble = [Trouble(), Trouble()]
        self.state: dict[str, np.ndarray] = {}
        self.saved: dict[int, dict[str, bytes]] = {}
        self.tickets: list[cf.Ticket] = []
        self.clock_s = 0.0

    @initialize(
        mode=st.sampled_from(MODES),
        budget=st.sampled_from([1 << 30, 1 << 14, 4000, 0]),
        cell=st.sampled_from([None, 16, 64, 256]),
    )
    def begin(self, mode: Any, budget: int, cell: int | None) -> None:
        """Begin a task with two regions of noise."""
        tiers = [
            FaultyTier(tier, trouble)
            for tier, trouble in zip(self.inner, self.trouble, strict=True)
        ]
        self.ckpt = cf.Checkpointer(
            tiers,
            every="never",
            keep="all",
            rng=False,
            budget_bytes=budget,
            capture=mode,
            flush_every={"far": 3},
            packing=cf.Packing(chunk_bytes=CHUNK, cell_bytes=cell),
        )
        self.ckpt.health.clock_s = lambda: self.clock_s
        self.ckpt.restore({})
        for name in NAMES[:2]:
            self.state[name] = np.random.default_rng(len(name)).bytes(1000)
            self.state[name] = np.frombuffer(self.state[name], np.uint8).copy()

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, SIZE_MAX))
    def resize(self, name: str, size: int) -> None:
        """Make a region longer or shorter; one that is not there is made."""
        self.ckpt.wait_captured()
        old = self.state.get(name, np.full(1, 7, np.uint8))
        self.state[name] = np.resize(old, size) if len(old) else np.zeros(size, np.uint8)

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name: str) -> None:
        """Take a region out of the state."""
        self.ckpt.wait_captured()
        self.state.pop(name, None)

    @rule(
        which=st.sampled_from([(0,), (1,), (0, 1)]),
        after=st.integers(0, 12),
        count=st.sampled_from([1, 4, 500]),
    )
    def fail(self, which: tuple[int, ...], after: int, count: int) -> None:
        """Let calls to a tier fail, or to both."""
        for number in which:
            self.trouble[number].after, self.trouble[number].left = after, count

    @rule(which=st.integers(0, 1))
    def heal(self, which: int) -> None:
        """Let a tier work again; time passes until it is tried."""
        self.trouble[which].left = 0
        self.clock_s += 10_000

    @rule(saves=st.lists(st.tuples(EDITS, st.booleans()), min_size=2, max_size=5))
    def save(self, saves: list[tuple[dict[str, list[int]], bool]]) -> None:
        """Change a little and save, some times; the next may come before one is written."""
        for edits, waits in saves:
            self.ckpt.wait_captured()
            for name, places in edits.items():
                if len(data := self.state.get(name, np.zeros(0, np.uint8))):
                    data[np.array(places, np.intp) % len(data)] += 1
            step = len(self.saved)
            self.saved[step] = bits(self.state)
            self.tickets.append(self.ckpt.save(step, self.state))
            if waits:
                self.wait()

    @precondition(lambda self: self.tickets)
    @rule()
    def wait(self) -> None:
        """Wait for the newest save, whatever becomes of it."""
        try:
            self.tickets[-1].wait()
        except CheckpointError:
            assert self.tickets[-1].error is not None

    def teardown(self) -> None:
        """Whatever was called durable is there, bit by bit."""
        if not hasattr(self, "ckpt"):
            return
        for trouble in self.trouble:  # Else whoever copies outward waits for a better time.
            trouble.left = 0
        self.ckpt.shut()
        with cf.Checkpointer(self.inner, rng=False, every="never") as again:
            durable = [ticket.step for ticket in self.tickets if ticket.durable]
            for step in durable:
                assert bits(again.restore(step=step)) == self.saved[step]
        assert self.ckpt._capturing.capturer.arenas.counted_bytes == 0


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
class TestSparseSaves(SparseSaves.TestCase):
    """Run by pytest."""

    settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
class TestManySparseSaves(SparseSaves.TestCase):
    """The same, for longer."""

    settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


# --- killed before each write ---

LINEAGE = LineageId("run", "task")


def state_of(step: int) -> dict[str, np.ndarray]:
    """Each step changes one tenth of one array and all of a short one."""
    state = {"a": np.zeros(20 * CHUNK, np.uint8), "b": np.full(50, float(step))}
    for one in range(1, step + 1):
        begin = one * 2 * CHUNK % len(state["a"])
        state["a"][begin : begin + CHUNK] = np.random.default_rng(one).integers(0, 255, CHUNK)
    return state


def sparse(step: int) -> tuple[Any, list[NamedRegion]]:
    """Return the state of a step, of which only what its step changed is there."""
    before, arena = None, np.zeros(0, np.uint8)
    for one in (step - 1, step):
        flat = flatten(state_of(one))
        places = Places.of([region.nbytes for region in flat.regions], CHUNK)
        now = Snapshot([region.name for region in flat.regions], places)
        arena = np.zeros(places.arena_bytes, np.uint8)
        snapshots.capture(
            now, flat.table.address, np.full(2, snapshots.DIGEST), arena=arena,
            parent=Parent(now, before), grain=np.ones(2, np.uint64), limit_bytes=1 << 20,
        )  # fmt: skip
        before = now
    regions = [
        NamedRegion(
            region.name,
            arena[now.places.bytes_of(number)].data,
            region.item_bytes,
            now.digests_of(number),
            now.held_of(number),
        )
        for number, region in enumerate(flat.regions)
    ]
    return flat.structure, regions


def save(tier: Tier, step: int, base: Base | None, sources: Sources = NO_SOURCES) -> Base:
    ensure_store(tier)
    structure, regions = sparse(step)
    if base is None:
        structure, regions = (
            flatten(state_of(step)).structure,
            [
                NamedRegion(one.name, one.data.data, one.item_bytes)
                for one in flatten(state_of(step)).regions
            ],
        )
    return write_checkpoint(
        tier, LINEAGE, CheckpointId(step, 1), structure=structure, regions=regions, base=base,
        chunk_bytes=CHUNK, sources=sources,
    )  # fmt: skip


def restored(tier: Tier) -> int:
    found = restore_newest(Lineage([tier], LINEAGE), None)
    assert found is not None
    assert not found.skipped
    assert bits(found.state) == bits(state_of(found.id.step))
    return found.id.step


def test_a_sparse_save_that_dies_leaves_what_was_there() -> None:
    bases: list[Base] = []
    seen: list[int] = []

    def store() -> list[Tier]:
        tier = MemoryTier("near", level=1)
        bases.append(save(tier, 2, save(tier, 1, None)))
        return [tier]

    crash_everywhere(
        store,
        lambda tiers: save(tiers[0], 3, bases[-1]),
        lambda tiers, _at: seen.append(restored(tiers[0])),
    )
    assert seen[1:] == [2] * (len(seen) - 1)
    assert seen[0] == 3
    assert len(seen) > 2


def test_a_sparse_save_that_is_completed_from_elsewhere_and_dies() -> None:
    """Its own tier has an older checkpoint; what lacks is read from another one."""
    made: list[tuple[Base, Base, Tier]] = []
    seen: list[int] = []

    def store() -> list[Tier]:
        near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)
        old = save(near, 1, None)
        made.append((old, save(far, 3, save(far, 2, None)), far))
        return [near]

    def action(tiers: Any) -> None:
        old, newer, far = made[-1]
        save(tiers[0], 4, old, Sources(checkpoints=[(newer, [far])]))

    crash_everywhere(store, action, lambda tiers, _at: seen.append(restored(tiers[0])))
    assert (seen[0], set(seen[1:])) == (4, {1})


def test_many_sparse_saves_leave_old_packs_behind() -> None:
    """What is needed of them is read back: the snapshots have not got it."""
    tier, base = MemoryTier("near", level=1), None
    for step in range(1, 120):
        base = save(tier, step, base)
        assert len(base.manifest.packs) <= 34
    assert restored(tier) == 119
