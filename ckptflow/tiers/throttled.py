"""A tier that is slow on purpose: for plans, rehearsals and tests of slow places.

``tests/conformance/test_throttled.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from typing_extensions import Buffer

from ckptflow.errors import ConfigError
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.tier import Tier

T = TypeVar("T")


class ThrottledTier(TierAround):
    """Passes every call on to ``inner``, after as long as a slower tier would take.

    All callers share the two bandwidths, as they would share a link; the latency is
    everybody's own.

    Args:
        inner: the tier that is too fast.
        write_bytes_per_s: bandwidth of puts and creates; no limit if ``None``.
        read_bytes_per_s: bandwidth of reads; no limit if ``None``.
        latency_s: time that each call takes besides.
        clock_s, sleep: the time, and how to wait.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        write_bytes_per_s: float | None = None,
        read_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if latency_s < 0:
            raise ConfigError(f"A latency is 0 s or more, not {latency_s} s.")
        super().__init__(inner)
        self._latency_s = latency_s
        self._clock_s, self._sleep = clock_s, sleep
        self._writes = _Link(write_bytes_per_s, clock_s)
        self._reads = _Link(read_bytes_per_s, clock_s)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        self._wait(self._writes, sum(memoryview(part).nbytes for part in parts))
        self.inner.put(key, parts)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self._wait(self._writes, memoryview(value).nbytes)
        self.inner.create(key, value)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        value = self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes)
        self._wait(self._reads, len(value))
        return value

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        self._wait(self._reads, memoryview(target).nbytes)
        self.inner.read_into(key, target, start_bytes=start_bytes)

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:  # noqa: ARG002
        self._wait(self._reads, 0)  # Small questions and answers.
        return call()

    def _wait(self, link: _Link, size_bytes: int) -> None:
        wait_s = self._latency_s + link.wait_s(size_bytes)
        if wait_s > 0:
            self._sleep(wait_s)


class _Link:
    """One direction: what comes later waits for what came before."""

    def __init__(self, bytes_per_s: float | None, clock_s: Callable[[], float]) -> None:
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ConfigError(f"A bandwidth is more than 0 B/s, not {bytes_per_s}.")
        self._bytes_per_s, self._clock_s = bytes_per_s, clock_s
        self._free_s = 0.0  # When all that was sent so far has passed.
        self._lock = threading.Lock()

    def wait_s(self, size_bytes: int) -> float:
        """Return how long from now until ``size_bytes`` more have passed."""
        if self._bytes_per_s is None or not size_bytes:
            return 0.0
        with self._lock:
            now_s = self._clock_s()
            self._free_s = max(now_s, self._free_s) + size_bytes / self._bytes_per_s
            return self._free_s - now_s
