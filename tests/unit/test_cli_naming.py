"""How checkpoints and stores are named on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.cli.naming import Name, open_store, parse_name, tiers_to_probe
from ckptflow.errors import ConfigError, NotFoundError
from ckptflow.model import LineageId
from ckptflow.store.descriptor import ensure_store
from ckptflow.tiers.posix import PosixTier

A = LineageId("exp", "a-1=x.y")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("exp/a-1=x.y", Name(A)),
        ("exp/a-1=x.y@0", Name(A, 0)),
        ("exp/a-1=x.y@120", Name(A, 120)),
        ("exp/a-1=x.y@120.2", Name(A, 120, 2)),
    ],
)
def test_names(text: str, name: Name) -> None:
    assert parse_name(text) == name


@pytest.mark.parametrize(
    "text", ["", "exp", "exp/", "/a", "exp/a@", "exp/a@-1", "exp/a@1.2.3", "a/b/c"]
)
def test_bad_names(text: str) -> None:
    with pytest.raises(ConfigError, match="names no checkpoint; write RUN/TASK for the newest"):
        parse_name(text)


def store_in(folder: Path) -> Path:
    ensure_store(PosixTier(folder))
    return folder


def test_the_last_of_several_stores_holds_the_claims(tmp_path: Path) -> None:
    folders = [store_in(tmp_path / name) for name in ("nvme", "burst", "pfs")]
    assert [(tier.name, tier.level) for tier in open_store(folders, None)] == [
        ("store1", 1),
        ("store2", 1),
        ("store3", 3),
    ]
    assert [(tier.name, tier.level) for tier in open_store(folders[:1], None)] == [("store", 3)]


def test_each_store_that_is_named_must_be_there(tmp_path: Path) -> None:
    store_in(tmp_path / "here")
    with pytest.raises(NotFoundError, match=r"There is no store in .*gone"):
        open_store([tmp_path / "here", tmp_path / "gone"], None)


def test_of_a_site_s_tiers_one_is_enough(tmp_path: Path) -> None:
    """Another node's disk is not seen from here."""
    site = tmp_path / "two.toml"
    tier = '[[tiers]]\nkind = "posix"\nname = "{0}"\nlevel = {1}\npath = "{2}/{0}"\n'
    site.write_text(tier.format("nvme", 1, tmp_path) + tier.format("pfs", 3, tmp_path))
    with pytest.raises(NotFoundError, match="There is no store yet on the tiers of site"):
        open_store(None, str(site))
    store_in(tmp_path / "pfs")
    assert [tier.name for tier in open_store(None, str(site))] == ["nvme", "pfs"]


def test_a_folder_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = store_in(tmp_path / "a"), store_in(tmp_path / "b")
    monkeypatch.setenv("CKPTFLOW_STORE", str(a))
    assert open_store(None, None)[0].spec["path"] == str(a)
    assert open_store([b], None)[0].spec["path"] == str(b)
    with pytest.raises(NotFoundError, match="site 'local'"):
        open_store(None, "local")


def test_what_was_named_is_probed_though_it_is_no_store(tmp_path: Path) -> None:
    tiers, _ = tiers_to_probe([tmp_path / "new"], None)
    assert [tier.name for tier in tiers] == ["store"]
    assert tiers_to_probe(None, None) == ([], "none tried: name one with --store or --site")
