"""Remote tiers in site files: what a site may say, and that secrets are not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.site import load_site
from ckptflow.tiers.filesystem import FilesystemTier
from ckptflow.tiers.globus import GlobusTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.sftp import SftpTier

SITE = """\
[[tiers]]
kind = "posix"
name = "disk"
path = "store"
level = 3

[[tiers]]
kind = "fsspec"
name = "memory"
level = 4
address = "memory://store"
options = {}

[[tiers]]
kind = "sftp"
name = "archive"
level = 4
host = "archive.example.org"
path = "/data/me"
identity = "keys/archive"
timeout = "1min"

[[tiers]]
kind = "globus"
name = "site"
level = 4
collection = "6c54cade-bde5-45c1-bdea-f4bd71dba2cc"
path = "/~/checkpoints"
staging_collection = "31ce9ba0-176d-45a5-add3-f37d233ba47d"
staging = "staging"
staging_path = "/me/staging"
deadline = "30min"
cache = "1 GiB"
"""


def write(text: str) -> Path:
    path = Path("cluster.toml").absolute()
    path.write_text(text)
    return path


def test_a_site_with_all_of_them() -> None:
    site = load_site(write(SITE))
    tiers = site.open_tiers()
    assert [type(tier) for tier in tiers] == [PosixTier, FilesystemTier, SftpTier, GlobusTier]
    assert [tier.can_create for tier in tiers] == [True, False, True, False]
    _, _, sftp, globus = (tier.below(Path("/base")).spec for tier in site.tiers)
    assert sftp["identity"] == "/base/keys/archive"
    assert sftp["timeout_s"] == 60.0
    assert globus["staging"] == "/base/staging"
    assert (globus["deadline_s"], globus["cache_bytes"]) == (1800.0, 1 << 30)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("options = {}", 'options = { password = "open-sesame" }', "'password' would hold"),
        ('"memory://store"', '"ftp://me:open-sesame@host/a"', "has a password in it"),
        ('"memory://store"', '"open-sesame"', "address"),
        ('"archive.example.org"', '"me:open-sesame@far"', "host"),
        ('"6c54cade-bde5-45c1-bdea-f4bd71dba2cc"', '"open-sesame"', "collection"),
        ('path = "/data/me"', 'path = "/data/me"\npassword = "open-sesame"', "unknown key"),
    ],
)
def test_what_a_site_may_not_say(old: str, new: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        load_site(write(SITE.replace(old, new)))
    if "password" in new or "@" in new:
        assert "open-sesame" not in str(caught.value)
