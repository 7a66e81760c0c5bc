"""Frames come back as they were, damage to them is an error, and bad ratios are not chased."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.codec import RATIO_MIN, Codec, FrameEncoder, decode
from ckptflow.errors import CorruptionError

NOISE = np.random.default_rng(1).bytes(20_000)


def encoded(plain: bytes) -> tuple[Codec, bytes]:
    codec, stored = FrameEncoder().encode(memoryview(plain))
    return codec, bytes(stored)


@given(plain=st.binary(min_size=1, max_size=2000), repeats=st.integers(1, 50))
def test_decode_undoes_encode(plain: bytes, repeats: int) -> None:
    whole = plain * repeats
    codec, stored = encoded(whole)
    assert decode(codec, stored, plain_bytes=len(whole), where="p") == whole


def test_what_shrinks_is_compressed_and_the_rest_is_not_copied() -> None:
    assert encoded(b"abcd" * 1000)[0] is Codec.ZSTD
    view = memoryview(NOISE)
    codec, stored = FrameEncoder().encode(view)
    assert codec is Codec.RAW
    assert stored is view


def test_a_stored_frame_is_never_longer_than_its_plain_bytes() -> None:
    for size in (1, 2, 7, 100, 1000):
        codec, stored = encoded(NOISE[:size])
        assert len(stored) <= size
        assert codec is Codec.RAW or len(stored) * RATIO_MIN <= size


def test_every_zstd_frame_says_how_long_its_content_is() -> None:
    codec, stored = encoded(bytes(5000))
    assert codec is Codec.ZSTD
    assert zstandard.frame_content_size(stored) == 5000


class CountingCompressor:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def compress(self, plain: memoryview) -> bytes:
        self.asked += 1
        return zstandard.compress(plain)


def test_incompressible_frames_are_tried_seldom_and_compressible_ones_found_again() -> None:
    encoder, counting = FrameEncoder(), CountingCompressor()
    encoder._zstd = counting
    for _ in range(200):
        assert encoder.encode(memoryview(NOISE))[0] is Codec.RAW
    assert counting.asked < 25
    codecs = [encoder.encode(memoryview(bytes(4096)))[0] for _ in range(40)]
    assert codecs.count(Codec.ZSTD) > 20


def test_a_frame_of_another_length() -> None:
    codec, stored = encoded(bytes(5000))
    for wrong in (4999, 5001):
        with pytest.raises(CorruptionError, match="A frame of 'p' has a wrong length"):
            decode(codec, stored, plain_bytes=wrong, where="'p'")
    with pytest.raises(CorruptionError, match="A frame of 'p' has a wrong length"):
        decode(Codec.RAW, b"abc", plain_bytes=4, where="'p'")


def test_a_cut_frame() -> None:
    codec, stored = encoded(NOISE[:1000] * 5)
    assert codec is Codec.ZSTD
    for size in range(0, len(stored), 7):
        with pytest.raises(CorruptionError, match="A frame of 'p' "):
            decode(codec, stored[:size], plain_bytes=5000, where="'p'")


def test_a_flipped_bit_is_an_error_or_gives_the_right_number_of_bytes() -> None:
    """Which bytes they are is the business of the digests: they are compared afterwards."""
    codec, stored = encoded(NOISE[:1000] * 5)
    sizes = set()
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 1 << position % 8
        with contextlib.suppress(CorruptionError):
            sizes.add(len(decode(codec, bytes(damaged), plain_bytes=5000, where="'p'")))
    assert sizes == {5000}


def test_an_unknown_codec() -> None:
    with pytest.raises(CorruptionError, match="A frame of 'p' names the unknown codec 9"):
        decode(9, b"abc", plain_bytes=3, where="'p'")
