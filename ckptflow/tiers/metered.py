"""Count the bytes that are read from a tier, whoever reads them.

A comparison that claims to touch only what differs has to show what it touched.
``tests/conformance/test_tiers.py`` and ``tests/unit/test_metered.py``.
"""

from __future__ import annotations

import threading

from typing_extensions import Buffer

from ckptflow.tiers.around import TierAround
from ckptflow.tiers.tier import Tier


class MeteredTier(TierAround):
    """Passes every call on to ``inner``, and adds up the bytes that came back."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self._read_bytes = 0
        self._lock = threading.Lock()

    @property
    def read_bytes(self) -> int:
        """Bytes of values read so far; listings and sizes count for nothing."""
        return self._read_bytes

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        value = self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes)
        self._add(len(value))
        return value

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        self.inner.read_into(key, target, start_bytes=start_bytes)
        self._add(memoryview(target).nbytes)

    def _add(self, size_bytes: int) -> None:
        with self._lock:
            self._read_bytes += size_bytes
