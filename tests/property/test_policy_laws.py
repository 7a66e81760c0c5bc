"""Laws of the decisions: what must hold for every history, not for chosen ones."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ckptflow.model import CheckpointId
from ckptflow.policy.failures.single_level import daly_interval_s, young_interval_s
from ckptflow.policy.interval import (
    EverySeconds,
    EverySteps,
    Never,
    OverheadAtMost,
    YoungDaly,
    parse_interval,
)
from ckptflow.policy.placement import Occasion, TierRule, plan
from ckptflow.policy.profile import Profile
from ckptflow.policy.progress import Interval, Progress
from ckptflow.policy.quota import fair_shares
from ckptflow.policy.retention import BestOf, Candidate, Retention, parse_retention, retain
from ckptflow.policy.tuned import Tuned

ids = st.builds(CheckpointId, st.integers(0, 60), st.integers(1, 4))
histories = st.lists(
    st.builds(
        Candidate,
        ids,
        st.dictionaries(st.sampled_from(["loss", "acc"]), st.floats(), max_size=2),
        good=st.booleans(),
        void=st.booleans(),
    ),
    max_size=14,
    unique_by=lambda one: one.id,
)
retentions = st.builds(
    Retention,
    newest=st.none() | st.integers(1, 6),
    every_steps=st.none() | st.integers(1, 30),
    best=st.none()
    | st.builds(
        BestOf,
        st.sampled_from(["loss", "acc", "a:b"]),
        st.sampled_from(["min", "max"]),
        st.integers(1, 4),
    ),
)


def kept(history: list[Candidate], retention: Retention) -> set[CheckpointId]:
    return {one.id for one in retain(history, retention) if one.keep}


# --- retention -------------------------------------------------------------------------


packs = st.dictionaries(st.sampled_from("abcdefghij"), st.just(0), min_size=1, max_size=4)
SIZES = {name: 1 << number for number, name in enumerate("abcdefghij")}
sized = st.lists(
    st.builds(
        lambda one, names: replace(one, packs={name: SIZES[name] for name in names}),
        st.builds(Candidate, ids, good=st.booleans(), void=st.booleans()),
        packs,
    ),
    max_size=12,
    unique_by=lambda one: one.id,
)


def bytes_of(history: list[Candidate], those: set[CheckpointId]) -> int:
    names = {name for one in history if one.id in those for name in one.packs}
    return sum(SIZES[name] for name in names)


@given(history=sized, retention=retentions, room=st.integers(1, 1100), stay=st.sets(ids))
def test_room_is_kept_to_and_the_newest_good_one_stays(
    history: list[Candidate], retention: Retention, room: int, stay: set[CheckpointId]
) -> None:
    stays = dict.fromkeys(stay, "because")
    limited = replace(retention, size_bytes=room)
    verdicts = retain(history, limited, stays=stays)
    those = {one.id for one in verdicts if one.keep}
    good = [one.id for one in history if one.good and not one.void]
    assert {max(good)} <= those if good else True
    assert those >= stay & {one.id for one in history}
    assert those <= {one.id for one in retain(history, retention, stays=stays) if one.keep}
    assert all(one.reasons for one in verdicts)
    may_go = [
        one.id
        for one in history
        if one.id in those and one.good and not one.void and one.id not in {max(good), *stay}
    ]
    # What damaged ones take does not count: they never take the place of a good one.
    assert bytes_of(history, those & {*good}) <= room or not may_go


@given(history=sized, retention=retentions, rooms=st.lists(st.integers(1, 1100), min_size=2))
def test_more_room_never_keeps_fewer(
    history: list[Candidate], retention: Retention, rooms: list[int]
) -> None:
    kept_in = [kept(history, replace(retention, size_bytes=room)) for room in sorted(rooms)]
    assert all(less <= more for less, more in itertools.pairwise(kept_in))


@given(history=sized, counts=st.tuples(st.integers(1, 12), st.integers(1, 12)))
def test_a_greater_count_never_keeps_fewer(
    history: list[Candidate], counts: tuple[int, int]
) -> None:
    less, more = sorted(counts)
    rules = Retention(newest=None)
    assert kept(history, replace(rules, count=less)) <= kept(
        history, replace(rules, count=more)
    )


@given(
    wants=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=8),
    room=st.integers(0, 500),
)
def test_shares_fill_the_room_and_level_out(wants: list[tuple[int, int]], room: int) -> None:
    wanted = {number: max(pair) for number, pair in enumerate(wants)}
    floors = {number: min(pair) for number, pair in enumerate(wants)}
    shares = fair_shares(wanted, floors, room)
    assert all(floors[one] <= share <= wanted[one] for one, share in shares.items())
    total = sum(shares.values())
    assert total <= max(room, sum(floors.values()))
    short = [one for one in wanted if shares[one] < wanted[one]]
    level = max((shares[one] for one in short if shares[one] > floors[one]), default=None)
    if level is not None:  # Whoever got less than he wanted got as much as the others.
        assert all(shares[one] == level for one in short if shares[one] > floors[one])
        assert room - total < len(short)  # What is left does not suffice for one byte each.


@given(history=histories, retention=retentions)
def test_each_gets_one_verdict_with_reasons(
    history: list[Candidate], retention: Retention
) -> None:
    verdicts = retain(history, retention)
    assert [one.id for one in verdicts] == [one.id for one in history]
    assert all(one.reasons and all(one.reasons) for one in verdicts)


@given(history=histories, retention=retentions)
def test_the_newest_good_one_stays(history: list[Candidate], retention: Retention) -> None:
    good = [one.id for one in history if one.good and not one.void]
    assert not good or max(good) in kept(history, retention)


@given(history=histories, retention=retentions)
def test_something_that_may_be_restored_stays(
    history: list[Candidate], retention: Retention
) -> None:
    assert bool(kept(history, retention)) == any(not one.void for one in history)


@given(history=histories, retention=retentions)
def test_pruning_twice_drops_no_more(history: list[Candidate], retention: Retention) -> None:
    once = kept(history, retention)
    left = [one for one in history if one.id in once]
    assert kept(left, retention) == once


@given(history=histories, retention=retentions, more=st.integers(1, 5))
def test_keeping_more_of_the_newest_never_drops_others(
    history: list[Candidate], retention: Retention, more: int
) -> None:
    newest = None if retention.newest is None else retention.newest + more
    assert kept(history, retention) <= kept(history, replace(retention, newest=newest))


@given(history=histories, retention=retentions)
def test_another_rule_never_drops_others(
    history: list[Candidate], retention: Retention
) -> None:
    fewer = replace(retention, best=None, every_steps=None)
    assert kept(history, fewer) <= kept(history, retention)


@given(history=histories, retention=retentions, seed=st.randoms())
def test_the_order_of_the_history_does_not_matter(
    history: list[Candidate], retention: Retention, seed: object
) -> None:
    shuffled = list(history)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert kept(shuffled, retention) == kept(history, retention)


@given(history=histories, retention=retentions)
def test_bad_checkpoints_take_no_good_one_s_place(
    history: list[Candidate], retention: Retention
) -> None:
    good = [one for one in history if one.good and not one.void]
    assert kept(good, retention) == kept(history, retention) & {one.id for one in good}


@given(retention=retentions)
def test_a_retention_reads_back_what_it_prints(retention: Retention) -> None:
    assert parse_retention(str(retention)) == retention


# --- interval --------------------------------------------------------------------------

milliseconds = st.integers(1, 10**9).map(lambda number: number / 1000)
intervals = st.one_of(
    st.just(Never()),
    st.builds(EverySteps, st.integers(1, 10**9)),
    st.builds(EverySeconds, milliseconds),
    st.builds(YoungDaly, milliseconds),
    st.builds(OverheadAtMost, st.floats(0, 1, exclude_min=True, exclude_max=True)),
    st.builds(
        Tuned,
        st.floats(0, 1, exclude_min=True, exclude_max=True),
        st.none() | milliseconds,
    ),
)
times = st.floats(0, 1e6)
progresses = st.builds(
    Progress,
    step=st.integers(0, 10_000),
    last_saved_step=st.none() | st.integers(0, 10_000),
    seconds_since_save=times,
    elapsed_s=times,
    blocked_s=times,
    save_time_s=st.none() | times,
    step_time_s=st.none() | times,
    in_flight=st.integers(0, 2),
    in_flight_limit=st.integers(1, 2),
    profile=st.builds(
        Profile,
        blocked_s=st.none() | times,
        busy_s=times,
        busy_now_s=times,
        slowdown=times,
        durable_s=st.none() | times,
        idle_wanted=st.integers(0, 3),
        mtbf_s=st.none() | milliseconds,
    ),
)


@given(rule=intervals)
def test_an_interval_reads_back_what_it_prints(rule: Interval) -> None:
    assert parse_interval(str(rule)) == rule


@given(rule=intervals, progress=progresses)
def test_every_decision_has_a_reason(rule: Interval, progress: Progress) -> None:
    assert rule.decide(progress).reason
    assert rule.decide(progress) == rule.decide(progress)


@given(rule=intervals, progress=progresses, steps=st.integers(0, 1000), wait_s=times)
def test_what_is_due_stays_due_while_time_goes_on(
    rule: Interval, progress: Progress, steps: int, wait_s: float
) -> None:
    later = replace(
        progress,
        step=progress.step + steps,
        seconds_since_save=progress.seconds_since_save + wait_s,
        elapsed_s=progress.elapsed_s + wait_s,
    )
    assert rule.decide(later).due or not rule.decide(progress).due


@given(rule=intervals, progress=progresses)
def test_a_saved_step_is_not_due(rule: Interval, progress: Progress) -> None:
    assert not rule.decide(replace(progress, last_saved_step=progress.step)).due


@given(cost_s=st.floats(0, 1e7), mtbf_s=st.floats(1e-3, 1e9))
def test_daly_lies_between_nothing_and_young(cost_s: float, mtbf_s: float) -> None:
    """And comes to agree with him where saves are short."""
    daly, young = daly_interval_s(cost_s, mtbf_s), young_interval_s(cost_s, mtbf_s)
    assert 0 <= daly <= max(young, mtbf_s)
    if cost_s < 1e-6 * mtbf_s:
        assert math.isclose(daly, young, rel_tol=1e-2)


# --- placement -------------------------------------------------------------------------

rules = st.lists(
    st.builds(TierRule, st.sampled_from("abcdef"), st.integers(0, 4), st.integers(1, 5)),
    min_size=1,
    unique_by=lambda rule: rule.name,
)


@given(rules=rules, ordinal=st.integers(0, 100))
def test_placement_goes_from_the_inside_outwards(rules: list[TierRule], ordinal: int) -> None:
    level = {rule.name: rule.level for rule in rules}
    usual = going(Occasion(ordinal=ordinal), rules)
    everywhere = going(Occasion(ordinal=ordinal, last=True), rules)
    assert [level[name] for name in everywhere] == sorted(level.values())
    assert usual[0] == everywhere[0]
    assert set(usual) <= set(everywhere)
    assert len(going(Occasion(ordinal=0), rules)) == len(rules)


def going(occasion: Occasion, rules: list[TierRule]) -> list[str]:
    """Return the tiers that get the checkpoint, in order."""
    return [one.tier for one in plan(occasion, rules) if one.goes]
