"""Crash a save before every change that it makes; earlier checkpoints stay as they were.

Method: count the changes of an undisturbed save, then repeat it once per change with a tier
that dies just before that change. No randomness, so a failure names its own case. What is
read back is compared bit by bit with copies made before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.data import pack as pack_module
from ckptflow.data.encoding import Goal
from ckptflow.errors import FencedError, TierError, TierFull, TierUnavailable
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion, remember
from ckptflow.store.packer import Packer
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import checkpoint_root, write_checkpoint
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("exp", "task")
CHUNK_BYTES = 64

Bits = Mapping[str, bytes]


def regions_of(state: Bits) -> list[NamedRegion]:
    return [NamedRegion(name, memoryview(data)) for name, data in state.items()]


def write(
    tier: Tier,
    state: Bits,
    step: int,
    base: Base | None = None,
    *,
    attempt: int = 1,
    chunk_bytes: int = CHUNK_BYTES,
    before_commit: Callable[[], None] = lambda: None,
    goal: Goal = "auto",
) -> Base:
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, attempt),
        structure=["dict"],
        regions=regions_of(state),
        base=base,
        chunk_bytes=chunk_bytes,
        before_commit=before_commit,
        goal=goal,
    )


def manifests(tier: Tier) -> dict[CheckpointId, Manifest]:
    lineage = Lineage([tier], LINEAGE)
    return {found.id: lineage.manifest(found) for found in lineage.checkpoints()}


def read(tier: Tier, manifest: Manifest) -> dict[str, bytes]:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    read_checkpoint([tier], manifest, buffers)
    names = [entry.name for entry in manifest.regions]
    return {name: bytes(buffer) for name, buffer in zip(names, buffers, strict=True)}


def everything(tier: Tier) -> dict[int, dict[str, bytes]]:
    """Every checkpoint on a tier, by step, as its bits."""
    return {found.step: read(tier, manifest) for found, manifest in manifests(tier).items()}


def packs(tier: Tier) -> list[str]:
    return list(tier.iter_keys(f"{LINEAGE.prefix}/packs"))


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def changed(data: bytes, *places: int) -> bytes:
    result = bytearray(data)
    for place in places:
        result[place] ^= 0xFF
    return bytes(result)


FIRST: Bits = {"w": noise(1, 6400), "zero": bytes(3000), "small": b"abc", "empty": b""}
SECOND: Bits = {**FIRST, "w": changed(FIRST["w"], 100, 4000), "small": b"abcd"}


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few kilobytes fill several frames and packs."""
    monkeypatch.setattr(pack_module, "GATHER_BYTES", 512)
    monkeypatch.setattr(pack_module, "FRAME_BYTES", 1024)
    monkeypatch.setattr(pack_module, "PACK_BYTES", 2048)


@pytest.fixture
def disk() -> MemoryTier:
    return MemoryTier("disk")


# --- what is written ---


def test_what_was_written_is_read_back(disk: MemoryTier) -> None:
    write(disk, FIRST, 1)
    assert everything(disk) == {1: FIRST}


def test_a_delta_writes_what_turnand_names_the_rest(disk: MemoryTier) -> None:
    base = write(disk, FIRST, 1)
    base = write(disk, SECOND, 2, base)
    assert everything(disk) == {1: FIRST, 2: SECOND}
    second = base.manifest
    assert (second.kind, second.parent) == ("delta", CheckpointId(1, 1))
    own = sum(pack.plain_bytes for pack in second.own_packs)
    assert own == 2 * CHUNK_BYTES + len(SECOND["small"])
    assert len(second.packs) == 2


def test_nothing_turnwrites_no_pack(disk: MemoryTier) -> None:
    base = write(disk, FIRST, 1)
    second = write(disk, FIRST, 2, base).manifest
    assert second.own_packs == ()
    assert len(packs(disk)) == 1
    assert everything(disk)[2] == FIRST


def test_fills_need_no_pack(disk: MemoryTier) -> None:
    manifest = write(disk, {"zero": bytes(10_000), "pattern": b"abcdefgh" * 800}, 1).manifest
    assert manifest.packs == ()
    assert (manifest.kind, manifest.parent) == ("full", None)
    assert everything(disk)[1] == {"zero": bytes(10_000), "pattern": b"abcdefgh" * 800}


def test_a_state_of_nothing(disk: MemoryTier) -> None:
    write(disk, {}, 1)
    assert everything(disk) == {1: {}}


def test_another_chunk_size_starts_anew(disk: MemoryTier) -> None:
    base = write(disk, FIRST, 1)
    second = write(disk, SECOND, 2, base, chunk_bytes=128).manifest
    assert (second.kind, second.parent) == ("full", None)
    assert everything(disk)[2] == SECOND


def test_the_checkpoints_root_depends_on_names_and_bytes(disk: MemoryTier) -> None:
    roots = {
        write(disk, state, step).manifest.root
        for step, state in enumerate(
            [
                {"a": b"1", "b": b"2"},
                {"a": b"2", "b": b"1"},
                {"a": b"1", "c": b"2"},
                {"a": b"1"},
            ]
        )
    }
    assert len(roots) == 4
    manifest = write(disk, FIRST, 9).manifest
    assert manifest.root == checkpoint_root(manifest.regions)


def test_an_equal_state_gives_equal_bytes(disk: MemoryTier) -> None:
    def once(tier: Tier) -> dict[str, bytes]:
        write_checkpoint(
            tier,
            LINEAGE,
            CheckpointId(1, 1),
            structure=["dict"],
            regions=regions_of(FIRST),
            base=None,
            chunk_bytes=CHUNK_BYTES,
            now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
            nonce=lambda: "0" * 8,
        )
        return {key: tier.get(key) for key in tier.iter_keys("")}

    assert once(disk) == once(MemoryTier("other"))


def test_large_pieces_reach_the_tier_uncopied(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_module, "GATHER_BYTES", 512)
    monkeypatch.setattr(pack_module, "FRAME_BYTES", 1024)
    data = memoryview(bytearray(noise(3, 4096)))
    seen = []

    class Watching(FaultyTier):
        def put(self, key: str, parts) -> None:
            seen.extend(part.obj for part in parts if isinstance(part, memoryview))
            super().put(key, parts)

    write_checkpoint(
        Watching(disk, lambda _operation, _key: None),
        LINEAGE,
        CheckpointId(1, 1),
        structure=["dict"],
        regions=[NamedRegion("w", data)],
        base=None,
        chunk_bytes=CHUNK_BYTES,
    )
    assert len(seen) == 4
    assert all(source is data.obj for source in seen)


def test_a_base_whose_packs_are_gone_is_not_built_upon(disk: MemoryTier) -> None:
    """A cleaner of scratch disks takes the oldest files first: the packs that deltas share."""
    base = write(disk, FIRST, 1)
    disk.delete(packs(disk)[0])
    second = write(disk, SECOND, 2, base).manifest
    assert second.kind == "full"
    assert read(disk, second) == SECOND


def test_a_base_with_a_pack_cut_short_is_not_built_upon(disk: MemoryTier) -> None:
    base = write(disk, FIRST, 1)
    (pack,) = packs(disk)
    disk.put(pack, [disk.get(pack)[:-1]])
    second = write(disk, SECOND, 2, base).manifest
    assert second.kind == "full"
    assert read(disk, second) == SECOND


# --- crashes ---

Scene = Callable[[Tier], None]


def _full(tier: Tier) -> None:
    write(tier, SECOND, 2)


def _delta(tier: Tier) -> None:
    first = manifests(tier)[CheckpointId(1, 1)]
    write(tier, SECOND, 2, restored(tier, first))


def restored(tier: Tier, manifest: Manifest) -> Base:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    return remember(manifest, buffers, read_checkpoint([tier], manifest, buffers))


SCENES = [
    pytest.param(scene, sizes, id=f"{name}, {sizes}")
    for name, scene in (("full", _full), ("delta", _delta))
    for sizes in ("one pack", "many packs")
]


@pytest.mark.parametrize("crash_at", [0, 1, 2])
def test_a_crash_between_saves_of_deltas(disk: MemoryTier, crash_at: int) -> None:
    """The bytes at hand stay those of the base, and the next delta is on them."""
    numbers = np.arange(2000, dtype="<u4") * np.uint32(0x9E3779B1)
    states = [{"w": (numbers + np.uint32(step)).tobytes()} for step in range(4)]

    def saved(tier: Tier, step: int, base: Base | None) -> Base:
        new = write(tier, states[step], step, base, goal="small")
        new.memory.bytes_at_hand = {"w": memoryview(states[step]["w"])}
        return new

    base = saved(disk, 1, saved(disk, 0, None))
    assert len(base.manifest.regions[0].deltas) == 1
    crashing = CrashingTier(disk, crash_at=crash_at)
    if crash_at < 2:  # A pack and a manifest.
        with pytest.raises(Crash):
            saved(crashing, 2, base)
    else:
        base = saved(crashing, 2, base)
    base = saved(disk, 3, base)
    assert len(base.manifest.regions[0].deltas) == (3 if crash_at == 2 else 2)
    there = (0, 1, 2, 3) if crash_at == 2 else (0, 1, 3)
    assert everything(disk) == {step: states[step] for step in there}


@pytest.mark.parametrize(("scene", "sizes"), SCENES)
def test_a_crash_before_any_change_leaves_what_was_there(
    scene: Scene, sizes: str, request: pytest.FixtureRequest
) -> None:
    if sizes == "many packs":
        request.getfixturevalue("small_packs")
    counting = CrashingTier(_with_first())
    scene(counting)
    puts = counting.changes
    assert puts == (2 if sizes == "one pack" or scene is _delta else 5)
    for crash_at in range(puts):
        disk = _with_first()
        before = set(disk.iter_keys(""))
        with pytest.raises(Crash):
            scene(CrashingTier(disk, crash_at=crash_at))
        assert everything(disk) == {1: FIRST}
        assert len(set(disk.iter_keys("")) - before) == crash_at  # Garbage, and no manifest.
        # Another attempt goes on as if nothing had been.
        base = restored(disk, manifests(disk)[CheckpointId(1, 1)])
        write(disk, SECOND, 2, base, attempt=2)
        assert everything(disk) == {1: FIRST, 2: SECOND}


def _with_first() -> MemoryTier:
    disk = MemoryTier("disk")
    write(disk, FIRST, 1)
    return disk


def test_the_commit_is_the_put_of_the_manifest_and_comes_last(small_packs: None) -> None:
    disk, log = MemoryTier("disk"), []

    def watch(operation: str, key: str) -> None:
        if operation in ("put", "create", "delete"):
            log.append(
                (operation, key.removeprefix(f"{LINEAGE.prefix}/"), bool(manifests(disk)))
            )

    write(FaultyTier(disk, watch), FIRST, 1)
    *before, last = log
    assert len(before) == 4
    assert all(operation == "put" and key.startswith("packs/") for operation, key, _ in before)
    assert last[:2] == ("put", CheckpointId(1, 1).manifest_key)
    assert not any(visible for _, _, visible in log)
    assert everything(disk) == {1: FIRST}


def test_the_next_pack_is_encoded_while_one_is_put_and_no_third(
    disk: MemoryTier, small_packs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, begun, turn = Packer._encoded, [], threading.Condition()
    seen = []

    def noted(packer: Packer, number: int, key: str) -> Any:
        with turn:
            begun.append(number)
            turn.notify_all()
        return encode(packer, number, key)

    def put(operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            number = len(seen)
            with turn:
                assert turn.wait_for(lambda: len(begun) >= min(number + 2, 4), timeout=60)
                seen.append(list(begun))

    monkeypatch.setattr(Packer, "_encoded", noted)
    write(FaultyTier(disk, put), FIRST, 1)
    assert seen == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert everything(disk) == {1: FIRST}


# --- failures that are no crash ---


def test_whoever_vetoes_the_commit_is_asked_when_all_packs_are_there(disk: MemoryTier) -> None:
    base = write(disk, FIRST, 1)
    asked = []

    def veto() -> None:
        asked.append(len(packs(disk)))
        raise FencedError("attempt 2 has taken over")

    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        write(disk, SECOND, 2, base, before_commit=veto)
    assert asked == [2]
    assert everything(disk) == {1: FIRST}
    assert len(packs(disk)) == 1  # What the vetoed save had put is gone again.


def test_a_full_tier_gets_its_room_back(small_packs: None) -> None:
    disk = MemoryTier("disk", capacity_bytes=16_000)
    base = write(disk, FIRST, 1)
    held = {key: disk.get(key) for key in disk.iter_keys("")}
    with pytest.raises(TierFull, match=r"'disk' has no room for .*packs/000000000002"):
        write(disk, {"w": noise(5, 20_000)}, 2, base)
    assert {key: disk.get(key) for key in disk.iter_keys("")} == held
    write(disk, SECOND, 3, base)
    assert everything(disk) == {1: FIRST, 3: SECOND}


def test_the_first_failure_is_told_when_tidying_fails_too(
    disk: MemoryTier, small_packs: None
) -> None:
    def fail(operation: str, key: str) -> None:
        if operation == "delete":
            raise TierUnavailable("cannot delete either")
        if operation == "put" and ".0002." in key:
            raise TierFull("no room for the third pack")

    with pytest.raises(TierFull, match="no room for the third pack"):
        write(FaultyTier(disk, fail), FIRST, 1)
    assert everything(disk) == {}


class LostAnswer(FaultyTier):
    """Does what it is asked, and then the connection breaks."""

    def __init__(self, inner: Tier, part: str) -> None:
        self._part = part
        super().__init__(inner, lambda _operation, _key: None)

    def put(self, key: str, parts) -> None:
        super().put(key, parts)
        if self._part in key:
            raise TierUnavailable(f"no answer about {key}")


def test_a_commit_whose_answer_was_lost_may_have_been_one(disk: MemoryTier) -> None:
    """So its packs must stay: the checkpoint is there, and has to be whole."""
    base = write(disk, FIRST, 1)
    with pytest.raises(TierUnavailable, match=r"no answer about .*manifests"):
        write(LostAnswer(disk, "manifests/"), SECOND, 2, base)
    assert everything(disk) == {1: FIRST, 2: SECOND}


def test_a_pack_whose_answer_was_lost_is_garbage(disk: MemoryTier) -> None:
    base = write(disk, FIRST, 1)
    with pytest.raises(TierError, match=r"no answer about .*packs"):
        write(LostAnswer(disk, "packs/"), SECOND, 2, base)
    assert everything(disk) == {1: FIRST}


def test_a_repeated_save_never_gives_one_key_two_meanings(disk: MemoryTier) -> None:
    """The same step of the same attempt, after a failure that left its packs behind."""
    base = write(disk, FIRST, 1)
    for state in (SECOND, {**SECOND, "small": b"another"}):
        with pytest.raises(TierUnavailable, match=r"no answer about .*packs"):
            write(LostAnswer(disk, "packs/"), state, 2, base)
    write(disk, SECOND, 2, base)
    assert len(packs(disk)) == len(set(packs(disk))) == 4
    assert everything(disk) == {1: FIRST, 2: SECOND}


def test_nothing_is_written_for_a_chunk_size_that_cannot_be(disk: MemoryTier) -> None:
    with pytest.raises(ValueError, match="multiple of 8, at least 16, not 12"):
        write(disk, FIRST, 1, chunk_bytes=12)
    assert list(disk.iter_keys("")) == []


def test_what_lies_in_the_store_can_be_decoded_alone(disk: MemoryTier) -> None:
    """The manifest on the tier is the one that the writer goes on from."""
    ensure_store(disk)
    base = write(disk, FIRST, 1)
    stored = disk.get(f"{LINEAGE.prefix}/{CheckpointId(1, 1).manifest_key}")
    assert manifest_file.decode(stored, where="disk") == base.manifest
