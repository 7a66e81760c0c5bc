"""What copies may take: so many bytes of memory at once, so many a second, and spare cores.

``tests/unit/test_flush_limits.py``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

NICE_MAX = 19
FREE_MAX = 16  # Pieces of memory that are kept, of whatever size.
BURST_S = 1.0  # So much of the bandwidth may be used up at once after a rest.


def step_back(nice: int) -> None:
    """Let this thread alone go behind others: on Linux each has a priority of its own.

    See setpriority(2), "C library/kernel differences". Elsewhere nothing happens. A thread that
    copies hardly ever holds the lock of the interpreter, so nobody waits for it to get a core.
    """
    if nice and sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(NICE_MAX, now + nice))


class ByteBudget:
    """Memory that several threads share, given out in the order in which it is asked for.

    What is larger than the whole budget goes alone, since it has to go.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._held_bytes = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def held_bytes(self) -> int:
        """Bytes that are given out now."""
        return self._held_bytes

    @contextlib.contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Wait until there is room for ``size_bytes``, and hold them while entered."""
        turn = object()

        def is_mine() -> bool:
            fits = self._held_bytes + size_bytes <= self.budget_bytes
            return self._waiting[0] is turn and (fits or self._held_bytes == 0)

        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(is_mine)
            self._waiting.popleft()
            self._held_bytes += size_bytes
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= size_bytes
                self._changed.notify_all()


class Buffers:
    """Memory that one pack after another is read into.

    Fresh pages cost about as much as what is copied into them. They are mapped, not taken from
    the heap, so that what is released goes back to the system.

    Args:
        total_bytes: what is in use and what is kept for the next; what is needed is given
            even so, since the packs on their way are limited by others (`ByteBudget`).
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._free: list[mmap.mmap] = []
        self._lent_bytes = 0
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept and that nobody uses."""
        return sum(len(one) for one in self._free)

    @contextlib.contextmanager
    def lend(self, size_bytes: int) -> Iterator[memoryview]:
        """Give memory of ``size_bytes``, of whatever content, while entered."""
        memory, works = self._take(size_bytes), False
        try:
            yield memoryview(memory)[:size_bytes]
            works = True
        finally:
            with self._lock:
                self._lent_bytes -= len(memory)
                # What failed may still hold on to it, in a thread that hangs.
                if works and self._is_room_for(len(memory)):
                    self._free.append(memory)
                    del self._free[:-FREE_MAX]

    def release(self) -> None:
        """Give back what nobody uses."""
        with self._lock:
            self._free.clear()

    def _take(self, size_bytes: int) -> mmap.mmap:
        with self._lock:
            fits = [one for one in self._free if size_bytes <= len(one) <= 2 * size_bytes]
            if fits:
                self._free.remove(memory := min(fits, key=len))
            else:
                while self._free and not self._is_room_for(size_bytes):
                    self._free.pop(0)
                memory = _mapped(max(size_bytes, 1))
            self._lent_bytes += len(memory)
            return memory

    def _is_room_for(self, size_bytes: int) -> bool:
        return self.free_bytes + self._lent_bytes + size_bytes <= self._total_bytes


def _mapped(size_bytes: int) -> mmap.mmap:
    """Return fresh memory, of large pages where the system has them to give: fewer faults."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel without them.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Bandwidth:
    """A limit of bytes a second, on average, for all that share it.

    It is the virtual scheduling form of the leaky bucket (ITU-T I.371, annex A): it remembers
    only when the bytes that were let through so far will be paid for. An object goes in one
    piece, so what follows a large one waits accordingly longer.

    Args:
        bytes_per_s: the limit; ``None``: there is none.
        clock: returns the time in seconds.
    """

    def __init__(
        self, bytes_per_s: float | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._paid_s = float("-inf")
        self._lock = threading.Lock()

    def take(self, size_bytes: int, pause: Callable[[float], object] = time.sleep) -> None:
        """Wait, by ``pause``, until ``size_bytes`` may go."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now_s = self._clock()
            start_s = max(self._paid_s, now_s - BURST_S)
            self._paid_s = start_s + size_bytes / self._bytes_per_s
        if start_s > now_s:
            pause(start_s - now_s)
