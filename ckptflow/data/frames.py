"""Encode frames: what an `Encoding` is, and `encode_frame`, which follows it.

Which encoding suits which region is measured in :mod:`ckptflow.data.encoding`. The difference
to the parent, where an encoding has one, is made before, by :mod:`ckptflow.data.deltas`: a
frame holds the words of the delta. ``tests/unit/test_frames.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import lz4.block
import numpy as np
import zstandard

from ckptflow.data import filters
from ckptflow.data.buffers import Bytes
from ckptflow.data.codec import Codec
from ckptflow.data.filters import Filter
from ckptflow.model import DeltaOp

# A frame is stored raw when its encoding does not shrink it by more than this.
FRAME_RATIO_MIN = 1.05

_SKIP_MAX = 16


@dataclass(frozen=True, slots=True)
class Encoding:
    """What happens to the bytes of a region on their way into a pack.

    Attributes:
        codec: the last step.
        level: of zstd; 0 with other codecs.
        filter: the step before.
        word: bytes of a word of the filter, 1 to 16; 0 without one.
        op: how words combine with those of the parent, the first step; None for no delta.
        op_word: bytes of a word of ``op``: 1, 2, 4 or 8; 0 without one.
    """

    codec: Codec = Codec.RAW
    level: int = 0
    filter: Filter = Filter.NONE
    word: int = 0
    op: DeltaOp | None = None
    op_word: int = 0

    def __str__(self) -> str:
        steps = [
            f"{self.op.value}{self.op_word}" if self.op else "",
            f"{self.filter.name.lower()}{self.word}" if self.filter else "",
            f"zstd-{self.level}" if self.codec == Codec.ZSTD else self.codec.name.lower(),
        ]
        return "+".join(step for step in steps if step)


RAW = Encoding()


class Scratch:
    """Memory and compressors that `encode_frame` uses again and again. One for each thread."""

    def __init__(self) -> None:
        self._room: Bytes = np.empty(0, np.uint8)
        self._zstd: dict[int, zstandard.ZstdCompressor] = {}
        self._encoding = RAW
        self._failures = 0
        self._skip = 0

    def room(self, size_bytes: int) -> Bytes:
        """Return ``size_bytes`` of memory that hold until the next call: no fresh pages."""
        if len(self._room) < size_bytes:
            self._room = np.empty(size_bytes, np.uint8)
        return self._room[:size_bytes]

    def compressor(self, encoding: Encoding) -> Callable[[memoryview], bytes]:
        """Return the function for the codec of an encoding."""
        if encoding.codec == Codec.RAW:
            return bytes
        if encoding.codec == Codec.LZ4:
            return _lz4
        found = self._zstd.get(encoding.level)
        if found is None:
            found = self._zstd[encoding.level] = zstandard.ZstdCompressor(
                level=encoding.level, write_content_size=True, write_checksum=False
            )
        return found.compress

    def skips(self, encoding: Encoding) -> bool:
        """Return whether to store the next frame raw without trying."""
        if encoding != self._encoding:
            self._encoding, self._failures, self._skip = encoding, 0, 0
        if self._skip:
            self._skip -= 1
            return True
        return False

    def note(self, *, shrank: bool) -> None:
        """Remember whether a frame shrank: after some that did not, most are not tried."""
        self._failures = 0 if shrank else self._failures + 1
        self._skip = 0 if shrank else min(2**self._failures // 2, _SKIP_MAX)


def encode_frame(
    plain: memoryview, encoding: Encoding, scratch: Scratch
) -> tuple[Codec, Filter, int, memoryview]:
    """Return codec, filter, word and stored bytes of a frame.

    A frame that does not shrink by `FRAME_RATIO_MIN` is ``plain`` itself, raw; every other has
    memory of its own. After frames that did not shrink only every second, fourth, ... one is
    tried, until one shrinks or the encoding changes.

    Args:
        plain: contiguous bytes, at least 1; of the delta, where the encoding has an ``op``.
        encoding: what to try. Its ``op`` is not looked at.
        scratch: of this thread.
    """
    reorders = encoding.codec == Codec.RAW and encoding.filter != Filter.WORDS
    if reorders or scratch.skips(encoding):  # An order alone makes nothing shorter.
        return Codec.RAW, Filter.NONE, 0, plain
    room = scratch.room(filters.max_bytes(encoding.filter, encoding.word, len(plain)))
    filtered = filters.apply(encoding.filter, encoding.word, plain, out=room)
    if encoding.codec == Codec.RAW and len(filtered) * FRAME_RATIO_MIN > len(plain):
        stored = filtered  # Too long already: spare the copy.
    else:
        stored = memoryview(scratch.compressor(encoding)(filtered))
    shrank = len(stored) * FRAME_RATIO_MIN <= len(plain)
    scratch.note(shrank=shrank)
    if not shrank:
        return Codec.RAW, Filter.NONE, 0, plain
    return encoding.codec, encoding.filter, encoding.word, stored


def _lz4(data: memoryview) -> bytes:
    block: bytes = lz4.block.compress(data, store_size=False)
    return block
