"""Undoing a filter gives the bytes back; damage is an error or gives other bytes, not a crash.

Every instruction set of the compiled core and the NumPy version run each law, from the same
bytes at odd addresses. The layouts are written down once more here, bit by bit and slowly.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import backend
from ckptflow.data.backend import Backend
from ckptflow.data.filters import Filter, apply, max_bytes, undo
from ckptflow.errors import CorruptionError

BACKENDS = [found for found in backend.available() if found.name != "numba"]
REAL = [Filter.SHUFFLE, Filter.BITSHUFFLE, Filter.WORDS]
WORDS = st.integers(1, 16)


def sparse(seed: int, size: int, percent: int) -> bytes:
    """Return noise of which a share of the 8-byte pieces is left."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, size, dtype=np.uint8)
    noise[np.repeat(rng.random(-(-size // 8)) * 100 >= percent, 8)[:size]] = 0
    return noise.tobytes()


plains = st.one_of(
    st.binary(max_size=300),
    st.builds(
        sparse,
        st.integers(0, 9),
        st.one_of(st.integers(0, 700), st.integers(0, 40_000)),
        st.sampled_from([0, 5, 50, 100]),
    ),
)


def layout(filter_: Filter, word: int, plain: bytes) -> bytes:
    """Return the filtered bytes, from the format page and nothing else."""
    words = len(plain) // word // (8 if filter_ is Filter.BITSHUFFLE else 1)
    words *= 8 if filter_ is Filter.BITSHUFFLE else 1
    rows = [plain[word * i : word * (i + 1)] for i in range(words)]
    rest = plain[word * words :]
    if filter_ is Filter.SHUFFLE:
        return bytes(row[j] for j in range(word) for row in rows) + rest
    if filter_ is Filter.BITSHUFFLE:
        bits = [[row[j] >> k & 1 for row in rows] for j in range(word) for k in range(8)]
        return b"".join(map(pack_bits, bits)) + rest
    kept = [row for row in rows if any(row)]
    return (
        pack_bits([int(any(row)) for row in rows])
        + bytes(row[j] for j in range(word) for row in kept)
        + rest
    )


def pack_bits(bits: list[int]) -> bytes:
    """Return the bits as bytes, the first in the lowest bit of the first byte."""
    return sum(bit << i for i, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")


def odd(data: bytes, offset: int) -> memoryview:
    """Return the bytes at an address that is ``offset`` beyond a multiple of 16."""
    room = np.zeros(len(data) + 32, np.uint8)
    start = -room.ctypes.data % 16 + offset
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memoryview(room)[start : start + len(data)]


@pytest.mark.parametrize("filter_", REAL)
@given(plain=plains, word=WORDS, offset=st.integers(0, 15))
def test_every_backend_makes_the_bytes_of_the_format_and_takes_them_back(
    filter_: Filter, plain: bytes, word: int, offset: int
) -> None:
    expected = layout(filter_, word, plain)
    for found in BACKENDS:
        with backend.use(found.name, found.detail):
            stored = apply(filter_, word, odd(plain, offset))
            assert bytes(stored) == expected
            assert len(stored) <= max_bytes(filter_, word, len(plain))
            back = undo(filter_, word, odd(expected, offset), plain_bytes=len(plain))
            assert bytes(back) == plain


@pytest.mark.parametrize("found", BACKENDS, ids=str)
@pytest.mark.parametrize("filter_", REAL)
@given(plain=plains, word=WORDS)
def test_buffers_of_the_caller_are_written_and_nothing_beside_them(
    filter_: Filter, found: Backend, plain: bytes, word: int
) -> None:
    room = bytearray(b"\xa5" * (max_bytes(filter_, word, len(plain)) + 64))
    with backend.use(found.name, found.detail):
        stored = apply(filter_, word, plain, memoryview(room)[32:-32])
        assert room[:32] == room[-32:] == b"\xa5" * 32
        kept = bytes(stored)
        target = bytearray(b"\xa5" * (len(plain) + 64))
        undo(
            filter_,
            word,
            kept,
            plain_bytes=len(plain),
            out=memoryview(target)[32 : 32 + len(plain)],
        )
    assert bytes(target) == b"\xa5" * 32 + plain + b"\xa5" * 32


@pytest.mark.parametrize("found", BACKENDS, ids=str)
@pytest.mark.parametrize("filter_", REAL)
@given(
    stored=st.one_of(plains, st.binary(max_size=64)),
    word=WORDS,
    plain_bytes=st.one_of(st.integers(0, 600), st.integers(0, 40_000)),
)
def test_anything_at_all_is_an_error_or_the_right_number_of_bytes(
    filter_: Filter, found: Backend, stored: bytes, word: int, plain_bytes: int
) -> None:
    with (
        backend.use(found.name, found.detail),
        contextlib.suppress(CorruptionError),
    ):
        assert (
            len(undo(filter_, word, stored, plain_bytes=plain_bytes, where="p")) == plain_bytes
        )


@given(
    plain=plains,
    word=WORDS,
    at=st.integers(0, 1 << 20),
    bit=st.integers(0, 7),
    cut=st.integers(-2, 2),
)
def test_damage_means_the_same_to_every_backend(
    plain: bytes, word: int, at: int, bit: int, cut: int
) -> None:
    stored = bytearray(apply(Filter.WORDS, word, plain))
    stored = stored[:cut] if cut < 0 else stored + bytes(cut)
    if stored:
        stored[at % min(len(stored), 40)] ^= 1 << bit  # Mostly in the bitmap.
    results = set()
    for found in BACKENDS:
        with backend.use(found.name, found.detail):
            try:
                results.add(
                    bytes(undo(Filter.WORDS, word, bytes(stored), plain_bytes=len(plain)))
                )
            except CorruptionError:
                results.add(b"damaged")
    assert len(results) == 1
