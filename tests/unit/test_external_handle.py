"""What the function of an app is told, and that a code never starts from zero by oversight."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.workflow.external import CodeTask


def task(name: str | None = "r.40", template: str | None = None) -> CodeTask:
    return CodeTask(
        run="exp",
        task="sim",
        attempt=2,
        folder=Path("/w it/sim"),
        name=name,
        step=None if name is None else 40,
        template=template,
    )


def test_the_argument_has_the_path_for_the_shell() -> None:
    assert task().restart_arg("-r {path}") == "-r '/w it/sim/r.40'"
    assert task().restart_arg("-f {name} -s {step}") == "-f r.40 -s 40"
    assert task(template="--go {name}").restart_arg() == "--go r.40"
    assert task().restart == "/w it/sim/r.40"


def test_at_the_beginning_there_is_no_argument() -> None:
    first = task(None, "-r {path}")
    assert first.restart_arg() == ""
    assert first.restart is None
    assert first.step is None
    assert set(first.variables(None).values()) == {""}


def test_the_command_finds_the_same_in_its_environment() -> None:
    assert task(template="-r {path}").variables("EXIT") == {
        "CKPTFLOW_RESTART": "/w it/sim/r.40",
        "CKPTFLOW_RESTART_ARG": "-r '/w it/sim/r.40'",
        "CKPTFLOW_STEP": "40",
        "CKPTFLOW_STOP_FILE": "/w it/sim/EXIT",
    }


def test_a_template_is_needed_and_checked() -> None:
    with pytest.raises(ConfigError, match="needs a template"):
        task().restart_arg()
    with pytest.raises(ConfigError, match=r"there is \{name\}"):
        task().restart_arg("{0}")


def test_a_command_that_would_start_from_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"restart file r\.40 of step 40.*start from zero"):
        task().check_used("sim.x -in deck")
    task(None).check_used("sim.x -in deck")  # It begins there.


@pytest.mark.parametrize(
    "command", ["sim.x -r r.40", "sim.x $CKPTFLOW_RESTART_ARG", 'sim.x -r "$CKPTFLOW_RESTART"']
)
def test_a_command_that_names_the_file_is_taken_at_its_word(command: str) -> None:
    task().check_used(command)


def test_whoever_asked_is_taken_at_their_word() -> None:
    for ask in (lambda one: one.restart, lambda one: one.restart_arg("{path}")):
        one = task()
        ask(one)
        one.check_used("sim.x")
    task(template="").check_used("sim.x")  # It finds its file by itself.
