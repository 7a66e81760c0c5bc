"""Where a checkpoint goes, and why."""

from __future__ import annotations

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.placement import Placement, TierRule, plan

NVME = TierRule("nvme", 1)
PFS = TierRule("pfs", 3, every=10)
BUCKET = TierRule("bucket", 4, every=100)


def tiers(ordinal: int, *rules: TierRule, last: bool = False) -> list[str]:
    return [placement.tier for placement in plan(ordinal, rules, last=last)]


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
    assert plan(7, [PFS]) == [Placement("pfs", "innermost tier")]


def test_of_two_tiers_of_one_level_the_first_named_is_the_innermost() -> None:
    assert tiers(1, TierRule("a", 1, every=5), TierRule("b", 1, every=5)) == ["a"]


def test_the_last_one_goes_everywhere() -> None:
    assert tiers(7, NVME, PFS, BUCKET, last=True) == ["nvme", "pfs", "bucket"]


def test_each_placement_says_why() -> None:
    mirror = TierRule("mirror", 2)
    reasons = {one.tier: one.reason for one in plan(20, [NVME, mirror, PFS, BUCKET], last=True)}
    assert reasons == {
        "nvme": "innermost tier",
        "mirror": "gets every checkpoint",
        "pfs": "number 20, and it gets every 10 from 0 on",
        "bucket": "the last checkpoint of the attempt goes everywhere",
    }


def test_bad_rules() -> None:
    with pytest.raises(ConfigError, match="Tier 'nvme': every must be 1 or more, got 0"):
        TierRule("nvme", 1, every=0)
    with pytest.raises(ConfigError, match="one rule for each tier, got \\['a', 'a'\\]"):
        plan(0, [TierRule("a", 1), TierRule("a", 2)])
    with pytest.raises(ConfigError, match="one rule for each tier, got \\[\\]"):
        plan(0, [])
