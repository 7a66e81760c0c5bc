"""Deltas against a model that keeps a whole copy of every state.

A history is a list of edits: bytes overwritten, runs filled, regions that grow, shrink, come,
go, and take each other's names. After every edit a checkpoint is written against the one
before, and in the end all of them, read back, must be the model's copies. What bounds a restore
is checked on each: how many packs a manifest names, and how much of them is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptflow.model import FILL, CheckpointId, LineageId, Manifest
from ckptflow.store.memory import Base, Memory, NamedRegion, remember
from ckptflow.store.planning import wear
from ckptflow.store.planning.changes import find_changes
from ckptflow.store.planning.choice import DELTA_BOUNDS, choose_encodings
from ckptflow.store.planning.layout import lay_out
from ckptflow.store.planning.wear import LIVE_FRACTION_MIN, PACKS_MAX
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("exp", "task")
NAMES = ["a", "b", "c"]
SIZE_MAX = 700

State = dict[str, bytes]
Edit = Callable[[State], None]


def _noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """One change of a state; an edit of a region that is not there makes it."""
    kind = draw(st.sampled_from(["write", "fill", "resize", "drop", "swap", "copy", "nothing"]))
    name, other = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
    seed = draw(st.integers(0, 5))  # Few, so that old contents come back.
    start, length = draw(st.integers(0, SIZE_MAX)), draw(st.integers(0, 200))
    period = draw(st.sampled_from([1, 2, 4, 8, 3]))

    def edit(state: State) -> None:
        data = bytearray(state.get(name, b""))
        if kind == "write":
            piece = _noise(seed, length)
            data[start : start + length] = piece[: max(0, len(data) - start)] or b""
            state[name] = bytes(data) if data else piece
        elif kind == "fill":
            end = min(len(data), start + length)
            pattern = (_noise(seed, period) * SIZE_MAX)[: max(0, end - start)]
            data[start:end] = pattern
            state[name] = bytes(data)
        elif kind == "resize":
            state[name] = bytes((data + bytearray(_noise(seed, SIZE_MAX)))[:start])
        elif kind == "drop":
            state.pop(name, None)
        elif kind == "swap" and name in state and other in state:
            state[name], state[other] = state[other], state[name]
        elif kind == "copy" and name in state:
            state[other] = state[name]

    return edit


@st.composite
def histories(draw: st.DrawFn, size: int = 12) -> list[State]:
    state: State = {
        name: _noise(number, draw(st.integers(0, SIZE_MAX)))
        for number, name in enumerate(NAMES)
        if draw(st.booleans())
    }
    states = [dict(state)]
    for edit in draw(st.lists(edits(), min_size=1, max_size=size)):
        edit(state)
        states.append(dict(state))
    return states


def write(tier: MemoryTier, step: int, state: State, base: Base | None, chunk: int) -> Base:
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=["dict"],
        regions=[NamedRegion(name, memoryview(data)) for name, data in state.items()],
        base=base,
        chunk_bytes=chunk,
    )


def read(tier: MemoryTier, manifest: Manifest) -> State:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    read_checkpoint([tier], manifest, buffers)
    entries = zip(manifest.regions, buffers, strict=True)
    return {entry.name: bytes(buffer) for entry, buffer in entries}


def restored(tier: MemoryTier, manifest: Manifest) -> Base:
    """The base that a process has which restored a checkpoint."""
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    return remember(manifest, buffers, read_checkpoint([tier], manifest, buffers))


def used_bytes(manifest: Manifest) -> dict[str, int]:
    """How many bytes of each pack the checkpoint needs, however often."""
    used: dict[str, set[int]] = {pack.key: set() for pack in manifest.packs}
    table = manifest.extents
    for number, source, extent in zip(table.pack, table.source, table.extent, strict=True):
        if number < len(manifest.packs):
            used[manifest.packs[number].key].update(range(int(source), int(source + extent)))
    return {key: len(positions) for key, positions in used.items()}


def check_bounds(manifest: Manifest) -> None:
    used = used_bytes(manifest)
    own = {pack.key for pack in manifest.own_packs}
    assert len(used) - len(own) <= PACKS_MAX
    for pack in manifest.packs:
        live = used[pack.key]
        if pack.key in own:
            assert live == pack.plain_bytes  # Nothing is written that nobody needs.
        else:
            assert live >= LIVE_FRACTION_MIN * pack.plain_bytes > 0
    total = sum(pack.plain_bytes for pack in manifest.packs)
    assert total <= manifest.state_bytes / LIVE_FRACTION_MIN


@given(states=histories(), chunk=st.sampled_from([16, 24, 64, 256]))
def test_every_checkpoint_of_a_history_is_the_whole_copy(
    states: list[State], chunk: int
) -> None:
    tier, base = MemoryTier(), None
    manifests = []
    for step, state in enumerate(states):
        base = write(tier, step, state, base, chunk)
        check_bounds(base.manifest)
        manifests.append(base.manifest)
    for state, manifest in zip(states, manifests, strict=True):
        assert read(tier, manifest) == state


@given(states=histories(size=6), chunk=st.sampled_from([16, 64]), data=st.data())
def test_any_checkpoint_can_be_the_base_of_the_next(
    states: list[State], chunk: int, data: st.DataObject
) -> None:
    """After a restore of an older one; what it leaves behind stays what it was."""
    tier = MemoryTier()
    manifests: list[Manifest] = []
    for step, state in enumerate(states):
        base = restored(tier, data.draw(st.sampled_from(manifests))) if manifests else None
        manifests.append(write(tier, step, state, base, chunk).manifest)
    for state, manifest in zip(states, manifests, strict=True):
        assert read(tier, manifest) == state


@given(states=histories(size=6), chunk=st.sampled_from([16, 64]), data=st.data())
def test_a_base_whose_memory_has_moved_on_is_none(
    states: list[State], chunk: int, data: st.DataObject
) -> None:
    tier = MemoryTier()
    bases: list[Base] = []
    for step, state in enumerate(states):
        base = data.draw(st.sampled_from(bases)) if bases else None
        is_newest = base is not None and base.memory.of is base.manifest
        bases.append(write(tier, step, state, base, chunk))
        assert is_newest or bases[-1].manifest.kind == "full"
    for state, base in zip(states, bases, strict=True):
        assert read(tier, base.manifest) == state


@given(states=histories(size=4), data=st.data())
def test_the_base_of_a_restore_is_that_of_the_save(
    states: list[State], data: st.DataObject
) -> None:
    """So whoever goes on after a restart writes what the first process would have."""
    tier, chunk = MemoryTier(), data.draw(st.sampled_from([16, 64]))
    base = None
    for step, state in enumerate(states):
        base = write(tier, step, state, base, chunk)
    assert base is not None
    again = restored(tier, base.manifest)
    assert again.manifest == base.manifest
    assert again.memory.regions.keys() == base.memory.regions.keys()
    for name, region in again.memory.regions.items():
        np.testing.assert_array_equal(region.chunks, base.memory.regions[name].chunks)


@given(states=histories(size=3), chunk=st.sampled_from([16, 64, 256]))
def test_only_changed_chunks_are_written(states: list[State], chunk: int) -> None:
    """Plus what is rescued from outworn packs, which is less than a quarter of each."""
    tier, base, before = MemoryTier(), None, {}
    for step, state in enumerate(states):
        old_packs = base.manifest.packs if base else ()
        base = write(tier, step, state, base, chunk)
        own = sum(pack.plain_bytes for pack in base.manifest.own_packs)
        rescued = sum(LIVE_FRACTION_MIN * pack.plain_bytes for pack in old_packs)
        assert own <= _changed_bytes(before, state, chunk) + rescued
        before = state


def _changed_bytes(before: State, after: State, chunk: int) -> int:
    total = 0
    for name, data in after.items():
        old = before.get(name, b"")
        for start in range(0, len(data), chunk):
            piece = data[start : start + chunk]
            total += 0 if piece == old[start : start + chunk] else len(piece)
    return total


@given(period=st.sampled_from([1, 2, 4, 8]), size=st.integers(0, 2000), seed=st.integers(0, 9))
def test_a_repeated_pattern_costs_no_pack(period: int, size: int, seed: int) -> None:
    whole = 8 * 16 * (size // 128)  # Whole chunks; a shorter last one may be stored as data.
    data = (_noise(seed, period) * whole)[:whole]
    tier = MemoryTier()
    manifest = write(tier, 0, {"a": data}, None, 128).manifest
    assert manifest.packs == ()
    assert set(manifest.extents.pack.tolist()) <= {FILL}
    assert read(tier, manifest) == {"a": data}


def test_a_long_history_of_small_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk changes at a time, 1000 times over.

    A restore opens a bounded number of packs all the while; and keeping to that bound does not
    cost ever more: a byte that was written is written again a few times, not with every save.
    """
    packs_max, chunk = 8, 64
    monkeypatch.setattr(wear, "PACKS_MAX", packs_max)
    rng = np.random.default_rng(7)
    data = bytearray(rng.bytes(chunk * 5000))
    tier, base, written = MemoryTier(), None, []
    for step in range(1000):
        start = chunk * int(rng.integers(5000))
        data[start : start + chunk] = rng.bytes(chunk)
        base = write(tier, step, {"a": bytes(data)}, base, chunk)
        manifest = base.manifest
        assert len(manifest.packs) - len(manifest.own_packs) <= packs_max
        written.append(sum(pack.plain_bytes for pack in manifest.own_packs))
    assert base is not None
    assert read(tier, base.manifest) == {"a": bytes(data)}
    # Doublings from one chunk to a thousand.
    assert sum(written[1:]) < 10 * chunk * len(written)


def test_dead_bytes_are_bounded_when_everything_changes_in_turn() -> None:
    """A window moves over the state; old packs are used up from one end."""
    rng = np.random.default_rng(8)
    data = bytearray(rng.bytes(64 * 100))
    tier, base = MemoryTier(), None
    for step in range(250):
        start = 64 * (step * 7 % 100)
        data[start : start + 448] = rng.bytes(min(448, len(data) - start))
        base = write(tier, step, {"a": bytes(data)}, base, 64)
        check_bounds(base.manifest)
    assert read(tier, base.manifest) == {"a": bytes(data)}


def test_layouts_are_values() -> None:
    """Planning twice gives the same, and writes nothing to what it was given."""
    tier = MemoryTier()
    base = write(tier, 0, {"a": _noise(1, 500), "b": _noise(2, 500)}, None, 64)
    state = {"a": _noise(1, 300) + _noise(3, 100), "b": _noise(2, 600)}
    regions = [NamedRegion(name, memoryview(data)) for name, data in state.items()]
    before = base.manifest.extents
    kept = before.take(slice(None)), before.length.copy(), before.source.copy()

    def planned() -> Any:
        memory: Memory = base.memory
        diffs = find_changes(regions, memory, chunk_bytes=64, cell_bytes=None)
        encodings = choose_encodings(diffs, memory, goal="auto", cores=1)
        layout = lay_out(diffs, memory, encodings, bounds=DELTA_BOUNDS["auto"])
        memory.rollback()
        return layout

    first, second = planned(), planned()
    assert first.regions == second.regions
    assert first.shared == second.shared
    assert before == kept[0]
    np.testing.assert_array_equal(before.length, kept[1])
    np.testing.assert_array_equal(before.source, kept[2])


@settings(max_examples=20)
@given(data=st.data())
def test_the_last_chunk_may_have_any_length(data: st.DataObject) -> None:
    """A region that grows or shrinks by less than a chunk changes its last chunk only."""
    chunk = data.draw(st.sampled_from([16, 64]))
    size = data.draw(st.integers(1, 4 * chunk))
    grown = size + data.draw(st.integers(-chunk, chunk))
    whole = _noise(1, 6 * chunk)
    tier = MemoryTier()
    base = write(tier, 0, {"a": whole[:size]}, None, chunk)
    state = {"a": whole[: max(0, grown)]}
    assert read(tier, write(tier, 1, state, base, chunk).manifest) == state
