"""CKH-128 digests of buffers and of their chunks.

A digest has 128 bits and is trusted for change detection and against damage, not against an
adversary; ``native/ckh128.h`` holds its definition. :mod:`ckptflow.data.backend` decides who
computes it, always with the same bits: ``tests/unit/test_digest.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from ckptflow.data.backend import Backend, active, available, kernels, use
from ckptflow.data.buffers import BufferLike, U64s, byte_view
from ckptflow.errors import ConfigError

__all__ = [
    "DIGEST_BYTES",
    "Backend",
    "active",
    "available",
    "chunk_count",
    "chunk_digests",
    "digest",
    "digest_bytes",
    "many_chunk_digests",
    "use",
]

DIGEST_BYTES = 16


def digest(data: BufferLike) -> bytes:
    """Return the digest of all of ``data`` as 16 bytes.

    Raises:
        ValueError: ``data`` is not C-contiguous.
    """
    message = byte_view(data)
    out = np.empty((1, 2), np.uint64)
    kernels().digest_chunks(message, max(16, -(-len(message) // 8) * 8), out)
    return digest_bytes(out[0])


def chunk_digests(data: BufferLike, chunk_bytes: int, out: U64s | None = None) -> U64s:
    """Return the digest of every chunk, uint64 of shape ``(chunks, 2)``, low half first.

    Costs about one read of ``data`` at the speed of memory. The last chunk may be shorter
    than ``chunk_bytes``; no data has no chunks.

    Args:
        data: C-contiguous memory of any alignment and length.
        chunk_bytes: a multiple of 8, at least 16.
        out: where to put the digests. Reusing it spares the cost of fresh pages.

    Raises:
        ConfigError: no chunks can have ``chunk_bytes``.
        ValueError: ``data`` is not C-contiguous, or ``out`` does not fit.
    """
    region = byte_view(data)
    count = chunk_count(len(region), chunk_bytes)
    if out is None:
        out = np.empty((count, 2), np.uint64)
    elif out.shape != (count, 2) or out.dtype != np.uint64 or not out.flags.carray:
        raise ValueError(
            f"out must be a writable, contiguous uint64 array of shape ({count}, 2), "
            f"got {out.dtype} of shape {out.shape}."
        )
    if count:
        kernels().digest_chunks(region, chunk_bytes, out)
    return out


def many_chunk_digests(
    buffers: Sequence[Buffer], chunk_bytes: int
) -> tuple[U64s, NDArray[np.intp]]:
    """Return the digests of the chunks of many buffers, by one call, one after the other.

    Args:
        buffers: contiguous memory, seen as bytes, uint8.
        chunk_bytes: a multiple of 8, at least 16.

    Returns:
        The digests, uint64 of shape ``(chunks, 2)``; and where those of each buffer begin,
        intp of shape ``(buffers + 1,)``; last, how many there are.
    """
    lengths = np.array(list(map(len, buffers)), np.uint64)  # type: ignore[arg-type]
    step = np.uint64(chunk_bytes)
    edges = np.zeros(len(lengths) + 1, np.intp)
    np.cumsum((lengths + step - np.uint64(1)) // step, out=edges[1:])
    digests = np.empty((int(edges[-1]), 2), np.uint64)
    address = np.zeros(len(lengths), np.int64)
    kernels().look_at(list(buffers), address)
    kernels().digest_memory(address.view(np.uint64), lengths, chunk_bytes, digests)
    return digests, edges


def chunk_count(size_bytes: int, chunk_bytes: int) -> int:
    """Return how many chunks a region of ``size_bytes`` has.

    Raises:
        ConfigError: no chunks can have ``chunk_bytes``.
    """
    if chunk_bytes < 16 or chunk_bytes % 8:
        raise ConfigError(
            f"chunk_bytes must be a multiple of 8 and at least 16, got {chunk_bytes}."
        )
    return -(-size_bytes // chunk_bytes)


def digest_bytes(halves: U64s) -> bytes:
    """Return digests, shape ``(2,)`` or ``(n, 2)``, as they are stored: little-endian."""
    return halves.astype("<u8", copy=False).tobytes()
