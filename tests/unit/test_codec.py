"""Frames come back as they were, and damage to them is an error or for the digest to find."""

from __future__ import annotations

import contextlib
import tracemalloc

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import filters
from ckptflow.data.codec import Codec, decode_frame
from ckptflow.data.filters import Filter
from ckptflow.errors import CorruptionError

WORDS = np.repeat(np.arange(500, dtype="<u4") * 7, 2)
WORDS[::3] = 0
PLAIN = WORDS.tobytes() + b"end"
FRAMES = [
    (codec, filter_, 0 if filter_ is Filter.NONE else 4)
    for codec in Codec
    for filter_ in Filter
]


def compressed(codec: Codec, data: bytes) -> bytes:
    if codec is Codec.ZSTD:
        return zstandard.compress(data, 3)
    return lz4.block.compress(data, store_size=False) if codec is Codec.LZ4 else data


def stored_frame(codec: Codec, filter_: Filter, word: int) -> bytes:
    return compressed(codec, bytes(filters.apply(filter_, word, PLAIN)))


@pytest.mark.parametrize(("codec", "filter_", "word"), FRAMES)
def test_a_frame_decodes_through_codec_and_filter(
    codec: Codec, filter_: Filter, word: int
) -> None:
    stored = stored_frame(codec, filter_, word)
    assert bytes(decode_frame(codec, filter_, word, stored, plain_bytes=len(PLAIN))) == PLAIN
    target = bytearray(len(PLAIN))
    decode_frame(codec, filter_, word, memoryview(stored), plain_bytes=len(PLAIN), out=target)
    assert target == PLAIN


@pytest.mark.parametrize(("codec", "filter_", "word"), FRAMES)
def test_a_filtered_frame_of_another_length(codec: Codec, filter_: Filter, word: int) -> None:
    stored = stored_frame(codec, filter_, word)
    for wrong in (0, len(PLAIN) - 1, len(PLAIN) + 1):
        with pytest.raises(CorruptionError, match=r"A frame of 'p' (has|cannot be decoded)"):
            decode_frame(codec, filter_, word, stored, plain_bytes=wrong, where="'p'")
    for damaged in (stored[:-1], stored[: len(stored) // 2], b"", stored + b"\x01"):
        with pytest.raises(CorruptionError, match=r"A frame of 'p' (has|cannot be decoded)"):
            decode_frame(codec, filter_, word, damaged, plain_bytes=len(PLAIN), where="'p'")


@pytest.mark.parametrize(("codec", "filter_", "word"), FRAMES)
def test_a_flipped_bit_of_a_filtered_frame_is_an_error_or_gives_as_many_bytes(
    codec: Codec, filter_: Filter, word: int
) -> None:
    stored = stored_frame(codec, filter_, word)
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 1 << position % 8
        with contextlib.suppress(CorruptionError):
            plain = decode_frame(
                codec, filter_, word, bytes(damaged), plain_bytes=len(PLAIN), where="'p'"
            )
            assert len(plain) == len(PLAIN)


@given(
    codec=st.sampled_from(Codec),
    filter_=st.integers(0, 4),
    word=st.integers(0, 20),
    stored=st.binary(max_size=200),
    plain_bytes=st.integers(0, 300),
)
def test_anything_at_all_is_an_error_or_the_right_number_of_bytes(
    codec: Codec, filter_: int, word: int, stored: bytes, plain_bytes: int
) -> None:
    with contextlib.suppress(CorruptionError):
        plain = decode_frame(codec, filter_, word, stored, plain_bytes=plain_bytes)
        assert len(plain) == plain_bytes


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("filter_", [Filter.NONE, Filter.SHUFFLE, Filter.WORDS])
def test_a_frame_that_would_blow_up_takes_no_memory(codec: Codec, filter_: Filter) -> None:
    bomb = compressed(codec, bytes(64 << 20))
    word = 0 if filter_ is Filter.NONE else 4
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match=r"A frame of 'p' (has|cannot be decoded)"):
            decode_frame(codec, filter_, word, bomb, plain_bytes=1 << 20, where="'p'")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_that_lies_about_its_length() -> None:
    """The content is longer than the header says, or the header says nothing."""
    frame = bytearray(zstandard.compress(bytes(200)))
    assert frame[5] == 200
    frame[5] = 100
    with pytest.raises(CorruptionError, match="'p' cannot be decoded"):
        decode_frame(Codec.ZSTD, 0, 0, bytes(frame), plain_bytes=100, where="'p'")
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(200))
    with pytest.raises(CorruptionError, match="'p' has a wrong length"):
        decode_frame(Codec.ZSTD, 0, 0, silent, plain_bytes=200, where="'p'")


def test_an_unknown_codec_or_filter() -> None:
    with pytest.raises(CorruptionError, match="A frame of 'p' names the unknown codec 3"):
        decode_frame(3, 0, 0, b"abc", plain_bytes=3, where="'p'")
    with pytest.raises(CorruptionError, match="'p' names the unknown filter 4 with words of 2"):
        decode_frame(Codec.ZSTD, 4, 2, b"abc", plain_bytes=3, where="'p'")
    with pytest.raises(CorruptionError, match="'p' names the unknown filter 3 with words of 0"):
        decode_frame(Codec.RAW, Filter.WORDS, 0, b"abc", plain_bytes=3, where="'p'")


def test_a_raw_frame_without_filter_is_not_copied() -> None:
    view = decode_frame(Codec.RAW, 0, 0, PLAIN, plain_bytes=len(PLAIN))
    assert np.shares_memory(np.asarray(view), np.frombuffer(PLAIN, np.uint8))
