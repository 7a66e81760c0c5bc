"""How long checkpoints stay: verdicts with their reasons, and the short forms."""

from __future__ import annotations

import math

import pytest

from ckptflow.errors import ConfigError
from ckptflow.model import CheckpointId
from ckptflow.policy.retention import (
    BestOf,
    Candidate,
    Retention,
    Verdict,
    parse_retention,
    retain,
)


def candidate(
    step: int,
    loss: float | None = None,
    *,
    attempt: int = 1,
    good: bool = True,
    void: bool = False,
) -> Candidate:
    metrics = {} if loss is None else {"loss": loss}
    return Candidate(CheckpointId(step, attempt), metrics, good=good, void=void)


def kept(candidates: list[Candidate], retention: Retention) -> list[int]:
    return [one.id.step for one in retain(candidates, retention) if one.keep]


def test_newest() -> None:
    candidates = [candidate(step) for step in (30, 10, 20)]
    assert kept(candidates, Retention(newest=2)) == [30, 20]
    assert kept(candidates, Retention(newest=9)) == [30, 10, 20]
    assert kept(candidates, Retention(newest=None)) == [30, 10, 20]


def test_a_later_attempt_is_newer_at_the_same_step() -> None:
    candidates = [candidate(10, attempt=2), candidate(10, attempt=1)]
    verdicts = retain(candidates, Retention(newest=1))
    assert [one.id.attempt for one in verdicts if one.keep] == [2]


def test_every_takes_the_first_at_or_after_each_multiple() -> None:
    """Saves at times, not steps, hardly ever fall on a multiple."""
    candidates = [candidate(step) for step in (3, 980, 1000, 1010, 2100, 2900, 4005, 5001)]
    assert kept(candidates, Retention(newest=1, every_steps=1000)) == [1000, 2100, 4005, 5001]


def test_best_by_a_metric() -> None:
    losses = {1: 0.5, 2: 0.1, 3: 0.3, 4: 0.9, 5: 0.7}
    candidates = [candidate(step, loss) for step, loss in losses.items()]
    lowest = Retention(newest=1, best=BestOf("loss", "min", 2))
    assert kept(candidates, lowest) == [2, 3, 5]
    highest = Retention(newest=1, best=BestOf("loss", "max"))
    assert kept(candidates, highest) == [4, 5]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_is_never_the_best(mode: str, odd: float | None) -> None:
    candidates = [candidate(1, odd), candidate(2, 0.5), candidate(3, odd), candidate(4, odd)]
    best = Retention(newest=1, best=BestOf("loss", mode, 3))  # type: ignore[arg-type]
    assert kept(candidates, best) == [2, 4]


def test_of_two_equally_good_ones_the_newer_stays() -> None:
    candidates = [candidate(1, 0.5), candidate(2, 0.5), candidate(3, 0.6)]
    assert kept(candidates, Retention(newest=1, best=BestOf("loss", "min"))) == [2, 3]


def test_void_ones_go_and_damaged_ones_count_for_nothing() -> None:
    candidates = [
        candidate(10),
        candidate(20),
        candidate(30, good=False),
        candidate(25, good=False),
        candidate(40, void=True),
        candidate(28, attempt=2),
    ]
    verdicts = {one.id.step: one for one in retain(candidates, Retention(newest=2))}
    assert {step for step, one in verdicts.items() if one.keep} == {20, 28, 30}
    assert verdicts[40].reasons == ("void: the task went on without it",)
    assert verdicts[25].reasons == ("damaged, and step 28 (attempt 2) is good",)
    assert verdicts[30].reasons == ("damaged, but nothing newer is good",)


def test_where_nothing_is_good_all_that_could_be_saved_stays() -> None:
    candidates = [candidate(1, good=False), candidate(2, good=False), candidate(3, void=True)]
    assert kept(candidates, Retention(newest=1)) == [1, 2]


def test_every_reason_is_given() -> None:
    candidates = [candidate(900, 0.9), candidate(1000, 0.25), candidate(500, 0.5)]
    rules = parse_retention("newest=1,every=1000,best=loss:min:2")
    assert retain(candidates, rules) == [
        Verdict(
            CheckpointId(900, 1),
            keep=False,
            reasons=("no rule keeps it (newest=1,every=1000,best=loss:min:2)",),
        ),
        Verdict(
            CheckpointId(1000, 1),
            keep=True,
            reasons=(
                "among the newest 1",
                "first at or after step 1000 (every 1000 steps)",
                "among the best 2 by loss (min): 0.25",
            ),
        ),
        Verdict(
            CheckpointId(500, 1), keep=True, reasons=("among the best 2 by loss (min): 0.5",)
        ),
    ]


def test_no_checkpoints_no_verdicts() -> None:
    assert retain([], Retention()) == []


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        (None, Retention(newest=2)),
        (3, Retention(newest=3)),
        ("3", Retention(newest=3)),
        ("all", Retention(newest=None)),
        ("newest=all", Retention(newest=None)),
        ("every=1000", Retention(newest=2, every_steps=1000)),
        ("best=acc:max", Retention(newest=2, best=BestOf("acc", "max", 1))),
        ("best=val:loss:min:4", Retention(newest=2, best=BestOf("val:loss", "min", 4))),
        (
            " newest = 3 , every=1000, best=loss:min:2",
            Retention(newest=3, every_steps=1000, best=BestOf("loss", "min", 2)),
        ),
        ("5,every=10", Retention(newest=5, every_steps=10)),
        (Retention(newest=7), Retention(newest=7)),
    ],
)
def test_short_forms(text: int | str | Retention | None, retention: Retention) -> None:
    assert parse_retention(text) == retention


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (0, "newest of 1 or more, got 0"),
        (-1, "newest of 1 or more, got -1"),
        ("newest=0", "newest of 1 or more, got 0"),
        ("every=0", "every of 1 or more, got 0"),
        ("newest=two", "'two' is no number"),
        ("", "'' is no number"),
        ("3,4", "'newest' comes twice"),
        ("oldest=3", "'oldest' is not a rule"),
        ("best=loss", "'loss' names no metric with min or max"),
        ("best=loss:least", "'loss:least' names no metric with min or max"),
        ("best=loss:min:0", "a count of 1 or more, got 'loss' and 0"),
        (True, "True does not say what to keep"),
        (1.5, "1.5 does not say what to keep"),
    ],
)
def test_bad_short_forms(text: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_retention(text)  # type: ignore[arg-type]


def test_best_of_checks_its_mode() -> None:
    with pytest.raises(ConfigError, match="'min' or 'max', not 'median'"):
        BestOf("loss", "median")  # type: ignore[arg-type]


def test_what_is_damaged_takes_no_room() -> None:
    def sized(step: int, size_bytes: int, *, good: bool = True) -> Candidate:
        packs = {f"pack of {step}": size_bytes}
        return Candidate(CheckpointId(step, 1), packs=packs, good=good)

    candidates = [sized(7, 100, good=False), sized(6, 100, good=False)]
    candidates += [sized(step, 10) for step in (5, 4, 3)]
    limited = Retention(newest=None, count=3)
    assert [step for step in kept(candidates, limited) if step < 6] == [5, 4, 3]
    limited = Retention(newest=None, size_bytes=20)
    assert [step for step in kept(candidates, limited) if step < 6] == [5, 4]
