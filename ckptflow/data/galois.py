"""Reed-Solomon coding over GF(2^8): parity of bytes, and lost bytes from parity.

``k`` data pieces of equal length get ``m`` parity pieces; any ``k`` of the ``k + m`` give the
others back (Reed and Solomon, 1960; as an erasure code: Rizzo, 1997). The field is that of the
polynomial 0x11D with the generator 2, as in RFC 5510; the matrix is the Vandermonde one (row
``r``, column ``c``: ``r`` to the power of ``c``) times the inverse of its upper square, so that
data stays as it is. With ``m = 1`` it is all ones instead: plain XOR; ``k = 1`` makes copies.

The compiled core multiplies at about the speed of a copy, NumPy where the core is missing.
``tests/property/test_galois_laws.py``; published vectors in ``tests/unit/test_galois.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ckptflow.data import backend
from ckptflow.data.buffers import BufferLike, Bytes, byte_view, writable_byte_view

PIECES_MAX = 256  # Elements of the field: each row of the matrix belongs to one.

_POLYNOMIAL = 0x11D


def _tables() -> tuple[Bytes, Bytes]:
    power, exp, log = 1, np.zeros(510, np.uint8), np.zeros(256, np.uint8)
    for exponent in range(255):
        exp[exponent] = exp[exponent + 255] = power
        log[power] = exponent
        power = power << 1 ^ (_POLYNOMIAL if power & 0x80 else 0)
    return exp, log


_EXP, _LOG = _tables()  # 2 to the power of each exponent, twice over; and the exponent of each.


def multiply(a: int, b: int) -> int:
    """Return the product of two elements."""
    return int(_EXP[int(_LOG[a]) + int(_LOG[b])]) if a and b else 0


def inverse(a: int) -> int:
    """Return the element whose product with ``a`` is 1.

    Raises:
        ZeroDivisionError: ``a`` is 0.
    """
    if not a:
        raise ZeroDivisionError("0 has no inverse in GF(2^8).")
    return int(_EXP[255 - int(_LOG[a])])


def power(a: int, exponent: int) -> int:
    """Return ``a`` times itself, ``exponent`` times; 1 for an exponent of 0."""
    if exponent == 0:
        return 1
    return int(_EXP[int(_LOG[a]) * exponent % 255]) if a else 0


@cache
def coding_matrix(data_count: int, parity_count: int) -> Bytes:
    """Return the rows that make parity pieces of data pieces, uint8 [m, k]. Not to be changed.

    Raises:
        ValueError: there are no data pieces, or more than 256 pieces in all.
    """
    if data_count < 1 or parity_count < 0 or data_count + parity_count > PIECES_MAX:
        raise ValueError(
            f"There is no code of {data_count} data and {parity_count} parity pieces."
        )
    if parity_count == 1:
        rows = np.ones((1, data_count), np.uint8)
    else:
        vandermonde = np.array(
            [
                [power(row, column) for column in range(data_count)]
                for row in range(data_count + parity_count)
            ],
            np.uint8,
        )
        rows = _product(vandermonde[data_count:], _inverted(vandermonde[:data_count]))
    rows.flags.writeable = False
    return rows


def recovery_row(
    data_count: int, parity_count: int, have: Sequence[int], wanted: int
) -> list[int]:
    """Return the factors that make data piece ``wanted`` of the pieces ``have``, in that order.

    Args:
        data_count: k; data pieces have the numbers 0 to k - 1.
        parity_count: m; parity pieces have the numbers from k on.
        have: k different numbers of pieces.
        wanted: number of a data piece.

    Raises:
        ValueError: ``have`` does not name k different pieces.
    """
    if len(set(have)) != data_count or len(have) != data_count:
        raise ValueError(f"{data_count} different pieces are needed, not {list(have)}.")
    whole = np.concatenate(
        [np.eye(data_count, dtype=np.uint8), coding_matrix(data_count, parity_count)]
    )
    return [int(factor) for factor in _inverted(whole[list(have)])[wanted]]


def add_product(factor: int, source: BufferLike, target: BufferLike) -> None:
    """Add ``factor`` times ``source`` to the start of ``target``; adding is XOR.

    Raises:
        ValueError: ``target`` is shorter than ``source``.
    """
    plain, sums = byte_view(source), writable_byte_view(target)
    if len(plain) > len(sums):
        raise ValueError(f"{len(plain)} bytes do not fit into {len(sums)}.")
    active = backend.active()
    if active.name != "native":
        _add_product_numpy(factor, plain, sums[: len(plain)])
        return
    from ckptflow.data.kernels_native import variants
    from ckptflow.native import _core

    _core.galois_add(factor, plain, sums, variants().index(active.detail))


def _add_product_numpy(factor: int, source: Bytes, target: Bytes) -> None:
    if factor == 0:
        return
    if factor == 1:
        np.bitwise_xor(target, source, out=target)
        return
    products = np.zeros(256, np.uint8)
    products[1:] = _EXP[_LOG[1:].astype(np.intp) + int(_LOG[factor])]
    np.bitwise_xor(target, products[source], out=target)


def _product(a: Bytes, b: Bytes) -> Bytes:
    result = np.zeros((len(a), b.shape[1]), np.uint8)
    for row, factors in zip(result, a, strict=True):
        for factor, other in zip(factors, b, strict=True):
            _add_product_numpy(int(factor), other, row)
    return result


def _inverted(matrix: Bytes) -> Bytes:
    """Return the inverse, by Gauss and Jordan. Every matrix that comes here has one."""
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivot = column + int(np.flatnonzero(work[column:, column])[0])
        work[[column, pivot]] = work[[pivot, column]]
        scaled = np.zeros(2 * size, np.uint8)
        _add_product_numpy(inverse(int(work[column, column])), work[column], scaled)
        work[column] = scaled
        for row in range(size):
            if row != column:
                _add_product_numpy(int(work[row, column]), scaled, work[row])
    return work[:, size:]
