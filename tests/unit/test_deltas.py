"""Deltas by hand: the words of the format page, the bytes behind them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data import digest
from ckptflow.data.deltas import WORDS, apply_delta, make_delta
from ckptflow.model import DeltaOp


@pytest.fixture(
    params=digest.available(),
    ids=lambda backend: f"{backend.name}-{backend.detail}",
    autouse=True,
)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def made(new: bytes, old: bytes, op: DeltaOp, word: int) -> bytes:
    out = bytearray(len(new))
    make_delta(new, old, out, op=op, word_bytes=word)
    return bytes(out)


def by_hand(new: bytes, old: bytes, op: DeltaOp, word: int) -> bytes:
    """What the format page says, one word after the other."""
    whole = len(new) // word * word
    out = b""
    for start in range(0, whole, word):
        a, b = (int.from_bytes(data[start : start + word], "little") for data in (new, old))
        bits = 8 * word
        if op == DeltaOp.XOR:
            value = a ^ b
        else:
            step = (a - b) % (1 << bits)
            signed = step - (1 << bits) if step >> (bits - 1) else step
            value = 2 * signed if signed >= 0 else -2 * signed - 1
        out += value.to_bytes(word, "little")
    return out + bytes(a ^ b for a, b in zip(new[whole:], old[whole:], strict=True))


def test_small_differences_of_either_sign_are_small_numbers() -> None:
    new, old = np.array([5, 4, 0, 2], "<i4"), np.array([4, 5, 3, 2], "<i4")
    delta = made(new.tobytes(), old.tobytes(), DeltaOp.SUB, 4)
    assert np.frombuffer(delta, "<u4").tolist() == [2, 1, 5, 0]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("op", list(DeltaOp))
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 133])
def test_words_and_what_is_behind_them(op: DeltaOp, word: int, size: int) -> None:
    rng = np.random.default_rng(size)
    new, old = rng.bytes(size), rng.bytes(size)
    delta = made(new, old, op, word)
    assert delta == by_hand(new, old, op, word)
    back = bytearray(old)
    apply_delta(back, delta, u64(0), u64(0), u64(size), op=op, word_bytes=word)
    assert back == new


def test_words_lie_from_the_start_of_each_range() -> None:
    old, delta = bytearray(range(20)), bytes([1, 0, 0, 0, 255])
    apply_delta(old, delta, u64(3, 11), u64(0, 0), u64(5, 5), op=DeltaOp.SUB, word_bytes=4)
    expected = bytearray(range(20))
    for start in (3, 11):  # 1 is -1: a borrow would go through the word, the rest is xored.
        word = (int.from_bytes(expected[start : start + 4], "little") - 1) % 2**32
        expected[start : start + 4] = word.to_bytes(4, "little")
        expected[start + 4] ^= 255
    assert old == expected


@pytest.mark.parametrize("word", [0, 3, 16])
def test_words_of_no_such_length(word: int) -> None:
    with pytest.raises(ValueError, match=f"1, 2, 4 or 8 bytes, got {word}"):
        made(b"a" * 8, b"b" * 8, DeltaOp.XOR, word)
    with pytest.raises(ValueError, match=f"1, 2, 4 or 8 bytes, got {word}"):
        apply_delta(
            bytearray(8), b"a" * 8, u64(0), u64(0), u64(8), op=DeltaOp.XOR, word_bytes=word
        )


def test_lengths_that_differ() -> None:
    with pytest.raises(ValueError, match="Lengths differ: 3, 4 and 3 bytes"):
        made(b"abc", b"abcd", DeltaOp.XOR, 1)


@pytest.mark.parametrize(
    ("start", "delta_start", "length"),
    [(5, 0, 4), (0, 5, 4), (0, 0, 9), (2**64 - 1, 0, 2), (0, 2**64 - 1, 2), (9, 0, 0)],
)
def test_ranges_outside_of_their_buffers_write_nothing(
    start: int, delta_start: int, length: int
) -> None:
    target = bytearray(b"abcdefgh")
    with pytest.raises(ValueError, match="lies outside of its 8 bytes"):
        apply_delta(
            target,
            b"\xff" * 8,
            u64(0, start),
            u64(0, delta_start),
            u64(8, length),
            op=DeltaOp.XOR,
            word_bytes=1,
        )
    assert target == b"abcdefgh"
