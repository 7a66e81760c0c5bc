"""What a bash app may say of its code, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

import ckptflow as cf
from ckptflow.errors import ConfigError
from ckptflow.workflow.external import parse_code


def test_without_watch_there_is_no_code() -> None:
    assert parse_code({"every": 3, "key": ()}) is None


def test_every_thins_out() -> None:
    assert parse_code({"watch": "r.*"}, every="60s").is_thinned  # type: ignore[union-attr]
    assert not parse_code({"watch": "r.*"}).is_thinned  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_file": "EXIT"}, "stop_file= is about restart files"),
        ({"watch": None}, "say which they are"),
        ({"with_files": "log"}, "with_files= is a tuple"),
        ({"with_files": ("../log",)}, "no path of a file within"),
        ({"with_files": ("log", "log")}, "twice"),
        ({"with_files": ("r.{step}.*",)}, "Name each of them"),
        ({"watch": "state", "with_files": ("p.{step}",)}, "does not tell the step"),
        ({"stop_file": "/EXIT"}, "no path of a file within"),
        ({"stop_file": "r.5"}, "also a file to take in"),
        ({"restart_arg": "-r {file}"}, r"\{file\}; there is \{name\}, \{path\}, \{step\}"),
        ({"restart_arg": "-r {path"}, "restart_arg="),
        ({"valid": "check"}, "looks at no file"),
        ({"folder": "{user}"}, r"there is \{run\}, \{task\}"),
        ({"stop_signal": "KILL"}, "none of USR1"),
        ({"ends_with": "END"}, "is bytes"),
        ({"grace_s": -1}, "from 0 up"),
        ({"stable_s": float("inf")}, "from 0 up"),
        ({"valid_s": "5s"}, "no number of seconds"),
        ({"tidy": 0}, "at least 1"),
        ({"tidy": True}, "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    chosen = options if "stop_file" in options and len(options) == 1 else None
    given = options if chosen == {"stop_file": "EXIT"} else {"watch": "r.*", **options}
    with pytest.raises(ConfigError, match=message):
        parse_code(given)


def test_only_bash_apps_have_codes() -> None:
    with pytest.raises(TypeError, match="has no watch="):

        @cf.python_app(watch="r.*")  # type: ignore[call-overload]
        def python(ckpt: Any) -> None: ...


def test_the_function_needs_the_parameter() -> None:
    with pytest.raises(ConfigError, match="needs a parameter 'ckpt'"):

        @cf.bash_app(watch="r.*")
        def bash(deck: str) -> str:
            return deck
