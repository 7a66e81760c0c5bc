"""Cells that a lineage has met, so that bytes seen before are stored once.

Every digest that is new gets the next number, its *id*, in the order in which it was met; equal
digests have equal ids. A history belongs to one size of cells. Its memory has a bound: when a
commit leaves more than ``limit`` digests, the older half is forgotten, again until no more are
left; a cell that comes back after that is new, with an id of its own.

What `History.find_or_add` adds counts only after `History.commit`; `History.rollback` makes it
undone, for a checkpoint that failed. ``tests/unit/test_history.py``.
"""

from __future__ import annotations

import numpy as np

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import BufferLike, Bytes, U64s
from ckptflow.data.scan import Changes, Kind, Runs, Scratch, collect_runs, scan
from ckptflow.errors import ConfigError

ENTRIES_MAX = (1 << 32) - 2  # What 32 bits of a slot can number.


class History:
    """Digests of cells of one size, in order of their ids. Not for two threads at once."""

    def __init__(self, cell_bytes: int, limit: int, first_id: int = 0) -> None:
        """Start without digests.

        Args:
            cell_bytes: size of the cells.
            limit: how many digests may be left after a commit; at least 1.
            first_id: the first id to give.

        Raises:
            ConfigError: no history has that limit.
        """
        if not 1 <= limit <= ENTRIES_MAX:
            raise ConfigError(f"A history holds 1 to {ENTRIES_MAX} digests, not {limit}.")
        self.cell_bytes = cell_bytes
        self.limit = limit
        self._first_id = first_id
        self._log: U64s = np.empty((0, 2), np.uint64)
        self._count = self._committed = 0
        self._table = kernels().digest_table()

    def __len__(self) -> int:
        return self._count

    @property
    def first_id(self) -> int:
        """The oldest id still known; `next_id` if none is."""
        return self._first_id

    @property
    def next_id(self) -> int:
        """The id that the next new digest will get."""
        return self._first_id + self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken by digests and by the table that finds them."""
        return 16 * self._count + self._table.nbytes

    @property
    def digests(self) -> U64s:
        """The digests from `first_id` on, uint64 of shape ``(n, 2)``, not to be changed."""
        return self._log[: self._count]

    def find_or_add(self, changes: Changes) -> tuple[U64s, Bytes]:
        """Number changed cells.

        Returns:
            The id of each cell, uint64 of shape ``(k,)``, 0 for a fill; and its `Kind`: NEW for
            the first with its digest, KNOWN for every other, FILL as before.

        Raises:
            ConfigError: the cells have another size, or there are too many.
        """
        if changes.cell_bytes != self.cell_bytes:
            raise ConfigError(
                f"Cells of {changes.cell_bytes} bytes cannot be found in a history of cells of "
                f"{self.cell_bytes} bytes."
            )
        kinds = changes.kind.copy()
        ids = np.empty(len(kinds), np.uint64)
        self._reserve(int(np.count_nonzero(kinds == Kind.NEW)))
        self._count = self._table.find_or_add(
            changes.digest, kinds, ids, self._log, self._count, self._first_id
        )
        return ids, kinds

    def commit(self) -> None:
        """Keep what was added, and forget the older half of what is too much."""
        keep = self._count
        while keep > self.limit:
            keep //= 2
        forgotten = self._count - keep
        if forgotten:
            self._log = self._log[forgotten : self._count].copy()
            self._first_id += forgotten
            self._count = keep
            self._table.rebuild(self._log)
        self._committed = self._count

    def rollback(self) -> None:
        """Forget what was added since the last commit; ids are given again."""
        if self._count > self._committed:
            self._count = self._committed
            self._table.rebuild(self.digests)

    def _reserve(self, added: int) -> None:
        wanted = self._count + added
        if wanted > ENTRIES_MAX:
            raise ConfigError(
                f"A history holds {ENTRIES_MAX} digests; it has {self._count}, and {added} "
                f"cells changed. Use cells of more than {self.cell_bytes} bytes."
            )
        if wanted > len(self._log):
            # Rows not yet written take no pages, so there may be many.
            log = np.empty((max(wanted, 2 * self._count), 2), np.uint64)
            log[: self._count] = self.digests
            self._log = log


def diff_region(
    data: BufferLike,
    history: History,
    *,
    chunk_bytes: int,
    old_chunks: U64s | None = None,
    old_cells: U64s | None = None,
    scratch: Scratch | None = None,
) -> tuple[Changes, Runs]:
    """Scan a region, number its changed cells, and join them to runs.

    See `ckptflow.data.scan.scan` for the arguments; cells have the size of the history's. Until
    its commit, what was added to the history can be rolled back.

    Raises:
        ConfigError: there are no such chunks, or too many cells for the history.
        ValueError: ``data`` is not C-contiguous, or old digests have another shape.
    """
    changes = scan(
        data,
        chunk_bytes=chunk_bytes,
        cell_bytes=history.cell_bytes,
        old_chunks=old_chunks,
        old_cells=old_cells,
        scratch=scratch,
    )
    ids, kinds = history.find_or_add(changes)
    return changes, collect_runs(changes, kinds, ids, changes.size_bytes)
