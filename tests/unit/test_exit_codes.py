"""One table of exit codes: every error has one, and the page says the same."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from ckptflow import errors
from ckptflow.cli.exit_codes import MEANING, OF_ERROR, ExitCode, exit_code
from ckptflow.workflow import summary

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.CheckpointError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_ends_with_a_code_that_is_no_success(
    kind: type[errors.CheckpointError],
) -> None:
    assert exit_code(kind("what happened")) not in (ExitCode.OK, ExitCode.INTERRUPTED)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.StateError, ExitCode.USAGE),
        (errors.TierFull, ExitCode.STORAGE),
        (errors.AlreadyExists, ExitCode.STORAGE),
        (errors.Preempted, ExitCode.UNFINISHED),
        (errors.RemoteTaskError, ExitCode.FAILED),
        (errors.RunLocked, ExitCode.TAKEN),
    ],
)
def test_subclasses_go_with_their_parents_unless_they_have_a_line(
    kind: type[errors.CheckpointError], code: ExitCode
) -> None:
    assert exit_code(kind("what happened")) is code


def test_an_error_of_the_user_s_own_goes_with_its_parent() -> None:
    class MeshError(errors.CorruptionError):
        pass

    assert exit_code(MeshError("mesh")) is ExitCode.DAMAGED


def test_a_run_speaks_of_itself_in_the_same_codes() -> None:
    assert [summary.OK, summary.TASK_FAILED, summary.SAVE_FAILED, summary.UNFINISHED] == [
        ExitCode.OK,
        ExitCode.FAILED,
        ExitCode.STORAGE,
        ExitCode.UNFINISHED,
    ]


def test_the_page_has_the_same_table(repository: Path) -> None:
    text = (repository / "docs" / "reference" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+?) \|(.*?)\|$", text, flags=re.MULTILINE)
    classes = {
        code: {kind.__name__ for kind, to in OF_ERROR.items() if to is code}
        for code in ExitCode
    }
    assert {
        int(code): (meaning, set(re.findall(r"`(\w+)`", kinds)))
        for code, meaning, kinds in rows
    } == {int(code): (MEANING[code], classes[code]) for code in ExitCode}
