"""Digests and diffs in NumPy: the backend that is always there.

Slow (about 0.5 GB/s) but free of loops over chunks, and independent enough of the compiled
core that each is a check of the other. Views as little-endian words make it right on every
host; temporaries are kept to the size of a cache.
"""

from __future__ import annotations

import numpy as np

from ckptflow.data import kernels_numpy_capture, kernels_numpy_scan
from ckptflow.data.backend import CellColumns, DigestTable
from ckptflow.data.buffers import Bytes, U64s
from ckptflow.data.ckh128 import (
    BLOCK_BYTES,
    FINAL_FACTORS,
    STREAM_STEP,
    TAG_LEAF,
    TAG_NODE,
    level0_keys,
    level1_keys,
)
from ckptflow.data.kernels_numpy_memory import (
    copy_memory,
    look_at,
    memory_digester,
    piece_scanner,
    place_memory,
)
from ckptflow.data.kernels_numpy_ranges import (
    apply_delta,
    copy_ranges,
    fill_ranges,
    make_delta,
    ranges_equal,
    repeat_ranges,
)
from ckptflow.data.kernels_numpy_scan import collect_runs, find_repeats

__all__ = [
    "apply_delta",
    "capture",
    "collect_runs",
    "copy_memory",
    "copy_ranges",
    "digest_chunks",
    "digest_memory",
    "digest_parents",
    "digest_table",
    "fill_ranges",
    "find_repeats",
    "look_at",
    "make_delta",
    "place_memory",
    "ranges_equal",
    "repeat_ranges",
    "scan",
    "scan_pieces",
]

VERSION = np.__version__

_PIECE_BYTES = 256 << 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def digest_chunks(data: Bytes, chunk_bytes: int, out: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    full = min(len(data) // chunk_bytes, len(out))
    rows = max(1, _PIECE_BYTES // chunk_bytes)
    chunks = data[: full * chunk_bytes].view("<u4").reshape(full, chunk_bytes // 4)
    for first in range(0, full, rows):
        piece = slice(first, min(first + rows, full))
        out[piece] = _final(_sums(chunks[piece]), chunk_bytes, TAG_LEAF)
    if full < len(out):
        tail = data[full * chunk_bytes :]
        padded = np.zeros(-(-len(tail) // 8) * 8, np.uint8)
        padded[: len(tail)] = tail
        out[full] = _final(_sums(padded.view("<u4")[np.newaxis]), len(tail), TAG_LEAF)


def digest_parents(children: U64s, old_children: U64s, old_parents: U64s, out: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    pairs = children[: len(children) // 2 * 2].reshape(-1, 4)
    old_pairs = old_children[: len(old_children) // 2 * 2].reshape(-1, 4)
    common = min(len(pairs), len(old_pairs))
    changed = np.ones(len(pairs), np.bool_)
    changed[:common] = (pairs[:common] != old_pairs[:common]).any(axis=1)
    out[:common] = old_parents[:common]
    out[: len(pairs)][changed] = _final(pairs[changed], 0, TAG_NODE)
    if len(children) % 2:
        out[-1] = children[-1]


def scan(
    data: Bytes,
    chunk_bytes: int,
    cell_bytes: int,
    old_chunks: U64s,
    old_cells: U64s,
    chunks: U64s,
    columns: CellColumns,
    *,
    given: bool,
) -> int:
    """See :class:`ckptflow.data.backend.Kernels`."""
    sizes, old = (chunk_bytes, cell_bytes), (old_chunks, old_cells)
    return kernels_numpy_scan.scan(
        digest_chunks, data, sizes, old, chunks, columns, given=given
    )


def capture(
    rows: U64s,
    chunk_bytes: int,
    arena: Bytes,
    parent: U64s,
    digests: U64s,
    held: Bytes,
    limit_bytes: int,
) -> int:
    """See :class:`ckptflow.data.backend.Kernels`."""
    tables = parent, digests, held
    return kernels_numpy_capture.capture(
        digest_chunks, rows, chunk_bytes, arena, tables, limit_bytes
    )


def digest_table() -> DigestTable:
    """See :class:`ckptflow.data.backend.Kernels`."""
    return kernels_numpy_scan.DictTable()


def _sums(chunks: U64s) -> U64s:
    """Return the four sums of each row of words, shape ``(rows, 4)``."""
    rows, words = chunks.shape
    whole = words // 256
    sums = np.empty((rows, -(-words // 256) if words else 1, 4), np.uint64)
    blocks = chunks[:, : 256 * whole].reshape(rows, whole, 256)
    step = max(1, _PIECE_BYTES // BLOCK_BYTES // max(rows, 1))
    for first in range(0, whole, step):
        piece = slice(first, min(first + step, whole))
        sums[:, piece] = _block_sums(blocks[:, piece])
    if whole < sums.shape[1]:
        sums[:, whole] = _block_sums(chunks[:, 256 * whole :])
    if sums.shape[1] == 1:
        return sums[:, 0]
    pairs = sums.reshape(rows, -1)
    keys = level1_keys(sums.shape[1])
    return np.stack(
        [
            _nh(pairs & _LOW, pairs >> _HALF, keys[2 * shift : 2 * shift + pairs.shape[1]])
            for shift in range(4)
        ],
        axis=-1,
    )


def _block_sums(words: U64s) -> U64s:
    """Return the sums of blocks of at most 256 words on the last axis, which becomes four."""
    x = words[..., 0::2].astype(np.uint64)
    y = words[..., 1::2].astype(np.uint64)
    return np.stack([_nh(x, y, keys[: x.shape[-1]]) for keys in level0_keys()], axis=-1)


def _nh(x: U64s, y: U64s, keys: U64s) -> U64s:
    products = (x + (keys & _LOW) & _LOW) * (y + (keys >> _HALF) & _LOW)
    sums: U64s = products.sum(axis=-1, dtype=np.uint64)
    return sums


def _final(sums: U64s, length: int, tag: int) -> U64s:
    """Mix the four numbers of each row to a digest, shape ``(rows, 2)``."""
    factors = [np.uint64(factor) for factor in FINAL_FACTORS]
    mark = np.uint64((length * STREAM_STEP + tag) % (1 << 64))
    w = [sums[:, 0] + mark, sums[:, 1], sums[:, 2] ^ mark, sums[:, 3]]
    for i in range(4):
        w[i] = (w[i] ^ w[i] >> _HALF) * factors[i]
        w[i] ^= w[i] >> np.uint64(29)
    lo, hi = w[0] + _swap_halves(w[1]), w[2] + _swap_halves(w[3])
    lo = (lo ^ lo >> _HALF) * factors[4]
    hi = (hi ^ hi >> _HALF) * factors[5]
    lo = lo + _swap_halves(hi)
    hi = hi + _swap_halves(lo)
    lo = (lo ^ lo >> np.uint64(29)) * factors[6]
    hi = (hi ^ hi >> np.uint64(29)) * factors[7]
    return np.stack([lo ^ lo >> _HALF, hi ^ hi >> _HALF], axis=-1)


def _swap_halves(x: U64s) -> U64s:
    return x << _HALF | x >> _HALF


digest_memory = memory_digester(digest_chunks)
scan_pieces = piece_scanner(digest_chunks)
