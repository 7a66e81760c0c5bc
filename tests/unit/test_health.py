"""Whether a tier that failed is tried: after a growing while; at once where room was made."""

from __future__ import annotations

import pytest

from ckptflow.policy.health import (
    FIRST_PAUSE_S,
    PAUSE_MAX_S,
    Condition,
    Health,
    after_failure,
    after_room_was_made,
    trial,
)


def test_what_never_failed_is_tried() -> None:
    assert trial(Health(), now_s=-1e9).now


@pytest.mark.parametrize("condition", list(FIRST_PAUSE_S))
def test_the_pause_doubles_up_to_a_limit(condition: Condition) -> None:
    health, now_s, pauses = Health(), 0.0, []
    for _ in range(2000):
        health = after_failure(health, condition, now_s=now_s)
        pauses.append(health.try_after_s - now_s)
        assert not trial(health, now_s=health.try_after_s - 1).now
        assert trial(health, now_s=health.try_after_s).now
        now_s = health.try_after_s
    assert pauses[0] == FIRST_PAUSE_S[condition]
    assert pauses[1] == min(2 * pauses[0], PAUSE_MAX_S)
    assert max(pauses) == pauses[-1] == PAUSE_MAX_S


def test_another_kind_of_failure_has_its_own_pause() -> None:
    health = Health()
    for _ in range(5):
        health = after_failure(health, Condition.FAILING, now_s=0)
    health = after_failure(health, Condition.FULL, now_s=10)
    assert health == Health(Condition.FULL, 1, 10 + FIRST_PAUSE_S[Condition.FULL])


def test_room_helps_a_full_tier_only() -> None:
    full = after_failure(Health(), Condition.FULL, now_s=0)
    assert trial(after_room_was_made(full), now_s=0).now
    denied = after_failure(Health(), Condition.DENIED, now_s=0)
    assert not trial(after_room_was_made(denied), now_s=0).now


def test_reasons() -> None:
    health = after_failure(Health(), Condition.FULL, now_s=0)
    assert trial(health, now_s=10).reason == (
        "was found full once; it is left alone for another 20 s"
    )
    health = after_failure(health, Condition.FULL, now_s=30)
    assert trial(health, now_s=90).reason == (
        "was found full 2 times in a row; it is time to try it again"
    )
