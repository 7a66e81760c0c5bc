"""A store on three tiers, and all that may happen to it, against a model of a few dicts.

Tasks save; checkpoints are copied outward and pruned; nodes and sites are lost; objects are
cut, flipped and deleted; the store is repaired, verified, moved as it is and by an archive;
attempts fail on what is damaged until it is quarantined. Checkpoints are consolidated. Repairs,
copies, prunes and consolidations crash before any of their changes. After every event:

* whoever looks finds the newest checkpoint that is valid and whose bytes are somewhere, with
  exactly the bits that were saved; quarantined ones come after all others;
* nothing that is damaged is believed: `verify` says of each copy what the model knows;
* after a repair that was not disturbed, whatever has one sound copy is sound wherever it is.

A checkpoint may be *made* of more than one set of objects, since a consolidation packs it anew.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
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
    rule,
)

from ckptflow.data.regions import flatten
from ckptflow.errors import NotFoundError, RestoreError
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store import quarantine
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import consolidate
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.moving.archive import read_archive, write_archive
from ckptflow.store.prune import prune
from ckptflow.store.repair import repair
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.store.verify import verify_lineage
from ckptflow.testing.faults import Crash, Doom, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
KEEP = Retention(newest=2)
NAMES = ("near", "far", "remote")
LEVELS = {"near": 1, "far": 3, "remote": 4}  # The second is the fence tier, and is not lost.
CRASHES = st.one_of(st.none(), st.integers(0, 5))  # Before which change, if at all.

MISFORTUNES = st.fixed_dictionaries(
    {
        "names": st.sets(st.sampled_from(NAMES), min_size=1, max_size=2),
        "part": st.sampled_from(["packs", "manifests"]),
        "how": st.sampled_from(["flipped", "cut", "gone"]),
        "choice": st.integers(0, 99),
    }
)

State = dict[str, Any]
Make = dict[str, bytes]  # The objects that a checkpoint consists of; first, its manifest.


@dataclass
class Commit:
    """A checkpoint: what was in it, and what it was made of."""

    bits: State
    manifest: Manifest
    makes: list[Make] = field(default_factory=list)


def bits(state: State) -> State:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


class LifeOfAStore(RuleBasedStateMachine):
    """The rules are what may happen to a store; the invariants are what it promises."""

    def __init__(self) -> None:
        super().__init__()
        self.tiers = {name: MemoryTier(name, level=LEVELS[name]) for name in NAMES}
        self.commits: dict[CheckpointId, Commit] = {}
        self.original: Make = {}  # Every object, as it was put.
        self.resumes: dict[int, int] = {}  # Attempt: the step it said to go on from.
        self.failed: dict[CheckpointId, set[int]] = {}  # By which attempts.
        self.attempt = 0
        self.recorded = True
        self.state: State = {}
        self.base: Base | None = None
        self.start: CheckpointId | None = None
        self.step = 0

    # --- the model ---

    def lineage(self, doom: Doom | None = None) -> Lineage:
        tiers: list[Tier] = [*self.tiers.values()]
        return Lineage([FaultyTier(one, doom) for one in tiers] if doom else tiers, LINEAGE)

    def holds(self, name: str, key: str, data: bytes) -> bool:
        try:
            return self.tiers[name].get(PREFIX + key) == data
        except NotFoundError:
            return False

    def lists(self, name: str, one: CheckpointId) -> bool:
        try:
            return self.tiers[name].size(PREFIX + one.manifest_key) >= 0
        except NotFoundError:
            return False

    def sound_on(self, names: Iterable[str], one: CheckpointId) -> bool:
        """Whether some make of it is there, each object on one of the tiers."""
        names = list(names)

        def there(key: str, data: bytes) -> bool:
            return any(self.holds(name, key, data) for name in names)

        return any(
            all(there(key, data) for key, data in make.items())
            for make in self.commits[one].makes
        )

    def valid(self) -> list[CheckpointId]:
        void = {
            one
            for one in self.commits
            for attempt, step in self.resumes.items()
            if one.attempt < attempt and one.step > step
        }
        there = [one for one in self.commits if any(self.lists(name, one) for name in NAMES)]
        return sorted((one for one in there if one not in void), reverse=True)

    def order(self) -> list[CheckpointId]:
        """Return what a restore tries, one after the other."""
        return sorted(self.valid(), key=lambda one: len(self.failed.get(one, ())) >= 3)

    def expected(self) -> CheckpointId | None:
        return next((one for one in self.order() if self.sound_on(NAMES, one)), None)

    def made(self, name: str, manifest: Manifest) -> None:
        """Note what a checkpoint was made of on a tier; older packs may be damaged by now."""
        key = manifest.id.manifest_key
        make = {key: self.tiers[name].get(PREFIX + key)}
        for pack in manifest.packs:
            data = self.tiers[name].get(PREFIX + pack.key)
            make[pack.key] = self.original.setdefault(pack.key, data)
        if make not in self.commits[manifest.id].makes:
            self.commits[manifest.id].makes.append(make)

    # --- what is looked at after every event ---

    @invariant()
    def a_restart_finds_the_newest_that_can_be_had(self) -> None:
        expected, order = self.expected(), self.order()
        if expected is None and order:
            with pytest.raises(RestoreError, match=f"None of the {len(order)} checkpoints"):
                restore_newest(self.lineage(), None)
            return
        found = restore_newest(self.lineage(), None)
        if found is None:
            assert order == []
            return
        assert found.id == expected
        assert bits(found.state) == self.commits[found.id].bits
        before = set(order[: order.index(found.id)])
        assert before <= {one for one, _ in found.skipped} <= {*before, *self.failed}

    @invariant()
    def what_is_quarantined_is_known(self) -> None:
        bad = {one for one, by in self.failed.items() if len(by) >= 3}
        assert quarantine.known_bad(self.lineage()) == bad

    @rule()
    def verify_says_what_is_so(self) -> None:
        for report, _found in verify_lineage(self.lineage(), self.lineage().checkpoints()):
            assert report.sound == self.sound_on([report.tier], report.id), report
            if report.sound:
                assert report.checked_bytes == report.stored_bytes > 0

    # --- attempts and saves ---

    @initialize()
    def begin(self) -> None:
        for tier in self.tiers.values():
            ensure_store(tier)
        self.restart()
        self.save_and_flush([1, 2])

    def restart(self) -> None:
        """A new attempt; it says what it could not restore."""
        lineage, order, expected = self.lineage(), self.order(), self.expected()
        self.attempt = lineage.claim()
        try:
            found = restore_newest(lineage, None, attempt=self.attempt)
        except RestoreError:
            found = None
        tried = order[: order.index(expected)] if expected else order
        for one in tried:
            self.failed.setdefault(one, set()).add(self.attempt)
        self.state = found.state if found else {"a": np.zeros(300, np.uint8), "n": 0}
        self.start, self.base = (found.id, found.base) if found else (None, None)
        self.forget_what_is_gone()
        self.step, self.recorded = (self.start.step if self.start else 0), False

    def forget_what_is_gone(self) -> None:
        """Nothing is diffed against packs that the inner tier has not, as in a task."""
        packs = self.base.manifest.packs if self.base else ()
        if not all(self.near_has(pack.key) for pack in packs):
            self.base = None

    @rule(times=st.sampled_from([1, 3]), spoil=st.booleans())
    def restarts(self, times: int, spoil: bool) -> None:
        """Once, or as often as it takes to lose patience with the newest checkpoint."""
        if spoil and (valid := self.valid()):
            for tier in self.tiers.values():
                for key in tier.iter_keys(f"{PREFIX}packs"):
                    if CheckpointId.of_pack(key.removeprefix(PREFIX)) == valid[0]:
                        tier.put(key, [b"spoiled"])
        for _ in range(times):
            self.restart()

    def near_has(self, key: str) -> bool:
        try:
            return self.tiers["near"].size(PREFIX + key) >= 0
        except NotFoundError:
            return False

    @rule(seeds=st.lists(st.integers(0, 50), min_size=1, max_size=3))
    def save(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.one_save(seed)

    @rule(seeds=st.lists(st.integers(0, 50), min_size=1, max_size=3))
    def save_and_flush(self, seeds: list[int]) -> None:
        """As a task does it."""
        for seed in seeds:
            self.one_save(seed)
            for outer in NAMES[1:]:
                self.flush_one(CheckpointId(self.step, self.attempt), outer, None)

    def one_save(self, seed: int) -> None:
        rng, lineage = np.random.default_rng(seed), self.lineage()
        begin, length = rng.integers(0, 300), rng.integers(1, 150)
        self.state["a"][begin : begin + length] = rng.integers(0, 255, dtype=np.uint8)
        self.state["a"][rng.integers(0, 300, 3)] = rng.integers(0, 255, 3, dtype=np.uint8)
        self.state["n"], self.step = seed, self.step + 1

        def before_commit() -> None:
            if not self.recorded:
                lineage.record_resume(self.attempt, self.start)
                self.resumes[self.attempt] = self.start.step if self.start else -1
                self.recorded = True

        flat = flatten(self.state)
        views = flat.copy_into(memoryview(bytearray(flat.total_bytes)))
        regions = [NamedRegion(one.name, v) for one, v in zip(flat.regions, views, strict=True)]
        checkpoint = CheckpointId(self.step, self.attempt)
        ensure_store(self.tiers["near"])
        self.base = write_checkpoint(
            self.tiers["near"],
            LINEAGE,
            checkpoint,
            structure=flat.structure,
            regions=regions,
            base=self.base,
            chunk_bytes=64,
            cell_bytes=16,
            goal="small",
            before_commit=before_commit,
        )
        self.base.memory.bytes_at_hand = {region.name: region.data for region in regions}
        self.commits[checkpoint] = Commit(bits(self.state), self.base.manifest)
        self.made("near", self.base.manifest)

    # --- upkeep ---

    @rule(outer=st.sampled_from(["far", "remote"]), crash_at=CRASHES, choice=st.integers(0, 2))
    def flush(self, outer: str, crash_at: int | None, choice: int) -> None:
        """Copy one of the newest outward, if it is sound somewhere."""
        sound = [one for one in self.valid()[:3] if self.sound_on(NAMES, one)]
        if not sound:
            return
        self.flush_one(sound[choice % len(sound)], outer, crash_at)

    def flush_one(self, one: CheckpointId, outer: str, crash_at: int | None) -> None:
        if not self.sound_on(NAMES, one):  # A save after its older packs were damaged.
            return
        had, doom = self.lists(outer, one), Doom(crash_at)
        tiers = [FaultyTier(tier, doom) for tier in self.tiers.values()]
        goal = next(tier for tier in tiers if tier.name == outer)
        try:
            copy_checkpoint(tiers, goal, LINEAGE, self.commits[one].manifest)
        except Crash:
            if self.lists(outer, one) and not had:  # It died after the commit.
                assert self.sound_on([outer], one)

    @rule(name=st.sampled_from(NAMES), crash_at=CRASHES)
    def prune(self, name: str, crash_at: int | None) -> None:
        doom = Doom(crash_at)
        lineage = self.lineage(doom)
        tier = next(one for one in lineage.tiers if one.name == name)
        with contextlib.suppress(Crash):
            prune(lineage, tier, KEEP)
        self.forget_failures_of_what_is_gone()
        self.forget_what_is_gone()

    def forget_failures_of_what_is_gone(self) -> None:
        """A prune that was killed may not have come to it."""
        now = quarantine.failures(self.lineage())
        for one in self.failed.keys() - now.keys():
            assert not any(self.lists(name, one) for name in NAMES)
        self.failed = {one: set(by) for one, by in now.items()}

    @rule(name=st.sampled_from(NAMES), crash_at=CRASHES, choice=st.integers(0, 2))
    def consolidate(self, name: str, crash_at: int | None, choice: int) -> None:
        """Pack one of the newest again on a tier, if it is sound there."""
        sound = [one for one in self.valid()[:3] if self.sound_on([name], one)]
        if not sound:
            return
        one, lineage = sound[choice % len(sound)], self.lineage(Doom(crash_at))
        tier = next(tier for tier in lineage.tiers if tier.name == name)
        with contextlib.suppress(Crash):
            consolidate(lineage, tier, one, force=True)
        manifest = self.lineage().manifest_on(self.tiers[name], one)
        self.made(name, manifest)
        assert self.sound_on([name], one)

    @rule(crash_at=CRASHES, misfortunes=st.lists(MISFORTUNES, max_size=3))
    def repair(self, crash_at: int | None, misfortunes: list[dict[str, Any]]) -> None:
        for one in misfortunes:
            self.damage_one(**one)
        listed = [(n, one) for one in self.commits for n in NAMES if self.lists(n, one)]
        good = [(n, one) for n, one in listed if self.sound_on([n], one)]
        can = [(n, one) for n, one in listed if self.can_be_mended(n, one)]
        try:
            report = repair(
                self.lineage(Doom(crash_at)), self.lineage().checkpoints(), dry_run=False
            )
        except Crash:
            self.failures_are_what_they_are()
            assert all(self.sound_on([n], one) for n, one in good)
            return
        for name, one in can:
            assert self.sound_on([name], one), (name, one, report)
        for name, one in set(listed) - set(can):
            assert not self.sound_on([name], one)
        assert sorted(report.sound) == sorted((one, name) for name, one in can)
        for _name, one in can:
            self.failed.pop(one, None)

    def can_be_mended(self, name: str, one: CheckpointId) -> bool:
        """Whether each object that a tier's manifest names is sound on some tier.

        Where that is damaged, any other manifest of the checkpoint will do.
        """
        key, makes = one.manifest_key, self.commits[one].makes
        own = [make for make in makes if self.holds(name, key, make[key])]
        return any(
            all(any(self.holds(n, *item) for n in NAMES) for item in make.items())
            for make in own or makes
        )

    def failures_are_what_they_are(self) -> None:
        """A repair that was killed may have lifted what is sound, or may not have."""
        now = quarantine.failures(self.lineage())
        for one in self.failed.keys() - now.keys():
            assert any(self.sound_on([name], one) for name in NAMES)
        self.failed = {one: set(by) for one, by in now.items()}

    @rule()
    def lift(self) -> None:
        """Somebody knows better."""
        for one in list(self.failed):
            quarantine.lift(self.lineage(), one)
            del self.failed[one]

    # --- the store goes elsewhere ---

    @rule(how=st.sampled_from(["as it is", "by an archive", "near is lost", "remote is lost"]))
    def goes_elsewhere(self, how: str) -> None:
        """What takes much away; one rule, so that it is not all that happens."""
        if how == "as it is":
            self.move_as_it_is()
        elif how == "by an archive":
            self.move_by_an_archive()
        else:
            self.lose(how.split(maxsplit=1)[0])

    def move_as_it_is(self) -> None:
        """As a folder is moved, or copied with whatever tool."""
        for name, old in list(self.tiers.items()):
            self.tiers[name] = new = MemoryTier(name, level=LEVELS[name])
            for key in old.iter_keys(""):
                new.put(key, [old.get(key)])
        self.restart()

    def move_by_an_archive(self) -> None:
        if not self.valid():
            return
        sound = [one for one in self.valid() if self.sound_on(NAMES, one)]
        file = io.BytesIO()
        report = write_archive([*self.tiers.values()], LINEAGE.run, file)
        assert len(report.left) == len(self.valid()) - len(sound)
        self.tiers = {name: MemoryTier(name, level=LEVELS[name]) for name in NAMES}
        file.seek(0)
        assert read_archive(file, self.tiers["far"]).checkpoints == len(sound)
        self.failed = {}
        assert self.valid() == sound
        assert all(self.sound_on(["far"], one) for one in sound)
        self.restart()

    # --- misfortunes ---

    def lose(self, name: str) -> None:
        """A node with all that was on its disk, and the process; or a site."""
        self.tiers[name] = MemoryTier(name, level=LEVELS[name])
        if name == "near":
            self.restart()

    @rule(one=MISFORTUNES)
    def damage(self, one: dict[str, Any]) -> None:
        self.damage_one(**one)

    def damage_one(self, names: set[str], part: str, how: str, choice: int) -> None:
        """One object of each of some tiers, often the same one."""
        for name in sorted(names):
            tier = self.tiers[name]
            if keys := sorted(tier.iter_keys(PREFIX + part), reverse=True):
                key = keys[choice % min(3, len(keys))]
                data = tier.get(key)
                # A restore reads only what it needs; all it reads begins with byte 0.
                place = 0 if part == "packs" else len(data) * choice // 100
                tier.delete(key)
                if how == "cut":
                    tier.put(key, [data[: len(data) * choice // 100]])
                elif how == "flipped":
                    other = bytearray(data or b"all of it had been cut off")
                    other[place] ^= 16
                    tier.put(key, [other])


LifeOfAStore.TestCase.settings = settings(stateful_step_count=15)
TestLifeOfAStore = LifeOfAStore.TestCase
