"""What goes where: results to stdout, everything else to stderr, bugs with a traceback."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import ckptflow
from ckptflow.cli import app, output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.errors import RestoreError


@pytest.fixture
def small() -> typer.Typer:
    """Commands that fail in several ways."""
    made = typer.Typer(pretty_exceptions_enable=False)

    @made.command()
    @output.reports_errors
    def lost(*, json_output: output.JsonOption = False) -> None:
        error = RestoreError("none could be restored")
        error.add_note("step 3 [damaged]: it is cut short")
        raise error

    @made.command()
    @output.reports_errors
    def bug() -> None:
        raise ZeroDivisionError("a bug")

    @made.command()
    @output.reports_errors
    def fine(*, json_output: output.JsonOption = False) -> ExitCode:
        output.note("[by the way]")
        output.show({"x": 1}, lambda console: console.print("[x] is 1"), as_json=json_output)
        return ExitCode.FAILED

    return made


def test_an_error_is_one_line_with_its_notes_below(small: typer.Typer) -> None:
    result = CliRunner().invoke(small, ["lost"])
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr == (
        "error (restore) none could be restored\n  step 3 [damaged]: it is cut short\n"
    )


def test_an_error_as_json(small: typer.Typer) -> None:
    result = CliRunner().invoke(small, ["lost", "--json"])
    assert json.loads(result.stdout) == {
        "error": {
            "kind": "restore",
            "message": "none could be restored",
            "notes": ["step 3 [damaged]: it is cut short"],
            "exit_code": 4,
        }
    }


def test_a_bug_keeps_its_traceback(small: typer.Typer) -> None:
    result = CliRunner().invoke(small, ["bug"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.exit_code == 1


def test_results_and_notes_are_kept_apart(small: typer.Typer) -> None:
    result = CliRunner().invoke(small, ["fine"])
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "[x] is 1\n",
        "note [by the way]\n",
    )
    result = CliRunner().invoke(small, ["fine", "--json"])
    assert json.loads(result.stdout) == {"x": 1}


def test_nothing_is_wrapped_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = output.table("A", "B")
    output.add_row(table, ["x" * 300, "y"])
    output.add_row(table, ["x", "y" * 300])
    output.show(None, lambda console: console.print(table), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert [line for line in lines if line.endswith(" ")] == []


@dataclass
class Sample:
    path: Path
    data: bytes


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Sample(Path("a/b"), b"\x01\xff"), {"path": "a/b", "data": "01ff"}),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float64(2.5), 2.5),
        (np.int32(3), "np.int32(3)"),
        (ExitCode.FAILED, 1),
        ({1: (True, None)}, {"1": [True, None]}),
        ({3, 1}, [1, 3]),
        (2 + 1j, "(2+1j)"),
    ],
)
def test_plain(value: object, expected: object) -> None:
    assert output.plain(value) == expected
    json.dumps(output.plain(value), allow_nan=False)


def test_version_and_help() -> None:
    version = CliRunner().invoke(app, ["--version"])
    assert version.stdout == f"ckptflow {ckptflow.__version__}\n"
    for command in ("", *(str(command.name) for command in app.registered_commands)):
        result = CliRunner().invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0
        assert "Usage:" in result.stdout


def test_every_command_can_print_json() -> None:
    for command in app.registered_commands:
        result = CliRunner().invoke(app, [str(command.name), "--help"])
        assert "--json" in result.stdout
