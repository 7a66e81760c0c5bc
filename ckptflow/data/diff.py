"""What changed in a region since its parent checkpoint, as runs of equal treatment.

A chunk whose digest its parent has at the same place is ``SAME``. Of the others, one whose
bytes repeat with period 8 is a ``FILL`` and costs eight bytes to store; the rest is ``DATA``.
``tests/property/test_diff_laws.py`` compares with a diff of the plain bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import BufferLike, Bytes, U64s, byte_view
from ckptflow.data.digest import chunk_count

_NO_DIGESTS: U64s = np.empty((0, 2), np.uint64)


class Kind(IntEnum):
    """How a run gets its bytes back."""

    SAME = 0  # from the parent, at the same place
    DATA = 1  # from this checkpoint
    FILL = 2  # by repeating eight bytes


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs in order, covering the region exactly; no two neighbours could be one run."""

    kind: Bytes  # of each run, a `Kind`
    start_bytes: U64s
    length_bytes: U64s
    pattern: U64s  # FILL: the eight bytes repeated from the start, little-endian; else 0

    def __len__(self) -> int:
        return len(self.kind)


def diff_region(
    data: BufferLike,
    digests: U64s,
    parent_digests: U64s | None,
    *,
    chunk_bytes: int,
    parent_bytes: int | None = None,
) -> Runs:
    """Compare a region with its parent.

    Costs a look at all digests and at the first cache line of every changed chunk; only
    fills are read whole.

    Args:
        data: the region, C-contiguous.
        digests: `chunk_digests` of ``data``, shape ``(n, 2)``.
        parent_digests: those of the parent, shape ``(m, 2)``; its region may have been
            shorter or longer. None if there is no parent.
        chunk_bytes: size of the chunks of both.
        parent_bytes: length of the parent's region. A chunk that had another length is
            another chunk. If it is not given, the digests alone tell, which they can, since
            they depend on the length of their chunk.

    Raises:
        ConfigError: no chunks can have ``chunk_bytes``.
        ValueError: the digests are not those of regions of these lengths, or ``data``
            changed meanwhile.
    """
    region = byte_view(data)
    count = chunk_count(len(region), chunk_bytes)
    ours = _checked(digests, count, "digests", len(region))
    if parent_digests is None:
        parent_digests, parent_bytes = _NO_DIGESTS, 0
    elif parent_bytes is None:
        same_count = len(parent_digests) == count
        parent_bytes = len(region) if same_count else len(parent_digests) * chunk_bytes
    parents = _checked(
        parent_digests, chunk_count(parent_bytes, chunk_bytes), "parent_digests", parent_bytes
    )
    common_bytes = min(count, len(parents)) * chunk_bytes
    if min(len(region), common_bytes) != min(parent_bytes, common_bytes):
        # Of the chunks that both have, only the last can have another length in the parent.
        parents = parents[: common_bytes // chunk_bytes - 1]
    kinds = np.empty(count, np.uint8)
    found = kernels().classify_chunks(region, chunk_bytes, ours, parents, kinds)
    runs = Runs(
        np.empty(found, np.uint8),
        np.empty(found, np.uint64),
        np.empty(found, np.uint64),
        np.empty(found, np.uint64),
    )
    columns = (runs.kind, runs.start_bytes, runs.length_bytes, runs.pattern)
    kernels().collect_runs(region, chunk_bytes, kinds, columns)
    return runs


def _checked(digests: U64s, count: int, name: str, size_bytes: int) -> U64s:
    if digests.shape != (count, 2) or digests.dtype != np.uint64:
        raise ValueError(
            f"{name} of {size_bytes} bytes must be uint64 of shape ({count}, 2), "
            f"got {digests.dtype} of shape {digests.shape}."
        )
    return np.require(digests, requirements=["C", "A"])
