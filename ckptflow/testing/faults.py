"""Tiers that fail on purpose, around one that works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from typing_extensions import Buffer

from ckptflow.tiers.tier import Tier, last_keys


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that nothing handles it by accident."""


class FaultyTier:
    """Passes every call on, after asking ``on_call`` what should go wrong.

    ``on_call(operation, key)`` runs before each call and raises to make it fail; operations
    are the names of the members of `Tier`.
    """

    def __init__(self, inner: Tier, on_call: Callable[[str, str], None]) -> None:
        self.inner, self._on_call = inner, on_call

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
        """That of the inner tier: whoever opens it anew gets it without faults."""
        return self.inner.spec

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        self._on_call("put", key)
        self.inner.put(key, parts)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self._on_call("create", key)
        self.inner.create(key, value)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        self._on_call("get", key)
        return self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        self._on_call("read_into", key)
        self.inner.read_into(key, target, start_bytes=start_bytes)

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        self._on_call("size", key)
        return self.inner.size(key)

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        self._on_call("iter_keys", prefix)
        return self.inner.iter_keys(prefix)

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        self._on_call("iter_folders", prefix)
        return self.inner.iter_folders(prefix)

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`; of a tier that is not, all keys are listed."""
        self._on_call("last_keys", prefix)
        return last_keys(self.inner, prefix, count)

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        self._on_call("delete", key)
        self.inner.delete(key)


class CrashingTier(FaultyTier):
    """Dies just before its ``crash_at``-th change (counted from 0), and is dead from then on.

    ``changes`` counts the puts, creates and deletes, so that an undisturbed run tells how
    many places to crash there are.
    """

    def __init__(self, inner: Tier, *, crash_at: int | None = None) -> None:
        self.changes = 0
        self._crash_at = crash_at
        super().__init__(inner, self._count)

    def _count(self, operation: str, key: str) -> None:
        dead = self._crash_at is not None and self.changes > self._crash_at
        if operation in ("put", "create", "delete"):
            dead = dead or self.changes == self._crash_at
            self.changes += 1
        if dead:
            raise Crash(f"{operation} {key}")
