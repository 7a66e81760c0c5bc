"""When to save: objects that look at a task's progress and decide, with the reason.

The application asks at the end of each step, so a rule in seconds takes the step end that
comes nearest. Rules in steps count from the last saved step, or from the restored one, so
that a restart never brings two saves closer together or takes them further apart.

Rules whose interval follows from the cost of a save (`OverheadAtMost`, `YoungDaly`, and `Tuned`
of `ckptflow.policy.tuned`, which joins them) save after the first step, to measure it, and not
while as many saves are being written as may be: what comes in faster than storage takes it
only queues.

``tests/unit/test_interval.py``, ``tests/property/test_policy_laws.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.single_level import daly_interval_s
from ckptflow.policy.multilevel.rule import parse_multilevel
from ckptflow.policy.progress import Decision, Interval, Progress
from ckptflow.policy.tuned import Tuned, check_fraction, check_mtbf, nothing_new, percent
from ckptflow.units import format_seconds, parse_seconds


@dataclass(frozen=True, slots=True)
class Never:
    """Save only when the application says so."""

    def __str__(self) -> str:
        return "never"

    def decide(self, progress: Progress) -> Decision:  # noqa: ARG002  (the protocol's)
        """See `Interval.decide`."""
        return Decision(due=False, reason="no interval is set")


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Save when ``steps`` steps have passed since the last saved or restored one.

    Before the first save they count from step 0; ``EverySteps(1)`` saves at step 0 as well.
    """

    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"A checkpoint every {self.steps} steps: it must be 1 or more.")

    def __str__(self) -> str:
        return f"every={self.steps} steps"

    def decide(self, progress: Progress) -> Decision:
        """See `Interval.decide`."""
        last = progress.last_saved_step
        if last is None and self.steps == 1:
            return Decision(due=True, reason="nothing is saved yet, and every step is to be")
        passed = progress.step - (last or 0)
        since = f"{passed} steps since the {'start' if last is None else 'last save'}"
        due = passed >= self.steps
        return Decision(due, f"{since}, {'at least' if due else 'less than'} {self.steps}")


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """Save at the step end that is nearest to ``seconds`` after the last save."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"A checkpoint every {self.seconds} s: it must be more than 0 s.")

    def __str__(self) -> str:
        return f"every={self.seconds:.12g}s"

    def decide(self, progress: Progress) -> Decision:
        """See `Interval.decide`."""
        return nothing_new(progress) or _after(self.seconds, progress, because="")


@dataclass(frozen=True, slots=True)
class OverheadAtMost:
    """Save as often as costs at most ``fraction`` of the computing time.

    Two bounds hold at once. The time since the last save must pay for the next one, so that
    a long cheap stretch does not buy a burst of dear saves; and the total must stay within
    the bound, so that a wrong estimate mends itself.
    """

    fraction: float

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def __str__(self) -> str:
        return f"overhead<={percent(self.fraction)}%"

    def decide(self, progress: Progress) -> Decision:
        """See `Interval.decide`."""
        if early := nothing_new(progress) or _before_measuring(progress):
            return early
        cost_s = progress.save_time_s or 0.0
        computed_s = max(0.0, progress.elapsed_s - progress.blocked_s)
        bound = f"{100 * self.fraction:.3g} % of"
        costs = f"a save takes {format_seconds(cost_s)}"
        if cost_s > self.fraction * progress.seconds_since_save:
            since = format_seconds(progress.seconds_since_save)
            return Decision(
                due=False, reason=f"{costs}, more than {bound} {since} since the last"
            )
        total_s = progress.blocked_s + cost_s
        if total_s > self.fraction * computed_s:
            so_far = f"{format_seconds(progress.blocked_s)} went into saves before"
            computed = f"{format_seconds(computed_s)} computed"
            return Decision(due=False, reason=f"{costs} and {so_far}: above {bound} {computed}")
        return Decision(due=True, reason=f"{costs}, within {bound} the computing time")


@dataclass(frozen=True, slots=True)
class YoungDaly:
    """Save at the interval that loses least, for a mean time between failures.

    See `daly_interval_s`. The time between failures is that of the whole task: of a node,
    divided by the number of nodes it runs on.
    """

    mtbf_s: float

    def __post_init__(self) -> None:
        check_mtbf(self.mtbf_s)

    def __str__(self) -> str:
        return f"mtbf={self.mtbf_s:.12g}s"

    def decide(self, progress: Progress) -> Decision:
        """See `Interval.decide`."""
        if early := nothing_new(progress) or _before_measuring(progress):
            return early
        cost_s = progress.save_time_s or 0.0
        best_s = max(0.0, daly_interval_s(cost_s, self.mtbf_s))
        because = (
            f" (best for saves of {format_seconds(cost_s)} "
            f"and an MTBF of {format_seconds(self.mtbf_s)})"
        )
        return _after(best_s, progress, because=because)


DEFAULT_INTERVAL = Tuned()

_STEPS = re.compile(r"(-?\d+)\s*(?:steps?)?")
_PERCENT = re.compile(r"overhead\s*<=\s*([0-9]+(?:\.[0-9]+)?)\s*%")
_FORMS: str = (
    "'auto', 'every=100', 'every=5min', 'overhead<=3.5%', 'mtbf=6h', 'multilevel' or 'never'"
)


def parse_interval(interval: str | int | Interval | None) -> Interval:
    """Return the rule that a short form means; a rule is returned as it is.

    A number without a unit is a number of steps, as an ``int`` and as text. ``None``, nothing
    said, is `DEFAULT_INTERVAL`.

    Raises:
        ConfigError: it is none of the known forms, or its number makes no sense.
    """
    if interval is None:
        return DEFAULT_INTERVAL
    if isinstance(interval, int) and not isinstance(interval, bool):
        return EverySteps(interval)
    if isinstance(interval, str):
        return _parse(interval)
    if isinstance(interval, Interval):
        return interval
    raise ConfigError(f"{interval!r} does not say when to save; write for example {_FORMS}.")


def _parse(text: str) -> Interval:
    body = text.strip()
    if body == "never":
        return Never()
    if (planned := parse_multilevel(body)) is not None:
        return planned
    first, *options = (part.strip() for part in body.split(","))
    if first == "auto":
        return _tuned(options, text)
    if (fraction := _overhead(body, text)) is not None:
        return OverheadAtMost(fraction)
    name, sign, value = body.rpartition("=")
    name, value = name.strip(), value.strip()
    if name == "mtbf":
        return YoungDaly(_duration(value, text))
    if name not in ("", "every") or (sign and not name):
        raise ConfigError(f"{text!r} does not say when to save; write for example {_FORMS}.")
    if match := _STEPS.fullmatch(value):
        return EverySteps(int(match[1]))
    return EverySeconds(_duration(value, text))


def _tuned(options: list[str], text: str) -> Tuned:
    """Read what stands behind ``auto``: a bound on the overhead, an MTBF."""
    given: dict[str, float] = {}
    for option in options:
        name, _, value = option.partition("=")
        if (fraction := _overhead(option, text)) is not None:
            name, number = "fraction", fraction
        elif name.strip() == "mtbf":
            name, number = "mtbf_s", _duration(value.strip(), text)
        else:
            raise ConfigError(
                f"{text!r} does not say how to tune; behind 'auto' stand 'overhead<=3.5%' "
                f"and 'mtbf=6h', separated by commas."
            )
        if name in given:
            raise ConfigError(f"{text!r} says the same thing twice.")
        given[name] = number
    return Tuned(**given)


def _overhead(part: str, text: str) -> float | None:
    if match := _PERCENT.fullmatch(part):
        return float(Decimal(match[1]) / 100)
    if part.startswith("overhead"):
        raise ConfigError(f"{text!r} needs a percentage; write for example 'overhead<=3.5%'.")
    return None


def _duration(value: str, text: str) -> float:
    if re.fullmatch(r"[0-9.]+", value):
        raise ConfigError(f"{text!r} lacks a unit of time; write for example '{value}min'.")
    try:
        return parse_seconds(value)
    except ConfigError as error:
        raise ConfigError(
            f"{text!r} does not say when to save: {error} Or {_FORMS}."
        ) from error


def _before_measuring(progress: Progress) -> Decision | None:
    if progress.in_flight >= progress.in_flight_limit:
        return Decision(due=False, reason="the save before is still being written")
    if progress.save_time_s is None:
        return Decision(due=True, reason="the first save, which measures what a save takes")
    return None


def _after(interval_s: float, progress: Progress, *, because: str) -> Decision:
    """Decide for the step end nearest to ``interval_s`` after the last save."""
    since_s = progress.seconds_since_save
    due = since_s + (progress.step_time_s or 0.0) / 2 >= interval_s
    compared = f"{format_seconds(since_s)} since the last save, " + (
        f"the step end nearest to {format_seconds(interval_s)}"
        if due and since_s < interval_s
        else f"{'at least' if due else 'less than'} {format_seconds(interval_s)}"
    )
    return Decision(due, compared + because)
