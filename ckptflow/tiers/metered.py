"""Count the bytes that are read from a tier, whoever reads them.

A comparison that claims to touch only what differs has to show what it touched.
``tests/conformance/test_tiers.py`` and ``tests/unit/test_metered.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import Buffer

from ckptflow.tiers.tier import Tier, last_keys


class MeteredTier:
    """Passes every call on to ``inner``, and adds up the bytes that came back."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self._read_bytes = 0
        self._lock = threading.Lock()

    @property
    def read_bytes(self) -> int:
        """Bytes of values read so far; listings and sizes count for nothing."""
        return self._read_bytes

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
        """That of the inner tier: whoever opens it anew gets it without the meter."""
        return self.inner.spec

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        self.inner.put(key, parts)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self.inner.create(key, value)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        value = self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes)
        self._add(len(value))
        return value

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        self.inner.read_into(key, target, start_bytes=start_bytes)
        self._add(memoryview(target).nbytes)

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        return self.inner.size(key)

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        return self.inner.iter_keys(prefix)

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        return self.inner.iter_folders(prefix)

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`; of a tier that is not, all keys are listed."""
        return last_keys(self.inner, prefix, count)

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        self.inner.delete(key)

    def _add(self, size_bytes: int) -> None:
        with self._lock:
            self._read_bytes += size_bytes
