"""Tiers are opened from plain data and from addresses; what cannot be is said."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from ckptflow.errors import ConfigError
from ckptflow.site.tiers import model_at, tier_model
from ckptflow.tiers.filesystem import FilesystemTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.opening import open_store, open_tier, spec_of
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.sftp import SftpTier
from ckptflow.tiers.sftp_connection import SftpAddress
from ckptflow.tiers.tier import Tier


@pytest.mark.parametrize(
    "tier",
    [
        PosixTier("/nowhere/at/all", name="pfs", level=3),
        MemoryTier("test-opening", level=0),
        FilesystemTier(fsspec.filesystem("memory"), "/test-opening", name="mine"),
        SftpTier(SftpAddress("host", port=2222, identity="id"), "store", connections=2),
    ],
    ids=lambda tier: tier.spec["kind"],
)
def test_a_spec_opens_the_same_tier(tier: Tier) -> None:
    opened = open_tier(tier.spec)
    assert type(opened) is type(tier)
    assert opened.spec == tier.spec


def test_memory_of_one_name_is_one() -> None:
    spec = {"kind": "memory", "name": "test-opening-one", "level": 0}
    assert open_tier(spec) is open_tier(spec)


def test_a_folder_is_an_address(tmp_path: Path) -> None:
    assert spec_of(tmp_path)["path"] == str(tmp_path)
    assert spec_of(f"file://{tmp_path}/a%20b")["path"] == f"{tmp_path}/a b"


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        (
            "sftp://me@far:2222/a/b%20c",
            {"host": "far", "port": 2222, "user": "me", "path": "/a/b c"},
        ),
        ("sftp://far/~/store", {"host": "far", "path": "store"}),
        ("sftp://[::1]:22/a", {"host": "::1", "port": 22, "path": "/a"}),
        ("fsspec+hdfs://name:8020/a", {"address": "hdfs://name:8020/a"}),
    ],
)
def test_addresses_of_remote_stores(url: str, fields: dict[str, object]) -> None:
    spec = spec_of(url)
    assert spec == {"kind": spec["kind"], "name": "store", "level": 4, **fields}
    model = tier_model(spec).spec
    assert {name: model[name] for name in spec} == spec


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="has a password") as caught:
        spec_of("sftp://me:open-sesame@far/a")
    assert "open-sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sftp://",
        "sftp://far",
        "sftp://far/",
        "sftp://far:x/a",
        "gopher://x/y",
        "file://host/path",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=url):
        spec_of(url)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="kind 'tape'"):
        open_tier({"kind": "tape", "name": "a", "level": 4})


@pytest.mark.parametrize(
    "url",
    [
        "https://me:open-sesame@far/a",
        "https://far/a?token=open-sesame",
        "sftp://far/a?password=open-sesame",
        "peer://me:open-sesame@far:1",
    ],
)
def test_what_may_be_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "open-sesame" not in f"{caught.value!r}"


def test_an_address_of_no_possible_tier_is_a_matter_of_configuration() -> None:
    with pytest.raises(ConfigError, match=r"shm://h\?capacity=1KiB: there can be no such tier"):
        model_at("shm://h?capacity=1KiB", name="store", level=3)


def test_the_key_of_an_sftp_tier_is_below_the_folder_of_the_site(tmp_path: Path) -> None:
    spec = {"kind": "sftp", "name": "far", "level": 4, "host": "h", "path": "p"}
    model = tier_model(spec | {"key_file": "key", "identity": "id"}).below(tmp_path)
    assert model.spec["key_file"] == str(tmp_path / "key")
    assert model.spec["identity"] == str(tmp_path / "id")
