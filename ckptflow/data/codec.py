"""Encode and decode one frame: raw, or zstd where that pays.

`FrameEncoder` learns while it works: after frames that did not shrink it tries only now
and then, so that incompressible states cost next to nothing.
"""

from __future__ import annotations

from enum import IntEnum

import zstandard

from ckptflow.errors import CorruptionError

# A frame is stored raw when zstd does not shrink it by more than this. Decoding runs at about
# 1 GB/s and core; raw frames go straight into place at several times that. For random doubles
# (ratio 1.06) compression made a restore from a local tier five times as long.
RATIO_MIN = 1.25

_SKIP_MAX = 16
_LEVEL = 1  # Higher levels cost 2 to 3 times as much for the same ratio on float data.


class Codec(IntEnum):
    """How the stored bytes of a frame give its plain bytes."""

    RAW = 0
    ZSTD = 1


class FrameEncoder:
    """Encode frames one after another. Not for several threads at once."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(
            level=_LEVEL, write_content_size=True, write_checksum=False
        )
        self._failures = 0
        self._skip = 0

    def encode(self, plain: memoryview) -> tuple[Codec, memoryview]:
        """Return the codec and the stored bytes; a raw frame is ``plain`` itself."""
        if self._skip:
            self._skip -= 1
            return Codec.RAW, plain
        stored = self._zstd.compress(plain)
        if len(stored) * RATIO_MIN <= len(plain):
            self._failures = 0
            return Codec.ZSTD, memoryview(stored)
        self._failures += 1
        self._skip = min(2**self._failures // 2, _SKIP_MAX)
        return Codec.RAW, plain


def decode(
    codec: int, stored: bytes | memoryview, *, plain_bytes: int, where: str
) -> bytes | memoryview:
    """Return the plain bytes of a frame.

    Raises:
        CorruptionError: the stored bytes do not give ``plain_bytes`` bytes.
    """
    if codec == Codec.RAW:
        plain: bytes | memoryview = stored
    elif codec == Codec.ZSTD:
        try:
            if zstandard.frame_content_size(stored) != plain_bytes:
                raise CorruptionError(f"A frame of {where} has a wrong length: it is damaged.")
            plain = zstandard.ZstdDecompressor().decompress(stored, max_output_size=plain_bytes)
        except zstandard.ZstdError as error:
            raise CorruptionError(f"A frame of {where} cannot be decoded ({error}).") from error
    else:
        raise CorruptionError(f"A frame of {where} names the unknown codec {codec}.")
    if len(plain) != plain_bytes:
        raise CorruptionError(f"A frame of {where} has a wrong length: it is damaged.")
    return plain
