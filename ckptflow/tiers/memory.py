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

from ckptflow.errors import CorruptionError
from ckptflow.tiers.shelf import Shelf, folders_of
from ckptflow.tiers.tier import check_key


class MemoryTier:
    """A dictionary, with an optional capacity in bytes."""

    def __init__(
        self, name: str = "memory", *, level: int = 0, capacity_bytes: int | None = None
    ) -> None:
        self._name, self._level = name, level
        self._values: Shelf[bytes] = Shelf(name, capacity_bytes)

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
        self._put(key, [memoryview(part).cast("B") for part in parts], replace=True)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self._put(key, [memoryview(value).cast("B")], replace=False)

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
        yield from self._values.keys(check_key(prefix, prefix=True))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        yield from folders_of(self._values.keys(check_key(prefix, prefix=True)), prefix)

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`."""
        keys = self._values.keys(check_key(prefix, prefix=True))
        skip = len(prefix) + 1 if prefix else 0
        return heapq.nlargest(count, (key for key in keys if "/" not in key[skip:]))

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        self._values.remove(check_key(key))

    def _put(self, key: str, parts: list[memoryview], *, replace: bool) -> None:
        size_bytes = sum(map(len, parts))
        # Before the copy is made, so that what does not fit takes no memory either.
        self._values.require_room(check_key(key), size_bytes)
        self._values.store(key, b"".join(parts), size_bytes, replace=replace)

    def _value(self, key: str) -> bytes:
        return self._values.value(check_key(key))[0]


_opened: dict[str, MemoryTier] = {}
_opened_lock = threading.Lock()
