"""Layers of a site: what lies on top counts, and a mistake is told where it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptflow
from ckptflow.errors import ConfigError
from ckptflow.site import load_site, read_layers
from ckptflow.site.layers import parse_setting, settings_in, user_file
from ckptflow.workflow.script import site_of

SITE = """\
description = "a machine"          # 1

[required]
"executor.allocation.account" = "your account, such as m1234"

[[tiers]]                          # 6
kind = "posix"
name = "disk"
path = "/tmp/disk"
level = 1

[[tiers]]                          # 12
kind = "posix"
name = "scratch"
path = "/tmp/scratch"
level = 3

[executor]                         # 18
workers = 4
walltime = "2h"

[executor.allocation]              # 22
provider = "slurm"
partition = "batch"
"""

USER = """\
["*".policy]                       # 1
keep = 5
every = "1h"

[cluster.executor.allocation]      # 5
account = "m1234"
max_blocks = 3

[cluster.executor]
workers = 8

[cluster.tiers.scratch]            # 12
path = "/tmp/mine"

[cluster.tiers.remote]             # 15
kind = "posix"
path = "/tmp/remote"
level = 4

[elsewhere.policy]
keep = 1
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(SITE)
    return path


@pytest.fixture
def user(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(USER)
    return path


def test_what_the_user_says_counts(site: Path, user: Path) -> None:
    made = load_site(site, user=user)
    allocation = made.executor.allocation
    assert (allocation.account, allocation.max_blocks) == ("m1234", 3)
    assert allocation.partition == "batch", "tables are merged"
    assert (made.executor.workers, made.policy.keep, made.policy.every) == (8, 5, "1h")
    assert [(tier.name, str(tier.path)) for tier in made.tiers] == [
        ("disk", "/tmp/disk"), ("scratch", "/tmp/mine"), ("remote", "/tmp/remote"),
    ]  # fmt: skip


def test_settings_lie_on_top_of_the_users_file(site: Path, user: Path) -> None:
    changes = {"executor.workers": 2, "tiers.scratch.path": "/x", "tiers.0.path": "/y"}
    made = load_site(site, user=user, overrides=changes)
    assert made.executor.workers == 2
    assert [str(tier.path) for tier in made.tiers] == ["/y", "/x", "/tmp/remote"]


def test_the_usual_file_is_used_when_it_is_there(site: Path, user: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs executor\.allocation\.account"):
        load_site(site)
    user_file().parent.mkdir(parents=True)
    user_file().write_text(USER)
    assert load_site(site).executor.workers == 8
    user_file().write_text("[elsewhere.policy]\nkeep = 1\n")
    with pytest.raises(ConfigError, match=r"needs executor\.allocation\.account"):
        load_site(site)


def test_a_list_of_tiers_replaces_them_all(site: Path, tmp_path: Path) -> None:
    user = tmp_path / "mine.toml"
    user.write_text(
        '[cluster.executor.allocation]\naccount = "a"\n'
        '[[cluster.tiers]]\nkind = "posix"\nname = "only"\nlevel = 3\npath = "/z"\n'
    )
    assert [tier.name for tier in load_site(site, user=user).tiers] == ["only"]


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("max_blocks = 3", "max_block = 3", 7, "executor.allocation.max_block: unknown key"),
        ("max_blocks = 3", "max_blocks = 0", 7, "greater than or equal to 1"),
        ("workers = 8", 'walltime = "2 parsec"', 10, "parsec"),
        ('path = "/tmp/mine"', "pfad = 1", 13, "tiers.1.pfad: unknown key"),
        ("level = 4", "level = 9", 18, "less than or equal to 4"),
        ("keep = 5", "keep = -5", 2, "keep"),
        ("[cluster.executor.allocation]", "[cluster.exekutor]", 5, "exekutor: unknown key"),
    ],
)
def test_a_mistake_names_the_users_file_and_line(
    site: Path, user: Path, old: str, new: str, line: int, text: str
) -> None:
    user.write_text(USER.replace(old, new, 1))
    account = {"executor.allocation.account": "m1"}
    with pytest.raises(ConfigError, match=text) as caught:
        load_site(site, user=user, overrides=account)
    assert str(caught.value).startswith(f"{user}:{line}: ")


def test_a_mistake_in_the_site_file_is_told_there(site: Path, user: Path) -> None:
    site.write_text(SITE.replace("level = 1", "level = 7"))
    with pytest.raises(ConfigError) as caught:
        load_site(site, user=user)
    assert str(caught.value).startswith(f"{site}:10: tiers.0.level")


def test_a_setting_that_is_wrong_names_itself(site: Path, user: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^setting executor\.wrkers: executor\.wrkers: unknown"
    ):
        load_site(site, user=user, overrides={"executor.wrkers": 1})
    with pytest.raises(ConfigError, match=r"the site has no 'tiers\.nowhere'"):
        load_site(site, user=user, overrides={"tiers.nowhere.path": "/x"})


def test_it_is_known_where_each_value_stands(site: Path, user: Path) -> None:
    merged, _ = read_layers(site, user=user, overrides={"executor.margin": "10s"})
    where = {
        ("executor", "allocation", "account"): f"{user}:6",
        ("executor", "allocation", "partition"): f"{site}:24",
        ("executor", "workers"): f"{user}:10",
        ("executor", "margin"): "setting executor.margin",
        ("tiers", 1, "path"): f"{user}:13",
        ("tiers", 1, "level"): f"{site}:16",
        ("tiers", 2, "level"): f"{user}:18",
    }
    assert {key: str(merged.origin(key)) for key in where} == where


def test_a_file_that_says_nothing_of_the_site(site: Path, tmp_path: Path) -> None:
    user = tmp_path / "mine.toml"
    user.write_text("[executor]\nworkers = 2\n")
    with pytest.raises(ConfigError, match=r"says nothing of site 'cluster': it has executor"):
        load_site(site, user=user)
    with pytest.raises(ConfigError, match="Cannot read user's file"):
        load_site(site, user=tmp_path / "absent.toml")
    user.write_text("cluster = 3\n")
    with pytest.raises(ConfigError, match=r"mine\.toml:1: cluster is not a table"):
        load_site(site, user=user)


def test_what_a_site_needs_is_told_before_anything_starts(site: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_site(site)
    said = str(caught.value)
    assert "site 'cluster' needs executor.allocation.account: your account" in said
    assert "--set executor.allocation.account=VALUE" in said
    assert str(user_file()) in said
    assert load_site(site, purpose="tiers").tiers
    shown = load_site(site, purpose="show")
    assert shown.executor.allocation.account == "[account]"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a.b=m1234", "a.b", "m1234"),
        ("a=4", "a", 4),
        ("a = true", "a", True),
        ('a="x = y"', "a", "x = y"),
        ("a=x = y", "a", "x = y"),
        ('a=["--one", "--two"]', "a", ["--one", "--two"]),
        ("a=2h", "a", "2h"),
        ("a=", "a", ""),
    ],
)
def test_a_setting_is_toml_or_else_text(text: str, key: str, value: object) -> None:
    assert parse_setting(text) == (key, value)


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".a=1"])
def test_what_sets_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="sets nothing"):
        parse_setting(text)


def test_a_number_may_be_an_account(site: Path) -> None:
    made = load_site(
        site, overrides=settings_in({"CKPTFLOW_SET": "executor.allocation.account=12"})
    )
    assert made.executor.allocation.account == "12"


def test_a_run_sees_what_the_command_line_says(
    site: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFLOW_USER", str(user))
    monkeypatch.setenv("CKPTFLOW_SET", "executor.workers=3\nexecutor.margin=5s")
    run = ckptflow.run("exp", site=site, overrides={"executor.workers": 9, "policy.keep": 7})
    assert (run.site.executor.workers, run.site.executor.margin_s) == (3, 5.0)
    assert run.site.policy.keep == 7
    assert run.site.executor.allocation.account == "m1234"


NEEDS_A_PATH = """
[required]
"executor.allocation.account" = "your account"
"tiers.scratch.path" = "a folder of yours"

[[tiers]]
kind = "posix"
name = "scratch"
level = 3

[executor]
walltime = "1h"
[executor.allocation]
provider = "slurm"
"""
ACCOUNT = {"executor.allocation.account": "m1"}


def test_a_store_of_one_s_own_needs_no_paths_and_looking_needs_no_account(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(NEEDS_A_PATH)
    with pytest.raises(ConfigError, match=r"needs tiers\.scratch\.path: a folder of yours"):
        ckptflow.run("exp", site=path, overrides=ACCOUNT)
    run = ckptflow.run("exp", site=path, store=tmp_path / "store", overrides=ACCOUNT)
    assert [str(tier.path) for tier in run.site.tiers] == [str(tmp_path / "store")]
    with pytest.raises(ConfigError, match=r"needs executor\.allocation\.account"):
        ckptflow.run("exp", site=path, store=tmp_path / "store")
    with pytest.raises(ConfigError, match=r"needs tiers\.scratch\.path"):
        load_site(path, purpose="tiers")
    assert site_of(str(path), tmp_path / "store").runs_folder == tmp_path / "store" / "runs"


def test_tiers_that_were_replaced_are_not_asked_for(tmp_path: Path) -> None:
    path, user = tmp_path / "cluster.toml", tmp_path / "mine.toml"
    path.write_text(NEEDS_A_PATH)
    user.write_text(
        '[[cluster.tiers]]\nkind = "posix"\nname = "other"\nlevel = 3\npath = "/z"\n'
    )
    assert load_site(path, user=user, overrides=ACCOUNT).tiers[0].name == "other"
