"""Which sites there are, and files to begin with: filled in they work, and nothing is lost."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.site import load_site
from ckptflow.site.catalogue import copy_site, known_sites, start_user_section
from ckptflow.site.layers import user_file

NAMED = (
    "anvil", "aurora", "delta", "expanse", "frontera", "frontier", "kestrel", "kubernetes",
    "lumi", "perlmutter", "polaris", "slurm", "vista",
)  # fmt: skip


def test_all_shipped_sites_are_listed_and_sound() -> None:
    found = {one.name: one for one in known_sites()}
    assert {*NAMED, "local", "local_threads"} <= set(found)
    assert {one.name: one.problem for one in found.values() if one.problem} == {}
    assert all(one.description for one in found.values())
    assert found["polaris"].provider == "pbs"


def test_a_site_of_the_users_own_comes_first_and_a_broken_one_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "site_configs"
    folder.mkdir()
    (folder / "broken.toml").write_text("name = \n")
    text = (
        'description = "mine"\n[[tiers]]\nkind = "posix"\nname = "d"\npath = "p"\nlevel = 3\n'
    )
    (folder / "local.toml").write_text(text)
    found = {one.name: one for one in known_sites()}
    assert "not TOML" in found["broken"].problem
    assert (found["local"].description, found["local"].path) == ("mine", folder / "local.toml")


@pytest.mark.parametrize("name", NAMED)
def test_a_section_filled_in_makes_the_site_usable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SCRATCH", "PSCRATCH"):
        monkeypatch.setenv(variable, "/scratch/me")
    path = start_user_section(name)
    assert path == user_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if load_site(name, purpose="show").required:
        with pytest.raises(ConfigError, match=f"site '{name}' needs"):
            load_site(name)
    text = path.read_text()
    text = text.replace('path = ""', 'path = "/scratch/me/x"').replace(
        'image = ""', 'image = "i"'
    )
    path.write_text(text.replace('account = ""', 'account = "m1"'))
    site = load_site(name).at(Path("/here"))
    shared = [tier for tier in site.tiers if not tier.on_node]
    assert shared
    assert all(str(tier.path).startswith("/") for tier in shared)


def test_sections_are_added_and_what_is_there_stays() -> None:
    first = start_user_section("perlmutter").read_text()
    both = start_user_section("frontier").read_text()
    assert both.startswith(first)
    assert "[frontier.tiers.scratch]" in both
    with pytest.raises(ConfigError, match="has a section of 'frontier' already"):
        start_user_section("frontier")
    assert user_file().read_text() == both


def test_a_copy_is_a_site_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = copy_site("mycluster", "slurm", Path("site_configs"))
    assert load_site("mycluster").name == "mycluster"
    assert "# Any Slurm cluster" in path.read_text(), "comments are kept"
    with pytest.raises(ConfigError, match="exists already"):
        copy_site("mycluster", "local", Path("site_configs"))
    with pytest.raises(ConfigError, match="is no name of a site"):
        copy_site("../evil", "slurm", Path("site_configs"))
    with pytest.raises(ConfigError, match="no site 'nowhere'"):
        copy_site("x", "nowhere", Path("site_configs"))
