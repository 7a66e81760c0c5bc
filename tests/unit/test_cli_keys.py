"""``ckptflow key``: a new key is private and never overwritten; its id can be asked for."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from ckptflow.cli import app
from ckptflow.tiers.storekey import StoreKey


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["key", *arguments])
    return result.exit_code, result.output


def test_a_new_key_is_private_and_usable() -> None:
    code, text = call("new", "folder/key", "--json")
    path = Path("folder/key")
    assert code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    key = StoreKey.from_file(path)
    assert json.loads(text) == {"path": str(path.absolute()), "key": key.key_id}
    assert path.read_text().strip() not in text
    assert call("id", "folder/key") == (0, f"key {key.key_id} in {path.absolute()}\n")


def test_two_keys_differ() -> None:
    call("new", "a")
    call("new", "b")
    assert Path("a").read_text() != Path("b").read_text()


def test_a_key_is_never_overwritten() -> None:
    call("new", "a")
    before = Path("a").read_text()
    code, text = call("new", "a")
    assert code == 2
    assert "cannot be made" in text
    assert Path("a").read_text() == before


def test_what_holds_no_key_is_said() -> None:
    Path("a").write_text("nothing")
    Path("a").chmod(0o600)
    code, text = call("id", "a")
    assert code == 2
    assert "holds no key" in text
