"""One task's life on two tiers, with every misfortune, against a model of a few sets and dicts.

Attempts restore, save, copy outward and prune; they crash before any change of a save, a copy
or a prune; they are overtaken and commit late; tiers lose everything, or an object here and
there. After every event, whoever looks finds the newest checkpoint that the rules of the format
page leave valid and whose bytes are somewhere, with exactly the bits that were saved.

The model knows which commits succeeded, who said to go on from where, and what was damaged. It
does not look into manifests or packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ckptflow.data.regions import flatten
from ckptflow.errors import FencedError, NotFoundError, RestoreError
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.prune import prune
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import Crash, Doom, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
KEEP = Retention(newest=2)
CHUNK, CELL = 64, 16

State = dict[str, Any]

CRASHES = st.one_of(st.none(), st.integers(0, 6))  # Before which change, if at all.


@dataclass
class Attempt:
    """A process, as far as it can be seen from the store."""

    number: int
    start: CheckpointId | None
    state: State
    base: Base | None
    step: int
    recorded: bool = False  # Whether it has said where it went on from.


@dataclass
class Commit:
    """A checkpoint that was committed: what was in it, and the objects that it consists of."""

    bits: State
    manifest: Manifest
    objects: list[str] = field(default_factory=list)


def bits(state: State) -> State:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


def write(
    tier: Tier,
    checkpoint: CheckpointId,
    state: State,
    base: Base | None,
    **options: Any,
) -> Base:
    flat = flatten(state)
    views = flat.copy_into(memoryview(bytearray(flat.total_bytes)))
    regions = [
        NamedRegion(region.name, view) for region, view in zip(flat.regions, views, strict=True)
    ]
    new = write_checkpoint(
        tier,
        LINEAGE,
        checkpoint,
        structure=flat.structure,
        regions=regions,
        base=base,
        chunk_bytes=CHUNK,
        cell_bytes=CELL,
        goal="small",
        **options,
    )
    new.memory.bytes_at_hand = {region.name: region.data for region in regions}
    return new


class LifeOfATask(RuleBasedStateMachine):
    """The rules are what may happen to a task; the invariant is what a restart finds."""

    def __init__(self) -> None:
        super().__init__()
        self.near = MemoryTier("near", level=1)
        self.far = MemoryTier("far", level=3)  # The fence tier; it never loses its attempts.
        self.commits: dict[CheckpointId, Commit] = {}
        self.original: dict[str, bytes] = {}  # Every object of a commit, as it was put.
        self.resumes: dict[int, int] = {}  # Attempt: the step it said to go on from.
        self.current: Attempt | None = None
        self.zombies: list[Attempt] = []

    # --- the model ---

    @property
    def tiers(self) -> tuple[MemoryTier, MemoryTier]:
        return self.near, self.far

    def held(self, tiers: Sequence[MemoryTier], key: str) -> list[bytes]:
        return [tier.get(PREFIX + key) for tier in tiers if self.has(tier, key)]

    @staticmethod
    def has(tier: MemoryTier, key: str) -> bool:
        try:
            return tier.size(PREFIX + key) >= 0
        except NotFoundError:
            return False

    def void(self, one: CheckpointId) -> bool:
        return any(
            one.attempt < attempt and one.step > step for attempt, step in self.resumes.items()
        )

    def valid(self, tiers: Sequence[MemoryTier]) -> list[CheckpointId]:
        """What has a manifest on one of the tiers, damaged or not, and is not void."""
        there = [one for one in self.commits if self.held(tiers, one.manifest_key)]
        return sorted((one for one in there if not self.void(one)), reverse=True)

    def sound(self, one: CheckpointId, tiers: Sequence[MemoryTier]) -> bool:
        """Whether every object of it is, undamaged, on one of the tiers."""
        return all(
            self.original[key] in self.held(tiers, key) for key in self.commits[one].objects
        )

    def good(self, one: CheckpointId, tier: MemoryTier) -> bool:
        """Whether it looks sound to whoever does not read the packs."""
        manifest, *packs = self.commits[one].objects
        whole = self.held([tier], manifest) == [self.original[manifest]]
        return whole and all(self.has(tier, key) for key in packs)

    def expected(self) -> CheckpointId | None:
        return next(
            (one for one in self.valid(self.tiers) if self.sound(one, self.tiers)), None
        )

    # --- what is looked at after every event ---

    @invariant()
    def a_restart_finds_the_newest_that_can_be_had(self) -> None:
        expected, valid = self.expected(), self.valid(self.tiers)
        lineage = Lineage(self.tiers, LINEAGE)
        if expected is None and valid:
            with pytest.raises(
                RestoreError, match=f"None of the {len(valid)} checkp"
            ) as caught:
                restore_newest(lineage, None)
            reasons = [note for note in caught.value.__notes__ if note.startswith("step")]
            assert len(reasons) == len(valid)
            return
        found = restore_newest(lineage, None)
        if found is None:
            assert valid == []
            return
        assert found.id == expected
        assert bits(found.state) == self.commits[found.id].bits
        assert [one for one, _ in found.skipped] == valid[: valid.index(found.id)]

    # --- attempts ---

    @initialize()
    def first_attempt(self) -> None:
        self.new_attempt()

    def new_attempt(self, step: int | None = None) -> None:
        if self.current is not None:
            self.zombies = [*self.zombies, self.current][-2:]
        lineage = Lineage(self.tiers, LINEAGE)
        number = lineage.claim()
        try:
            found = restore_newest(lineage, None, step=step)
        except RestoreError:
            found = None
        state = found.state if found else {"a": np.zeros(400, np.uint8), "n": 0}
        base = found.base if found and self.near_holds(found.base) else None
        at = found.id.step if found else 0
        self.current = Attempt(number, found.id if found else None, state, base, at)

    def near_holds(self, base: Base) -> bool:
        return all(self.has(self.near, pack.key) for pack in base.manifest.packs)

    @rule()
    def restart(self) -> None:
        """The attempt before may be dead, or only be thought dead."""
        self.new_attempt()

    @rule(choice=st.integers(0, 9))
    @precondition(lambda self: self.expected() is not None)
    def go_back(self, choice: int) -> None:
        """Somebody restores an older step on purpose."""
        sound = [one for one in self.valid(self.tiers) if self.sound(one, self.tiers)]
        self.new_attempt(step=sound[choice % len(sound)].step)

    # --- saves ---

    def edit(self, state: State, seed: int) -> None:
        rng = np.random.default_rng(seed)
        start, length = rng.integers(0, 400), rng.integers(1, 200)
        state["a"][start : start + length] = rng.integers(0, 255, dtype=np.uint8)
        state["a"][rng.integers(0, 400, 3)] = rng.integers(0, 255, 3, dtype=np.uint8)
        state["n"] = seed
        if seed % 3 == 0:
            state[f"extra{seed % 2}"] = rng.integers(0, 9, 100, dtype=np.uint8)
        elif seed % 7 == 0:
            state.pop("extra0", None)

    def committed(self, attempt: Attempt, checkpoint: CheckpointId, base: Base) -> None:
        keys = [checkpoint.manifest_key, *(pack.key for pack in base.manifest.packs)]
        for key in keys:
            data = self.near.get(PREFIX + key)  # All that a commit names is there.
            assert len(self.original.setdefault(key, data)) == len(data)
        self.commits[checkpoint] = Commit(bits(attempt.state), base.manifest, keys)
        attempt.base, attempt.step = base, checkpoint.step

    @rule(seeds=st.lists(st.integers(0, 50), min_size=1, max_size=5))
    def several_saves(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.save(seed, 1, None)

    @rule(seed=st.integers(0, 50), gap=st.integers(1, 3), crash_at=CRASHES)
    def save(self, seed: int, gap: int, crash_at: int | None) -> None:
        """As the writer does it: packs, fence, where it went on from, fence, commit, prune."""
        if self.current is None:
            self.new_attempt()
        attempt = self.current
        assert attempt is not None
        doom = Doom(crash_at)
        near, far = FaultyTier(self.near, doom), FaultyTier(self.far, doom)
        lineage = Lineage([near, far], LINEAGE)

        def before_commit() -> None:
            lineage.check_fence(attempt.number)
            if not attempt.recorded:
                lineage.record_resume(attempt.number, attempt.start)
                attempt.recorded = True
                self.resumes[attempt.number] = attempt.start.step if attempt.start else -1
            lineage.check_fence(attempt.number)

        self.edit(attempt.state, seed)
        checkpoint = CheckpointId(attempt.step + gap, attempt.number)
        try:
            base = write(
                near, checkpoint, attempt.state, attempt.base, before_commit=before_commit
            )
            self.committed(attempt, checkpoint, base)
            self.prune_and_check(lineage, near)
        except Crash:
            self.current = None

    def prune_and_check(self, lineage: Lineage, tier: FaultyTier) -> None:
        """The newest that looked good before a prune, or a crash in it, are as good after."""
        inner = self.near if tier.inner is self.near else self.far
        good = [one for one in self.valid([inner]) if self.good(one, inner)]
        sound = [one for one in good if self.sound(one, [inner])]
        try:
            prune(lineage, tier, KEEP)
        finally:
            for one in good[:2]:
                assert self.good(one, inner)
            for one in sound:  # What goes, goes manifest first.
                gone = one not in good[:2] and not self.has(inner, one.manifest_key)
                assert gone or self.sound(one, [inner])

    @rule(seed=st.integers(0, 50), choice=st.integers(0, 9))
    @precondition(lambda self: any(zombie.recorded for zombie in self.zombies))
    def late_commit(self, seed: int, choice: int) -> None:
        """An attempt had looked at the claims before it was overtaken, and commits now."""
        zombies = [zombie for zombie in self.zombies if zombie.recorded]
        zombie = zombies[choice % len(zombies)]
        self.edit(zombie.state, seed)
        checkpoint = CheckpointId(zombie.step + 1, zombie.number)
        base = write(self.near, checkpoint, zombie.state, zombie.base)
        self.committed(zombie, checkpoint, base)

    @rule(choice=st.integers(0, 9))
    @precondition(lambda self: self.zombies)
    def an_overtaken_attempt_is_told(self, choice: int) -> None:
        zombie = self.zombies[choice % len(self.zombies)]
        with pytest.raises(FencedError, match=f"taken over from attempt {zombie.number}"):
            Lineage(self.tiers, LINEAGE).check_fence(zombie.number)

    # --- copies ---

    @rule(crash_at=CRASHES)
    @precondition(lambda self: self.valid([self.near]))
    def flush(self, crash_at: int | None) -> None:
        """Copy the newest outward, if it is sound here; then prune there."""
        newest = self.valid([self.near])[0]
        if not self.sound(newest, self.tiers):
            return
        had, doom = self.has(self.far, newest.manifest_key), Doom(crash_at)
        near, far = FaultyTier(self.near, doom), FaultyTier(self.far, doom)
        try:
            copy_checkpoint([near, far], far, LINEAGE, self.commits[newest].manifest)
        except Crash:
            self.current = None
            if self.has(self.far, newest.manifest_key) and not had:  # It died after the commit.
                assert self.good(newest, self.far)
            return
        assert self.good(newest, self.far)
        try:
            self.prune_and_check(Lineage([near, far], LINEAGE), far)
        except Crash:
            self.current = None

    # --- misfortunes ---

    @rule()
    def lose_the_node(self) -> None:
        """And with it the process, and all that was on its disk."""
        self.near, self.current = MemoryTier("near", level=1), None

    @rule()
    def clean_the_scratch_disk(self) -> None:
        """Behind the back of a process that goes on."""
        self.near = MemoryTier("near", level=1)

    @rule(
        tier=st.sampled_from(["near", "far"]),
        part=st.sampled_from(["packs", "manifests"]),
        how=st.sampled_from(["gone", "cut", "flipped"]),
        choice=st.integers(0, 99),
    )
    def damage(self, tier: str, part: str, how: str, choice: int) -> None:
        victim = self.near if tier == "near" else self.far
        keys = list(victim.iter_keys(PREFIX + part))
        if not keys:
            return
        key = keys[choice % len(keys)]
        data = bytearray(victim.get(key))
        victim.delete(key)
        if how == "cut":
            victim.put(key, [data[: len(data) * choice // 100]])
        elif how == "flipped":
            other = data or bytearray(b"all of it had been cut off")
            other[0 if part == "packs" else len(data) * choice // 100] ^= 1 << choice % 8
            victim.put(key, [other])


LifeOfATask.TestCase.settings = settings(stateful_step_count=30)
TestLifeOfATask = LifeOfATask.TestCase
