"""The rule of a multi-level policy: its short forms, and when it asks for a save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.multilevel.presets import PRESETS
from ckptflow.policy.multilevel.rule import PRESET_NAMES, MultiLevel, parse_multilevel
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.policy.progress import Progress


def test_short_forms_name_a_preset() -> None:
    assert parse_interval("multilevel") == MultiLevel(preset="fast")
    assert parse_interval("multilevel, safe") == MultiLevel(preset="safe")
    assert str(MultiLevel()) == "multilevel"
    assert str(MultiLevel(preset="spot")) == "multilevel,spot"
    assert set(PRESET_NAMES) == set(PRESETS)


RULES = st.builds(
    MultiLevel,
    preset=st.sampled_from(PRESET_NAMES),
    interval_s=st.just(95.5),
    counts=st.just((("nvme", 1), ("pfs", 5))),
    replan=st.booleans(),
    tiers=st.lists(
        st.builds(
            TierCosts,
            name=st.sampled_from(["nvme", "pfs"]),
            level=st.integers(0, 4),
            write_bytes_per_s=st.floats(1, 1e12),
            read_bytes_per_s=st.floats(1, 1e12),
            capacity_bytes=st.none() | st.floats(1, 1e15),
        ),
        max_size=2,
    ).map(tuple),
    rates=st.none() | st.tuples(*[st.floats(0, 1)] * 5).map(Rates),
    nodes=st.integers(1, 10_000),
    work_s=st.none() | st.floats(1, 1e9),
    queue_s=st.floats(0, 1e6),
)


@given(rule=RULES)
def test_written_down_and_read_a_rule_is_the_same(rule: MultiLevel) -> None:
    assert parse_interval(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("multilevel,fastest", "no preset 'fastest'; there are fast, safe, cheap, spot"),
        ("multilevel,safe,cheap", "one preset at the most"),
        ('multilevel {"preset": "fast"}', "is no multi-level policy: 'rates'"),
        ("multilevel {", "is no multi-level policy"),
        ('multilevel {"rates": null, "tiers": [], "counts": [], "os": 1}', "is no multi-level"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_multilevel(text)


def test_half_a_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match="give both, or neither"):
        MultiLevel(interval_s=9.0)
    with pytest.raises(ConfigError, match="give both, or neither"):
        MultiLevel(counts=(("a", 1),))
    with pytest.raises(ConfigError, match="never changes needs a pattern"):
        MultiLevel(replan=False)
    with pytest.raises(ConfigError, match="above 0 s, got -1"):
        MultiLevel(interval_s=-1.0, counts=(("a", 1),))


def progress(**change: object) -> Progress:
    known: dict[str, object] = {"step": 9, "last_saved_step": 5, "seconds_since_save": 30.0}
    return Progress(**{**known, **change})  # type: ignore[arg-type]


def test_it_saves_when_the_plan_says_so() -> None:
    rule = MultiLevel()
    early = rule.decide(progress(planned_s=60.0))
    assert not early.due
    assert early.reason == "30.0 s since the last save, less than the 1min00s of the plan"
    assert rule.decide(progress(planned_s=30.0)).due
    near = rule.decide(progress(planned_s=33.0, step_time_s=8.0))
    assert near.due
    assert "the step end nearest to the 33.0 s" in near.reason


def test_without_a_plan_it_saves_to_measure_and_not_while_a_save_is_written() -> None:
    rule = MultiLevel()
    assert rule.decide(progress()).reason == "the first save, which measures what a save takes"
    assert not rule.decide(progress(in_flight=1)).due
    assert not rule.decide(progress(planned_s=1.0, in_flight=1)).due
    assert not rule.decide(progress(step=5, planned_s=1.0)).due
