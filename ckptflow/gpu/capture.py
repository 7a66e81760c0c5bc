"""Capture the regions of one device: digest them there, and bring over what changed.

The digests of the snapshot before stay on the device. The kernels of
``native/gpu_capture.cuh`` digest all chunks where they lie, in one launch for all regions, and
compare. The host looks at two counts. What is to be held is collected in *pieces* on the
device, and each goes to page-locked memory on a stream of its own. So what the application does
on its stream later waits for the diff and for the collecting, and not for the bus, if `PIECES`
pieces are enough; of more, each waits until the one before the last is there. The result is
that of `ckptflow.data.snapshot.capture`, bit for bit:
``tests/gpu_emulated/test_capture_laws.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import Bytes, I64s, U64s
from ckptflow.data.ranges import copy_ranges
from ckptflow.data.snapshot import DIGEST, NOTHING, Parent, Places, Snapshot
from ckptflow.errors import ConfigError
from ckptflow.gpu import plan
from ckptflow.gpu.device import Device, DeviceArray, Done, HostMemory
from ckptflow.gpu.memory import Arrays, as_words
from ckptflow.gpu.plan import PIECES, Shape

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRegions:
    """The regions of a state that lie on one device as they are stored; none is empty.

    Attributes:
        numbers: which of the state's they are, rising, int64 [n].
        address: where each lies, uint64 [n].
        arrays: one array of them for each stream on which the application may write to them.
    """

    numbers: I64s
    address: U64s
    arrays: Sequence[DeviceArray]


class _Table:
    """The chunks of the regions of one device, numbered without those of others.

    Attributes:
        numbers: of the regions.
        nbytes: of each.
        first: number of the first chunk of each, uint64 [n].
        row_of: which of them each chunk is in, uint32 [chunks].
        chunk: its place in the snapshot's table of digests, int64 [chunks].
    """

    def __init__(self, places: Places, numbers: I64s) -> None:
        counts = places.counts[numbers]
        self.numbers, self.nbytes = numbers, places.nbytes[numbers]
        self.first: U64s = np.cumsum(counts, dtype=np.uint64) - counts
        self.row_of = np.repeat(
            np.arange(len(numbers), dtype=np.uint32), counts.astype(np.intp)
        )
        by = (places.first[numbers] - self.first).view(np.int64)
        self.chunk: I64s = np.arange(len(self.row_of)) + by[self.row_of]
        self._places = places

    def is_of(self, places: Places, numbers: I64s) -> bool:
        """Tell whether it is the table of these regions."""
        return (
            places is self._places or np.array_equal(places.nbytes, self._places.nbytes)
        ) and np.array_equal(numbers, self.numbers)

    def of_rows(self, marks: Mask) -> I64s:
        """Return the places, in the snapshot's table, of the chunks of the marked rows."""
        return self.chunk if marks.all() else self.chunk[marks[self.row_of]]


@dataclass(slots=True, eq=False)
class _Digests:
    """Whose digests a table on the device has, and of which rows."""

    of: U64s | None  # The table of the host.
    rows: Mask

    @staticmethod
    def none(rows: int) -> _Digests:
        return _Digests(None, np.zeros(rows, np.bool_))


@dataclass(slots=True, eq=False)
class _Slot:
    """Room for one piece in page-locked memory, and when what was put there last is there."""

    host: HostMemory
    done: Done | None = None
    count: int = 0  # Chunks of a piece that was not brought in yet.


@dataclass(slots=True, eq=False)
class Transfer:
    """What was collected of a snapshot, and is on its way into the arena.

    Attributes:
        taken_bytes: how much it is.
    """

    taken_bytes: int
    _snapshot: Snapshot
    _table: _Table
    _how: U64s  # Of each row.
    _parent: Parent
    _arena: Bytes
    _begun: bool = False
    _slots: list[_Slot] = field(default_factory=list)  # Filled and not brought in, in order.
    _dropped: bool = False

    def finish(self) -> None:
        """Wait for the device, and put everything into the arena and the snapshot."""
        assert not self._dropped, "a later capture has taken its place"
        self._begin()
        while self._slots:
            self._bring_in(self._slots.pop(0))

    def drop(self) -> None:
        """Let nothing of it be written any more."""
        self._dropped = True
        self._slots.clear()

    def add(self, slot: _Slot) -> None:
        """Take over a slot that the device will have filled; makes room for the next."""
        self._slots.append(slot)

    def free(self, slot: _Slot) -> None:
        """Bring in what is in a slot, if something is."""
        if slot in self._slots:
            self._begin()
            self._slots.remove(slot)
            self._bring_in(slot)

    def _begin(self) -> None:
        """Mark what is held, as far as that is known: nothing, and digests are as before."""
        if self._begun:
            return
        self._begun = True
        snapshot, table = self._snapshot, self._table
        snapshot.held[table.of_rows(self._how != NOTHING)] = 0
        digested = (self._how & DIGEST) != 0
        if digested.any():
            chunks = table.of_rows(digested)
            snapshot.digests[chunks] = self._parent.digests[chunks]
            snapshot.digested[table.numbers[digested]] = True

    def _bring_in(self, slot: _Slot) -> None:
        assert slot.done is not None, "it was filled"
        slot.done.wait()
        snapshot, table, places = self._snapshot, self._table, self._snapshot.places
        count, step = slot.count, np.uint64(places.chunk_bytes)
        digests, data, index = _parts(slot.host.view, count, places.chunk_bytes)
        row = table.row_of[index]
        behind = (index - table.first[row]) * step
        copy_ranges(
            data,
            self._arena,
            np.arange(count, dtype=np.uint64) * step,
            places.offset[table.numbers[row]] + behind,
            np.minimum(step, table.nbytes[row] - behind),
        )
        chunk = table.chunk[index]
        snapshot.held[chunk] = 1
        digested = (self._how[row] & DIGEST) != 0
        snapshot.digests[chunk[digested]] = digests[digested]


class DeviceCapture:
    """Captures the regions of one device, one snapshot after the other.

    Memory on the device is the sum of `plan.capture_sizes`, and page-locked memory that of the
    pieces in it; both stay. Not for two threads at once.

    Args:
        device: with kernels for the size of chunks; that of cells does not matter.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._shape = device, device.shape
        self._arrays = Arrays(device)
        self._slots: list[_Slot] = []
        self._table: _Table | None = None
        self._rows: U64s | None = None  # As they were written last.
        self._old, self._new = _Digests.none(0), _Digests.none(0)
        self._last: Transfer | None = None

    @property
    def shape(self) -> Shape:
        """What its kernels were compiled for."""
        return self._shape

    @property
    def memory_bytes(self) -> int:
        """What is allocated on the device now."""
        return self._arrays.size_bytes

    def prepare(self, places: Places, numbers: I64s) -> None:
        """Have memory for a snapshot of some regions before the first is taken."""
        if self._table is None:
            self._lay_out(places, numbers)

    def now(self, regions: DeviceRegions) -> Done:
        """Return what has finished when all that was begun on the regions has."""
        with self._on_streams(regions.arrays):
            return self._device.so_far()

    def capture(
        self,
        snapshot: Snapshot,
        regions: DeviceRegions,
        how: U64s,
        *,
        arena: Bytes,
        parent: Parent,
        grain: U64s,
        limit_bytes: int,
        after: Done | None = None,
    ) -> Transfer | None:
        """Digest regions where they lie, and begin to bring over what changed.

        What the application asks of its streams after that may change them. How a region is
        captured, and what comes of it, is as `ckptflow.data.snapshot.capture` says.

        Args:
            snapshot: its digests and what is held are set by the transfer.
            regions: where they lie.
            how: for each region of the snapshot, uint64 [m].
            arena: where what is held goes, as long as the snapshot's places say.
            parent: what is compared with.
            grain: chunks that are held together, at least 1, uint64 [m].
            limit_bytes: how much may be held.
            after: what has to be done before, as `now` returned it. Then the work is done
                beside the application, which only reads; without it, on its own streams.

        Returns:
            What is on its way; ``None`` if that would be more than ``limit_bytes``.

        Raises:
            MemoryError: the device has not enough.
            ConfigError: the regions have more chunks than can be numbered.
        """
        table = self._lay_out(snapshot.places, regions.numbers)
        mine, grain = how[regions.numbers], grain[regions.numbers]
        known = parent.known[regions.numbers]
        with self._where(regions, after):
            self._turn(snapshot, parent, table, (mine == DIGEST) & (known > 0))
            rows = _rows(regions, table, known, grain, mine)
            digested = (mine & DIGEST) != 0
            self._new.rows &= ~digested
            held, held_bytes = self._scan(table, rows, old="old_chunks", new="new_chunks")
            self._new.rows |= digested
            if held_bytes > limit_bytes:
                return None
            transfer = Transfer(held_bytes, snapshot, table, mine, parent, arena)
            self._last = transfer
            self._collect(table, held, transfer)
        return transfer

    def torn(
        self,
        snapshot: Snapshot,
        regions: DeviceRegions,
        which: Mask,
        after: Done | None = None,
    ) -> list[int]:
        """Return the numbers of those regions that are not as they were digested last.

        Args:
            snapshot: the one that was captured last.
            regions: where they lie.
            which: regions of the snapshot to look at, all digested, bool [m].
            after: as for `capture`.
        """
        table, marks = self._lay_out(snapshot.places, regions.numbers), which[regions.numbers]
        assert self._new.of is snapshot.digests, "another was captured since"
        assert self._new.rows[marks].all(), "a region was not digested"
        with self._where(regions, after):
            counts = snapshot.places.counts[regions.numbers]
            how = np.where(marks, DIGEST, NOTHING)
            rows = _rows(regions, table, counts, np.ones_like(counts), how)
            self._old = _Digests.none(len(marks))  # What was compared with is not needed now.
            held, _ = self._scan(table, rows, old="new_chunks", new="old_chunks")
            if not held:
                return []
            found = self._device.read(self._arrays["held"], len(table.row_of))
        wrong = np.unique(table.row_of[found.astype(np.bool_)])
        return [int(number) for number in regions.numbers[wrong]]

    # --- where and when ----------------------------------------------------------------------

    def _where(
        self, regions: DeviceRegions, after: Done | None
    ) -> AbstractContextManager[None]:
        return self._on_streams(regions.arrays) if after is None else self._device.apart(after)

    @contextmanager
    def _on_streams(self, arrays: Sequence[DeviceArray]) -> Iterator[None]:
        """Work after what all streams have begun, and before what they begin later."""
        *others, last = arrays
        for array in others:
            with self._device.using(array):
                pass  # The next one waits for it.
        with self._device.using(last):
            yield
        for array in others:
            with self._device.using(array):
                pass

    # --- the phases --------------------------------------------------------------------------

    def _turn(self, snapshot: Snapshot, parent: Parent, table: _Table, compared: Mask) -> None:
        """Have the digests of the snapshot before where they are compared with."""
        if self._last is not None:
            self._last.drop()
        if self._new.of is not snapshot.digests:
            self._arrays.swap("old_chunks", "new_chunks")
            self._old, self._new = self._new, _Digests.none(len(compared))
            self._new.of = snapshot.digests
        if self._old.of is parent.digests and not (compared & ~self._old.rows).any():
            return
        digests = parent.digests[table.chunk]
        self._device.write(self._arrays["old_chunks"], digests.reshape(-1).view(np.uint8))
        self._old = _Digests(parent.digests, parent.known[table.numbers] > 0)

    def _scan(self, table: _Table, rows: U64s, *, old: str, new: str) -> tuple[int, int]:
        """Digest and compare; return how many chunks are to be held, and their bytes."""
        device = self._device
        if self._rows is None or not np.array_equal(rows, self._rows):
            device.write(self._arrays["rows"], rows.reshape(-1).view(np.uint8))
            self._rows = rows
        blocks, at = self._blocks(table), self._values(table)
        values = at | {"old_chunks": at[old], "new_chunks": at[new]}
        for launch in plan.scan_all(blocks, values):
            device.launch(launch)
        counts = as_words(device.read(self._arrays["counts"], 2 * 8 * blocks))
        held, held_bytes = counts.reshape(2, blocks).sum(axis=1).tolist()
        return held, held_bytes

    def _collect(self, table: _Table, held: int, transfer: Transfer) -> None:
        """Collect what is held, piece by piece, and let each go to the host."""
        if not held:
            return
        device, shape, values = self._device, self._shape, self._values(table)
        device.launch(plan.list_held(shape, self._blocks(table), values))
        step = plan.piece_chunks(shape, len(table.row_of))
        for number, begin in enumerate(range(0, held, step)):
            slot, count = self._slots[number % PIECES], min(step, held - begin)
            transfer.free(slot)
            if slot.done is not None:
                slot.done.wait()  # Of a transfer that was dropped.
            start = self._arrays[f"piece{number % PIECES}"].address
            out = _piece_values(start, count, shape.chunk_bytes)
            blocks = plan.block_count(shape, count * shape.chunk_bytes, device.blocks_max)
            device.launch(
                plan.launch("ck_take_chunks", blocks, values | out | {"begin": begin})
            )
            size_bytes = plan.piece_bytes(shape, count)
            slot.done = device.copy_aside(slot.host.address, start, size_bytes)
            slot.count = count
            transfer.add(slot)

    def _blocks(self, table: _Table) -> int:
        size_bytes = len(table.row_of) * self._shape.chunk_bytes
        return plan.block_count(self._shape, size_bytes, self._device.blocks_max)

    def _values(self, table: _Table) -> dict[str, int]:
        at = self._arrays.addresses()
        byte_counts = at["counts"] + 8 * self._blocks(table)
        return at | {
            "chunk_total": len(table.row_of),
            "held_counts": at["counts"],
            "byte_counts": byte_counts,
        }

    # --- memory ------------------------------------------------------------------------------

    def _lay_out(self, places: Places, numbers: I64s) -> _Table:
        """Have arrays for the chunks of some regions; keeps them if they are the same."""
        if self._table is not None and self._table.is_of(places, numbers):
            return self._table
        self._table = self._rows = None
        table, device, shape = _Table(places, numbers), self._device, self._shape
        chunks = len(table.row_of)
        if chunks > plan.CELLS_MAX:
            raise ConfigError(
                f"The regions on {device.name} have {chunks} chunks of {shape.chunk_bytes} "
                f"bytes; {plan.CELLS_MAX} can be captured there. Use larger chunks."
            )
        self._wait()
        sizes = plan.capture_sizes(shape, len(numbers), chunks, device.blocks_max)
        for name, size_bytes in sizes.items():
            if self._arrays.ensure(name, size_bytes) and name == "keys":
                device.write(self._arrays["keys"], plan.key_bytes())
        device.write(self._arrays["row_of"], table.row_of.view(np.uint8))
        if not self._slots or self._slots[0].host.size_bytes < sizes["piece0"]:
            self._slots.clear()
            for _ in range(PIECES):
                self._slots.append(_Slot(device.allocate_host(sizes["piece0"])))
        self._old, self._new = _Digests.none(len(numbers)), _Digests.none(len(numbers))
        self._table = table
        return table

    def _wait(self) -> None:
        """Wait until nothing is on its way to memory that may be given back."""
        for slot in self._slots:
            if slot.done is not None:
                slot.done.wait()


def _rows(regions: DeviceRegions, table: _Table, known: U64s, grain: U64s, how: U64s) -> U64s:
    """Return the rows of the kernels, uint64 [n, 6]."""
    columns = (regions.address, table.nbytes, table.first, known, grain, how)
    return np.stack(columns, axis=1)


def _piece_values(start: int, count: int, chunk_bytes: int) -> dict[str, int]:
    """Return where the parts of a piece are; digests first, because they have to be aligned."""
    data = start + 16 * count
    return {
        "count": count,
        "out_digest": start,
        "out_bytes": data,
        "out_index": data + chunk_bytes * count,
    }


def _parts(
    piece: Bytes, count: int, chunk_bytes: int
) -> tuple[U64s, Bytes, NDArray[np.uint32]]:
    """Return digests, bytes and numbers of the chunks in a piece."""
    at = _piece_values(0, count, chunk_bytes)
    digests = as_words(piece[: at["out_bytes"]]).reshape(-1, 2)
    data = piece[at["out_bytes"] : at["out_index"]]
    index = piece[at["out_index"] :][: 4 * count].view(np.uint32)
    return digests, data, index
