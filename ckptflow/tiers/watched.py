"""Tell how long a tier has not answered.

A call into a file system whose server has gone may not come back for hours, and a thread in it
cannot be ended. So somebody else has to look. ``tests/unit/test_runners.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ckptflow.tiers.around import TierAround
from ckptflow.tiers.tier import Tier

T = TypeVar("T")


class Watch:
    """Knows the calls that have not come back.

    Args:
        clock_s: seconds that only grow.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._calls: dict[object, tuple[float, Tier]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def call(self, tier: Tier) -> Iterator[None]:
        """Watch what is done inside, as one call to ``tier``."""
        mark = object()
        with self._lock:
            self._calls[mark] = (self._clock_s(), tier)
        try:
            yield
        finally:
            with self._lock:
                del self._calls[mark]

    def silence(self) -> tuple[float, Tier] | None:
        """Return for how long the oldest call has not come back, in seconds, and its tier."""
        with self._lock:
            oldest = min(self._calls.values(), key=lambda call: call[0], default=None)
        return None if oldest is None else (self._clock_s() - oldest[0], oldest[1])


class WatchedTier(TierAround):
    """Passes every call on to ``inner``, under a watch."""

    def __init__(self, inner: Tier, watch: Watch) -> None:
        super().__init__(inner)
        self._watch = watch

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:  # noqa: ARG002
        with self._watch.call(self.inner):
            return call()

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`; all at once, so that all of it is watched."""
        yield from self._pass("iter_keys", prefix, lambda: list(self.inner.iter_keys(prefix)))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        listing = self.inner.iter_folders
        yield from self._pass("iter_folders", prefix, lambda: list(listing(prefix)))
