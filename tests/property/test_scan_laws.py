"""A scan of digests is a comparison of bytes, and runs give the region back, on every backend.

What is expected is written from the definition, in plain Python over the bytes of each cell: a
dictionary of cells met so far stands for the history. Regions are edited the way applications
edit them: inserts, shifts, swaps, periodic, zero and random bytes; every length from nothing to
three chunks is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest, kernels_native
from ckptflow.data.history import History, diff_region
from ckptflow.data.scan import Changes, Kind, Runs, Scratch, collect_runs, scan

BACKENDS = digest.available()
SIZES = [(64, 16), (64, 32), (64, 64), (48, 24), (128, 16), (4096, 64), (2080, 1040)]
Row = tuple[Kind, int, int, int]  # kind, start, length, ref


def every_backend():
    for backend in BACKENDS:
        with digest.use(backend.name, backend.detail):
            yield backend


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def is_fill(cell: bytes) -> bool:
    return len(cell) % 8 == 0 and cell == cell[:8] * (len(cell) // 8)


def changed_cells(old: bytes | None, new: bytes, chunk: int, cell: int) -> list[int]:
    """Numbers of the cells that are not, byte for byte, what the old region has there."""
    before, found = old or b"", []
    for start in range(0, len(new), chunk):
        if new[start : start + chunk] == before[start : start + chunk]:
            continue
        for place in range(start, min(start + chunk, len(new)), cell):
            if new[place : min(place + cell, len(new))] != before[place : place + cell]:
                found.append(place // cell)
    return found


@dataclass
class Oracle:
    """A history of bytes instead of digests."""

    cell: int
    ids: dict[bytes, int] = field(default_factory=dict)

    def rows(self, old: bytes | None, new: bytes, chunk: int) -> list[Row]:
        cells = []
        for number in changed_cells(old, new, chunk, self.cell):
            data = new[number * self.cell : (number + 1) * self.cell]
            if is_fill(data):
                cells.append((number, Kind.FILL, int.from_bytes(data[:8], "little"), len(data)))
            else:
                kind = Kind.KNOWN if data in self.ids else Kind.NEW
                cells.append(
                    (number, kind, self.ids.setdefault(data, len(self.ids)), len(data))
                )
        return [self._row(list(group)) for _, group in groupby(cells, key=_Joined())]

    def _row(self, cells: list[tuple[int, Kind, int, int]]) -> Row:
        number, kind, ref, _ = cells[0]
        return kind, number * self.cell, sum(cell[3] for cell in cells), ref


class _Joined:
    """Gives cells that belong to one run one key."""

    def __init__(self) -> None:
        self.key, self.last = 0, (-2, Kind.SAME, -2)

    def __call__(self, cell: tuple[int, Kind, int, int]) -> int:
        number, kind, ref, _ = cell
        step = 0 if kind == Kind.FILL else 1
        if (number, kind, ref) != (self.last[0] + 1, self.last[1], self.last[2] + step):
            self.key += 1
        self.last = number, kind, ref
        return self.key


def rows_of(runs: Runs) -> list[Row]:
    columns = (runs.kind, runs.start_bytes, runs.length_bytes, runs.ref)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check_changes(changes: Changes, old: bytes | None, new: bytes, chunk: int) -> None:
    """Compare all columns with the bytes."""
    cell = changes.cell_bytes
    numbers = changed_cells(old, new, chunk, cell)
    cells = [new[number * cell : (number + 1) * cell] for number in numbers]
    fills = [is_fill(data) for data in cells]
    assert changes.index.tolist() == numbers
    assert digest.digest_bytes(changes.chunks) == b"".join(map(digest.digest, cut(new, chunk)))
    assert digest.digest_bytes(changes.digest) == b"".join(map(digest.digest, cells))
    assert changes.kind.tolist() == [Kind.FILL if fill else Kind.NEW for fill in fills]
    assert changes.pattern.tolist() == [
        int.from_bytes(data[:8], "little") if fill else 0
        for data, fill in zip(cells, fills, strict=True)
    ]
    assert changes.changed_bytes == sum(map(len, cells))


class Tracked:
    """A region that is diffed again and again, like a store would."""

    def __init__(self, chunk: int, cell: int) -> None:
        self.chunk, self.cell = chunk, cell
        self.history, self.scratch = History(cell, limit=1 << 20), Scratch()
        self.oracle = Oracle(cell)
        self.old: bytes | None = None
        self.chunks = self.cells = None
        self.met: dict[int, bytes] = {}  # The bytes of each id.

    def save(self, new: bytes) -> None:
        changes, runs = diff_region(
            new,
            self.history,
            chunk_bytes=self.chunk,
            old_chunks=self.chunks,
            old_cells=self.cells,
            scratch=self.scratch,
        )
        check_changes(changes, self.old, new, self.chunk)
        assert rows_of(runs) == self.oracle.rows(self.old, new, self.chunk)
        assert self.rebuilt(new, runs) == new
        self.chunks, self.cells = changes.chunks, changes.cells(self.cells)
        self.old = new
        self.history.commit()

    def rebuilt(self, new: bytes, runs: Runs) -> bytes:
        """Make the region of the old one, of the runs and of the bytes of new runs alone."""
        result = bytearray((self.old or b"")[: len(new)].ljust(len(new), b"\0"))
        for kind, start, length, ref in rows_of(runs):
            if kind == Kind.FILL:
                result[start : start + length] = ref.to_bytes(8, "little") * (length // 8)
                continue
            if kind == Kind.NEW:
                pieces = cut(new[start : start + length], self.cell)
                self.met.update({ref + i: piece for i, piece in enumerate(pieces)})
            count = -(-length // self.cell)
            result[start : start + length] = b"".join(self.met[ref + i] for i in range(count))
        return bytes(result)


pieces = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda seed, size: np.random.default_rng(seed).bytes(size),
        st.integers(0, 9),
        st.integers(0, 3000),
    ),
    st.builds(
        lambda pattern, times: pattern * times,
        st.sampled_from([bytes(8), b"\1", b"\0\1\2\3\4\5\6\7", b"abc", bytes(range(48))]),
        st.integers(0, 300),
    ),
)
regions = st.lists(pieces, max_size=5).map(b"".join)


@st.composite
def edited(draw: st.DrawFn, region: bytes) -> bytes:
    """What an application may have made of a region."""
    data = bytearray(region)
    for _ in range(draw(st.integers(0, 3))):
        a, b = sorted(draw(st.integers(0, len(data))) for _ in range(2))
        match draw(st.sampled_from(["write", "insert", "delete", "swap", "zero", "repeat"])):
            case "write":
                piece = draw(pieces)
                data[a : a + len(piece)] = piece
            case "insert":
                data[a:a] = draw(pieces)
            case "delete":
                del data[a:b]
            case "swap":
                data = data[b:] + data[a:b] + data[:a]
            case "zero":
                data[a:b] = bytes(b - a)
            case "repeat":
                data[b:] = (bytes(data[a:b]) * 9)[: len(data)]
    return bytes(data)


histories = regions.flatmap(
    lambda first: st.lists(edited(first), max_size=3).map(lambda later: [first, *later])
)


@given(histories, st.sampled_from(SIZES))
def test_each_save_is_what_comparing_bytes_gives(states, sizes) -> None:
    for _ in every_backend():
        region = Tracked(*sizes)
        for state in states:
            region.save(state)


@given(regions, st.integers(0, 63), st.sampled_from(SIZES))
def test_it_does_not_matter_where_the_region_lies(region: bytes, offset: int, sizes) -> None:
    chunk, cell = sizes
    moved = memoryview(bytes(offset) + region)[offset:]
    for _ in every_backend():
        check_changes(scan(moved, chunk_bytes=chunk, cell_bytes=cell), None, region, chunk)


@pytest.mark.parametrize("cell", [16, 32, 64])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_every_length_up_to_three_chunks(backend, cell: int) -> None:
    noise = np.random.default_rng(cell).bytes(192)
    with digest.use(backend.name, backend.detail):
        for length in range(193):
            region = Tracked(64, cell)
            region.save(noise[:length])
            region.save(noise[:length].replace(noise[70:71], b"!"))
            region.save(bytes(length))  # All fill, but for a tail that is no multiple of 8.
            region.save(noise[: max(0, length - 9)])  # Shorter,
            region.save(noise[: length + 9])  # and longer.


@pytest.mark.parametrize("length", [4095, 4096, 4097, 8191, 8192, 12_280, 12_288])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_chunks_of_four_kilobytes(backend, length: int) -> None:
    noise = np.random.default_rng(length).bytes(length)
    with digest.use(backend.name, backend.detail):
        region = Tracked(4096, 128)
        region.save(noise)
        region.save(noise[:300] + b"!" + noise[301:])
        region.save(noise[1:] + b"!")  # Shifted: all is new.
        region.save(noise[128:])  # Shifted by a cell: all is known.


def test_several_threads_find_what_one_finds(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = [backend for backend in BACKENDS if backend.name == "native"]
    if not native:
        pytest.skip("the compiled core is not here")
    before = rng.bytes(100_003)
    after = bytearray(before)
    for place in rng.integers(0, len(after), 150).tolist():
        after[place] ^= 1
    sizes = {"chunk_bytes": 256, "cell_bytes": 32}
    with digest.use("native", native[0].detail):
        old = scan(before, **sizes)
        for threads in (1, 2, 3, 7, 400):
            monkeypatch.setattr(kernels_native, "_threads_for", lambda _, n=threads: n)
            first = scan(before, **sizes)
            assert digest.digest_bytes(first.digest) == digest.digest_bytes(old.digest)
            changes = scan(after, **sizes, old_chunks=first.chunks, old_cells=first.cells(None))
            check_changes(changes, before, bytes(after), 256)


@given(regions, st.data())
def test_old_digests_may_be_missing(region: bytes, data: st.DataObject) -> None:
    """Cells without old digests have changed, if their chunk has; chunks without have."""
    for _ in every_backend():
        old = scan(region, chunk_bytes=64, cell_bytes=16)
        count = len(old.chunks)
        told = data.draw(st.integers(0, count), label="chunks told")
        changes = scan(region, chunk_bytes=64, cell_bytes=16, old_chunks=old.chunks[:told])
        assert changes.index.tolist() == list(range(4 * told, -(-len(region) // 16)))
        cells_told = data.draw(st.integers(0, 4 * count), label="cells told")
        none = scan(region, chunk_bytes=64, cell_bytes=16, old_cells=old.digest[:cells_told])
        assert none.index.tolist() == list(range(cells_told, -(-len(region) // 16)))


def test_runs_join_what_goes_on_and_nothing_else() -> None:
    u64 = np.uint64
    index = np.array([1, 2, 3, 5, 6, 7, 8, 9, 10], u64)
    kinds = np.array([1, 1, 1, 1, 3, 3, 2, 2, 2], np.uint8)
    ids = np.array([4, 5, 7, 8, 9, 10, 0, 0, 0], u64)
    pattern = np.array([0, 0, 0, 0, 0, 0, 6, 6, 7], u64)
    digests = np.zeros((9, 2), u64)
    changes = Changes(173, 16, digests[:0], index, digests, kinds, pattern)
    for _ in every_backend():
        assert rows_of(collect_runs(changes, kinds, ids, 173)) == [
            (Kind.NEW, 16, 32, 4),
            (Kind.NEW, 48, 16, 7),
            (Kind.NEW, 80, 16, 8),
            (Kind.KNOWN, 96, 32, 9),
            (Kind.FILL, 128, 32, 6),
            (Kind.FILL, 160, 13, 7),
        ]
