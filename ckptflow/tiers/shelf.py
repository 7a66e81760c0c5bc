"""Values of one process by key, within a capacity: what tiers of its own memory share.

What a value is, the tier knows: bytes, or memory of a GPU. ``tests/unit/test_shelf.py``.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from ckptflow.errors import AlreadyExists, NotFoundError, TierFull
from ckptflow.units import format_bytes

V = TypeVar("V")


class Shelf(Generic[V]):
    """A dictionary behind a lock that knows how many bytes it holds.

    Args:
        tier: the name of the tier, for messages.
        capacity_bytes: how much it may hold; ``None``: no limit.
    """

    def __init__(self, tier: str, capacity_bytes: int | None) -> None:
        self._tier, self.capacity_bytes = tier, capacity_bytes
        self._values: dict[str, tuple[V, int]] = {}
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """How much it holds."""
        return self._used_bytes

    def require_room(self, key: str, size_bytes: int) -> None:
        """Raise `TierFull` if a value of that size would not fit, before it is made."""
        with self._lock:
            self._require(key, size_bytes)

    def store(self, key: str, value: V, size_bytes: int, *, replace: bool = True) -> None:
        """Put a value under its key.

        Raises:
            AlreadyExists: there is one, and it may not be replaced.
            TierFull: it does not fit.
        """
        with self._lock:
            if not replace and key in self._values:
                raise AlreadyExists(f"Tier {self._tier!r} already holds {key!r}.")
            self._require(key, size_bytes)
            self._used_bytes += size_bytes - self._size(key)
            self._values[key] = (value, size_bytes)

    def value(self, key: str) -> tuple[V, int]:
        """Return the value of a key and its size in bytes.

        Raises:
            NotFoundError: there is none.
        """
        with self._lock:
            found = self._values.get(key)
        if found is None:
            raise NotFoundError(f"Tier {self._tier!r} holds no {key!r}.")
        return found

    def keys(self, folder: str) -> list[str]:
        """Return, sorted, the keys below a folder (``""``: all)."""
        start = f"{folder}/" if folder else ""
        with self._lock:
            return sorted(key for key in self._values if key.startswith(start))

    def remove(self, key: str) -> None:
        """Forget a key, if it is there."""
        with self._lock:
            self._used_bytes -= self._size(key)
            self._values.pop(key, None)

    def _size(self, key: str) -> int:
        return self._values[key][1] if key in self._values else 0

    def _require(self, key: str, size_bytes: int) -> None:
        if self.capacity_bytes is None:
            return
        if self._used_bytes - self._size(key) + size_bytes > self.capacity_bytes:
            raise TierFull(
                f"Tier {self._tier!r} has no room for {key!r}: {format_bytes(size_bytes)} "
                f"would exceed its capacity of {format_bytes(self.capacity_bytes)}. "
                f"Prune it or give it more."
            )


def folders_of(keys: list[str], prefix: str) -> list[str]:
    """Return, sorted, the names directly below a folder that hold keys."""
    skip = len(prefix) + 1 if prefix else 0
    tails = (key[skip:] for key in keys)
    return sorted({tail.split("/")[0] for tail in tails if "/" in tail})
