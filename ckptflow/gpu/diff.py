"""What changed in arrays on a device since the last commit: the GPU's side of the diff.

Everything is found where the array lies; the host gets runs, the digests of changed chunks
and the bytes that no earlier checkpoint has. ``tests/gpu_emulated/test_device_diff.py``
holds the results against the CPU, ``tests/gpu/test_device.py`` does so on a real device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptflow.data.buffers import Bytes, U64s
from ckptflow.data.scan import Kind, Runs
from ckptflow.errors import ConfigError, StateError
from ckptflow.gpu import plan
from ckptflow.gpu.arrays import device_array
from ckptflow.gpu.device import Device, DeviceArray, Done
from ckptflow.gpu.memory import Arrays, HostRoom, as_words


@dataclass(slots=True, eq=False)
class _Region:
    """A region as of the last commit."""

    arrays: Arrays
    size_bytes: int
    digests: U64s  # of its chunks


@dataclass(slots=True, eq=False)
class _HostViews:
    """Pieces of page-locked memory that the device writes to."""

    kind: Bytes
    start: Bytes
    end: Bytes
    ref: Bytes
    chunk_index: Bytes
    chunk_digest: Bytes
    payload: Bytes


class DeviceRegionDiff:
    """The changes of one region. Reading them waits for the device where that is needed.

    Valid until the diff is committed or rolled back; `runs` and `chunk_digests` are copies
    and stay.
    """

    def __init__(
        self, views: _HostViews, done: Done, before: U64s, *, chunks: int, first_id: int
    ) -> None:
        self.first_id = first_id  # of the first cell in `payload`
        self._views, self._done = views, done
        self._before, self._chunks = before, chunks
        self._runs: Runs | None = None
        self._digests: U64s | None = None

    def wait(self) -> None:
        """Return when the device has handed over everything."""
        self._done.wait()

    @property
    def runs(self) -> Runs:
        """Runs of changed cells; what they leave out is as at the last commit."""
        if self._runs is None:
            self.wait()
            views = self._views
            start = as_words(views.start).copy()
            self._runs = Runs(
                views.kind.copy(),
                start,
                as_words(views.end) - start,
                as_words(views.ref).copy(),
            )
        return self._runs

    @property
    def chunk_digests(self) -> U64s:
        """Digests of all chunks, shape ``(chunks, 2)``: the leaves of the Merkle tree."""
        if self._digests is None:
            self.wait()
            digests = np.empty((self._chunks, 2), np.uint64)
            common = min(self._chunks, len(self._before))
            digests[:common] = self._before[:common]
            changed = as_words(self._views.chunk_index)
            digests[changed] = as_words(self._views.chunk_digest).reshape(-1, 2)
            self._digests = digests
        return self._digests

    @property
    def payload(self) -> Bytes:
        """Bytes of the new cells in the order of their ids, in page-locked memory."""
        runs = self.runs
        # A short last cell has the highest id, so it leaves room unused at the end only.
        size = int(runs.length_bytes[runs.kind == Kind.NEW].sum())
        return self._views.payload[:size]


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A region that was compared and not yet committed."""

    region: _Region
    size_bytes: int
    blocks: int
    first_cell: int
    items: int  # changed cells
    found: DeviceRegionDiff


class DeviceDiff:
    """Compares regions on one device with their last commit, and remembers first cells.

    Several regions share one history of first occurrences::

        changes = {name: diff.diff(array, region=name) for name, array in state.items()}
        ...  # store changes[name].runs and changes[name].payload
        diff.commit()  # or rollback(), and the next diff is as if this one had not been

    Memory on the device: `ckptflow.gpu.plan.device_bytes`.

    Args:
        device: with kernels for the sizes of chunks and cells that are wanted.
        history_limit: ids that the history keeps after a commit. When there are more, the
            older half is forgotten.
        first_id: the first id to give, after a restart say.

    Raises:
        ConfigError: the limit is not positive.
    """

    def __init__(self, device: Device, *, history_limit: int, first_id: int = 0) -> None:
        if history_limit < 1:
            raise ConfigError(f"history_limit must be at least 1 cell, got {history_limit}.")
        self._device, self._limit = device, history_limit
        self._shape = device.shape
        self._regions: dict[str, _Region] = {}
        self._pending: dict[str, _Pending] = {}
        self._arrays = Arrays(device)
        self._room = HostRoom(device.allocate_host)
        self._last_copy: Done | None = None
        self._numbers = 0  # given to cells since the last commit
        self._first_id = self._next_id = self._committed_id = first_id
        self._spoiled = False  # A diff broke off, and the table may hold some of its cells.
        self._prepare()

    @property
    def first_id(self) -> int:
        """The oldest id that the history knows."""
        return self._first_id

    @property
    def next_id(self) -> int:
        """The id that the next new cell gets."""
        return self._next_id

    @property
    def memory_bytes(self) -> int:
        """What is allocated on the device now."""
        regions = sum(region.arrays.size_bytes for region in self._regions.values())
        return self._arrays.size_bytes + regions

    def reserve(self, sizes_bytes: dict[str, int]) -> None:
        """Allocate for regions of these sizes, so that their first diff need not.

        Without it every first diff of a region makes room for one more.
        """
        sizes = list(sizes_bytes.values())
        self._make_room(sizes, sum(self._shape.numbers(size) for size in sizes))
        for name, size in sizes_bytes.items():
            self._room_for(name, size)

    def diff(self, array: Any, *, region: str = "") -> DeviceRegionDiff:
        """Compare an array with what the region was at the last commit.

        The array may be CuPy's, torch's or JAX's, and is read in place after what its
        stream has begun. It may be changed by work that is queued on that stream later.

        Raises:
            StateError: it is not contiguous memory of this device; or the region was
                compared already, or a diff broke off, and there was no commit or rollback.
            ConfigError: it has too many cells.
        """
        self._require_whole()
        if region in self._pending:
            raise StateError(
                f"The region {region!r} was compared already; call commit() or rollback() "
                "before it is compared again."
            )
        source = array if isinstance(array, DeviceArray) else device_array(array)
        size = source.size_bytes
        if self._numbers + self._shape.numbers(size) > plan.CELLS_MAX:
            raise ConfigError(
                f"The region {region!r} of {size} bytes has too many cells of "
                f"{self._shape.cell_bytes} bytes: {plan.CELLS_MAX} cells can be compared "
                "between two commits. Use larger cells."
            )
        with self._device.using(source):
            self._spoiled = True
            self._make_room([size], self._numbers + self._shape.numbers(size))
            known = self._room_for(region, size)
            pending = self._find(known, source)
            self._spoiled = False
        self._pending[region] = pending
        return pending.found

    def commit(self) -> None:
        """Make what was found the state to compare with, and remember new cells.

        Raises:
            StateError: a diff broke off, so that something is missing.
        """
        self._require_whole()
        keep_from = self._next_id - kept(self._next_id - self._first_id, self._limit)
        forgets = keep_from != self._first_id
        for pending in self._pending.values():
            # The host's memory is used again from now on, so the device must be done with it.
            digests, region = pending.found.chunk_digests, pending.region
            if pending.items:
                values = self._values(region, pending.first_cell, pending.blocks) | {
                    "item_count": pending.items, "keep_from": keep_from, "settle": not forgets
                }  # fmt: skip
                self._device.launch(plan.launch("ck_commit", pending.blocks, values))
            region.size_bytes, region.digests = pending.size_bytes, digests
            if not self._shape.cells_are_chunks:
                region.arrays.swap("old_chunks", "new_chunks")
        self._first_id, self._committed_id = keep_from, self._next_id
        self._end(rebuild=forgets)

    def rollback(self) -> None:
        """Forget what was found since the last commit."""
        for pending in self._pending.values():
            pending.found.wait()
        spoiled = self._spoiled or self._next_id != self._committed_id
        self._next_id, self._spoiled = self._committed_id, False
        self._end(rebuild=spoiled)

    def _require_whole(self) -> None:
        if self._spoiled:
            raise StateError(
                "A diff broke off with an error, so what it found is not whole; "
                "call rollback() and compare again."
            )

    def forget(self, region: str) -> None:
        """Give back the memory of a region; the next diff of that name is a first one.

        Raises:
            StateError: it was compared and is neither committed nor rolled back.
        """
        if region in self._pending:
            raise StateError(
                f"The region {region!r} was compared; call commit() or rollback() first."
            )
        self._regions.pop(region, None)

    # --- one region --------------------------------------------------------------------------

    def _find(self, region: _Region, source: DeviceArray) -> _Pending:
        device, shape, size = self._device, self._shape, source.size_bytes
        first_cell, first_id = self._numbers, self._next_id
        blocks = plan.block_count(shape, size, device.blocks_max)
        values = self._values(region, first_cell, blocks)
        values |= {"data": source.address, "length": size}
        totals = dict.fromkeys(plan.COUNTS, 0)
        if size:
            for launch in plan.find(shape, blocks, values):
                device.launch(launch)
            totals = self._read_totals(blocks)
        numbered = (
            shape.chunks(size) if shape.cells_are_chunks
            else totals["chunk_counts"] * shape.cells_per_chunk
        )  # fmt: skip
        self._numbers += numbered
        self._next_id += totals["new_counts"]
        views, done = self._hand_over(blocks, values, totals)
        found = DeviceRegionDiff(
            views, done, region.digests, chunks=shape.chunks(size), first_id=first_id
        )
        return _Pending(region, size, blocks, first_cell, totals["cell_counts"], found)

    def _read_totals(self, blocks: int) -> dict[str, int]:
        """Wait for the device and return what its blocks have counted."""
        counts = self._device.read(self._arrays["counts"], len(plan.COUNTS) * blocks * 8)
        sums = as_words(counts).reshape(len(plan.COUNTS), blocks).sum(axis=1)
        totals = dict(zip(plan.COUNTS, map(int, sums), strict=True))
        if self._shape.cells_are_chunks:
            totals["cell_counts"] = totals["chunk_counts"]
        return totals

    def _hand_over(
        self, blocks: int, values: dict[str, int], totals: dict[str, int]
    ) -> tuple[_HostViews, Done]:
        """Let the device write what was found to page-locked memory."""
        cell_bytes, runs = self._shape.cell_bytes, totals["run_counts"]
        payload_bytes = totals["new_counts"] * cell_bytes
        sizes = {
            "run_kind": runs, "run_start": 8 * runs, "run_end": 8 * runs, "run_ref": 8 * runs,
            "out_index": 8 * totals["chunk_counts"], "out_digest": 16 * totals["chunk_counts"],
            "payload": payload_bytes,
        }  # fmt: skip
        taken = self._room.take(sizes)
        values = values | {name: address for name, (address, _) in taken.items()}
        staged = (
            min(payload_bytes, self._arrays["staging"].size_bytes) // cell_bytes * cell_bytes
        )
        values["staged_bytes"] = staged
        if staged and self._last_copy is not None:
            self._device.hold(self._last_copy)  # It may still read what is written next.
        if totals["chunk_counts"]:
            for launch in plan.hand_over(blocks, values):
                self._device.launch(launch)
        done = self._device.copy_aside(values["payload"], values["staging"], staged)
        self._last_copy = done
        return _HostViews(*(view for _, view in taken.values())), done

    def _values(self, region: _Region, first_cell: int, blocks: int) -> dict[str, int]:
        """Return the arguments of the kernels by name, except what they read and find."""
        shape = self._shape
        at = self._arrays.addresses() | region.arrays.addresses()
        counts = {name: at["counts"] + 8 * blocks * i for i, name in enumerate(plan.COUNTS)}
        values = at | counts | self._table_values() | {
            "old_chunk_count": shape.chunks(region.size_bytes),
            "old_cell_count": shape.cells(region.size_bytes),
            "first_cell": first_cell, "list": at["list"] + 4 * first_cell,
        }  # fmt: skip
        if shape.cells_are_chunks:
            # Chunks are numbered themselves, so their digests lie where those of cells do.
            return values | {
                "new_chunks": at["digests"] + 16 * first_cell, "old_cells": at["old_chunks"],
                "listed": values["list"], "first_number": first_cell,
                "chunk_list": values["list"], "item_counts": counts["chunk_counts"],
            }  # fmt: skip
        chunk_list = at["chunk_list"] + 4 * (first_cell // shape.cells_per_chunk)
        return values | {
            "chunk_list": chunk_list, "listed": chunk_list, "first_number": 0,
            "item_counts": counts["cell_counts"],
        }  # fmt: skip

    def _table_values(self) -> dict[str, int]:
        return {
            "first_id": self._first_id, "next_id": self._next_id, "log_capacity": self._limit,
            "slot_count": self._arrays["slots"].size_bytes // 8,
        }  # fmt: skip

    # --- memory ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        sizes = plan.shared_sizes(self._shape, (), self._limit, self._device.blocks_max)
        for name in ("log", "counts", "keys"):
            self._arrays.ensure(name, sizes[name])
        self._device.write(self._arrays["keys"], plan.key_bytes())

    def _make_room(self, sizes_bytes: list[int], numbers: int) -> None:
        """Let what regions share be large enough for these, and for so many numbered cells."""
        shape, used = self._shape, self._numbers
        blocks = self._device.blocks_max
        sizes = plan.shared_sizes(shape, sizes_bytes, self._limit, blocks, numbers)
        kept = {name: each * used for name, each in plan.BYTES_PER_NUMBER.items()}
        kept["chunk_list"] = 4 * (used // shape.cells_per_chunk)
        for name in ("changed", "chunk_list", *plan.BYTES_PER_NUMBER):
            self._arrays.ensure(name, sizes[name], keep_bytes=kept.get(name, 0))
        if not used:  # Else a copy may be reading the buffer.
            self._arrays.ensure("staging", sizes["staging"])
        if self._arrays.ensure("slots", sizes["slots"]):
            self._rebuild_table()

    def _room_for(self, name: str, size_bytes: int) -> _Region:
        none = np.empty((0, 2), np.uint64)
        region = self._regions.setdefault(name, _Region(Arrays(self._device), 0, none))
        now = plan.region_sizes(self._shape, region.size_bytes)
        for array, size in plan.region_sizes(self._shape, size_bytes).items():
            region.arrays.ensure(array, size, keep_bytes=now[array])
        return region

    def _rebuild_table(self) -> None:
        """Enter the log anew, and the new cells of regions that are pending."""
        device, at = self._device, self._arrays.addresses()
        device.zero(self._arrays["slots"])
        if self._committed_id > self._first_id:
            values = at | self._table_values() | {"next_id": self._committed_id}
            device.launch(plan.launch("ck_enter_log", device.blocks_max, values))
        for pending in self._pending.values():
            if pending.items:
                values = self._values(pending.region, pending.first_cell, pending.blocks)
                values["item_count"] = pending.items
                device.launch(plan.launch("ck_enter_pending", pending.blocks, values))

    def _end(self, *, rebuild: bool) -> None:
        self._pending.clear()
        self._numbers = 0
        if rebuild:
            self._rebuild_table()
        state_bytes = sum(region.size_bytes for region in self._regions.values())
        self._arrays.ensure("staging", plan.staging_bytes(self._shape, state_bytes))
        self._room.take_back()


def kept(held: int, limit: int) -> int:
    """Return how many of so many ids the history keeps at a commit: all, or the newer half.

    Halved until it is no more than the limit, as in `ckptflow.data.history`.
    """
    while held > limit:
        held //= 2
    return held
