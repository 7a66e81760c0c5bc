"""Tell how long a tier has not answered.

A call into a file system whose server has gone may not come back for hours, and a thread in it
cannot be ended. So somebody else has to look. ``tests/unit/test_runners.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typing_extensions import Buffer

from ckptflow.tiers.tier import Tier


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


class WatchedTier:
    """Passes every call on to ``inner``, under a watch."""

    def __init__(self, inner: Tier, watch: Watch) -> None:
        self.inner, self._watch = inner, watch

    @property
    def name(self) -> str:
        """Name of the inner tier."""
        return self.inner.name

    @property
    def level(self) -> int:
        """Level of the inner tier."""
        return self.inner.level

    @property
    def can_create(self) -> bool:
        """Whether the inner tier can."""
        return self.inner.can_create

    @property
    def spec(self) -> dict[str, Any]:
        """That of the inner tier: whoever opens it anew watches it anew."""
        return self.inner.spec

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        with self._watch.call(self.inner):
            self.inner.put(key, parts)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        with self._watch.call(self.inner):
            self.inner.create(key, value)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        with self._watch.call(self.inner):
            return self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        with self._watch.call(self.inner):
            self.inner.read_into(key, target, start_bytes=start_bytes)

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        with self._watch.call(self.inner):
            return self.inner.size(key)

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        with self._watch.call(self.inner):
            keys = list(self.inner.iter_keys(prefix))
        yield from keys

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        with self._watch.call(self.inner):
            folders = list(self.inner.iter_folders(prefix))
        yield from folders

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        with self._watch.call(self.inner):
            self.inner.delete(key)
