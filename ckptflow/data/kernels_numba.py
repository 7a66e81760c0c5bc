"""Digests and diffs compiled by numba: for an installation without a C++ compiler.

The functions run without the GIL and on one thread: numba's default threading layer aborts
the process when two Python threads enter it at once, which the background writer would do.
Compiled code is cached on disk where numba finds a writable place for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
import numpy as np

from ckptflow.data import kernels_numpy_capture, kernels_numpy_scan
from ckptflow.data.backend import CellColumns
from ckptflow.data.buffers import Bytes, U64s
from ckptflow.data.ckh128 import FINAL_FACTORS, LEVEL1_START, STREAM_STEP, level0_keys
from ckptflow.data.kernels_numpy import (
    apply_delta,
    collect_runs,
    copy_ranges,
    digest_table,
    fill_ranges,
    find_repeats,
    make_delta,
    ranges_equal,
    repeat_ranges,
)
from ckptflow.data.kernels_numpy_memory import (
    copy_memory,
    look_at,
    memory_digester,
    piece_scanner,
    place_memory,
)

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

if sys.byteorder != "little":
    raise ImportError("the numba version reads words in the byte order of the host")

VERSION = numba.__version__

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    try:
        compiled: Callable[_P, _R] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no writable place for its cache.
        compiled = numba.njit(nogil=True)(function)
    return compiled


# Numba makes a float of int and uint64, so every constant is a uint64 of its own.
_KEYS = np.ascontiguousarray(level0_keys())
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_29, _30, _27, _31 = np.uint64(29), np.uint64(30), np.uint64(27), np.uint64(31)
_TAG_LEAF, _TAG_NODE = np.uint64(0x6C656166), np.uint64(0x6E6F6465)
_STEP, _START = np.uint64(STREAM_STEP), np.uint64(LEVEL1_START)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_F0, _F1, _F2, _F3, _F4, _F5, _F6, _F7 = (np.uint64(factor) for factor in FINAL_FACTORS)


def digest_chunks(data: Bytes, chunk_bytes: int, out: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    full = min(len(data) // chunk_bytes, len(out))
    pairs = data[: full * chunk_bytes].view(np.uint64)
    _digest_chunks(pairs, chunk_bytes // 8, np.uint64(chunk_bytes), _KEYS, out[:full])
    if full < len(out):
        tail = data[full * chunk_bytes :]
        padded = np.zeros(-(-len(tail) // 8) * 8, np.uint8)
        padded[: len(tail)] = tail
        words = padded.view(np.uint64)
        _digest_chunks(words, len(words), np.uint64(len(tail)), _KEYS, out[full:])


def digest_parents(children: U64s, old_children: U64s, old_parents: U64s, out: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    _digest_parents(children, old_children, old_parents, out)


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


@_compiled
def _nh(total: np.uint64, pair: np.uint64, key: np.uint64) -> np.uint64:
    x = ((pair & _LOW) + (key & _LOW)) & _LOW
    y = ((pair >> _HALF) + (key >> _HALF)) & _LOW
    return total + x * y


@_compiled
def _swap_halves(x: np.uint64) -> np.uint64:
    return (x << _HALF) | (x >> _HALF)


@_compiled
def _final(
    w0: np.uint64, w1: np.uint64, w2: np.uint64, w3: np.uint64, mark: np.uint64
) -> tuple[np.uint64, np.uint64]:
    w0 += mark
    w2 ^= mark
    w0 = (w0 ^ (w0 >> _HALF)) * _F0
    w1 = (w1 ^ (w1 >> _HALF)) * _F1
    w2 = (w2 ^ (w2 >> _HALF)) * _F2
    w3 = (w3 ^ (w3 >> _HALF)) * _F3
    lo = (w0 ^ (w0 >> _29)) + _swap_halves(w1 ^ (w1 >> _29))
    hi = (w2 ^ (w2 >> _29)) + _swap_halves(w3 ^ (w3 >> _29))
    lo = (lo ^ (lo >> _HALF)) * _F4
    hi = (hi ^ (hi >> _HALF)) * _F5
    lo += _swap_halves(hi)
    hi += _swap_halves(lo)
    lo = (lo ^ (lo >> _29)) * _F6
    hi = (hi ^ (hi >> _29)) * _F7
    return lo ^ (lo >> _HALF), hi ^ (hi >> _HALF)


@_compiled
def _level1_key(j: int) -> np.uint64:
    z = _START + _STEP * np.uint64(j + 1)
    z = (z ^ (z >> _30)) * _MIX1
    z = (z ^ (z >> _27)) * _MIX2
    return z ^ (z >> _31)


@_compiled
def _digest_chunks(
    pairs: U64s, chunk_pairs: int, chunk_bytes: np.uint64, keys: U64s, out: U64s
) -> None:
    k0, k1, k2, k3 = keys[0], keys[1], keys[2], keys[3]
    blocks = max(1, (chunk_pairs + 127) // 128)
    mark = chunk_bytes * _STEP + _TAG_LEAF
    for chunk in range(len(out)):
        t0 = t1 = t2 = t3 = np.uint64(0)
        s0 = s1 = s2 = s3 = np.uint64(0)
        for block in range(blocks):
            first = chunk * chunk_pairs + block * 128
            words = pairs[first : first + min(128, chunk_pairs - block * 128)]
            s0 = s1 = s2 = s3 = np.uint64(0)
            for i in range(len(words)):
                s0 = _nh(s0, words[i], k0[i])
                s1 = _nh(s1, words[i], k1[i])
                s2 = _nh(s2, words[i], k2[i])
                s3 = _nh(s3, words[i], k3[i])
            if blocks > 1:
                for q, s in enumerate((s0, s1, s2, s3)):
                    t0 = _nh(t0, s, _level1_key(4 * block + q))
                    t1 = _nh(t1, s, _level1_key(4 * block + q + 2))
                    t2 = _nh(t2, s, _level1_key(4 * block + q + 4))
                    t3 = _nh(t3, s, _level1_key(4 * block + q + 6))
        if blocks > 1:
            s0, s1, s2, s3 = t0, t1, t2, t3
        out[chunk, 0], out[chunk, 1] = _final(s0, s1, s2, s3, mark)


@_compiled
def _same(a: U64s, b: U64s, i: int) -> bool:
    return bool(a[i, 0] == b[i, 0] and a[i, 1] == b[i, 1])


@_compiled
def _digest_parents(children: U64s, old_children: U64s, old_parents: U64s, out: U64s) -> None:
    for i in range(len(out)):
        left, right = 2 * i, 2 * i + 1
        if right == len(children):
            out[i, 0], out[i, 1] = children[left, 0], children[left, 1]
        elif (
            right < len(old_children)
            and _same(children, old_children, left)
            and _same(children, old_children, right)
        ):
            out[i, 0], out[i, 1] = old_parents[i, 0], old_parents[i, 1]
        else:
            out[i, 0], out[i, 1] = _final(
                children[left, 0],
                children[left, 1],
                children[right, 0],
                children[right, 1],
                _TAG_NODE,
            )


digest_memory = memory_digester(digest_chunks)
scan_pieces = piece_scanner(digest_chunks)
