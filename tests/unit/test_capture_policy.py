"""How a region is captured, and why; how many snapshots there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import ConfigError
from ckptflow.policy.capture import (
    DENSE,
    IN_FLIGHT_FIRST,
    IN_FLIGHT_MAX,
    IN_FLIGHT_MIN,
    QUEUE_S_MAX,
    CaptureMode,
    RegionFacts,
    choose,
    in_flight,
    parse_capture,
)

AUTO, COPY = CaptureMode.AUTO, CaptureMode.COPY
DIFF, LAZY = CaptureMode.DIFF_FIRST, CaptureMode.LAZY


@pytest.mark.parametrize(
    ("asked", "facts", "expected", "reason"),
    [
        (AUTO, {"is_small": True, "known": True}, (COPY, True, False), "small"),
        (AUTO, {}, (COPY, True, False), "nothing to compare"),
        (AUTO, {"known": True}, (DIFF, False, True), "little may have changed"),
        (AUTO, {"known": True, "changed": 0.05}, (DIFF, False, True), "5% last time"),
        (AUTO, {"known": True, "changed": DENSE}, (DIFF, False, True), "50% last time"),
        (AUTO, {"known": True, "changed": 0.9}, (COPY, True, False), "90% of it changed"),
        (AUTO, {"coming": True}, (DIFF, True, True), "all of it, since"),
        (AUTO, {"known": True, "wanted": True}, (COPY, True, False), "the writer wants"),
        (AUTO, {"next_writer_known": True}, (LAZY, True, True), "only its optimizer"),
        (AUTO, {"next_writer_known": True, "known": True}, (LAZY, False, True), "waits"),
        (AUTO, {"next_writer_known": True, "is_small": True}, (COPY, True, False), "small"),
        (COPY, {"known": True}, (COPY, True, False), "asked for"),
        (DIFF, {"known": True, "is_small": True}, (DIFF, False, True), "asked for"),
        (DIFF, {}, (DIFF, True, False), "nothing to compare it with"),
        (DIFF, {"coming": True}, (DIFF, True, True), "nothing to compare it with"),
        (DIFF, {"known": True, "wanted": True}, (DIFF, True, True), "the writer wants"),
        (LAZY, {}, (LAZY, True, True), "asked for; all of it"),
        (LAZY, {"known": True, "changed": 0.9}, (LAZY, False, True), "asked for"),
        (LAZY, {"readable": False}, (COPY, True, False), "gathered, or by its library"),
        (LAZY, {"kept": True, "known": True}, (COPY, True, False), "kept for deltas"),
        (LAZY, {"torn": True, "known": True}, (COPY, True, True), "was written to"),
    ],
)
def test_choices(
    asked: CaptureMode, facts: dict, expected: tuple[CaptureMode, bool, bool], reason: str
) -> None:
    choice = choose(RegionFacts(**facts), asked)
    assert (choice.mode, choice.whole, choice.digested) == expected
    assert reason in choice.reason
    assert str(choice) == f"{choice.mode}: {choice.reason}"


@given(
    facts=st.builds(
        RegionFacts, is_small=st.booleans(), readable=st.booleans(),
        kept=st.booleans(), next_writer_known=st.booleans(), known=st.booleans(),
        coming=st.booleans(), changed=st.none() | st.floats(0, 1), wanted=st.booleans(),
        torn=st.booleans(),
    ),
    asked=st.sampled_from(CaptureMode),
)  # fmt: skip
def test_nothing_is_left_out_that_could_not_be_told(
    facts: RegionFacts, asked: CaptureMode
) -> None:
    choice = choose(facts, asked)
    assert choice.mode is not AUTO
    assert choice.whole or (choice.digested and facts.known and facts.readable)
    assert choice.digested or choice.mode is COPY or not facts.known
    assert choice.digested or choice.mode is not LAZY
    if asked is AUTO and choice.mode is LAZY:
        assert facts.next_writer_known


def test_the_first_pattern_that_fits_counts() -> None:
    rules = parse_capture({"model/*.weight": "lazy", "model/*": "diff-first", "data": "copy"})
    names = ["model/a.weight", "model/a.bias", "data", "other"]
    assert [rules.asked(name) for name in names] == [LAZY, DIFF, COPY, AUTO]
    assert rules.may_be_lazy


def test_one_mode_for_all() -> None:
    assert parse_capture(None).asked("x") is AUTO
    assert parse_capture("lazy").asked("x") is LAZY
    assert not parse_capture("copy").may_be_lazy
    assert parse_capture({"*": "copy"} | {"a": "diff-first"}).asked("a") is not LAZY


@pytest.mark.parametrize("wrong", ["fast", 3, {"a": "fast"}, {"a": None}])
def test_other_words_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="capture is one of auto, copy, diff-first, lazy"):
        parse_capture(wrong)
    with pytest.raises(ConfigError, match="is text, not 3"):
        parse_capture({3: "copy"})


@pytest.mark.parametrize(
    ("durable_s", "between_s", "expected"),
    [
        (None, None, IN_FLIGHT_FIRST),
        (1.0, None, IN_FLIGHT_FIRST),
        (0.1, 10.0, IN_FLIGHT_MIN),
        (2.5, 1.0, 4),
        (9.0, 1.0, min(IN_FLIGHT_MAX, int(QUEUE_S_MAX // 9.0))),
        (1.0, 0.0, IN_FLIGHT_MAX),
        (1000.0, 1.0, IN_FLIGHT_MIN),
    ],
)
def test_how_many_are_in_flight(
    durable_s: float | None, between_s: float | None, expected: int
) -> None:
    assert in_flight(durable_s, between_s) == expected


@given(a=st.floats(1e-3, 1e4), b=st.floats(1e-3, 1e4), durable_s=st.floats(1e-3, 1e4))
def test_rarer_saves_never_need_more(a: float, b: float, durable_s: float) -> None:
    assert in_flight(durable_s, max(a, b)) <= in_flight(durable_s, min(a, b))
