"""Addresses of object stores, and where endpoint and credentials are taken from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.tiers.objectstore import ObjectStoreTier
from ckptflow.tiers.objectstore_opening import open_bucket, parse_address
from ckptflow.tiers.opening import open_tier, spec_of


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://my.bucket-1/a/b/", "gs://my.bucket-1/a/b"),
        ("az://container/prefix", "az://container/prefix"),
    ],
)
def test_an_address_is_read(url: str, shown: str) -> None:
    assert str(parse_address(url)) == shown
    assert spec_of(url) == {"kind": "object", "name": "store", "level": 4, "url": shown}


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///key",
        "s3://UPPER/x",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://b/x y",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write s3://bucket/prefix|is not a key"):
        parse_address(url)


@pytest.mark.parametrize("url", ["s3://me:s3cr3t@bucket/x", "az://c/x?sig=s3cr3t"])
def test_a_password_in_an_address_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="credentials and endpoint come from") as caught:
        spec_of(url)
    assert "s3cr3t" not in str(caught.value)


def keys_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")


def test_nothing_secret_is_in_spec_or_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    keys_in_environment(monkeypatch)
    tier = open_tier(spec_of("s3://bucket/prefix"))
    for text in (repr(tier), str(tier.spec)):
        assert "s3cr3t" not in text
        assert "AKIAEXAMPLE" not in text
    assert open_tier(tier.spec).spec == tier.spec


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
@pytest.mark.parametrize("without_boto3", [False, True])
def test_the_endpoint_of_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch, *, without_boto3: bool
) -> None:
    keys_in_environment(monkeypatch)
    monkeypatch.setenv(name, "http://storage.example:9000")
    if without_boto3:
        monkeypatch.setitem(sys.modules, "botocore.session", None)
    bucket = open_bucket(parse_address("s3://bucket"), endpoint=None, profile=None)
    assert bucket.store.config["endpoint_url_s3"] == "http://storage.example:9000"
    assert str(bucket.store.client_options["allow_http"]).lower() == "true"
    assert not bucket.sorts


def test_an_endpoint_of_the_site_file_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keys_in_environment(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://other.example")
    tier = ObjectStoreTier("s3://bucket", endpoint="https://mine.example")
    assert tier.spec["endpoint"] == "https://mine.example"
    bucket = open_bucket(
        parse_address("s3://bucket"), endpoint="https://mine.example", profile=None
    )
    assert bucket.store.config["endpoint_url_s3"] == "https://mine.example"
    assert str(bucket.store.client_options["allow_http"]).lower() == "false"


def test_amazon_s_own_sorts_but_for_directory_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    keys_in_environment(monkeypatch)
    usual, express = (
        open_bucket(parse_address(f"s3://{name}"), endpoint=None, profile=None)
        for name in ("bucket", "bucket--use1-az4--x-s3")
    )
    assert (usual.sorts, usual.sorts_folders) == (True, True)
    assert (express.sorts, express.sorts_folders) == (False, False)


def test_google_and_azure_open_from_their_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "czNjcjN0")
    assert "czNjcjN0" not in repr(open_tier(spec_of("az://container/prefix")))
    assert repr(open_tier(spec_of("gs://bucket"))).count("gs://bucket") == 1


def test_what_the_environment_says_may_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="az://container cannot be opened"):
        open_tier(spec_of("az://container"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(ConfigError, match="gs://bucket cannot be opened"):
        open_tier(spec_of("gs://bucket"))
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(ConfigError, match=r"profile .missing. could not be found|profile"):
        open_tier(spec_of("s3://bucket"))


def test_endpoint_and_profile_are_for_s3() -> None:
    with pytest.raises(ConfigError, match="for s3:// only"):
        open_tier(spec_of("gs://bucket") | {"profile": "site"})


@pytest.mark.parametrize("endpoint", ["https://me:s3cr3t@host", "host:9000", "https://h?x=1"])
def test_an_endpoint_has_no_password(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="without a password") as caught:
        open_tier(spec_of("s3://bucket") | {"endpoint": endpoint})
    assert "s3cr3t" not in str(caught.value)


def test_without_obstore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(ConfigError, match=r"pip install 'ckptflow\[s3\]'"):
        open_tier(spec_of("s3://bucket"))
