"""Secrets are known by their names, and shown nowhere."""

from __future__ import annotations

import pytest

from ckptflow.tiers.secrets import blot_out, names_secret, secrets_in


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "secret",
        "client_secret",
        "token",
        "sas_token",
        "account_key",
        "key",
        "api-key",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", ["host", "user", "anon", "keyboard", "monkey", "endpoint_url"])
def test_names_of_other_things(name: str) -> None:
    assert not names_secret(name)


def test_secrets_are_found_however_deep() -> None:
    options = {
        "key": "AKIA1234",
        "client_kwargs": {"aws_secret_access_key": ["deep-secret"], "region_name": "here"},
        "token": {"refresh": "inside-a-token"},
        "password": "abc",  # So short that it would blot out half of every message.
    }
    assert secrets_in(options) == {"AKIA1234", "deep-secret", "inside-a-token"}


def test_secrets_in_addresses_are_known() -> None:
    assert blot_out("ftp://me:a%40b%2Fc@host", secrets_in({"password": "a@b/c"})) == (
        "ftp://me:***@host"
    )


def test_what_is_blotted_out() -> None:
    secrets = frozenset({"open", "open sesame"})
    assert blot_out("he said: open sesame", secrets) == "he said: ***"
