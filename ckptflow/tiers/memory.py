"""A tier in this process's memory: the reference the other tiers are compared with.

It lives as long as the process. Tests use it, and so may a run whose outer tier is a
parallel file system and whose tasks only need a first landing place.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from ckptflow.errors import AlreadyExists, CorruptionError, NotFoundError, TierFull
from ckptflow.tiers.tier import check_key
from ckptflow.units import format_bytes


class MemoryTier:
    """A dictionary behind a lock, with an optional capacity in bytes."""

    def __init__(
        self, name: str = "memory", *, level: int = 0, capacity_bytes: int | None = None
    ) -> None:
        self._name, self._level, self._capacity_bytes = name, level, capacity_bytes
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"MemoryTier({self._name!r}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> MemoryTier:
        """See `ckptflow.tiers.opening.Opens`. One name is one tier in the whole process.

        So a task's next attempt finds what the last one left there.
        """
        with _opened_lock:
            if spec["name"] not in _opened:
                _opened[spec["name"]] = cls(
                    spec["name"],
                    level=spec["level"],
                    capacity_bytes=spec.get("capacity_bytes"),
                )
            return _opened[spec["name"]]

    @property
    def name(self) -> str:
        """Name used in messages."""
        return self._name

    @property
    def level(self) -> int:
        """0 unless said otherwise: lost with the process."""
        return self._level

    @property
    def can_create(self) -> bool:
        """A lock decides."""
        return True

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`. Another process gets an empty tier of that name."""
        return {"kind": "memory", "name": self._name, "level": self._level}

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        value = b"".join(memoryview(part).cast("B") for part in parts)
        with self._lock:
            self._store(check_key(key), value)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        with self._lock:
            if check_key(key) in self._values:
                raise AlreadyExists(f"Tier {self._name!r} already holds {key!r}.")
            self._store(key, bytes(value))

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        end = None if size_bytes is None else start_bytes + size_bytes
        return self._value(key)[start_bytes:end]

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        view, value = memoryview(target).cast("B"), self._value(key)
        piece = memoryview(value)[start_bytes : start_bytes + len(view)]
        if len(piece) < len(view):
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {len(value)} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )
        view[:] = piece

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        return len(self._value(key))

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        check_key(prefix, prefix=True)
        start = f"{prefix}/" if prefix else ""
        with self._lock:
            keys = sorted(key for key in self._values if key.startswith(start))
        yield from keys

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        skip = len(prefix) + 1 if prefix else 0
        tails = (key[skip:] for key in self.iter_keys(prefix))
        yield from sorted({tail.split("/")[0] for tail in tails if "/" in tail})

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`."""
        start = f"{check_key(prefix, prefix=True)}/" if prefix else ""
        with self._lock:
            direct = (
                key
                for key in self._values
                if key.startswith(start) and "/" not in key[len(start) :]
            )
            return heapq.nlargest(count, direct)

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        with self._lock:
            self._values.pop(check_key(key), None)

    def _value(self, key: str) -> bytes:
        with self._lock:
            value = self._values.get(check_key(key))
        if value is None:
            raise NotFoundError(f"Tier {self._name!r} holds no {key!r}.")
        return value

    def _store(self, key: str, value: bytes) -> None:
        if self._capacity_bytes is not None:
            others = sum(len(held) for name, held in self._values.items() if name != key)
            if others + len(value) > self._capacity_bytes:
                raise TierFull(
                    f"Tier {self._name!r} has no room for {key!r}: {format_bytes(len(value))} "
                    f"would exceed its capacity of {format_bytes(self._capacity_bytes)}. "
                    f"Prune it or give it more."
                )
        self._values[key] = value


_opened: dict[str, MemoryTier] = {}
_opened_lock = threading.Lock()
