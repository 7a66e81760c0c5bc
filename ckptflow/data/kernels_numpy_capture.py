"""The capture of a state in NumPy, a region at a time, for the backends that are not compiled.

A check of the compiled core that shares nothing with it but the table of regions.
``tests/property/test_snapshot_laws.py``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import Bytes, U64s
from ckptflow.data.kernels_numpy_scan import DigestChunks
from ckptflow.data.memory import bytes_at

_WHOLE, _DIGEST, _COMPARE = 1, 2, 4


def capture(
    digest_chunks: DigestChunks,
    rows: U64s,
    chunk_bytes: int,
    arena: Bytes,
    tables: tuple[U64s, U64s, Bytes],
    limit_bytes: int,
) -> int:
    """Do what :class:`ckptflow.data.backend.Kernels` says, with digests of any backend.

    ``tables`` are the parent's digests, those of now, and which chunks are held.
    """
    parent, digests, held = tables
    taken = 0
    for address, size, offset, first, known, grain, flags in rows.tolist():
        if not size:
            continue
        data = bytes_at(address, size, None)
        chunks = slice(first, first + -(-size // chunk_bytes))
        changed = np.ones(chunks.stop - first, np.bool_)
        if flags & _DIGEST:
            digest_chunks(data, chunk_bytes, digests[chunks])
        if flags & _DIGEST and not flags & _WHOLE:
            before, now = parent[first : first + known], digests[first : first + known]
            changed[:known] = (before != now).any(axis=1)
            changed = by_grain(changed, grain)
        held[chunks] = changed
        if flags & _COMPARE:
            continue
        taken += _copy(data, arena[offset : offset + size], changed, chunk_bytes)
        if taken > limit_bytes:
            return -1
    return taken


def by_grain(marks: NDArray[np.bool_], grain: int) -> NDArray[np.bool_]:
    """Mark all chunks of every grain that has a marked one."""
    heads = np.arange(0, len(marks), grain)
    return np.repeat(np.logical_or.reduceat(marks, heads), grain)[: len(marks)]


def _copy(data: Bytes, out: Bytes, which: NDArray[np.bool_], chunk_bytes: int) -> int:
    """Copy some chunks; return how many bytes they have."""
    edges = np.flatnonzero(np.diff(which, prepend=False, append=False)).tolist()
    copied = 0
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        piece = slice(a * chunk_bytes, min(b * chunk_bytes, len(data)))
        out[piece] = data[piece]
        copied += piece.stop - piece.start
    return copied
