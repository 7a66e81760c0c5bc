"""Deltas, periods, copies, failures and lost packs, against whole copies of every state.

A life is a list of events: edits of a few small regions, saves that may fail at any put, packs
that vanish, restores of any checkpoint as the base of the next. Frames, packs and histories are
so small that every path of a layout is taken, and encodings are dictated, so that deltas happen
whether they pay or not. All checkpoints read back equal, by the product and, where the store is
a folder, by the independent reader; window by window they have the roots that they should;
and each keeps to the bounds of a restore.

`test_what_is_tested_happens` counts what happens in some lives, so that these laws cannot hold
for want of anything to hold for.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import independent_reader as reader
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptflow import manifest as manifest_file
from ckptflow.data import pack as pack_module
from ckptflow.data.codec import Codec
from ckptflow.data.filters import Filter
from ckptflow.data.frames import Encoding
from ckptflow.model import FILL, KEEP, CheckpointId, DeltaOp, LineageId, Manifest
from ckptflow.store import memory as memory_module
from ckptflow.store import partial, rewriting
from ckptflow.store.catalog import Lineage
from ckptflow.store.checking.roots import RootChecker
from ckptflow.store.consolidate import consolidate
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion, remember
from ckptflow.store.planning import changes, drafting, layout, pieces, plan, repeats, wear
from ckptflow.store.planning.choice import DELTA_BOUNDS
from ckptflow.store.planning.drafting import DeltaBounds, RegionEncoding
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import Crash, CrashingTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("exp", "task")
NAMES = ["a", "b", "c"]
POOL = ThreadPoolExecutor(1)

State = dict[str, bytes]


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


# --- what a life is made of ------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happens; what the numbers mean depends on the kind."""

    kind: str
    name: str
    other: str
    seed: int
    start: int
    length: int


EDITS = ["write", "nudge", "cells", "fill cells", "periodic", "resize", "drop", "swap", "copy"]
EDITS += ["rotate", "return"]
CALM = ["nudge"], ["return", "cells"]  # Lives of which less is left to chance.
MISFORTUNES = ["fail", "lose spare packs", "lose a needed pack", "restart", "go back", "twice"]


@dataclass(frozen=True)
class Setting:
    """How a life's checkpoints are compared and stored, and how small all limits are."""

    chunk_bytes: int = 64
    cell_bytes: int | None = None
    size_max: int = 700
    frames: tuple[int, int, int] = (64, 128, 256)  # Gather, frame, pack.
    packs_max: int = 32
    spare_max: int = 32
    cells_min: int = 1 << 16
    deltas: tuple[tuple[DeltaOp, int], ...] = ()
    verify: str = "off"


FRAMES = [
    (64, 128, 256),
    (64, 64, 128),
    (128, 256, 1024),
    (1024, 2048, 512),
    (1 << 16, 1 << 20, 1 << 28),
]
DELTAS = st.tuples(st.sampled_from(list(DeltaOp)), st.sampled_from([1, 2, 4, 8]))
ENCODINGS = [
    Encoding(Codec.ZSTD, 1),
    Encoding(),
    Encoding(Codec.LZ4, 0, Filter.SHUFFLE, 4),
    Encoding(Codec.RAW, 0, Filter.WORDS, 8),
    Encoding(Codec.ZSTD, 1, Filter.BITSHUFFLE, 2),
]


@st.composite
def settings_of_lives(draw: st.DrawFn) -> Setting:
    chunk = draw(st.sampled_from([16, 24, 64, 128]))
    cells = [None, *(cell for cell in (16, 24, 32, 64) if chunk % cell == 0), 4 * chunk]
    return Setting(
        chunk,
        draw(st.sampled_from(cells)),
        draw(st.sampled_from([100, 700, 2000])),
        draw(st.sampled_from(FRAMES)),
        draw(st.sampled_from([2, 4, 32])),
        draw(st.sampled_from([1, 3, 32])),
        draw(st.sampled_from([1, 5, 20, 1 << 16])),
        tuple(draw(st.lists(DELTAS, max_size=2))),
        draw(st.sampled_from(["off", "off", "sample", "all"])),
    )


def events(*kinds: str) -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        st.sampled_from(kinds),
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
        st.integers(0, 5),  # Few, so that old contents come back.
        st.integers(0, 2000),
        st.integers(0, 300),
    )


def steps_of(edits: list[str]) -> st.SearchStrategy[list[tuple[list[Event], Event | None]]]:
    misfortune = st.one_of(st.none(), st.none(), events(*MISFORTUNES))
    one = st.tuples(st.lists(events(*edits), max_size=3), misfortune)
    return st.lists(one, min_size=1, max_size=12)


STEPS = st.one_of(steps_of(EDITS), *map(steps_of, CALM))


@contextlib.contextmanager
def limits(setting: Setting) -> Iterator[None]:
    """Make everything small that is large in earnest."""
    gather, frame, pack = setting.frames
    with (
        mock.patch.multiple(
            pack_module, GATHER_BYTES=gather, FRAME_BYTES=frame, PACK_BYTES=pack
        ),
        mock.patch.multiple(
            memory_module,
            SPARE_PACKS_MAX=setting.spare_max,
            CELLS_MIN=setting.cells_min,
            CELLS_PER_BYTE=0,
        ),
        mock.patch.object(wear, "PACKS_MAX", setting.packs_max),
        mock.patch.object(changes, "ADAPT_BYTES_MIN", 300),
    ):
        yield


# --- a life ----------------------------------------------------------------------------


@dataclass
class Life:
    """A lineage on one tier, and whole copies of what was saved."""

    tier: Tier
    setting: Setting
    state: State = field(default_factory=dict)
    base: Base | None = None
    saved: list[tuple[Manifest, State]] = field(default_factory=list)
    past: list[State] = field(default_factory=list)
    step: int = 0
    saves: int = 0
    roots: RootChecker = field(init=False)

    def __post_init__(self) -> None:
        size = self.setting.size_max
        self.state = {"a": noise(0, size), "b": noise(1, size // 3)}
        self.roots = RootChecker(self.tier, POOL, window_bytes=3 * self.setting.chunk_bytes)

    def live(self, steps: Sequence[tuple[Sequence[Event], Event | None]]) -> None:
        with limits(self.setting), mock.patch.object(plan, "choose_encodings", self.chosen):
            for edits, misfortune in steps:
                for one in edits:
                    self.edit(one)
                self.past.append(dict(self.state))
                self.suffer(misfortune)
                self.save(misfortune)
            for manifest, state in self.saved:
                assert read(self.tier, manifest) == state

    def chosen(
        self, diffs: Sequence[Any], _memory: Any, **_options: Any
    ) -> list[RegionEncoding]:
        found = []
        for number, _ in enumerate(diffs):
            plain = ENCODINGS[(self.step + number) % len(ENCODINGS)]
            delta = None
            if self.setting.deltas:
                op, word = self.setting.deltas[
                    (self.step // 3 + number) % len(self.setting.deltas)
                ]
                delta = Encoding(Codec.ZSTD, 1, op=op, op_word=word)
            found.append(RegionEncoding(plain, delta))
        return found

    # --- edits ---

    def edit(self, event: Event) -> None:
        data = bytearray(self.state.get(event.name, b""))
        unit = self.setting.cell_bytes or self.setting.chunk_bytes
        start = event.start % max(1, len(data))
        rng = np.random.default_rng((event.seed, event.start))
        if event.kind == "write":
            data[start : start + event.length] = noise(event.seed, event.length)
        elif event.kind == "nudge":
            places = np.arange(start, len(data), 1 + event.length % 50)
            view = np.frombuffer(data, np.uint8).copy()
            view[places] += rng.integers(0, 3, len(places), dtype=np.uint8)
            data = bytearray(view.tobytes())
        elif event.kind == "cells":
            for at in range(start // unit * unit, len(data), unit * (1 + event.seed)):
                data[at : at + unit] = noise(at % 7, unit)[: len(data) - at]
        elif event.kind == "fill cells":
            size = unit * (1 + event.seed % 3)
            for at in range(event.start % 2 * size, len(data), 2 * size):
                data[at : at + size] = (noise(event.length % 2, 8) * size)[
                    : min(size, len(data) - at)
                ]
        elif event.kind == "periodic":
            period = noise(event.seed, unit * (1 + event.length % 4))
            if event.length % 3 == 0:  # Of a cell, a fill, and a cell.
                period = (
                    noise(event.seed, unit) + bytes([7]) * unit + noise(event.seed + 1, unit)
                )
            start = start // unit * unit
            data[start:] = (period * 2000)[: event.start % (self.setting.size_max + 1)]
        elif event.kind == "resize":
            data = (data + bytearray(noise(event.seed, 2000)))[: event.start]
        elif event.kind == "swap" and event.other in self.state:
            self.state[event.name] = self.state[event.other]
            self.state[event.other] = bytes(data)
            return
        elif event.kind == "copy":
            self.state[event.other] = bytes(data)
            return
        elif event.kind == "rotate":
            by = unit * (1 + event.seed) % max(1, len(data))
            data = data[by:] + data[:by]
        elif event.kind == "return" and self.past:
            then = self.past[event.start % len(self.past)]
            data = bytearray(then.get(event.name, data))
        if event.kind == "drop":
            self.state.pop(event.name, None)
        else:
            self.state[event.name] = bytes(data[: self.setting.size_max])

    # --- misfortunes ---

    def suffer(self, event: Event | None) -> None:
        if event is None or self.base is None:
            return
        if event.kind.startswith("lose"):
            needed = {self.where(pack.key) for pack in self.base.manifest.packs}
            packs = set(self.tier.iter_keys(f"{LINEAGE.prefix}/packs"))
            # A prune takes all that the newest does not need; a cleaner takes what it likes.
            gone = packs - needed if event.kind == "lose spare packs" else sorted(needed)[:1]
            for key in gone:
                self.tier.delete(key)
            self.saved = [
                (manifest, state)
                for manifest, state in self.saved
                if {self.where(pack.key) for pack in manifest.packs}.isdisjoint(gone)
            ]
        elif event.kind in {"restart", "go back"} and self.saved:
            which = -1 if event.kind == "restart" else event.start % len(self.saved)
            manifest, state = self.saved[which]
            buffers = [memoryview(bytearray(e.size_bytes)) for e in manifest.regions]
            chunks = read_checkpoint([self.tier], manifest, buffers)
            self.base = remember(manifest, buffers, chunks)
            if event.seed % 2:  # Else the process has no bytes at hand.
                self.base.memory.bytes_at_hand = _views(state)

    @staticmethod
    def where(key: str) -> str:
        return f"{LINEAGE.prefix}/{key}"

    # --- saves ---

    def save(self, event: Event | None) -> None:
        tier: Tier = self.tier
        kind = event.kind if event else ""
        if kind == "fail":
            assert event is not None
            tier = CrashingTier(self.tier, crash_at=event.seed % 3)
        if kind != "twice" or self.base is None:
            self.step += 1
        before = set(self.tier.iter_keys(f"{LINEAGE.prefix}/packs"))
        try:
            base = write_checkpoint(
                tier,
                LINEAGE,
                CheckpointId(self.step, 1),
                structure=["dict"],
                regions=[NamedRegion(n, memoryview(data)) for n, data in self.state.items()],
                base=self.base,
                chunk_bytes=self.setting.chunk_bytes,
                cell_bytes=self.setting.cell_bytes,
                goal="small",
                verify=self.setting.verify,  # type: ignore[arg-type]
            )
        except Crash:
            return  # What was the base is the base of the next one.
        self.base, self.saves = base, self.saves + 1
        base.memory.bytes_at_hand = _views(self.state)
        manifest = base.manifest
        key = self.where(manifest.id.manifest_key)
        assert manifest_file.decode(self.tier.get(key), where=key) == manifest
        own = {pack.key for pack in manifest.packs if self.where(pack.key) not in before}
        check_bounds(manifest, own, self.setting.packs_max)
        self.saved = [one for one in self.saved if one[0].id != manifest.id]
        self.saved.append((manifest, dict(self.state)))
        assert read(self.tier, manifest) == self.state
        if self.saves % 5 == 0:  # It costs more than all the rest.
            assert self.roots.wrong(manifest) == []


def _views(state: State) -> dict[str, memoryview]:
    return {name: memoryview(data) for name, data in state.items()}


def read(tier: Tier, manifest: Manifest) -> State:
    """Read it back into memory that holds something else; the first pass has to be right."""
    buffers = [memoryview(bytearray(b"\xee" * e.size_bytes)) for e in manifest.regions]
    notes: list[str] = []
    read_checkpoint([tier], manifest, buffers, note=notes.append)
    assert notes == []
    return {e.name: bytes(b) for e, b in zip(manifest.regions, buffers, strict=True)}


def check_bounds(manifest: Manifest, own: set[str], packs_max: int) -> None:
    """What a restore pays at most, besides the bytes of the state."""
    table, packs = manifest.extents, manifest.packs
    assert set(table.pack[table.stored].tolist()) == set(range(len(packs)))
    assert len(packs) - len(own) <= packs_max
    for number, pack in enumerate(packs):
        here = table.pack == number
        used = np.zeros(pack.plain_bytes, np.bool_)
        for source, extent in zip(table.source[here], table.extent[here], strict=True):
            used[int(source) : int(source + extent)] = True
        least = 1.0 if pack.key in own else wear.LIVE_FRACTION_MIN
        assert used.sum() >= least * pack.plain_bytes > 0
    for entry, layers in zip(manifest.regions, manifest.region_layers(), strict=True):
        assert len(entry.deltas) == len(layers) - 1 <= DELTA_BOUNDS["small"].layers
        for rows in layers[1:]:
            assert rows.stored.any()
            assert not rows.period.any()
        assert not (layers[0].pack == KEEP).any()
        assert not layers[0].period[layers[0].pack == FILL].any()


# --- the laws --------------------------------------------------------------------------


@settings(deadline=None)
@given(setting=settings_of_lives(), steps=STEPS)
def test_every_checkpoint_of_a_life_is_the_whole_copy(
    setting: Setting, steps: list[tuple[list[Event], Event | None]]
) -> None:
    Life(MemoryTier(), setting).live(steps)


@settings(max_examples=max(10, settings().max_examples // 3))
@given(setting=settings_of_lives(), steps=STEPS)
def test_the_independent_reader_agrees(
    setting: Setting, steps: list[tuple[list[Event], Event | None]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tier = PosixTier(Path(folder), name="disk")
        ensure_store(tier)
        life = Life(tier, setting)
        life.live(steps)
        there = {c.step: c for c in reader.checkpoints(Path(folder), "exp", "task")}
        for manifest, state in life.saved:
            document, regions = reader.read_regions(there[manifest.id.step])
            names = [region["name"] for region in document["regions"]]
            assert dict(zip(names, map(bytes, regions), strict=True)) == state


@settings(max_examples=max(10, settings().max_examples // 4), deadline=None)
@given(
    setting=settings_of_lives(),
    steps=STEPS,
    part_bytes=st.sampled_from([16, 100, 512, 1 << 20]),
    chosen_from=st.sampled_from([0, 300, 1 << 20]),
)
def test_what_was_consolidated_is_the_whole_copy_in_its_own_packs(
    setting: Setting,
    steps: list[tuple[list[Event], Event | None]],
    part_bytes: int,
    chosen_from: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tier = PosixTier(Path(folder), name="disk")
        ensure_store(tier)
        life, lineage = Life(tier, setting), Lineage([tier], LINEAGE)
        life.live(steps)
        with (
            limits(setting),
            mock.patch.object(partial, "PART_BYTES", part_bytes),
            mock.patch.multiple(
                rewriting, PART_BYTES=part_bytes, CHOSEN_FROM_BYTES=chosen_from
            ),
        ):
            for before, _ in life.saved:
                consolidate(lineage, tier, before.id, force=True)
        manifests = {m.id: lineage.manifest_on(tier, m.id) for m, _ in life.saved}
        needed = {life.where(pack.key) for m in manifests.values() for pack in m.packs}
        for key in set(tier.iter_keys(f"{LINEAGE.prefix}/packs")) - needed:
            tier.delete(key)
        there = {c.step: c for c in reader.checkpoints(Path(folder), "exp", "task")}
        for before, state in life.saved:
            after = manifests[before.id]
            assert read(tier, after) == state
            assert after.own_packs == after.packs
            assert not any(entry.deltas for entry in after.regions)
            assert (after.root, after.created, after.metrics, after.structure) == (
                (before.root, before.created, before.metrics, before.structure)
            )
            document, regions = reader.read_regions(there[before.id.step])
            names = [region["name"] for region in document["regions"]]
            assert dict(zip(names, map(bytes, regions), strict=True)) == state


def random_steps(
    rng: np.random.Generator, count: int
) -> list[tuple[list[Event], Event | None]]:
    def one(kinds: list[str]) -> Event:
        name, other = (NAMES[k] for k in rng.integers(0, 3, 2))
        numbers = (int(rng.integers(limit)) for limit in (6, 2001, 301))
        return Event(kinds[int(rng.integers(len(kinds)))], name, other, *numbers)

    kinds = [EDITS, *CALM][int(rng.integers(3))]
    return [
        (
            [one(kinds) for _ in range(int(rng.integers(4)))],
            one(MISFORTUNES) if rng.random() < 0.4 else None,
        )
        for _ in range(count)
    ]


def random_setting(rng: np.random.Generator) -> Setting:
    chunk = int(rng.choice([16, 64, 128]))
    ops = list(DeltaOp)
    deltas = [(ops[int(rng.integers(2))], int(rng.choice([1, 2, 4, 8]))) for _ in range(2)]
    return Setting(
        chunk,
        [None, None, 16, 16, 4 * chunk][int(rng.integers(5))],
        int(rng.choice([100, 700, 2000])),
        FRAMES[int(rng.integers(len(FRAMES)))],
        int(rng.choice([2, 4, 32])),
        int(rng.choice([1, 3, 32])),
        int(rng.choice([1, 20, 1 << 16, 1 << 16])),
        tuple(deltas[: int(rng.integers(3))]),
    )


class Census:
    """Counts what happens inside of saves."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        forget_, commit_ = memory_module.Memory.forget, memory_module.Seen.commit

        def forget(memory: Any, gone: Any) -> None:
            self.counts["packs forgotten"] += len(gone)
            forget_(memory, gone)

        def commit(seen: Any, where: Any) -> None:
            first = seen.history.first_id
            commit_(seen, where)
            self.counts["cells evicted"] += seen.history.first_id - first

        with (
            mock.patch.object(layout, "Worn", self.worn),
            mock.patch.object(drafting, "fold", self.fold),
            mock.patch.object(memory_module.Memory, "forget", forget),
            mock.patch.object(memory_module.Seen, "commit", commit),
        ):
            yield

    def worn(self, *args: Any) -> wear.Worn:
        self.counts["outworn packs"] += 1
        self.counts["outworn packs under deltas"] += any(one.deltas for one in args[3])
        return wear.Worn(*args)

    def fold(self, *args: Any) -> Any:
        rows = repeats.fold(*args)
        self.counts["folded rows"] += len(rows) < len(args[0])
        self.counts["periods written again"] += bool(
            (rows.pack == pieces.OWN)[rows.period > 0].any()
        )
        return rows

    def look_at(self, life: Life) -> None:
        for manifest, _ in life.saved:
            table = manifest.extents
            depth = max((len(entry.deltas) for entry in manifest.regions), default=0)
            self.counts[f"{min(depth, 3)} delta layers"] += 1
            self.counts["periods"] += bool(table.period.any())
            self.counts["fills"] += bool((table.pack == FILL).any())
            self.counts["shared packs"] += manifest.kind == "delta"
            self.counts["coarse cells"] += any(
                entry.cell_bytes > manifest.chunk_bytes for entry in manifest.regions
            )


def test_what_is_tested_happens() -> None:
    """In lives of the same events, drawn without Hypothesis; and these are right, too."""
    census = Census()
    # Packs of so few bytes are mostly head and table; that must not forbid deltas.
    generous = DeltaBounds(layers=8, plain_fraction=8.0, stored_fraction=1000.0)
    bounds = mock.patch.dict(DELTA_BOUNDS, auto=generous, small=generous)
    with bounds, census.watch():
        for seed in range(40):
            rng = np.random.default_rng(seed)
            life = Life(MemoryTier(), random_setting(rng))
            life.live(random_steps(rng, 20))
            census.look_at(life)
    often = [
        *("outworn packs", "outworn packs under deltas", "cells evicted", "shared packs"),
        *("folded rows", "periods", "periods written again", "fills", "coarse cells"),
        *("1 delta layers", "2 delta layers", "3 delta layers"),
    ]
    assert {what for what in often if census.counts[what] < 5} == set(), census.counts
    assert census.counts["packs forgotten"] > 0
