"""When a checkpoint is worth being written anew, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptflow.model import CheckpointId
from ckptflow.policy.consolidation import (
    COST_RATIO_MAX,
    QUIET_S,
    Shape,
    cost_ratio,
    judge,
    quiet_after_s,
    to_judge,
)
from ckptflow.policy.retention import parse_retention
from ckptflow.units import GIB, MIB

FULL = Shape(
    packs=4,
    older_packs=0,
    layers=0,
    delta_bytes=0,
    live_bytes=GIB,
    stored_bytes=GIB,
    dead_bytes=0,
)


def test_a_full_one_is_left_alone() -> None:
    verdict = judge(FULL, level=4)
    assert not verdict.worth
    assert "no packs but its own" in verdict.reasons[0]
    assert cost_ratio(FULL, level=4) == 1.0


def test_few_older_packs_cost_little() -> None:
    verdict = judge(replace(FULL, packs=8, older_packs=7), level=3)
    assert not verdict.worth
    assert "1.01 times" in verdict.reasons[0]


@pytest.mark.parametrize(("level", "worth"), [(1, False), (3, False), (4, True)])
def test_packs_cost_more_the_farther_they_are(level: int, worth: bool) -> None:
    assert judge(replace(FULL, packs=36, older_packs=32), level=level).worth is worth


def test_deltas_are_read_besides_what_they_change() -> None:
    deltas = replace(FULL, layers=3, delta_bytes=GIB // 2, live_bytes=GIB + GIB // 2)
    assert cost_ratio(deltas, level=1) == pytest.approx(1.5, rel=0.01)
    verdict = judge(deltas, level=1)
    assert verdict.worth
    assert "3 delta layers" in verdict.reasons[0]


def test_dead_bytes_take_room() -> None:
    dead = replace(FULL, packs=5, older_packs=1, stored_bytes=3 * GIB, dead_bytes=2 * GIB)
    verdict = judge(dead, level=1)
    assert verdict.worth
    assert "2.00 GiB of the 3.00 GiB" in verdict.reasons[0]
    few = replace(dead, stored_bytes=30 * MIB, dead_bytes=20 * MIB)
    assert not judge(few, level=1).worth


def test_who_is_consolidated_is_within_the_bound() -> None:
    for packs in range(1, 40):
        for level in range(5):
            shape = replace(FULL, packs=packs, older_packs=packs - 1)
            assert judge(shape, level=level).worth is (
                packs > 1 and cost_ratio(shape, level=level) > COST_RATIO_MAX
            )


def test_no_bytes_at_all() -> None:
    empty = Shape(
        packs=0,
        older_packs=0,
        layers=0,
        delta_bytes=0,
        live_bytes=0,
        stored_bytes=0,
        dead_bytes=0,
    )
    assert not judge(empty, level=4).worth


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("2", []),
        ("newest=2,every=10", [3, 2, 1]),
        ("newest=2,best=loss:min", [3, 2, 1]),
        ("all", []),
        ("newest=all,every=10", []),
        ("count=5", []),
        ("newest=2,every=10,bytes=1GB", []),
    ],
)
@pytest.mark.parametrize("rests", [False, True])
def test_those_that_stay_are_judged_and_the_newest_when_it_rests(
    keep: str, kept: list[int], *, rests: bool
) -> None:
    there = [CheckpointId(step, 1) for step in (5, 4, 3, 2, 1)]
    judged = [one.step for one in to_judge(there, parse_retention(keep), rests=rests)]
    assert judged == [*([5] if rests else []), *kept]
    assert to_judge([], parse_retention(keep), rests=rests) == []


def test_it_rests_when_it_has_been_quiet_for_long_against_what_was_usual() -> None:
    assert quiet_after_s(0.0) == quiet_after_s(QUIET_S / 10) == QUIET_S
    assert quiet_after_s(3600.0) > 2 * 3600.0
