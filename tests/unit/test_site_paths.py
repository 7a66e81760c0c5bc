"""Variables in paths: expanded once for what all see, on each node for what it has alone."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.site import Site, load_site
from ckptflow.site.paths import below, expand, variables_in
from ckptflow.site.tiers import open_tiers
from ckptflow.workflow.attempt import opened_tiers, tiers_as_text

SITE = """
[[tiers]]
kind = "posix"
name = "node"
path = "${NODE_DISK}/ckptflow"
level = 1

[[tiers]]
kind = "posix"
name = "scratch"
path = "$SCRATCH/ckptflow"
level = 3

[executor]
walltime = "1h"
[executor.allocation]
provider = "slurm"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "NODE_DISK", "SCRATCH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cluster.toml").write_text(SITE)
    return load_site(tmp_path / "cluster.toml")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("/plain/path", "/plain/path"),
        ("$A/b", "/a/b"),
        ("${A}b/$C", "/ab/c"),
        ("/tmp/${C}-$C", "/tmp/c-c"),
        ("relative/$C", "relative/c"),
    ],
)
def test_variables_are_replaced(text: str, expanded: str) -> None:
    assert expand(Path(text), {"A": "/a", "C": "c"}, what="x") == Path(expanded)


def test_a_tilde_is_the_home_and_a_user_has_a_name() -> None:
    assert expand(Path("~/store"), {}, what="x") == Path.home() / "store"
    assert expand(Path("/tmp/${USER}"), {}, what="x") == Path("/tmp", getpass.getuser())


@pytest.mark.parametrize("environment", [{}, {"SCRATCH": ""}])
def test_a_variable_that_is_not_set_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"tier 's'.*needs the environment variable SCRATCH"):
        expand(Path("$SCRATCH/x"), environment, what="tier 's'")


def test_what_begins_with_a_variable_has_to_be_absolute() -> None:
    with pytest.raises(ConfigError, match="which is not absolute"):
        expand(Path("$C/x"), {"C": "c"}, what="x")


def test_what_says_where_it_begins_is_not_taken_below_a_folder() -> None:
    assert below(Path("/here"), Path("there")) == Path("/here/there")
    assert below(Path("/here"), Path("$SCRATCH/x")) == Path("$SCRATCH/x")
    assert variables_in(Path("/a/$B/${C}d")) == ["B", "C"]


def test_shared_paths_are_the_same_for_all_and_nodes_have_their_own(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    sent = tiers_as_text(site.at(tmp_path).sealed_tiers)
    # On the node: other values. The shared path is settled, the node's own is not.
    monkeypatch.setenv("SCRATCH", "/somewhere/else")
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "node7"))
    opened_tiers.cache_clear()
    paths = [tier.spec["path"] for tier in opened_tiers(sent)]
    assert paths == [str(tmp_path / "node7/ckptflow"), str(tmp_path / "scratch/ckptflow")]


def test_a_node_that_lacks_the_variable_says_so(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tier 'node', path.*NODE_DISK.*is not set on"):
        open_tiers(site.tiers)


def test_the_workflow_s_host_leaves_the_tiers_of_nodes_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    assert [tier.name for tier in site.open_tiers()] == ["scratch"]
    assert site.at(Path("/x")).runs_folder == tmp_path / "scratch/ckptflow/runs"
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    assert [tier.name for tier in site.open_tiers()] == ["scratch"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert [tier.name for tier in site.open_tiers()] == ["node", "scratch"]


def test_without_the_shared_variable_nothing_is_opened(site: Site) -> None:
    for action in (site.open_tiers, lambda: site.at(Path("/x")), lambda: site.runs_folder):
        with pytest.raises(ConfigError, match="SCRATCH"):
            action()


def test_tasks_on_other_nodes_need_a_tier_that_all_see() -> None:
    with pytest.raises(ConfigError, match="give the site a tier that all see"):
        load_site("slurm", overrides={"tiers.shared.level": 1})


def test_what_nodes_protect_for_each_other_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    (tmp_path / "cluster.toml").write_text(
        SITE + '[[tiers]]\nkind = "redundant"\nname = "partner"\n[flush]\nagent = true\n'
    )
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    site = load_site(tmp_path / "cluster.toml")
    assert [tier.name for tier in site.open_tiers()] == ["scratch"]
