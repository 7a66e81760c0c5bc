"""A copy outward: packs before the manifest, sound or not at all, and always repeatable."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from ckptflow.errors import (
    CheckpointError,
    FlushError,
    TierFull,
    TierUnavailable,
)
from ckptflow.flush import Flusher, Flushing, FlushRequest, copy_checkpoint
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.store.resume import read_state
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]

LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
AT_ONCE = Flushing(retry_s=0)  # Fails at once when a tier does not answer.


def state_of(step: int) -> dict[str, object]:
    rng = np.random.default_rng(1)
    state = {"w": rng.standard_normal(3000), "zero": np.zeros(100), "i": step}
    state["w"][: 100 * step] = step
    state["w"][100 * step] = np.random.default_rng(step).standard_normal()
    return state


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier = MemoryTier("near", level=1)
    for step in range(1, 4):
        save_state(tier, str(LINEAGE), step, state_of(step))
    return tier


@pytest.fixture
def far() -> MemoryTier:
    return MemoryTier("far", level=3)


def manifest_of(tier: Tier, step: int) -> Manifest:
    return Lineage([tier], LINEAGE).manifest_on(tier, CheckpointId(step, 1))


def copy(sources: list[Tier], target: Tier, step: int = 3, **options) -> int:
    return copy_checkpoint(sources, target, LINEAGE, manifest_of(sources[0], step), **options)


def steps_on(tier: Tier) -> list[int]:
    """Restore all that the tier has, alone, and compare it bit by bit."""
    lineage = Lineage([tier], LINEAGE)
    steps = []
    for found in lineage.valid():
        state, _ = read_state([tier], lineage.manifest(found), None)
        expected = state_of(found.id.step)
        assert state["w"].tobytes() == expected["w"].tobytes()
        assert state["i"] == expected["i"]
        steps.append(found.id.step)
    return steps


def objects(tier: Tier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys(PREFIX[:-1])}


def packs(tier: Tier) -> list[str]:
    return list(tier.iter_keys(f"{PREFIX}packs"))


# --- copying ---


def test_a_copy_is_restored_from_alone(near: MemoryTier, far: MemoryTier) -> None:
    copied = copy([near], far)
    assert steps_on(far) == [3]
    assert copied == sum(len(value) for value in objects(far).values())


def test_later_copies_bring_only_what_is_new(near: MemoryTier, far: MemoryTier) -> None:
    total = sum(copy([near], far, step) for step in (1, 2, 3))
    assert steps_on(far) == [3, 2, 1]
    assert objects(far) == objects(near)
    assert total == sum(len(value) for value in objects(far).values())


def test_packs_come_before_the_manifest(near: MemoryTier, far: MemoryTier) -> None:
    log: list[str] = []
    watched = FaultyTier(far, lambda op, key: log.append(key) if op == "put" else None)
    copy([near], watched)
    first, *before, last = log
    assert "/guards/" in first  # No prune over there deletes what no manifest names yet.
    assert before
    assert all("/packs/" in key for key in before)
    assert last == PREFIX + CheckpointId(3, 1).manifest_key


def test_progress_grows_to_the_whole(near: MemoryTier, far: MemoryTier) -> None:
    seen: list[tuple[int, int]] = []
    copy([near], far, on_copied=lambda done, total: seen.append((done, total)))
    done, totals = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    assert len(seen) == len(packs(far))


def test_a_crash_before_any_change_leaves_no_half_checkpoint(
    near: MemoryTier, far: MemoryTier
) -> None:
    counting = CrashingTier(MemoryTier("far", level=3))
    copy([near], counting)
    assert counting.changes >= 4  # The store, two packs or more, the manifest.
    for crash_at in range(counting.changes):
        target = MemoryTier("far", level=3)
        with pytest.raises(Crash):
            copy([near], CrashingTier(target, crash_at=crash_at))
        committed = crash_at == counting.changes - 1  # All that lacks is the hold's end.
        assert steps_on(target) == ([3] if committed else [])
        copy([near], target)
        assert steps_on(target) == [3]
        left = objects(target)
        assert {key: left[key] for key in left if "/guards/" not in key} == objects(
            counting.inner
        )


def test_a_copy_can_be_repeated(near: MemoryTier, far: MemoryTier) -> None:
    copy([near], far)
    before = objects(far)
    again = copy([near], far)
    assert objects(far) == before
    assert again == 0


def test_what_an_interrupted_copy_left_short_is_copied_again(
    near: MemoryTier, far: MemoryTier
) -> None:
    """Tiers put whole objects, but the file system below them may have lost its end."""
    pack = packs(near)[0]
    far.put(pack, [near.get(pack)[:100]])
    copy([near], far)
    assert steps_on(far) == [3]


# --- sources ---


def test_a_pack_that_one_source_lacks_comes_from_the_next(
    near: MemoryTier, far: MemoryTier
) -> None:
    partner = MemoryTier("partner", level=2)
    copy([near], partner)
    near.delete(packs(near)[0])
    copy([near, partner, far], far)
    assert steps_on(far) == [3]


@pytest.mark.parametrize("percent", range(0, 101, 4))
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damage_is_not_copied_outward(
    near: MemoryTier, far: MemoryTier, damage: str, percent: int
) -> None:
    """Else the outer tier would claim to be safe, and the sound copy might be pruned."""
    partner = MemoryTier("partner", level=2)
    copy([near], partner)
    pack = packs(near)[0]
    data = bytearray(near.get(pack))
    place = min(len(data) - 1, len(data) * percent // 100)
    if damage == "cut":
        del data[place:]
    else:
        data[place] ^= 1 << percent % 8
    near.put(pack, [data])
    with pytest.raises(FlushError, match=rf"(?s){pack.split('/')[-1]}.* on tier 'near'"):
        copy([near], far)
    assert steps_on(far) == []
    copy([near, partner], far)
    assert steps_on(far) == [3]


def test_a_pack_that_nobody_has(near: MemoryTier, far: MemoryTier) -> None:
    pack = packs(near)[0]
    manifest = manifest_of(near, 3)
    near.delete(pack)
    with pytest.raises(
        FlushError,
        match=rf"exp/task step 3 \(attempt 1\) did not reach tier 'far' \(level 3\): "
        rf"Tier 'near' holds no '{pack}'",
    ):
        copy_checkpoint([near, far], far, LINEAGE, manifest)
    with pytest.raises(FlushError, match=rf"No tier holds '{pack}'"):
        copy_checkpoint([far], far, LINEAGE, manifest)


@pytest.mark.parametrize("error", [TierFull("no room left"), TierUnavailable("no answer")])
@pytest.mark.parametrize("part", ["packs/", "manifests/", "ckptflow-store"])
def test_a_target_that_fails(
    near: MemoryTier, far: MemoryTier, error: CheckpointError, part: str
) -> None:
    def fail(operation: str, key: str) -> None:
        if operation in ("put", "create") and part in key:
            raise error

    before = objects(near)
    with pytest.raises(
        FlushError, match=rf"did not reach tier 'far' \(level 3\): {error}"
    ) as caught:
        copy([near], FaultyTier(far, fail))
    assert caught.value.__cause__ is error
    assert steps_on(far) == []
    assert objects(near) == before


# --- the thread ---


class Outcomes:
    """Collects what a flusher tells."""

    def __init__(self) -> None:
        self.done: list[CheckpointError | None] = []
        self.pruned: list[tuple[str, int]] = []

    def on_done(self, error: CheckpointError | None) -> None:
        self.done.append(error)

    def after_copy(self, request: FlushRequest) -> None:
        self.pruned.append((request.target.name, request.id.step))


def test_the_flusher_copies_in_order_and_finishes_before_it_closes(
    near: MemoryTier, far: MemoryTier
) -> None:
    outcomes = Outcomes()
    flusher = Flusher([near, far], after_copy=outcomes.after_copy)
    for step in (1, 2, 3):
        flusher.submit(FlushRequest(manifest_of(near, step), far, outcomes.on_done))
    flusher.close()
    assert outcomes.done == [None, None, None]
    assert outcomes.pruned == [("far", 1), ("far", 2), ("far", 3)]
    assert steps_on(far) == [3, 2, 1]


def test_a_flush_that_fails_does_not_stop_the_next(near: MemoryTier, far: MemoryTier) -> None:
    outcomes = Outcomes()
    broken = FaultyTier(MemoryTier("broken", level=4), _no_answer)
    flusher = Flusher([near, far], after_copy=outcomes.after_copy, options=AT_ONCE)
    for target in (broken, far):
        flusher.submit(FlushRequest(manifest_of(near, 3), target, outcomes.on_done))
    flusher.close()
    succeeded, failed = sorted(outcomes.done, key=bool)
    assert isinstance(failed, FlushError)
    assert "did not reach tier 'broken' (level 4): no answer" in str(failed)
    assert succeeded is None
    assert outcomes.pruned == [("far", 3)]
    assert steps_on(far) == [3]


def _no_answer(_operation: str, _key: str) -> None:
    raise TierUnavailable("no answer")


def test_a_bug_in_a_flush_is_told_as_such(near: MemoryTier, far: MemoryTier) -> None:
    """Whatever happens in the thread, who waits for it hears of it."""
    outcomes = Outcomes()

    def broken(_operation: str, _key: str) -> None:
        raise ZeroDivisionError("a bug")

    flusher = Flusher([near], after_copy=outcomes.after_copy)
    target = FaultyTier(far, broken)
    flusher.submit(FlushRequest(manifest_of(near, 3), target, outcomes.on_done))
    flusher.close()
    (error,) = outcomes.done
    assert isinstance(error, FlushError)
    assert "A flush to 'far' broke: ZeroDivisionError('a bug')" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_copy_counts_although_pruning_after_it_fails(
    near: MemoryTier, far: MemoryTier
) -> None:
    outcomes = Outcomes()

    def fail(_request: FlushRequest) -> None:
        raise TierUnavailable("cannot list")

    flusher = Flusher([near], after_copy=fail)
    flusher.submit(FlushRequest(manifest_of(near, 3), far, outcomes.on_done))
    flusher.close()
    assert steps_on(far) == [3]
    assert len(outcomes.done) == 1


def test_submitting_does_not_wait(near: MemoryTier, far: MemoryTier) -> None:
    go_on, outcomes = threading.Event(), Outcomes()

    def wait(operation: str, _key: str) -> None:
        if operation == "put":
            go_on.wait(60)

    flusher = Flusher([near], after_copy=outcomes.after_copy)
    target = FaultyTier(far, wait)
    flusher.submit(FlushRequest(manifest_of(near, 3), target, outcomes.on_done))
    assert outcomes.done == []
    go_on.set()
    flusher.close()
    assert outcomes.done == [None]


def test_who_waits_and_breaks_does_not_end_a_lane(near: MemoryTier, far: MemoryTier) -> None:
    def broken(_error: CheckpointError | None) -> None:
        raise RuntimeError("a bug of who waits")

    over, flusher = threading.Event(), Flusher([near], options=AT_ONCE)
    flusher.submit(FlushRequest(manifest_of(near, 1), far, broken))
    flusher.submit(FlushRequest(manifest_of(near, 2), far, lambda _error: over.set()))
    assert over.wait(60)
    flusher.close()
    assert steps_on(far) == [2, 1]
