"""Encoded frames decode to what they were; what does not shrink is the caller's memory, raw."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.codec import Codec, decode_frame
from ckptflow.data.filters import Filter
from ckptflow.data.frames import FRAME_RATIO_MIN, RAW, Encoding, Scratch, encode_frame
from ckptflow.model import DeltaOp

NOISE = memoryview(np.random.default_rng(1).bytes(20_000))
CODECS = [(Codec.RAW, 0), (Codec.ZSTD, 1), (Codec.ZSTD, 9), (Codec.LZ4, 0)]
ENCODINGS = [
    Encoding(codec, level, filter_, word)
    for (codec, level), (filter_, word) in itertools.product(
        CODECS,
        [(Filter.NONE, 0), (Filter.SHUFFLE, 4), (Filter.BITSHUFFLE, 2), (Filter.WORDS, 8)],
    )
]
SHUFFLED = Encoding(Codec.ZSTD, 1, Filter.SHUFFLE, 4)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@given(piece=st.binary(min_size=1, max_size=300), repeats=st.integers(1, 40))
def test_decoding_undoes_encoding(encoding: Encoding, piece: bytes, repeats: int) -> None:
    plain = (piece + bytes(len(piece))) * repeats
    scratch = Scratch()
    for _ in range(2):
        codec, filter_, word, stored = encode_frame(memoryview(plain), encoding, scratch)
        back = decode_frame(codec, filter_, word, stored, plain_bytes=len(plain))
        assert bytes(back) == plain
        assert codec is Codec.RAW or len(stored) * FRAME_RATIO_MIN <= len(plain)


def test_a_frame_that_does_not_shrink_is_the_plain_memory() -> None:
    for encoding in ENCODINGS:
        assert encode_frame(NOISE, encoding, Scratch())[:3] == (Codec.RAW, Filter.NONE, 0)
        assert encode_frame(NOISE, encoding, Scratch())[3] is NOISE


def test_a_frame_that_shrinks_has_memory_of_its_own() -> None:
    """Packs hold many frames until they are written, while the scratch memory goes on."""
    scratch = Scratch()
    plain = memoryview(np.repeat(np.arange(9, dtype=np.uint64), 100) % 2).cast("B")
    for encoding in (Encoding(Codec.RAW, 0, Filter.WORDS, 8), SHUFFLED):
        *how, stored = encode_frame(plain, encoding, scratch)
        assert how[:2] == [encoding.codec, encoding.filter]
        before = bytes(stored)
        encode_frame(NOISE[:7200], encoding, scratch)
        assert bytes(stored) == before


def test_scratch_memory_is_used_again() -> None:
    scratch = Scratch()
    first = scratch.room(5000)
    assert np.shares_memory(first, scratch.room(4000))
    assert len(scratch.room(4000)) == 4000


def test_an_order_alone_is_not_stored() -> None:
    codec, filter_, word, stored = encode_frame(
        memoryview(bytes(5000)), Encoding(Codec.RAW, 0, Filter.SHUFFLE, 4), Scratch()
    )
    assert (codec, filter_, word, len(stored)) == (Codec.RAW, Filter.NONE, 0, 5000)


class Counting(Scratch):
    """Counts how often a codec is asked for."""

    asked = 0

    def compressor(self, encoding: Encoding):
        self.asked += 1
        return super().compressor(encoding)


def test_incompressible_frames_are_tried_seldom_and_compressible_ones_found_again() -> None:
    scratch = Counting()
    for _ in range(200):
        assert encode_frame(NOISE, SHUFFLED, scratch)[0] is Codec.RAW
    assert scratch.asked < 25
    zeros = memoryview(bytes(4096))
    codecs = [encode_frame(zeros, SHUFFLED, scratch)[0] for _ in range(40)]
    assert codecs.count(Codec.ZSTD) > 20


def test_another_encoding_is_tried_at_once() -> None:
    scratch = Counting()
    for _ in range(50):
        encode_frame(NOISE, SHUFFLED, scratch)
    asked = scratch.asked
    encode_frame(NOISE, Encoding(Codec.LZ4), scratch)
    assert scratch.asked == asked + 1


def test_every_zstd_frame_says_how_long_its_content_is() -> None:
    *_, stored = encode_frame(memoryview(bytes(5000)), Encoding(Codec.ZSTD, 3), Scratch())
    assert zstandard.frame_content_size(stored) == 5000


def test_threads_with_scratch_of_their_own_do_not_meet() -> None:
    plain = memoryview(np.arange(50_000, dtype="<u4")).cast("B")
    expected = bytes(encode_frame(plain, SHUFFLED, Scratch())[3])
    found = []

    def work() -> None:
        scratch = Scratch()
        for _ in range(20):
            codec, filter_, word, stored = encode_frame(plain, SHUFFLED, scratch)
            back = decode_frame(codec, filter_, word, stored, plain_bytes=len(plain))
            found.append(bytes(stored) == expected and bytes(back) == bytes(plain))

    crew = [threading.Thread(target=work) for _ in range(4)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert found == [True] * 80


def test_an_encoding_reads_as_its_steps() -> None:
    assert str(RAW) == "raw"
    assert str(Encoding(Codec.LZ4)) == "lz4"
    whole = Encoding(Codec.ZSTD, 1, Filter.BITSHUFFLE, 4, DeltaOp.SUB, 4)
    assert str(whole) == "sub4+bitshuffle4+zstd-1"
