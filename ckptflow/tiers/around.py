"""What stands around another tier: every call is passed on, and may be changed on the way.

A subclass overrides `_pass`, by which all calls go, or single members. So whatever a tier can
do besides (`Ordered`, `Settling`, `Sweeping`) is still there around it.
``tests/conformance/test_tiers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

from ckptflow.tiers.tier import Settling, Sweeping, Tier, last_keys

T = TypeVar("T")


class TierAround:
    """Passes every call on to ``inner``."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:  # noqa: ARG002
        """Make a call to the inner tier.

        Args:
            operation: name of the member.
            key: or the prefix.
            call: makes it.
        """
        return call()

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
        """That of the inner tier: whoever opens it anew gets it without what is around it."""
        return self.inner.spec

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        self._pass("put", key, lambda: self.inner.put(key, parts))

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self._pass("create", key, lambda: self.inner.create(key, value))

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        return self._pass(
            "get",
            key,
            lambda: self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes),
        )

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        self._pass(
            "read_into",
            key,
            lambda: self.inner.read_into(key, target, start_bytes=start_bytes),
        )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        return self._pass("size", key, lambda: self.inner.size(key))

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        return self._pass("iter_keys", prefix, lambda: self.inner.iter_keys(prefix))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        return self._pass("iter_folders", prefix, lambda: self.inner.iter_folders(prefix))

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        self._pass("delete", key, lambda: self.inner.delete(key))

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`; as cheap as it is for the inner tier."""
        return self._pass("last_keys", prefix, lambda: last_keys(self.inner, prefix, count))

    def settle(self, prefix: str) -> None:
        """See `Settling.settle`; nothing where nothing has to be settled."""
        inner = self.inner
        if isinstance(inner, Settling):
            self._pass("settle", prefix, lambda: inner.settle(prefix))

    def sweep(self, prefix: str) -> int:
        """See `Sweeping.sweep`; 0 where nothing is left behind."""
        inner = self.inner
        if not isinstance(inner, Sweeping):
            return 0
        return self._pass("sweep", prefix, lambda: inner.sweep(prefix))
