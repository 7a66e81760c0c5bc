"""Names of restart files: what they mean, and what they must not lead to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import ConfigError
from ckptflow.workflow.external.names import (
    checked_name,
    digits_of,
    parse_watch,
    with_step,
)


@pytest.mark.parametrize(
    ("watch", "name", "step"),
    [
        ("restart.*", "restart.100", 100),
        ("restart.*", "restart.000100", 100),
        ("restart.*", "restart.equil", None),
        ("restart.*", "restart.", None),
        ("restart.*", "restart.-5", None),
        ("restart.*", "restart.100.part", None),
        ("restart.*", "restart.\u0661\u0662", None),  # Digits, but not of a code.
        ("restart.*", "restart." + "9" * 5000, None),
        ("restart.*", f"restart.{10**12}", None),
        ("ck.*.rst", "ck.7.rst", 7),
        ("ck.*.rst", "ckx7.rst", None),
        (r"ck\.(?P<step>[0-9]+)(\.base)?", "ck.7.base", 7),
        (r"ck\.(?P<step>.*)", "ck.x", None),
        ("state.cpt", "state.cpt", 0),
        ("state.cpt", "state_prev.cpt", None),
    ],
)
def test_a_name_tells_its_step(watch: str, name: str, step: int | None) -> None:
    assert parse_watch(watch).step_of(name) == step


def test_a_folder_may_stand_before_the_name() -> None:
    watched = parse_watch("out/chk/restart.*")
    assert watched.folder == "out/chk"
    assert watched.path_of("restart.3") == "out/chk/restart.3"
    regular = parse_watch(r"out/ck_(?P<step>[0-9]+)/?")
    assert (regular.folder, regular.step_of("ck_12")) == ("out", 12)


@pytest.mark.parametrize(
    "watch",
    ["", "out/", "a.*.*", "a?.*", "[ab].*", "../restart.*", "/tmp/r.*", "o*t/r.*", "(?P<step>(",
     "a//b.*", "./r.*", "r\0.*"],
)  # fmt: skip
def test_a_pattern_that_means_nothing_or_leads_out_is_refused(watch: str) -> None:
    with pytest.raises(ConfigError, match="watch="):
        parse_watch(watch)


@given(st.text(alphabet="ab./\0*~\\", max_size=12))
def test_a_checked_name_never_leads_out(name: str) -> None:
    """Whatever is accepted is a plain path below the folder it is joined to."""
    try:
        checked_name(name, "x")
    except ConfigError:
        return
    parts = name.split("/")
    assert all(part not in {"", ".", ".."} for part in parts)
    assert "\0" not in name


def test_parts_have_the_digits_of_their_restart_file() -> None:
    watched = parse_watch("ck.*.rst")
    assert with_step("ck.{step}.1", digits_of(watched, "ck.0040.rst")) == "ck.0040.1"


def test_a_name_with_something_else_at_the_star_is_told_of() -> None:
    watched = parse_watch("restart.*")
    assert watched.is_near("restart.equil")
    assert not watched.is_near("restart.5")
    assert not watched.is_near("log")
