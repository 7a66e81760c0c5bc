"""Codecs of frames: raw, zstd or LZ4, and how a stored frame becomes plain bytes again.

Plain bytes pass a filter (:mod:`ckptflow.data.filters`), then a codec. Decoding believes
nothing that it reads: lengths in the stored bytes are checked against what the frame record
and the filter allow before memory is taken for them. ``tests/unit/test_codec.py`` damages
frames in every way. Frames are encoded in :mod:`ckptflow.data.frames`.
"""

from __future__ import annotations

import threading
from enum import IntEnum

import lz4.block
import zstandard

from ckptflow.data import filters
from ckptflow.data.buffers import BufferLike
from ckptflow.errors import CorruptionError


class Codec(IntEnum):
    """How the stored bytes of a frame give its filtered bytes."""

    RAW = 0
    ZSTD = 1  # One zstd frame with its content size; of any level.
    LZ4 = 2  # One LZ4 block, without its length.


_of_thread = threading.local()  # A decompressor serves one thread at a time.


def decode_frame(
    codec: int,
    filter: int,  # noqa: A002 - the format's word.
    word: int,
    stored: bytes | memoryview,
    *,
    plain_bytes: int,
    out: BufferLike | None = None,
    where: str = "memory",
) -> memoryview:
    """Return the plain bytes of a frame: undo the codec, then the filter.

    A frame without codec and filter gives ``stored`` itself, unless ``out`` is there. Takes no
    more memory than ``plain_bytes`` twice and an eighth, whatever the stored bytes say. Whether
    the bytes are the right ones is for their digest to tell.

    Args:
        codec: one of `Codec`; anything else is damage.
        filter: one of `ckptflow.data.filters.Filter`; likewise.
        word: bytes of a word of the filter; 0 without one.
        stored: contiguous memory.
        plain_bytes: how many bytes must come out, according to the frame record.
        out: where to write them, exactly that long and apart from ``stored``; fresh memory if
            absent.
        where: tier and key, for messages.

    Raises:
        CorruptionError: the stored bytes do not give ``plain_bytes`` bytes.
        ValueError: ``out`` has another length.
    """
    if not filters.is_known(filter, word):
        raise filters.unknown(filter, word, where)
    limit = filters.max_bytes(filter, word, plain_bytes)
    if codec == Codec.RAW:
        filtered: bytes | memoryview = stored
    elif codec == Codec.ZSTD:
        filtered = _unzstd(stored, limit, where)
    elif codec == Codec.LZ4:
        filtered = _unlz4(stored, limit, where)
    else:
        raise CorruptionError(f"A frame of {where} names the unknown codec {codec}.")
    return filters.undo(filter, word, filtered, plain_bytes=plain_bytes, out=out, where=where)


def _unzstd(stored: bytes | memoryview, limit: int, where: str) -> bytes:
    """Decompress one zstd frame that says itself how long it is, at most ``limit`` bytes."""
    try:
        size = zstandard.frame_content_size(stored)
        if not 0 <= size <= limit:
            raise CorruptionError(
                f"A frame of {where} has a wrong length: its content says {size} bytes, of at "
                f"most {limit}. It is damaged."
            )
        decompressor = getattr(_of_thread, "zstd", None)
        if decompressor is None:
            decompressor = _of_thread.zstd = zstandard.ZstdDecompressor()
        plain: bytes = decompressor.decompress(
            stored, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptionError(f"A frame of {where} cannot be decoded ({error}).") from error
    return plain


def _unlz4(stored: bytes | memoryview, limit: int, where: str) -> bytes:
    """Decompress one LZ4 block of at most ``limit`` bytes."""
    try:
        plain: bytes = lz4.block.decompress(stored, uncompressed_size=limit)
    except lz4.block.LZ4BlockError as error:
        raise CorruptionError(f"A frame of {where} cannot be decoded ({error}).") from error
    return plain
