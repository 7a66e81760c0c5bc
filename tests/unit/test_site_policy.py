"""A multi-level policy in a site file: its pattern, and what goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.site import PolicyModel, Site, load_site

SITE = """
name = "s"

[[tiers]]
kind = "posix"
name = "nvme"
path = "a"
level = 1

[[tiers]]
kind = "posix"
name = "pfs"
path = "b"
level = 3

[executor]
kind = "threads"

[policy]
"""


def site(folder: Path, policy: str) -> Site:
    path = folder / "site.toml"
    path.write_text(SITE + policy)
    return load_site(path)


def rule_of(policy: PolicyModel) -> MultiLevel:
    rule = parse_interval(policy.every)
    assert isinstance(rule, MultiLevel)
    return policy.multilevel(rule)


def test_a_pattern_begins_the_plan(tmp_path: Path) -> None:
    policy = site(
        tmp_path,
        'every = "multilevel,safe"\n'
        'pattern = { interval = "95s", nvme = 1, pfs = 5 }\n'
        'replan = false\nwork = "20h"\nqueue = "1min"',
    ).policy
    assert rule_of(policy) == MultiLevel(
        preset="safe",
        interval_s=95.0,
        counts=(("nvme", 1), ("pfs", 5)),
        replan=False,
        work_s=72_000.0,
        queue_s=60.0,
    )


def test_without_a_pattern_the_task_finds_one(tmp_path: Path) -> None:
    assert rule_of(site(tmp_path, 'every = "multilevel"').policy) == MultiLevel()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ('every = "multilevel"\nflush_every = { pfs = 3 }', "leave flush_every out"),
        ('every = "multilevel"\nreplan = false', "replan = false needs a pattern"),
        ('every = 10\npattern = { interval = "1s", nvme = 1 }', "are for every = 'multilevel'"),
        ('every = "auto"\nwork = "1h"', "are for every = 'multilevel'"),
        ('every = "multilevel"\npattern = { nvme = 1 }', "policy.pattern.interval"),
        ('every = "multilevel"\npattern = { interval = "0s", nvme = 1 }', "greater than 0"),
        ('every = "multilevel"\npattern = { interval = "1s" }', "one of them gets every save"),
        (
            'every = "multilevel"\npattern = { interval = "1s", nvme = 2 }',
            "one of them gets every save",
        ),
        (
            'every = "multilevel"\npattern = { interval = "1s", nvme = 1, pfs = -5 }',
            "greater than or equal to 0",
        ),
        (
            'every = "multilevel"\npattern = { interval = "1s", nvme = 1, tape = 5 }',
            "pattern names 'tape', which is no tier of the site",
        ),
        ('every = "multilevel,fastest"', "no preset 'fastest'"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, policy: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        site(tmp_path, policy)
    assert "site.toml" in str(caught.value)


def test_counts_of_a_pattern_divide_each_other(tmp_path: Path) -> None:
    three = SITE.replace(
        "[executor]",
        '[[tiers]]\nkind = "posix"\nname = "far"\npath = "c"\nlevel = 4\n\n[executor]',
    )
    path = tmp_path / "site.toml"
    path.write_text(
        three + 'every = "multilevel"\n'
        'pattern = { interval = "1s", nvme = 1, pfs = 4, far = 6 }'
    )
    with pytest.raises(ConfigError, match="6 has to be a multiple of 4"):
        load_site(path)


def test_a_store_of_its_own_leaves_the_pattern_of_the_tiers_out(tmp_path: Path) -> None:
    made = site(
        tmp_path,
        'every = "multilevel"\npattern = { interval = "95s", nvme = 1, pfs = 5 }\n'
        "replan = false",
    )
    assert rule_of(made.with_store(tmp_path / "other").policy) == MultiLevel()
