"""Who we are to Globus comes from the environment; nobody is asked anything in a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.errors import TierDenied
from ckptflow.tiers.globus import GlobusTier
from ckptflow.tiers.globus_auth import transfer_client
from ckptflow.tiers.globus_carrier import GlobusPlaces

APPLICATION = "00000000-0000-0000-0000-00000000000a"


def test_an_application_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOBUS_CLIENT_ID", raising=False)
    with pytest.raises(TierDenied, match="set GLOBUS_CLIENT_ID"):
        transfer_client(())


def test_who_has_not_logged_in_is_told_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLOBUS_CLIENT_ID", APPLICATION)
    monkeypatch.delenv("GLOBUS_CLIENT_SECRET", raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a process was asked"))
    places = GlobusPlaces(APPLICATION, "/store", APPLICATION, tmp_path / "staging", "/staging")
    with pytest.raises(TierDenied, match=r"(?s)logged in.*log_in\(\)"):
        GlobusTier(places).put("key", [b"value"])


def test_an_application_that_acts_for_itself_needs_no_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOBUS_CLIENT_ID", APPLICATION)
    monkeypatch.setenv("GLOBUS_CLIENT_SECRET", "open-sesame")
    client = transfer_client([APPLICATION])
    assert "open-sesame" not in repr(client)
