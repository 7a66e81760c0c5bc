"""How the tiers of a task do: which are tried first, and what is told of those that failed.

`policy.health` decides; here is the memory of it, shared by all that write for one task. A tier
that fails is news once, and once more when it takes something again; what happened in between
goes into the record of how the attempt ended. ``tests/unit/test_tier_health.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ckptflow.checkpointer.runners import STALL_S, Hanging
from ckptflow.errors import CheckpointError, TierDenied, TierFull
from ckptflow.policy.health import (
    Condition,
    Health,
    after_failure,
    after_room_was_made,
    trial,
)
from ckptflow.tiers.tier import Tier

ERROR_TEXT_MAX = 500


class CheckpointWarning(UserWarning):
    """Something about checkpoints went wrong, and the task goes on."""


@dataclass(slots=True)
class Trouble:
    """What went wrong with one tier during an attempt.

    Attributes:
        tier: its name.
        level: its level.
        condition: how it was when it failed first: failing, full, denied or hanging.
        error: the first error.
        since: when that was (UTC, ISO 8601).
        back: when it last took something again; ``None`` if it is still in trouble.
        missed: checkpoints that should have come here and did not.
    """

    tier: str
    level: int
    condition: str
    error: str
    since: str
    back: str | None = None
    missed: int = 0


class TierHealth:
    """Keeps, for each tier, how it is, and what to report of it.

    Args:
        tell: told, in a sentence, when a tier is back.
        clock_s: seconds that only grow.
        now: the time of day, for the report.

    Attributes:
        stall_s: silence after which a tier is taken for hanging.
    """

    def __init__(
        self,
        *,
        tell: Callable[[str], None] = lambda _text: None,
        clock_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.clock_s, self.stall_s = clock_s, STALL_S
        self.tell, self._now = tell, now
        self._health: dict[str, Health] = {}
        self._troubles: dict[str, Trouble] = {}
        self._lock = threading.Lock()

    def of(self, tier: Tier) -> Health:
        """Return how a tier is."""
        return self._health.get(tier.name, Health())

    def in_order(self, tiers: Sequence[Tier]) -> list[Tier]:
        """Return tiers in the order of trying: those that are left alone for now come last.

        They are not left out: to fail there is no worse than to have tried nowhere. Only one
        that hangs would take whoever asks with it.
        """
        now_s = self.clock_s()
        first = [tier for tier in tiers if trial(self.of(tier), now_s=now_s).now]
        return first + [tier for tier in tiers if tier not in first and not self.hangs(tier)]

    def hangs(self, tier: Tier) -> bool:
        """Tell whether a call to a tier has not come back, and it is too early for another."""
        health = self.of(tier)
        left_alone = not trial(health, now_s=self.clock_s()).now
        return left_alone and health.condition is Condition.HANGING

    def full(self, tiers: Iterable[Tier]) -> list[Tier]:
        """Return those that had no room."""
        return [tier for tier in tiers if self.of(tier).condition is Condition.FULL]

    def failed(self, tier: Tier, error: CheckpointError) -> bool:
        """Note a failure; return whether it is news, that is, whether the tier was well."""
        condition = condition_of(error)
        with self._lock:
            before = self.of(tier)
            self._health[tier.name] = after_failure(before, condition, now_s=self.clock_s())
            trouble = self._troubles.setdefault(
                tier.name,
                Trouble(
                    tier.name,
                    tier.level,
                    str(condition),
                    str(error)[:ERROR_TEXT_MAX],
                    self._time(),
                ),
            )
            trouble.back = None
        return before.condition is Condition.OK

    def worked(self, tier: Tier) -> None:
        """Note that a tier has taken something; one that had failed is back."""
        with self._lock:
            before = self._health.pop(tier.name, Health())
            trouble = self._troubles.get(tier.name)
            if before.condition is Condition.OK or trouble is None:
                return
            trouble.back = self._time()
            text = sentence(asdict(trouble))
        self.tell(text)

    def missed(self, tiers: Iterable[Tier]) -> None:
        """Note that a checkpoint should have come to each of these, and did not."""
        with self._lock:
            for tier in tiers:
                if trouble := self._troubles.get(tier.name):
                    trouble.missed += 1

    def room_was_made(self, tier: Tier) -> None:
        """Note that something was deleted from a tier."""
        with self._lock:
            if tier.name in self._health:
                self._health[tier.name] = after_room_was_made(self._health[tier.name])

    def report(self) -> list[dict[str, Any]]:
        """Return the troubles so far as JSON-like values, one for each tier that had any."""
        with self._lock:
            return [asdict(trouble) for trouble in self._troubles.values()]

    def _time(self) -> str:
        return self._now().isoformat(timespec="seconds")


def condition_of(error: BaseException) -> Condition:
    """Return what an error, or what caused it, says of the tier."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, TierFull):
            return Condition.FULL
        if isinstance(seen, TierDenied):
            return Condition.DENIED
        if isinstance(seen, Hanging):
            return Condition.HANGING
        seen = seen.__cause__
    return Condition.FAILING


def sentence(trouble: dict[str, Any]) -> str:
    """Return a sentence on a `Trouble`, given as a dictionary: it may come from a store."""
    missed = trouble.get("missed", 0)
    back = f"back since {trouble['back']}" if trouble.get("back") else "not back yet"
    count = "1 checkpoint" if missed == 1 else f"{missed} checkpoints"
    return (
        f"tier {trouble.get('tier')!r} (level {trouble.get('level')}) was found "
        f"{trouble.get('condition')} at {trouble.get('since')}, missed {count}, is {back}"
    )
