"""Where a checkpoint goes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import ConfigError
from ckptflow.model import SHARED_LEVEL
from ckptflow.policy.placement import Occasion, Placement, TierRule, plan

NVME = TierRule("nvme", 1)
PFS = TierRule("pfs", 3, every=10)
BUCKET = TierRule("bucket", 4, every=100)


def verdicts(*rules: TierRule, ordinal: int = 0, **occasion: object) -> dict[str, Placement]:
    found = plan(Occasion(ordinal=ordinal, **occasion), rules)  # type: ignore[arg-type]
    return {one.tier: one for one in found}


def tiers(ordinal: int, *rules: TierRule, **occasion: object) -> list[str]:
    found = verdicts(*rules, ordinal=ordinal, **occasion)
    return [name for name, one in found.items() if one.goes]


@pytest.mark.parametrize(
    ("ordinal", "expected"),
    [
        (0, ["nvme", "pfs", "bucket"]),
        (1, ["nvme"]),
        (9, ["nvme"]),
        (10, ["nvme", "pfs"]),
        (100, ["nvme", "pfs", "bucket"]),
    ],
)
def test_outer_tiers_get_every_nth(ordinal: int, expected: list[str]) -> None:
    assert tiers(ordinal, BUCKET, NVME, PFS) == expected


def test_the_innermost_gets_each_whatever_its_rule_says() -> None:
    assert tiers(7, PFS) == ["pfs"]
    assert verdicts(PFS, ordinal=7)["pfs"].reason == "innermost tier"


def test_of_two_tiers_of_one_level_the_first_named_is_the_innermost() -> None:
    assert tiers(1, TierRule("a", 1, every=5), TierRule("b", 1, every=5)) == ["a"]


def test_the_last_one_goes_everywhere() -> None:
    assert tiers(7, NVME, PFS, BUCKET, last=True) == ["nvme", "pfs", "bucket"]


def test_every_tier_has_a_verdict_that_says_why() -> None:
    mirror = TierRule("mirror", 2)
    found = verdicts(NVME, mirror, PFS, BUCKET, ordinal=20)
    assert {name: (one.goes, one.reason) for name, one in found.items()} == {
        "nvme": (True, "innermost tier"),
        "mirror": (True, "gets every checkpoint"),
        "pfs": (True, "number 20, and it gets every 10 from 0 on"),
        "bucket": (False, "number 20, and it gets every 100 from 0 on"),
    }
    last = verdicts(NVME, BUCKET, ordinal=20, last=True)
    assert last["bucket"].reason == "the last checkpoint of the attempt goes everywhere"


# --- a plan whose counts change while it runs ---


def test_with_a_plan_counts_begin_at_what_was_sent_last() -> None:
    sent = {"nvme": 16, "pfs": 9}
    assert tiers(18, NVME, PFS, sent=sent) == ["nvme"]
    assert tiers(19, NVME, PFS, sent=sent) == ["nvme", "pfs"]
    # The plan has become: every fourth.
    assert tiers(17, NVME, replace(PFS, every=4), sent=sent) == ["nvme", "pfs"]
    assert (
        "8 since the last there"
        in verdicts(NVME, replace(PFS, every=4), ordinal=17, sent=sent)["pfs"].reason
    )


def test_a_tier_that_has_none_gets_the_next() -> None:
    assert tiers(3, NVME, BUCKET, sent={"nvme": 2}) == ["nvme", "bucket"]


def test_what_goes_out_goes_through_all_that_are_used() -> None:
    sent = {"nvme": 99, "pfs": 95, "bucket": 0}
    assert tiers(100, NVME, PFS, BUCKET, sent=sent) == ["nvme", "bucket"]
    found = verdicts(NVME, PFS, BUCKET, ordinal=100, sent=sent, outward=True)
    assert found["pfs"].goes
    assert found["pfs"].reason == "goes to bucket, and through here"


def test_a_tier_that_waits_for_the_one_before_gets_the_next() -> None:
    found = verdicts(NVME, PFS, ordinal=10, sent={"pfs": 0}, on_way={"pfs"})
    assert not found["pfs"].goes
    assert "still on its way" in found["pfs"].reason
    assert tiers(10, NVME, PFS, sent={"pfs": 0}, on_way={"pfs"}, last=True) == ["nvme", "pfs"]


def test_a_tier_that_the_plan_leaves_out_gets_none() -> None:
    unused = replace(NVME, every=0)
    found = verdicts(unused, PFS, ordinal=3)
    assert not found["nvme"].goes
    assert found["nvme"].reason == "the plan does not use this tier"
    assert found["pfs"].reason == "innermost tier"


def test_the_last_one_goes_to_a_tier_that_lasts_even_if_none_is_used() -> None:
    found = verdicts(
        NVME, replace(PFS, every=0), replace(BUCKET, every=0), ordinal=3, last=True
    )
    assert found["pfs"].goes
    assert "outlives the allocation" in found["pfs"].reason
    assert not found["bucket"].goes


# --- room and time ---


def test_what_does_not_fit_is_not_sent() -> None:
    cramped = TierRule("pfs", 3, free_bytes=999)
    found = verdicts(NVME, cramped, size_bytes=1000)
    assert not found["pfs"].goes
    assert "has room for 999 B, it takes 1000 B" in found["pfs"].reason
    allowed = verdicts(NVME, TierRule("pfs", 3, limit_bytes=500), size_bytes=1000)
    assert "may hold 500 B" in allowed["pfs"].reason


def test_a_full_innermost_tier_is_passed_over() -> None:
    found = verdicts(replace(NVME, free_bytes=10), PFS, ordinal=7, size_bytes=1000)
    assert not found["nvme"].goes
    assert found["pfs"].goes
    assert found["pfs"].reason == "no room on nvme"


def test_if_no_tier_has_room_the_innermost_is_tried() -> None:
    full = [replace(rule, free_bytes=1) for rule in (NVME, PFS)]
    assert tiers(0, *full, size_bytes=1000) == ["nvme"]


def test_before_an_end_only_what_arrives_in_time_is_sent() -> None:
    pfs, bucket = TierRule("pfs", 3, copy_s=10.0), TierRule("bucket", 4, copy_s=600.0)
    found = verdicts(NVME, pfs, bucket, last=True, left_s=60.0)
    assert found["pfs"].goes
    assert not found["bucket"].goes
    assert found["bucket"].reason == "a copy takes 10min00s, and 1min00s are left"


def test_before_an_end_the_quickest_that_lasts_is_tried_however_late_it_is() -> None:
    pfs, bucket = TierRule("pfs", 3, copy_s=100.0), TierRule("bucket", 4, copy_s=600.0)
    assert tiers(0, NVME, pfs, bucket, last=True, left_s=1.0) == ["nvme", "pfs"]


def test_bad_rules() -> None:
    with pytest.raises(ConfigError, match="Tier 'nvme': every must be 1 or more, or 0"):
        TierRule("nvme", 1, every=-1)
    with pytest.raises(ConfigError, match="one rule for each tier, got \\['a', 'a'\\]"):
        plan(Occasion(ordinal=0), [TierRule("a", 1), TierRule("a", 2)])
    with pytest.raises(ConfigError, match="one rule for each tier, got \\[\\]"):
        plan(Occasion(ordinal=0), [])
    with pytest.raises(ConfigError, match="None of the tiers \\['nvme'\\] is used"):
        plan(Occasion(ordinal=0), [replace(NVME, every=0)])


RULES = st.lists(
    st.builds(
        TierRule,
        name=st.just("t"),
        level=st.integers(0, 4),
        every=st.integers(0, 6),
        copy_s=st.none() | st.floats(0, 100),
        free_bytes=st.none() | st.integers(0, 2000),
        limit_bytes=st.none() | st.integers(1, 2000),
    ),
    min_size=1,
    max_size=5,
).map(lambda rules: [replace(rule, name=f"t{at}") for at, rule in enumerate(rules)])


@given(
    rules=RULES.filter(lambda rules: any(rule.every for rule in rules)),
    ordinal=st.integers(0, 50),
    last=st.booleans(),
    left_s=st.none() | st.floats(0, 100),
    size_bytes=st.none() | st.integers(1, 1000),
    sent=st.none() | st.dictionaries(st.sampled_from(["t0", "t1", "t2"]), st.integers(-9, 50)),
    outward=st.booleans(),
)
def test_each_checkpoint_goes_somewhere_and_never_where_there_is_no_room_but_for_the_one(
    rules: list[TierRule],
    ordinal: int,
    last: bool,
    left_s: float | None,
    size_bytes: int | None,
    sent: Mapping[str, int] | None,
    outward: bool,
) -> None:
    occasion = Occasion(
        ordinal=ordinal,
        last=last,
        left_s=left_s,
        size_bytes=size_bytes,
        sent=sent,
        outward=outward,
    )
    found = plan(occasion, rules)
    by_name = {rule.name: rule for rule in rules}
    assert sorted(one.tier for one in found) == sorted(by_name)
    assert [one.level for one in found] == sorted(one.level for one in found)
    assert all(one.reason for one in found)
    going = [by_name[one.tier] for one in found if one.goes]
    assert going
    for rule in going[1:]:
        assert size_bytes is None or rule.free_bytes is None or rule.free_bytes >= size_bytes
    lasting = [rule for rule in rules if rule.level >= SHARED_LEVEL and rule.every]
    fits = [
        rule
        for rule in lasting
        if size_bytes is None
        or (rule.free_bytes or 10**9) >= size_bytes <= (rule.limit_bytes or 10**9)
    ]
    if last and len(fits) == len(lasting) > 0 and left_s is None:
        assert any(rule.level >= SHARED_LEVEL for rule in going)
