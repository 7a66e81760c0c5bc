"""Damage every object of a store at every hundredth of its length: no restore gives wrong bits.

Method: a store with three checkpoints is cloned for every case. One object is cut short or one
of its bits flipped, at each of 101 places (every tenth of them in a quick run), or it is taken
away. What is restored then must be, bit for bit, the state of the step that it claims to
be; with a second copy it is the newest step; and what was skipped is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.errors import (
    CorruptionError,
    FormatError,
    NotFoundError,
    RestoreError,
    StateError,
    TierUnavailable,
)
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store import fetch
from ckptflow.store.catalog import Lineage
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.resume import Restored, restore_newest
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
State = dict[str, Any]

EVERY_PERCENT = pytest.mark.parametrize(
    "percents",
    [
        pytest.param(range(0, 101, 10), id="10 %"),
        pytest.param(range(101), id="1 %", marks=pytest.mark.slow),
    ],
)


def history() -> Iterator[tuple[int, State]]:
    """Three states that follow each other; the later ones share much with the first."""
    rng = np.random.default_rng(3)
    state = {
        "raw": rng.standard_normal(12_000),  # Large enough to be read straight into place.
        "packed": np.repeat(rng.integers(0, 9, 100), 50),  # Small: gathered and compressed.
        "zero": np.zeros(500),
        "i": 1,
    }
    yield 1, state
    state["i"], state["packed"][7] = 2, -1
    yield 2, state
    state["i"], state["raw"][100:8000] = 3, rng.standard_normal(7900)
    yield 3, state


def bits(state: State) -> dict[str, Any]:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


MODEL = {step: bits(state) for step, state in history()}


def blank() -> State:
    """A state of the right shape whose every bit is wrong."""
    return {
        "raw": np.full(12_000, 9.5),
        "packed": np.full(5000, 7),
        "zero": np.ones(500),
        "i": 0,
    }


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier = MemoryTier("near")
    for step, state in history():
        save_state(tier, "exp/task", step, state)
    return tier


def clone(tier: Tier, name: str, level: int = 0) -> MemoryTier:
    copy = MemoryTier(name, level=level)
    for key in tier.iter_keys(""):
        copy.put(key, [tier.get(key)])
    return copy


LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"


def keys_of(tier: Tier, kind: str, step: int) -> list[str]:
    return [key for key in tier.iter_keys(f"{PREFIX}{kind}") if f"/{step:012d}." in key]


def objects(tier: Tier) -> list[str]:
    """The objects that the newest checkpoint is made of: its manifest, and every pack."""
    packs = list(tier.iter_keys(f"{PREFIX}packs"))
    assert len(packs) == 3
    return [*keys_of(tier, "manifests", 3), *packs]


def damages(data: bytes, percents: range) -> Iterator[tuple[str, bytes | None]]:
    """Yield what may become of an object, with a name for the case."""
    yield "taken away", None
    yield "with a byte too many", data + b"\0"
    for percent in percents:
        place = min(len(data) - 1, len(data) * percent // 100)
        flipped = bytearray(data)
        flipped[place] ^= 1 << percent % 8
        yield f"flipped at {percent} %", bytes(flipped)
        yield f"cut at {percent} %", data[:place]


def inflict(tier: Tier, key: str, data: bytes | None) -> None:
    tier.delete(key)
    if data is not None:
        tier.put(key, [data])


def restored(
    *tiers: Tier, target: State | None = None, step: int | None = None
) -> tuple[Restored, list[str]]:
    notes: list[str] = []
    lineage = Lineage(tiers, LINEAGE, note=notes.append)
    found = restore_newest(
        lineage, blank() if target is None else target, step=step, note=notes.append
    )
    assert found is not None
    return found, notes


# --- no damage ---


def test_the_newest_comes_back_in_place(near: MemoryTier) -> None:
    target = blank()
    arrays = {name: value for name, value in target.items() if name != "i"}
    found, notes = restored(near, target=target)
    assert found.id == CheckpointId(3, 1)
    assert found.state is target
    assert all(target[name] is array for name, array in arrays.items())
    assert bits(target) == MODEL[3]
    assert (notes, found.skipped) == ([], ())


def test_without_a_target_a_new_state_is_built(near: MemoryTier) -> None:
    found = restore_newest(Lineage([near], LINEAGE), None)
    assert found is not None
    assert bits(found.state) == MODEL[3]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_that_was_asked_for(near: MemoryTier, step: int) -> None:
    found, _ = restored(near, step=step)
    assert (found.id.step, bits(found.state)) == (step, MODEL[step])


def test_an_unknown_step_names_those_that_there_are(near: MemoryTier) -> None:
    with pytest.raises(
        NotFoundError, match=r"exp/task has no checkpoint of step 7; it has 3, 2, 1"
    ):
        restored(near, step=7)


def test_nothing_at_all() -> None:
    assert restore_newest(Lineage([MemoryTier()], LINEAGE), blank()) is None
    with pytest.raises(NotFoundError, match=r"has no checkpoint of step 1; it has none"):
        restored(MemoryTier(), step=1)


def test_reads_are_shared_out_without_changing_the_bits(
    near: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long extents are read in several pieces, and from several threads."""
    monkeypatch.setattr(fetch, "READ_BYTES", 4096)
    monkeypatch.setattr(fetch, "DIRECT_BYTES", 1024)
    assert bits(restored(near)[0].state) == MODEL[3]


# --- damage ---


@EVERY_PERCENT
def test_with_another_copy_damage_costs_nothing_but_a_note(
    near: MemoryTier, percents: range
) -> None:
    far = clone(near, "far", level=3)
    harmless = []
    for key in objects(near):
        for case, data in damages(near.get(key), percents):
            damaged = clone(near, "near")
            inflict(damaged, key, data)
            found, notes = restored(damaged, far)
            assert bits(found.state) == MODEL[3], f"{key} {case}"
            assert (found.id.step, found.skipped) == (3, ()), f"{key} {case}"
            if not any("'near'" in note for note in notes):
                harmless.append(f"{key} {case}")
    # A manifest that is gone is simply not there; dead bytes of old packs do no harm.
    assert all("manifests" not in one or "taken away" in one for one in harmless), harmless
    assert all("packs" not in one or "flipped" in one for one in harmless), harmless


@EVERY_PERCENT
def test_with_one_copy_an_older_checkpoint_is_found_or_none(
    near: MemoryTier, percents: range
) -> None:
    steps: dict[str, set[int | None]] = {}
    for key in objects(near):
        for case, data in damages(near.get(key), percents):
            damaged = clone(near, "near")
            inflict(damaged, key, data)
            target = blank()
            try:
                found, notes = restored(damaged, target=target)
            except RestoreError as error:
                step = None
                lines = "\n".join(error.__notes__)
                assert all(f"step {step} (attempt 1): " in lines for step in (3, 2, 1)), lines
                assert key in lines, f"{case}: {lines}"
            else:
                step = found.id.step
                assert bits(target) == MODEL[step], f"{key} {case}"
                skipped = dict(found.skipped)
                assert sorted(one.step for one in skipped) == list(range(step + 1, 4)) or (
                    "manifests" in key and data is None
                )
                for checkpoint, reason in skipped.items():
                    assert reason
                    assert any(f"{checkpoint} was skipped" in note for note in notes)
            steps.setdefault(key, set()).add(step)
    manifest, first, second, third = objects(near)
    assert steps[manifest] == {2}  # No damage to a manifest goes unseen.
    assert None in steps[first]  # All three need the first pack.
    assert steps[first] <= {None, 1, 2, 3}
    assert 1 in steps[second]
    assert 2 in steps[third]
    assert not steps[third] & {1, None}


@pytest.mark.damaged_store
@pytest.mark.parametrize("kind", ["manifests", "packs"])
@pytest.mark.parametrize("case", ["taken away", "flipped at 50 %", "cut at 0 %", "cut at 99 %"])
def test_damaged_files(tmp_path: Path, save_state: SaveState, kind: str, case: str) -> None:
    tier = PosixTier(tmp_path / "store", name="disk")
    for step, state in history():
        save_state(tier, "exp/task", step, state)
    (key,) = keys_of(tier, kind, 3)
    inflict(tier, key, dict(damages(tier.get(key), range(101)))[case])
    found, _ = restored(tier)
    assert (found.id.step, bits(found.state)) == (2, MODEL[2])


def test_two_damaged_copies_make_one_sound_checkpoint(near: MemoryTier) -> None:
    """Every copy has a damaged pack, but not the same one."""
    far = clone(near, "far", level=3)
    manifest, first, second, third = objects(near)
    for tier, key in ((near, first), (far, second), (near, third)):
        inflict(tier, key, None)
    inflict(far, manifest, b"nothing")
    found, notes = restored(near, far)
    assert (found.id.step, bits(found.state)) == (3, MODEL[3])
    assert [note for note in notes if "'near'" in note]


def test_two_damaged_copies_of_one_pack_make_a_sound_one(near: MemoryTier) -> None:
    """A flipped bit costs its frame, not its pack: the other frames come from the same copy."""
    far = clone(near, "far", level=3)
    first = objects(near)[1]
    data = near.get(first)
    for tier, place in ((near, 100), (far, len(data) - 200)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        inflict(tier, first, bytes(flipped))
    found, _ = restored(near, far)
    assert found.id.step == 3 or bits(found.state) == MODEL[found.id.step]


def test_nothing_left_tells_of_every_copy(near: MemoryTier) -> None:
    far = clone(near, "far", level=3)
    for tier in (near, far):
        for step in (1, 2, 3):
            (key,) = keys_of(tier, "manifests", step)
            inflict(tier, key, tier.get(key)[:-1])
    with pytest.raises(
        RestoreError,
        match=r"None of the 3 checkpoints of exp/task could be restored.*build it anew",
    ) as caught:
        restored(near, far)
    lines = caught.value.__notes__
    for step in (3, 2, 1):
        name = f"step {step} (attempt 1)"
        assert f"{name}: The manifest of exp/task {name} has no sound copy." in lines
        for tier in (near, far):
            assert [
                line
                for line in lines
                if f"{step:012d}" in line
                and repr(tier.name) in line
                and "does not match its seal" in line
            ]


def test_a_manifest_that_was_moved_is_not_what_it_says(near: MemoryTier) -> None:
    (second,), (third,) = (keys_of(near, "manifests", step) for step in (2, 3))
    inflict(near, third, near.get(second))
    found, notes = restored(near)
    assert (found.id.step, bits(found.state)) == (2, MODEL[2])
    assert [
        note
        for note in notes
        if re.search(r"says that it is step 2 .* it was moved there", note)
    ]


def test_a_tier_that_fails_while_it_is_read_is_left_for_the_next(near: MemoryTier) -> None:
    """Let each read of an undisturbed restore fail, one at a time."""
    far = clone(near, "far", level=3)
    calls = 0

    def fail_at(number: int | None) -> Callable[[str, str], None]:
        def on_call(operation: str, _key: str) -> None:
            nonlocal calls
            calls += 1
            if operation in ("get", "read_into", "size") and calls == number:
                raise TierUnavailable(f"the disk 'near' broke in {operation}")

        return on_call

    restored(FaultyTier(near, fail_at(None)), far)
    total = calls
    assert total > 8
    for number in range(1, total + 1):
        calls = 0
        found, _ = restored(FaultyTier(near, fail_at(number)), far)
        assert (found.id.step, bits(found.state)) == (3, MODEL[3])


def test_a_dead_tier_is_noted_and_the_other_one_read(near: MemoryTier) -> None:
    def dead(_operation: str, _key: str) -> None:
        raise TierUnavailable("nvme is gone")

    found, notes = restored(FaultyTier(MemoryTier("nvme"), dead), clone(near, "far", level=3))
    assert (found.id.step, bits(found.state)) == (3, MODEL[3])
    assert "Tier 'nvme' was skipped: nvme is gone" in notes


# --- a target that does not fit ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw": np.zeros(11_999)}, r"raw.*12000.*11999"),
        ({"raw": np.zeros(12_000, np.float32)}, r"raw.*<f8.*<f4"),
        ({"extra": np.zeros(3)}, "extra"),
        ({"packed": 1}, "packed"),
    ],
)
def test_a_target_that_does_not_fit_is_not_touched(
    near: MemoryTier, change: State, message: str
) -> None:
    target = {**blank(), **change}
    before = bits(target)
    with pytest.raises(StateError, match=rf"(?s)nothing was changed.*{message}"):
        restored(near, target=target)
    assert bits(target) == before


def test_every_mismatch_is_named_at_once(near: MemoryTier) -> None:
    target = blank()
    target["raw"], target["zero"] = np.zeros(3), np.zeros(500, np.int8)
    with pytest.raises(StateError, match="does not fit") as caught:
        restored(near, target=target)
    text = " ".join(caught.value.mismatches)
    assert len(caught.value.mismatches) == 2
    assert "raw" in text
    assert "zero" in text


def test_copies_are_copies(near: MemoryTier) -> None:
    """What `clone` makes is what a flush makes, so the cases above are real ones."""
    lineage = Lineage([near], LINEAGE)
    target = MemoryTier("far", level=3)
    for found in lineage.checkpoints():
        copy_checkpoint([near], target, LINEAGE, lineage.manifest(found))
    assert {key: target.get(key) for key in target.iter_keys(PREFIX[:-1])} == {
        key: near.get(key) for key in near.iter_keys(PREFIX[:-1])
    }


def test_roots_that_differ_although_all_frames_are_sound(near: MemoryTier) -> None:
    """Nobody can restore what the writer digested wrongly; it must be told as such."""
    lineage = Lineage([near], LINEAGE)
    manifest = lineage.manifest(lineage.checkpoints()[0])
    wrong = replace(manifest.regions[0], root=bytes(16))
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    with pytest.raises(
        CorruptionError, match=r"Regions 'state/raw'|although all frames are sound"
    ):
        read_checkpoint(
            [near], replace(manifest, regions=(wrong, *manifest.regions[1:])), buffers
        )


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(near: MemoryTier) -> None:
    """Whoever went on from an older one would make it void, and its work would be lost."""
    newest = Lineage([near], LINEAGE).valid()[0].id
    key = f"{LINEAGE.prefix}/{newest.manifest_key}"
    body = bytearray(near.get(key)[: -manifest_file.SEAL_BYTES])
    body[8:12] = (2).to_bytes(4, "little")
    near.put(key, [body + manifest_file.seal(bytes(body))])
    target = blank()
    untouched = bits(target)
    with pytest.raises(FormatError, match=r"format version 2.*Install a newer ckptflow"):
        restored(near, target=target)
    assert bits(target) == untouched
