"""A consolidated checkpoint is the same one, in fewer packs, whatever happens on the way.

Crashes: a consolidation is repeated with a tier that dies before each of its changes. Damage:
it is found before anything takes the place of what there was. Readers: whoever has read the
old manifest when the packs go reads the new one. Random states are consolidated in
``tests/property/test_layer_laws.py``, and read back by the independent reader.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ckptflow.data.regions import flatten
from ckptflow.errors import CorruptionError, FormatError, NotFoundError, TierUnavailable
from ckptflow.flush import copy_checkpoint
from ckptflow.manifest import encode
from ckptflow.model import (
    KEEP,
    CheckpointId,
    DeltaLayer,
    DeltaOp,
    ExtentTable,
    LineageId,
    Manifest,
    PackRef,
    RegionEntry,
)
from ckptflow.policy.retention import Retention
from ckptflow.store import guards, partial, rewriting
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import consolidate, plan_consolidation, shape_of
from ckptflow.store.copies import open_pack
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.partial import PartialReader
from ckptflow.store.prune import prune
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.store.verify import verify_copy
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
LAST = CheckpointId(6, 1)

Bits = dict[str, bytes]


def state_of(step: int) -> dict[str, Any]:
    """Parts that stay, that change a little everywhere, that are rewritten, and patterns."""
    rng = np.random.default_rng(1)
    state = {"fixed": rng.standard_normal(20_000), "drift": rng.standard_normal(30_000)}
    state["drift"] += 1e-9 * step
    state["own"] = np.random.default_rng(step).standard_normal(300)
    state["zeros"] = np.zeros(40_000)
    state["beat"] = np.tile(rng.standard_normal(60), 50)
    state["beat"][: 60 * step] = step
    return state


def bits(state: dict[str, Any]) -> Bits:
    return {name: value.tobytes() for name, value in state.items()}


def save(tier: Tier, step: int, base: Base | None) -> Base:
    flat = flatten({"state": state_of(step), "rng": None})
    views = flat.copy_into(memoryview(bytearray(flat.total_bytes)))
    regions = [
        NamedRegion(region.name, view, region.item_bytes)
        for region, view in zip(flat.regions, views, strict=True)
    ]
    new = write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=flat.structure,
        regions=regions,
        base=base,
        chunk_bytes=256,
        goal="small",
        metrics={"loss": 1 / step},
    )
    new.memory.bytes_at_hand = {region.name: region.data for region in regions}
    return new


def fill(tier: Tier, steps: int = LAST.step) -> Base:
    ensure_store(tier)
    base = None
    for step in range(1, steps + 1):
        base = save(tier, step, base)
    assert base is not None
    return base


@pytest.fixture(scope="module")
def made() -> MemoryTier:
    tier = MemoryTier("disk")
    fill(tier)
    return tier


def clone(tier: Tier) -> MemoryTier:
    copy = MemoryTier(tier.name, level=tier.level)
    for key in tier.iter_keys(""):
        copy.put(key, [tier.get(key)])
    return copy


@pytest.fixture
def disk(made: MemoryTier) -> MemoryTier:
    return clone(made)


def lineage_on(*tiers: Tier) -> Lineage:
    return Lineage(tiers, LINEAGE)


def manifest_on(tier: Tier, checkpoint: CheckpointId = LAST) -> Manifest:
    return lineage_on(tier).manifest_on(tier, checkpoint)


def steps_restored(*tiers: Tier) -> list[int]:
    """Restore every checkpoint, compare its bits, and return the steps."""
    lineage, steps = lineage_on(*tiers), []
    for found in lineage.valid():
        restored = restore_newest(lineage, None, step=found.id.step)
        assert restored is not None
        assert bits(restored.state["state"]) == bits(state_of(found.id.step))
        steps.append(found.id.step)
    return steps


def run(tier: Tier, checkpoint: CheckpointId = LAST, *others: Tier, **options: Any) -> Any:
    return consolidate(lineage_on(tier, *others), tier, checkpoint, force=True, **options)


def keep_newest(tier: Tier) -> None:
    prune(lineage_on(tier), tier, Retention(newest=1))


# --- what it is afterwards ---


def test_it_is_the_same_checkpoint_in_packs_of_its_own(disk: MemoryTier) -> None:
    before = manifest_on(disk)
    assert shape_of(before).older_packs >= 3
    assert shape_of(before).layers >= 1
    outcome = run(disk)
    after = manifest_on(disk)
    assert shape_of(after) == outcome.after
    assert (outcome.after.older_packs, outcome.after.layers) == (0, 0)
    assert after.kind == "full"
    for field in ("id", "root", "created", "metrics", "structure", "chunk_bytes"):
        assert getattr(after, field) == getattr(before, field), field
    assert [entry.root for entry in after.regions] == [entry.root for entry in before.regions]
    assert steps_restored(disk) == [6, 5, 4, 3, 2, 1]


def test_patterns_stay_patterns_and_known_bytes_are_stored_once(disk: MemoryTier) -> None:
    outcome = run(disk)
    live_bytes = sum(value.nbytes for name, value in state_of(6).items() if name != "zeros")
    assert outcome.after.live_bytes <= live_bytes
    assert outcome.after.dead_bytes == 0


def test_a_prune_afterwards_leaves_only_its_packs(disk: MemoryTier) -> None:
    outcome = run(disk)
    keep_newest(disk)
    packs = {key.removeprefix(PREFIX) for key in disk.iter_keys(f"{PREFIX}packs")}
    assert packs == {pack.key for pack in manifest_on(disk).packs}
    assert len(packs) == outcome.after.packs
    assert steps_restored(disk) == [6]


def test_doing_it_again_changes_nothing(disk: MemoryTier) -> None:
    run(disk)
    before = {key: disk.get(key) for key in disk.iter_keys("")}
    again = run(disk)
    assert again.after is None
    assert not again.verdict.worth
    assert {key: disk.get(key) for key in disk.iter_keys("")} == before


def test_every_checkpoint_of_a_lineage(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path, level=3)  # The independent reader reads it, too.
    fill(tier)
    for step in range(1, 7):
        run(tier, CheckpointId(step, 1))
    assert steps_restored(tier) == [6, 5, 4, 3, 2, 1]


def test_a_plan_touches_nothing(disk: MemoryTier) -> None:
    before = {key: disk.get(key) for key in disk.iter_keys("")}
    plan = plan_consolidation(lineage_on(disk), disk, LAST)
    assert plan.verdict.worth
    assert plan.after is None
    assert {key: disk.get(key) for key in disk.iter_keys("")} == before


def test_what_is_not_there(disk: MemoryTier) -> None:
    with pytest.raises(NotFoundError):
        run(disk, CheckpointId(7, 1))
    assert not list(disk.iter_keys(f"{PREFIX}guards"))


def test_saves_go_on_from_a_consolidated_checkpoint(disk: MemoryTier) -> None:
    run(disk)
    keep_newest(disk)
    restored = restore_newest(lineage_on(disk), None)
    assert restored is not None
    base = save(disk, 7, restored.base)
    assert base.manifest.parent == LAST
    assert steps_restored(disk) == [7, 6]


def test_a_live_writer_whose_base_lost_its_packs_writes_anew() -> None:
    tier = MemoryTier("disk")
    base = fill(tier, 4)
    run(tier, CheckpointId(4, 1))
    keep_newest(tier)
    save(tier, 5, base)
    assert steps_restored(tier) == [5, 4]


def test_packs_that_go_while_a_save_is_under_way() -> None:
    """The parent is consolidated and pruned between the packs of a save and its manifest."""
    tier = MemoryTier("disk")
    base = fill(tier, 4)
    pending = [True]

    def strike(operation: str, key: str) -> None:
        if operation == "put" and "/manifests/" in key and pending:
            pending.clear()
            run(tier, CheckpointId(4, 1))
            keep_newest(tier)

    save(FaultyTier(tier, strike), 5, base)
    assert not pending
    assert steps_restored(tier) == [5, 4]


# --- crashes and damage ---


def test_a_crash_before_any_change_leaves_every_checkpoint(disk: MemoryTier) -> None:
    counting = CrashingTier(clone(disk))
    run(counting)
    assert counting.changes >= 4  # A hold, a pack, the manifest, the end of the hold.
    for crash_at in range(counting.changes):
        copy = clone(disk)
        with pytest.raises(Crash):
            run(CrashingTier(copy, crash_at=crash_at))
        assert steps_restored(copy) == [6, 5, 4, 3, 2, 1]
        run(copy)
        keep_newest(copy)
        assert steps_restored(copy) == [6]
        assert shape_of(manifest_on(copy)).older_packs == 0


def damage(tier: Tier, pack: PackRef) -> None:
    """Change a byte of every frame."""
    data = bytearray(tier.get(PREFIX + pack.key))
    for begin in open_pack(tier, LINEAGE, pack).offset[:-1].tolist():
        data[begin] ^= 1
    tier.put(PREFIX + pack.key, [data])


def test_damage_is_never_consolidated(disk: MemoryTier) -> None:
    damage(disk, manifest_on(disk).packs[0])
    before = {key: disk.get(key) for key in disk.iter_keys("")}
    with pytest.raises(CorruptionError, match="no sound copy"):
        run(disk)
    assert {key: disk.get(key) for key in disk.iter_keys("")} == before


def test_a_sound_copy_elsewhere_helps(disk: MemoryTier) -> None:
    other = MemoryTier("other", level=3)
    for key in disk.iter_keys(""):
        other.put(key, [disk.get(key)])
    damage(disk, manifest_on(disk).packs[0])
    before = {key: other.get(key) for key in other.iter_keys("")}
    notes: list[str] = []
    run(disk, LAST, other, note=notes.append)
    assert any("does not match its digest" in note for note in notes)
    assert {key: other.get(key) for key in other.iter_keys("")} == before
    keep_newest(disk)
    assert steps_restored(disk) == [6]


def test_a_root_that_differs_although_all_frames_are_sound(disk: MemoryTier) -> None:
    old = manifest_on(disk)
    first, *rest = old.regions
    wrong = encode(replace(old, regions=(replace(first, root=bytes(16)), *rest)))
    disk.put(PREFIX + LAST.manifest_key, [wrong])
    with pytest.raises(CorruptionError, match="does not have the root"):
        run(disk)
    assert disk.get(PREFIX + LAST.manifest_key) == wrong


def test_a_tier_that_loses_what_was_just_written(disk: MemoryTier) -> None:
    """What was put is read back before the manifest says that it is there."""

    class Forgetful(FaultyTier):
        def put(self, key: str, parts: Any) -> None:
            super().put(key, parts)
            if "/packs/" in key:
                data = bytearray(self.inner.get(key))
                data[40] ^= 1
                self.inner.put(key, [data])

    before = manifest_on(disk)
    with pytest.raises(CorruptionError):
        run(Forgetful(disk, lambda _operation, _key: None))
    assert manifest_on(disk) == before
    assert steps_restored(disk) == [6, 5, 4, 3, 2, 1]


def test_a_checkpoint_that_is_deleted_meanwhile_does_not_come_back(disk: MemoryTier) -> None:
    key = PREFIX + LAST.manifest_key
    pending = [True]

    def strike(operation: str, name: str) -> None:
        if operation == "put" and "/packs/" in name and pending:
            pending.clear()
            disk.delete(key)

    with pytest.raises(NotFoundError):
        run(FaultyTier(disk, strike))
    assert steps_restored(disk) == [5, 4, 3, 2, 1]


# --- readers ---


class Consolidating(FaultyTier):
    """Consolidates and prunes when the first pack is about to be read."""

    def __init__(self, inner: Tier) -> None:
        self.pending = True
        super().__init__(inner, self._strike)

    def _strike(self, operation: str, key: str) -> None:
        reads = operation in ("get", "read_into", "size") and "/packs/" in key
        if reads and self.pending:
            self.pending = False
            run(self.inner)
            keep_newest(self.inner)


def _restore(tier: Tier) -> Any:
    restored = restore_newest(lineage_on(tier), None)
    assert restored is not None
    assert not restored.skipped
    return bits(restored.state["state"])


def _read_arrays(tier: Tier) -> Any:
    lineage = lineage_on(tier)
    newest = lineage.newest()
    assert newest is not None
    stored = StoredArrays(lineage, lineage.manifest(newest))
    return {name.removeprefix("state/"): stored.read(name).tobytes() for name in stored}


def _verify(tier: Tier) -> Any:
    report = verify_copy(tier, lineage_on(tier), LAST)
    assert report.problems == ()
    return bits(state_of(6))


def _copy(tier: Tier) -> Any:
    target = MemoryTier("far", level=3)
    copy_checkpoint([tier], target, LINEAGE, manifest_on(tier))
    return _restore(target)


@pytest.mark.parametrize("read", [_restore, _read_arrays, _verify, _copy])
def test_who_has_the_old_manifest_reads_the_new_one(
    disk: MemoryTier, read: Callable[[Tier], Any]
) -> None:
    racing = Consolidating(disk)
    assert read(racing) == bits(state_of(6))
    assert not racing.pending


def test_tiers_may_hold_two_manifests_of_one_checkpoint(disk: MemoryTier) -> None:
    """The near one has lost a pack that the far one does not need any more."""
    far = MemoryTier("far", level=3)
    for key in disk.iter_keys(""):
        far.put(key, [disk.get(key)])
    run(far)
    keep_newest(far)
    disk.delete(PREFIX + manifest_on(disk).packs[0].key)
    restored = restore_newest(lineage_on(disk, far), None)
    assert restored is not None
    assert restored.id == LAST
    assert bits(restored.state["state"]) == bits(state_of(6))


def test_a_copy_does_not_undo_a_consolidation(disk: MemoryTier) -> None:
    far = MemoryTier("far", level=3)
    copy_checkpoint([disk], far, LINEAGE, manifest_on(disk))
    run(far)
    keep_newest(far)
    before = {key: far.get(key) for key in far.iter_keys("")}
    assert copy_checkpoint([disk], far, LINEAGE, manifest_on(disk)) == 0
    assert {key: far.get(key) for key in far.iter_keys("")} == before


# --- memory ---


def test_memory_is_bounded_by_parts_not_by_the_state(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    ensure_store(tier)
    state = np.random.default_rng(0).bytes(48 << 20)
    region = NamedRegion("big", memoryview(state))
    base = None
    for step in (1, 2):
        data = memoryview(state[: -step * 4096] + bytes([step]) * step * 4096)
        base = write_checkpoint(
            tier,
            LINEAGE,
            CheckpointId(step, 1),
            structure=["dict"],
            regions=[NamedRegion(region.name, data)],
            base=base,
            chunk_bytes=4096,
        )
    part_bytes = 1 << 20
    with (
        mock.patch.object(partial, "PART_BYTES", part_bytes),
        mock.patch.object(rewriting, "PART_BYTES", part_bytes),
        mock.patch("ckptflow.data.pack.PACK_BYTES", 4 * part_bytes),
    ):
        tracemalloc.start()
        try:
            outcome = consolidate(lineage_on(tier), tier, CheckpointId(2, 1), force=True)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert outcome.after is not None
    assert outcome.after.packs == 12
    assert peak_bytes < len(state) // 2


def test_words_that_lie_across_each_other_are_refused() -> None:
    """No writer of ours makes such deltas; reading them in parts would read half words."""
    reader = PartialReader([], _crossing())
    with reader, pytest.raises(FormatError, match="lie across each other"):
        reader.read(np.array([0]), np.array([800], np.uint64), np.array([8], np.uint64))


def _crossing() -> Manifest:
    """Two layers of words of eight bytes, one of which begins a byte later, over 2000 bytes."""

    def rows(*lengths: tuple[int, int]) -> ExtentTable:
        length = np.array([size for size, _ in lengths], np.uint64)
        pack = np.array([pack for _, pack in lengths], np.uint32)
        return ExtentTable(length, np.zeros_like(length), pack)

    layer = DeltaLayer(1, DeltaOp.XOR, 8), DeltaLayer(2, DeltaOp.XOR, 8)
    return Manifest(
        lineage=LINEAGE,
        id=LAST,
        parent=None,
        kind="full",
        created="",
        writer="",
        metrics={},
        root=bytes(16),
        chunk_bytes=16,
        packs=(),
        regions=(RegionEntry("r", 2000, bytes(16), 1, layer),),
        extents=ExtentTable.of([rows((2000, 0)), rows((2000, 0)), rows((1, KEEP), (1999, 0))]),
        structure=None,
    )


def test_a_consolidation_that_outlived_its_hold_changes_nothing(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        ahead = timedelta()

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + cls.ahead

    def take_long(operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            Clock.ahead = timedelta(hours=25)

    before = {key: disk.get(key) for key in disk.iter_keys("")}
    monkeypatch.setattr(guards, "datetime", Clock)
    tier = FaultyTier(disk, take_long)
    with pytest.raises(TierUnavailable, match="its hold may not count any more"):
        consolidate(lineage_on(tier), tier, LAST, force=True)
    assert Clock.ahead
    assert {key: disk.get(key) for key in disk.iter_keys("")} == before


@pytest.mark.parametrize("damage", ["flipped", "gone"])
@pytest.mark.parametrize("first", ["disk", "middle"])
def test_a_copy_goes_by_a_consolidated_one_when_packs_are_damaged(
    disk: MemoryTier, damage: str, first: str
) -> None:
    """The middle tier has the same checkpoint in sound packs of its own."""
    middle, far = MemoryTier("middle", level=2), MemoryTier("far", level=3)
    old = manifest_on(disk)
    copy_checkpoint([disk], middle, LINEAGE, old)
    consolidate(lineage_on(middle), middle, LAST, force=True)
    prune(lineage_on(middle), middle, Retention(newest=1))
    key = f"{PREFIX}{old.packs[0].key}"
    data = bytearray(disk.get(key))
    data[len(data) // 2] ^= 4
    disk.delete(key)
    if damage == "flipped":
        disk.put(key, [bytes(data)])
    sources = sorted((disk, middle), key=lambda tier: tier.name != first)
    copy_checkpoint(sources, far, LINEAGE, old)
    assert steps_restored(far) == [LAST.step]
