"""Work on regions wherever they lie in memory, one by one: where no compiled code is.

``tests/unit/test_memory_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import Bytes, I64s, U64s
from ckptflow.data.memory import address_of, bytes_at

_SAME, _NEW, _FILL = 0, 1, 2  # See `ckptflow.data.scan.Kind`, which cannot be imported here.

Digest = Callable[[Bytes, int, U64s], None]


def copy_memory(address: U64s, length: U64s, target: Bytes, start: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    for data, there in zip(_regions(address, length), start.tolist(), strict=True):
        target[there : there + len(data)] = data


def place_memory(source: Bytes, start: U64s, address: U64s, length: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    rows = zip(start.tolist(), address.tolist(), length.tolist(), strict=True)
    for here, there, size in rows:
        if size:
            bytes_at(there, size, None, writable=True)[:] = source[here : here + size]


def look_at(arrays: list[Any], address: I64s) -> object:
    """See :class:`ckptflow.data.backend.Kernels`."""
    seen: list[NDArray[Any]] = [
        array if isinstance(array, np.ndarray) else np.asarray(memoryview(array))
        for array in arrays
    ]
    address[:] = [address_of(array) for array in seen]
    return [(array.shape, array.strides, array.itemsize) for array in seen]


def memory_digester(digest: Digest) -> Callable[[U64s, U64s, int, U64s], None]:
    """Return ``digest_memory`` of a backend that digests one region by ``digest``."""

    def digest_memory(address: U64s, length: U64s, chunk_bytes: int, out: U64s) -> None:
        """See :class:`ckptflow.data.backend.Kernels`."""
        first = 0
        for data in _regions(address, length):
            end = first + -(-len(data) // chunk_bytes)
            if end > first:
                digest(data, chunk_bytes, out[first:end])
            first = end

    return digest_memory


def piece_scanner(digest: Digest) -> Callable[..., int]:
    """Return ``scan_pieces`` of a backend that digests one region by ``digest``."""

    def scan_pieces(
        address: U64s,
        length: U64s,
        chunk_bytes: int,
        old: tuple[U64s, Bytes],
        digests: U64s,
        columns: tuple[Bytes, U64s],
        *,
        given: bool,
    ) -> int:
        """See :class:`ckptflow.data.backend.Kernels`."""
        kind, pattern = columns
        kind[:], pattern[:] = _SAME, 0
        (before, known), found = old, np.empty((1, 2), np.uint64)
        for i, data in enumerate(_regions(address, length)):
            if not given:
                digest(data, chunk_bytes, digests[i : i + 1])
            if known[i] and (digests[i] == before[i]).all():
                continue
            if given:
                digest(data, chunk_bytes, found)
                if (digests[i] != found[0]).any():
                    return i
            is_fill = len(data) % 8 == 0 and bool((data[8:] == data[:-8]).all())
            kind[i] = _FILL if is_fill else _NEW
            if is_fill:
                pattern[i] = int.from_bytes(data[:8].tobytes(), "little")
        return len(kind)

    return scan_pieces


def _regions(address: U64s, length: U64s) -> Iterator[Bytes]:
    for here, size in zip(address.tolist(), length.tolist(), strict=True):
        yield bytes_at(here, size, None) if size else np.empty(0, np.uint8)
