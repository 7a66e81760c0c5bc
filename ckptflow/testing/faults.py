"""Tiers that fail on purpose, around one that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ckptflow.tiers.around import TierAround
from ckptflow.tiers.tier import Tier

T = TypeVar("T")


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that nothing handles it by accident."""


class FaultyTier(TierAround):
    """Passes every call on, after asking ``on_call`` what should go wrong.

    ``on_call(operation, key)`` runs before each call and raises to make it fail; operations
    are the names of the members of `Tier`, and of its optional protocols where the inner tier
    has them.
    """

    def __init__(self, inner: Tier, on_call: Callable[[str, str], None]) -> None:
        super().__init__(inner)
        self._on_call = on_call

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self._on_call(operation, key)
        return call()


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
