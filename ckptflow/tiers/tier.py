"""The contract of a tier: a flat map from keys to write-once bytes.

``ckptflow.testing.conformance`` holds the test suite that every tier passes; subclass it
to test your own.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from typing_extensions import Buffer

from ckptflow.errors import ConfigError

KEY_BYTES_MAX = 1024

_PART = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{0,199}")


@runtime_checkable
class Tier(Protocol):
    """A flat map from keys to bytes, written once and read many times.

    A key is absent, or whole, or deleted; readers never see part of a value. Keys are
    relative, with ``/`` between parts; a part has 1 to 200 of the characters
    ``A-Za-z0-9._=+-`` and does not start with a dot. Anything else is a `ConfigError`,
    since keys that come from storage are not trusted.

    Every member may raise `TierUnavailable` for what may pass when tried again, and the
    writing ones `TierFull` when no space is left. All are safe to call from several
    threads at once.
    """

    @property
    def name(self) -> str:
        """Name from the site file, used in messages."""
        ...

    @property
    def level(self) -> int:
        """Survival class: 0 memory, 1 node-local, 2 redundant, 3 parallel FS, 4 remote."""
        ...

    @property
    def can_create(self) -> bool:
        """Whether `create` decides between callers; only such a tier can hold claims."""
        ...

    @property
    def spec(self) -> dict[str, Any]:
        """How to open this tier in another process, as plain data without secrets."""
        ...

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store the bytes of ``parts``, one after the other, whole or not at all.

        On return they are as durable as the level promises. Putting the same bytes again
        is allowed, so an interrupted copy can be repeated.
        """
        ...

    def create(self, key: str, value: Buffer) -> None:
        """Store ``value`` if the key is absent; of several callers exactly one succeeds.

        Raises:
            AlreadyExists: the key is taken.
            ConfigError: the tier cannot decide (`can_create`).
        """
        ...

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """Return the value, or ``size_bytes`` of it from ``start_bytes`` on.

        A range that reaches past the end is cut there.

        Raises:
            NotFoundError: the key is absent.
        """
        ...

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """Fill ``target``, a writable flat buffer, from ``start_bytes`` of the value on.

        Raises:
            NotFoundError: the key is absent.
            CorruptionError: the value ends before ``target`` is full.
        """
        ...

    def size(self, key: str) -> int:
        """Return the size of the value in bytes.

        Raises:
            NotFoundError: the key is absent.
        """
        ...

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """Yield, sorted, every key below the folder ``prefix`` (``""``: all)."""
        ...

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """Yield, sorted, the names directly below the folder ``prefix`` that hold keys."""
        ...

    def delete(self, key: str) -> None:
        """Forget the key. Deleting an absent key is allowed."""
        ...


@runtime_checkable
class Sweeping(Protocol):
    """A tier on which killed writers leave something behind that is no key."""

    def sweep(self, prefix: str) -> int:
        """Remove what they left below the folder ``prefix``, and count it.

        Only what surely has no writer any more.
        """
        ...


@runtime_checkable
class Ordered(Protocol):
    """A tier that finds the last keys of a folder without listing all of them."""

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """Return the ``count`` greatest keys directly below ``prefix``, greatest first.

        Keys in folders below it do not count. What it costs is bounded by ``count``, not by
        how many keys there are.
        """
        ...


def last_keys(tier: Tier, prefix: str, count: int) -> list[str]:
    """Return the ``count`` greatest keys directly below the folder ``prefix``, greatest first.

    A tier that is `Ordered` knows them; of any other one, the folder is listed.
    """
    if isinstance(tier, Ordered):
        return tier.last_keys(prefix, count)
    skip = len(prefix) + 1 if prefix else 0
    direct = (key for key in tier.iter_keys(prefix) if "/" not in key[skip:])
    return heapq.nlargest(count, direct)


@runtime_checkable
class Dependent(Protocol):
    """A tier whose objects are those of another one; they go when that gives them up.

    It is not pruned itself. Its place on this node has to be served to the others by a process.
    """

    def tidy(self) -> None:
        """Drop what it keeps of objects that have been given up."""
        ...

    def serve(self, note: Callable[[str], None]) -> Served:
        """Serve this node's part to the others, until the result is closed.

        Args:
            note: told, in a sentence, of what went wrong meanwhile.

        Raises:
            ConfigError: it cannot be served as it is set up.
            TierError: the others cannot be told of it.
        """
        ...


class Served(Protocol):
    """What `Dependent.serve` began."""

    def close(self) -> None:
        """End it."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A tier that may be elsewhere, or otherwise, than it was asked to be."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it was asked for, in sentences."""
        ...

    @property
    def placement(self) -> str:
        """Where the bytes really are, for people."""
        ...

    def unmake(self) -> None:
        """Give the place back, if this object made it and nothing is in it."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A tier whose deletions may be undone by a power cut until they are settled."""

    def settle(self, prefix: str) -> None:
        """Make the deletions so far, directly in the folder ``prefix``, durable."""
        ...


def is_key_part(name: str) -> bool:
    """Tell whether ``name`` may stand between the slashes of a key."""
    return _PART.fullmatch(name) is not None


def check_key(key: str, *, prefix: bool = False) -> str:
    """Return ``key`` when it is well formed; ``""`` is a well-formed prefix.

    Raises:
        ConfigError: the key is empty, too long, absolute, climbs out, or has odd characters.
    """
    if prefix and not key:
        return key
    if len(key) > KEY_BYTES_MAX or not all(map(is_key_part, key.split("/"))):
        shown = key if len(key) < 200 else key[:200] + "…"
        raise ConfigError(
            f"{shown!r} is not a key: keys are relative, at most {KEY_BYTES_MAX} characters, "
            f"and their parts are made of A-Z a-z 0-9 . _ = + - and do not start with a dot."
        )
    return key
