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


class Doom:
    """Kills whoever is about to make one change too many, on whichever tier has it.

    Dead is dead: no call is made from then on. To be given to a `FaultyTier`.

    Args:
        crash_at: before which change, counted from 0; ``None``: none.

    Attributes:
        changes: the puts, creates and deletes so far. An undisturbed run tells how many
            places to crash there are.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.changes, self._crash_at, self._dead = 0, crash_at, False

    def __call__(self, operation: str, key: str) -> None:
        is_change = operation in ("put", "create", "delete")
        self._dead = self._dead or (is_change and self.changes == self._crash_at)
        if self._dead:
            raise Crash(f"{operation} {key}")
        self.changes += is_change


class CrashingTier(FaultyTier):
    """One tier with a `Doom` of its own."""

    def __init__(self, inner: Tier, *, crash_at: int | None = None) -> None:
        self._doom = Doom(crash_at)
        super().__init__(inner, self._doom)

    @property
    def changes(self) -> int:
        """See `Doom`."""
        return self._doom.changes
