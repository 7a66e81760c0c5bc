"""Many pieces of memory by one call: what one call each would do, on every backend."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data import digest, merkle
from ckptflow.data.addresses import Addresses
from ckptflow.data.backend import kernels
from ckptflow.data.scan import Kind

SIZES = [0, 1, 15, 16, 17, 100, 0, 1000, 4096, 33]


@pytest.fixture(params=digest.available(), ids=str, autouse=True)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


@pytest.fixture
def buffers(rng: np.random.Generator) -> list[bytearray]:
    return [bytearray(rng.bytes(size)) for size in SIZES]


def u64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_digests_of_many_buffers_are_those_of_each(buffers: list[bytearray]) -> None:
    digests, edges = digest.many_chunk_digests(buffers, 32)
    for buffer, a, b in zip(buffers, edges, edges[1:], strict=False):
        assert digests[a:b].tolist() == digest.chunk_digests(buffer, 32).tolist()


def test_roots_of_many_trees_are_those_of_each(buffers: list[bytearray]) -> None:
    buffers.append(bytearray(32 * 300))  # Too large a tree to grow with the others.
    digests, edges = digest.many_chunk_digests(buffers, 32)
    alone = [merkle.root(digest.chunk_digests(buffer, 32)) for buffer in buffers]
    assert merkle.roots(digests, edges.tolist()) == alone
    assert merkle.roots(digests[:0], [0]) == []


def test_ranges_of_many_buffers_are_gathered_and_scattered(
    buffers: list[bytearray], rng: np.random.Generator
) -> None:
    number = rng.integers(0, len(SIZES), 200)
    size = np.array(SIZES)[number]
    start = rng.integers(0, size + 1)
    length = rng.integers(0, size - start + 1)
    expected = b"".join(
        buffers[n][a : a + k]
        for n, a, k in zip(number.tolist(), start.tolist(), length.tolist(), strict=True)
    )
    out = bytearray(len(expected))
    columns = start.astype(np.uint64), length.astype(np.uint64)
    Addresses(buffers).gather(number, *columns, out)
    assert out == expected
    targets = [bytearray(size) for size in SIZES]
    source = np.cumsum(columns[1], dtype=np.uint64) - columns[1]
    Addresses(targets).scatter(out, source, number, *columns)
    Addresses(targets).gather(number, *columns, out)
    assert out == expected


@pytest.mark.parametrize(
    ("number", "start", "length"), [(5, 90, 11), (5, 101, 0), (0, 0, 1), (5, 2**64 - 1, 2)]
)
def test_a_range_outside_of_its_buffer_is_refused(
    buffers: list[bytearray], number: int, start: int, length: int
) -> None:
    where = np.array([number]), u64(start), u64(length)
    outside = f"lies outside of the {SIZES[number]} bytes of buffer"
    with pytest.raises(ValueError, match=outside):
        Addresses(buffers).gather(*where, bytearray(100))
    with pytest.raises(ValueError, match=outside):
        Addresses(buffers).scatter(bytes(100), u64(0), *where)
    with pytest.raises(ValueError, match="lies outside of the 3 bytes of the source"):
        Addresses(buffers).scatter(bytes(3), u64(1), np.array([5]), u64(0), u64(3))


def scanned(
    pieces: list[bytes], old: list[bytes | None], given: np.ndarray | None = None
) -> tuple[int, list[int], list[int], np.ndarray]:
    buffers = [bytearray(piece) for piece in pieces]
    address, count = np.empty(len(pieces), np.int64), len(pieces)
    kernels().look_at(buffers, address)
    before = np.zeros((count, 2), np.uint64)
    for i, piece in enumerate(old):
        if piece is not None:
            before[i] = digest.chunk_digests(piece, 64)[0]
    known = np.array([piece is not None for piece in old], np.uint8)
    digests = np.zeros((count, 2), np.uint64) if given is None else given
    kind, pattern = np.empty(count, np.uint8), np.empty(count, np.uint64)
    stopped = kernels().scan_pieces(
        address.view(np.uint64),
        np.array(list(map(len, pieces)), np.uint64),
        64,
        (before, known),
        digests,
        (kind, pattern),
        given=given is not None,
    )
    return stopped, kind.tolist(), pattern.tolist(), digests


def test_pieces_are_compared_and_classified(rng: np.random.Generator) -> None:
    noise = rng.bytes(64)
    pieces = [noise, noise, bytes(64), b"abcdefgh" * 3, b"abcdefgh" * 3 + b"a", noise[:5]]
    stopped, kind, pattern, digests = scanned(pieces, [noise, None, None, None, None, noise])
    assert stopped == 6
    new, fill = int(Kind.NEW), int(Kind.FILL)
    assert kind == [int(Kind.SAME), new, fill, fill, new, new]
    assert pattern == [0, 0, 0, int.from_bytes(b"abcdefgh", "little"), 0, 0]
    assert digests.tolist() == [digest.chunk_digests(one, 64)[0].tolist() for one in pieces]


def test_a_piece_without_the_digest_it_was_given_is_named(rng: np.random.Generator) -> None:
    pieces = [rng.bytes(64) for _ in range(5)]
    given = np.concatenate([digest.chunk_digests(one, 64) for one in pieces])
    assert scanned(pieces, [None] * 5, given.copy())[0] == 5
    torn = [*pieces[:3], rng.bytes(64), pieces[4]]
    assert scanned(torn, [None] * 5, given.copy())[0] == 3
    assert scanned(torn, list(pieces), given.copy())[0] == 5, "what is as before is not read"
