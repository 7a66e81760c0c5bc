"""What copies may take: so many bytes of memory at once, so many bytes a second.

``tests/unit/test_flush_limits.py``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BURST_S = 1.0  # So much of the bandwidth may be used up at once after a rest.


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

    @contextmanager
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
