"""One piece of shared memory with many values in it, whole after the death of any writer.

Layout, in little-endian words of 8 bytes::

    0       magic, size of the arena, number of slots, CRC-32 of these three
    64      changes: grows with every change of a state
    72      where the memory ends that has been used at least once
    4096    a state for each slot: 16 bits of CRC-32 << 48 | changes at that moment << 2
            | FREE, WRITING or LIVE
    then    a row for each slot: start, size of the value, size of the key | CRC-32 << 32
    then    the values, each with its key before it, at multiples of 64

A slot changes its state by one aligned store of 8 bytes, and all that the new state promises
was stored before it. So the death of a process between two stores leaves a free slot, or one
that is being written by nobody, never half an entry. Which memory is free is not stored: it is
what no slot in use covers, so it cannot be wrong.

Changes of states happen under lock 0. While a value is copied, its slot's own lock is held
instead, so the space of a dead writer is known by its free lock. A reader copies without any
lock and then asks whether the slot is still in the state that it found; if not, what it copied
may be anything, and is thrown away.

``tests/property/test_arena_laws.py`` stops writers at every store, and
``tests/process/test_shared_memory.py`` kills them.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.tiers.owner_lock import OwnerLocks
from ckptflow.tiers.tier import KEY_BYTES_MAX, check_key
from ckptflow.units import KIB, MIB

ARENA_BYTES_MIN = 1 * MIB
HEADER_BYTES = 4 * KIB
LOCK_WAIT_S = 30.0

_MAGIC = int.from_bytes(b"CKARENA1", "little")
_CHANGES, _USED_TO = 8, 9  # Words of the header.
_ALIGNMENT = 64
_BYTES_PER_SLOT, _SLOTS_MIN, _SLOTS_MAX = 64 * KIB, 4096, 1 << 20
_FREE, _WRITING, _LIVE = 0, 1, 2
_ROW_WORDS = 4


class ArenaFullError(Exception):
    """It does not fit: no free range is so large, or no slot is left."""


class ArenaDamagedError(Exception):
    """Something in the index is not what this code wrote."""


class KeyTakenError(Exception):
    """The key is there already."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A slot as it was found; ``state`` tells whether it still is that.

    Attributes:
        slot: its number.
        state: its word in the table of states; no two changes make the same.
        start_bytes: where the value begins, from the start of the arena.
        size_bytes: size of the value.
    """

    slot: int
    state: int
    start_bytes: int
    size_bytes: int


def slots_of(size_bytes: int) -> int:
    """Return how many values an arena of that size can hold."""
    return min(max(size_bytes // _BYTES_PER_SLOT, _SLOTS_MIN), _SLOTS_MAX)


def is_formatted(header: bytes, size_bytes: int) -> bool:
    """Tell whether an arena of that size begins with ``header``, or nothing does.

    Nothing is zeros, but for the words that `format_arena` stores before the last one.

    Raises:
        ArenaDamagedError: it is something else, or was damaged.
    """
    words = struct.unpack_from("<4Q", header.ljust(32, b"\0"))
    if words[0] == 0 and not any(header[32:]):
        return False
    if words[0] != _MAGIC:
        raise ArenaDamagedError("something else than an arena lies there")
    sizes_fit = ARENA_BYTES_MIN <= words[1] <= size_bytes and words[2] == slots_of(words[1])
    if words[3] != _seal(words[:3]) or not sizes_fit:
        raise ArenaDamagedError("its header is damaged")
    return True


def format_arena(memory: mmap.mmap, size_bytes: int) -> None:
    """Make an empty arena. The magic comes last, so a death half way leaves none."""
    words = memoryview(memory).cast("Q")
    slots = slots_of(size_bytes)
    words[0] = 0
    words[4 : HEADER_BYTES // 8] = memoryview(bytes(HEADER_BYTES - 32)).cast("Q")
    states = slice(HEADER_BYTES // 8, HEADER_BYTES // 8 + slots)
    words[states] = memoryview(bytes(8 * slots)).cast("Q")
    words[1], words[2] = size_bytes, slots
    words[3] = _seal((_MAGIC, size_bytes, slots))
    words[0] = _MAGIC
    words.release()


class Arena:
    """The values of one arena, in this process.

    Args:
        descriptor: its file, opened for this object alone, which closes it; used for locks.
        memory: its file, mapped; it has been formatted.
        before_store: called before each change of the index; a test stops there.
    """

    def __init__(
        self,
        descriptor: int,
        memory: mmap.mmap,
        *,
        before_store: Callable[[str], None] = lambda _what: None,
    ) -> None:
        self._before_store = before_store
        self._locks, self._mutex = OwnerLocks(descriptor), threading.Lock()
        self._close = weakref.finalize(self, os.close, descriptor)
        self.bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        words = self.bytes[: len(self.bytes) // 8 * 8].view(np.uint64)
        self.size_bytes, slots = int(words[1]), int(words[2])
        first = HEADER_BYTES // 8
        self._header = words[:first]
        self._states = words[first : first + slots]
        rows = words[first + slots : first + slots + _ROW_WORDS * slots]
        self._rows = rows.reshape(slots, _ROW_WORDS)
        self._first_bytes = _aligned(HEADER_BYTES + 8 * slots * (1 + _ROW_WORDS))
        self._know_nothing()
        _arenas.add(self)

    def _know_nothing(self) -> None:
        slots = len(self._states)
        self._seen_changes = -1  # What follows is the index as it was then.
        self._seen = np.zeros(slots, np.uint64)
        self._starts, self._ends = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self._by_key: dict[str, Entry] = {}
        self._keys: dict[int, str] = {}  # Of live slots.
        self._superseded: set[int] = set()  # Live, but of a key that has a newer value.
        self._damaged: set[int] = set()  # Their row is not what was written.
        self._writing: set[int] = set()  # By this process.

    def close(self) -> None:
        """Let go of file and memory; the values stay."""
        self._close()
        _arenas.discard(self)
        del self.bytes, self._header, self._states, self._rows

    def after_fork(self) -> None:
        """In a child: have locks of its own; what the parent was doing is not its business."""
        self._mutex = threading.Lock()
        self._locks.reopen()
        self._know_nothing()

    # --- what is there ---

    def find(self, key: str) -> Entry | None:
        """Return the entry of a key."""
        with self._index():
            return self._by_key.get(key)

    def holds(self, entry: Entry) -> bool:
        """Tell whether an entry is what it was when it was found: its bytes are its own.

        Under the lock: whoever frees a slot does so under it too, and writes over its bytes
        afterwards; so whatever was read before this call, was read before that.
        """
        with self._locked():
            return int(self._states[entry.slot]) == entry.state

    def keys(self) -> list[str]:
        """Return all keys, in any order."""
        with self._index():
            return list(self._by_key)

    def view(self, entry: Entry) -> NDArray[np.uint8]:
        """Return the value's own memory."""
        return self.bytes[entry.start_bytes : entry.start_bytes + entry.size_bytes]

    def used_bytes(self) -> int:
        """Return how much memory is taken, by values and by the index."""
        with self._index():
            return int((self._ends - self._starts).sum()) + self._first_bytes

    # --- changes ---

    def reserve(self, key: str, size_bytes: int) -> Entry:
        """Return room for a value, which nobody sees before `publish`.

        Raises:
            ArenaFullError: there is none, even where dead writers had some.
        """
        name = key.encode("ascii")
        extent_bytes = _aligned(len(name)) + _aligned(size_bytes)
        with self._index():
            try:
                start, slot = self._free_range(extent_bytes), self._take_slot()
            except ArenaFullError:
                if not self._reclaim():
                    raise
                start, slot = self._free_range(extent_bytes), self._take_slot()
            try:
                self._write_row(slot, start, size_bytes, name)
                if start + extent_bytes > int(self._header[_USED_TO]):
                    self._store(self._header, _USED_TO, start + extent_bytes, "used")
                state = self._change(slot, _WRITING)
            except BaseException:
                self._done_writing(slot)
                raise
            return Entry(slot, state, start + _aligned(len(name)), size_bytes)

    def publish(self, entry: Entry, key: str, *, replace: bool = True) -> None:
        """Make a reserved value the one of its key. This is the commit.

        Raises:
            KeyTakenError: the key has a value, and may not be replaced.
            ArenaDamagedError: the slot is not as it was left.
        """
        with self._index():
            if not replace and key in self._by_key:
                raise KeyTakenError(key)
            if int(self._states[entry.slot]) != entry.state:
                raise ArenaDamagedError(f"slot {entry.slot} was changed while it was written")
            try:
                self._change(entry.slot, _LIVE)
            finally:
                self._done_writing(entry.slot)
            self._free_superseded()  # Or others do, should we die here.

    def abandon(self, entry: Entry) -> None:
        """Give back what was reserved, unless it was published."""
        with self._index():
            try:
                if int(self._states[entry.slot]) == entry.state:
                    self._change(entry.slot, _FREE)
            finally:
                self._done_writing(entry.slot)

    def delete(self, key: str) -> None:
        """Free the value of a key, if there is one."""
        with self._index():
            entry = self._by_key.get(key)
            if entry is not None:
                self._change(entry.slot, _FREE)

    def reclaim(self) -> int:
        """Free what dead writers and damage have left; return how many slots that were."""
        with self._index():
            return self._reclaim()

    def _reclaim(self) -> int:
        freed = 0
        for slot in map(int, np.flatnonzero(self._seen & 3 == _WRITING)):
            if slot not in self._writing and self._locks.try_acquire(1 + slot):
                self._change(slot, _FREE)
                self._locks.release(1 + slot)
                freed += 1
        for slot in list(self._damaged):
            self._change(slot, _FREE)
            freed += 1
        return freed

    def _done_writing(self, slot: int) -> None:
        self._writing.discard(slot)
        self._locks.release(1 + slot)

    # --- room ---

    def _take_slot(self) -> int:
        """Lock a free slot before anybody can see it in use, and think that its writer is dead.

        One whose lock is held was damaged while it was written, and its writer does not know.
        """
        for slot in map(int, np.flatnonzero(self._seen & 3 == _FREE)):
            if slot not in self._writing and self._locks.try_acquire(1 + slot):
                self._writing.add(slot)
                return slot
        raise ArenaFullError(f"all {len(self._seen)} slots are taken")

    def _free_range(self, size_bytes: int) -> int:
        """Return where a range of that size is free: the tightest that was used before.

        Fresh memory has to be cleared by the kernel on first use, which costs more than a copy.
        """
        taken = np.flatnonzero(self._ends)
        order = taken[np.argsort(self._starts[taken], kind="stable")]
        lows = np.append(self._first_bytes, self._ends[order])
        highs = np.append(self._starts[order], self.size_bytes // _ALIGNMENT * _ALIGNMENT)
        room = highs - lows
        fits = np.flatnonzero(room >= size_bytes)
        if not len(fits):
            raise ArenaFullError(
                f"the largest free range has {max(0, int(room.max()))} bytes of "
                f"{int(np.maximum(room, 0).sum())} free ones"
            )
        fresh = lows[fits] + size_bytes > int(self._header[_USED_TO])
        return int(lows[fits[np.lexsort((room[fits], fresh))[0]]])

    # --- the index, under its lock ---

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            self._locks.acquire(0, wait_s=LOCK_WAIT_S)
            try:
                yield
            finally:
                self._locks.release(0)

    @contextmanager
    def _index(self) -> Iterator[None]:
        with self._locked():
            self._refresh()
            yield

    def _refresh(self) -> None:
        """Learn what other processes have changed."""
        changes = int(self._header[_CHANGES])
        if changes == self._seen_changes and not self._superseded:
            return
        for slot in map(int, np.flatnonzero(self._states != self._seen)):
            self._learn(slot)
        self._free_superseded()  # Their writer died between publishing one and freeing it.
        self._seen_changes = int(self._header[_CHANGES])

    def _free_superseded(self) -> None:
        for slot in list(self._superseded):
            self._change(slot, _FREE)

    def _learn(self, slot: int) -> None:
        """Take over the state of a slot."""
        self._forget(slot)
        state = int(self._states[slot])
        self._seen[slot] = state
        if state == 0:  # Never used.
            return
        is_whole = state == _word(slot, _changes(state), state & 3)
        if is_whole and state & 3 == _FREE:
            return
        row = self._row(slot) if is_whole else None
        if row is None:
            self._damaged.add(slot)
            return
        key, start, size, self._ends[slot] = row
        self._starts[slot] = start
        if state & 3 == _WRITING:
            return
        entry, other = (
            Entry(slot, state, start + _aligned(len(key)), size),
            self._by_key.get(key),
        )
        self._keys[slot] = key
        if other is not None and _changes(other.state) > _changes(state):
            self._superseded.add(slot)
            return
        self._by_key[key] = entry
        if other is not None:
            self._superseded.add(other.slot)

    def _forget(self, slot: int) -> None:
        self._damaged.discard(slot)
        self._superseded.discard(slot)
        self._starts[slot] = self._ends[slot] = 0
        key = self._keys.pop(slot, "")
        entry = self._by_key.get(key)
        if entry is not None and entry.slot == slot:
            del self._by_key[key]

    def _row(self, slot: int) -> tuple[str, int, int, int] | None:
        """Return key, start, size of the value and end of a slot; ``None`` if it is damaged."""
        start, size, key_and_crc = map(int, self._rows[slot, :3])
        key_bytes = key_and_crc & 0xFFFF_FFFF
        end = start + _aligned(key_bytes) + _aligned(size)
        if not self._first_bytes <= start <= end <= self.size_bytes:
            return None
        if key_bytes > KEY_BYTES_MAX or start % _ALIGNMENT:
            return None
        name = self.bytes[start : start + key_bytes].tobytes()
        if key_and_crc >> 32 != _row_crc(slot, start, size, name):
            return None
        return check_key(name.decode("ascii")), start, size, end

    def _write_row(self, slot: int, start: int, size_bytes: int, name: bytes) -> None:
        """Describe a slot that is still free, so that nobody reads it yet."""
        self._before_store("key")
        self.bytes[start : start + len(name)] = np.frombuffer(name, np.uint8)
        crc = _row_crc(slot, start, size_bytes, name)
        for column, value in enumerate((start, size_bytes, len(name) | crc << 32)):
            self._store(self._rows[slot], column, value, "row")

    def _change(self, slot: int, state: int) -> int:
        """Give a slot a new state, by one store; return its word."""
        changes = int(self._header[_CHANGES]) + 1
        self._store(self._header, _CHANGES, changes, "changes")
        word = _word(slot, changes, state)
        self._store(self._states, slot, word, "state")
        self._learn(slot)
        self._seen_changes = changes
        return word

    def _store(self, words: NDArray[np.uint64], index: int, value: int, what: str) -> None:
        self._before_store(what)
        words[index] = value  # Aligned, so the processor stores all 8 bytes at once.


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _after_fork() -> None:
    for arena in list(_arenas):
        arena.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _seal(words: tuple[int, ...]) -> int:
    return zlib.crc32(struct.pack("<3Q", *words))


def _word(slot: int, changes: int, state: int) -> int:
    """Return the word of a state, which says itself whether it is whole."""
    low = changes << 2 | state
    return (zlib.crc32(struct.pack("<2Q", slot, low)) & 0xFFFF) << 48 | low


def _changes(word: int) -> int:
    return (word & (1 << 48) - 1) >> 2


def _row_crc(slot: int, start: int, size_bytes: int, name: bytes) -> int:
    return zlib.crc32(name, zlib.crc32(struct.pack("<3Q", slot, start, size_bytes)))
