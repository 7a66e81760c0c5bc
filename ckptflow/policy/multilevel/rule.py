"""The rule ``every="multilevel"``: when a plan says so. The plan says where, too.

A rule is what the site and the user say; it is a plain value that travels with a task. The plan
is made, and made again, where the task runs (`ckptflow.checkpointer.steering`), by
`ckptflow.policy.multilevel.replanning`. ``tests/unit/test_multilevel_rule.py``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.policy.progress import Decision, Progress
from ckptflow.policy.tuned import nothing_new
from ckptflow.units import format_seconds

NAME = "multilevel"
PRESET_NAMES = ("fast", "safe", "cheap", "spot")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLevel:
    """Save and place checkpoints by the plan that is best for measured costs and failures.

    Attributes:
        preset: what matters besides efficiency.
        interval_s: computing time between saves to begin with; ``None``: as is found best.
        counts: per tier, every how many saves one goes there, to begin with; 0: none does.
        replan: whether the plan changes with what is met.
        tiers: what is known of the tiers before anything was saved.
        rates: of failures of what the task runs on; ``None``: nobody has said.
        nodes: that the task runs on.
        work_s: computing time of the whole task, if it is known.
        queue_s: from the end of an allocation to the next.
    """

    preset: str = "fast"
    interval_s: float | None = None
    counts: tuple[tuple[str, int], ...] = ()
    replan: bool = True
    tiers: tuple[TierCosts, ...] = ()
    rates: Rates | None = None
    nodes: int = 1
    work_s: float | None = None
    queue_s: float = 300.0

    def __post_init__(self) -> None:
        if self.preset not in PRESET_NAMES:
            raise ConfigError(
                f"There is no preset {self.preset!r}; there are {', '.join(PRESET_NAMES)}."
            )
        if (self.interval_s is None) != (not self.counts):
            raise ConfigError(
                "A pattern has an interval and a count for each tier: give both, or neither."
            )
        if self.interval_s is not None and not 0 < self.interval_s < float("inf"):
            raise ConfigError(f"An interval is above 0 s, got {self.interval_s} s.")
        if not self.replan and self.interval_s is None:
            raise ConfigError("A plan that never changes needs a pattern; give one.")

    def __str__(self) -> str:
        """Return the short form, from which `parse_multilevel` makes the same rule."""
        if self == MultiLevel(preset=self.preset):
            return NAME if self.preset == "fast" else f"{NAME},{self.preset}"
        given = asdict(self)
        given["rates"] = None if self.rates is None else list(self.rates.per_s)
        return f"{NAME} {json.dumps(given)}"

    def decide(self, progress: Progress) -> Decision:
        """See `ckptflow.policy.progress.Interval.decide`."""
        if early := nothing_new(progress):
            return early
        if progress.in_flight >= progress.in_flight_limit:
            return Decision(due=False, reason="the save before is still being written")
        planned_s, since_s = progress.planned_s, progress.seconds_since_save
        if planned_s is None:
            return Decision(due=True, reason="the first save, which measures what a save takes")
        due = since_s + (progress.step_time_s or 0.0) / 2 >= planned_s
        compared = "less than"
        if due:
            compared = "at least" if since_s >= planned_s else "the step end nearest to"
        since, planned = format_seconds(since_s), format_seconds(planned_s)
        return Decision(
            due, f"{since} since the last save, {compared} the {planned} of the plan"
        )


def parse_multilevel(text: str) -> MultiLevel | None:
    """Return the rule that ``multilevel`` or ``multilevel,PRESET`` means; else ``None``.

    What a rule was written as with all its fields (`MultiLevel.__str__`) is read, too.

    Raises:
        ConfigError: it begins like one, and goes on like none.
    """
    if text.startswith(f"{NAME} {{"):
        return _read(text.removeprefix(NAME))
    first, *rest = (part.strip() for part in text.split(","))
    if first != NAME:
        return None
    if len(rest) > 1:
        raise ConfigError(f"{text!r}: behind 'multilevel' stands one preset at the most.")
    return MultiLevel(preset=rest[0]) if rest else MultiLevel()


def _read(text: str) -> MultiLevel:
    try:
        given = json.loads(text)
        rates = given.pop("rates")
        return MultiLevel(
            **{
                **given,
                "tiers": tuple(TierCosts(**one) for one in given["tiers"]),
                "counts": tuple((str(name), int(count)) for name, count in given["counts"]),
                "rates": None if rates is None else Rates(tuple(rates)),
            }
        )
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{NAME}{text} is no multi-level policy: {error}") from error
