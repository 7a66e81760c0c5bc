"""How results leave: on stdout, as text or as one JSON document; all else goes to stderr.

With ``--json`` stdout holds exactly one document whatever happens; if the command fails it
is ``{"error": {…}}``. Numbers that JSON lacks are the strings ``"nan"``, ``"inf"``, ``"-inf"``.
``tests/unit/test_cli_output.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ckptflow.cli.exit_codes import exit_code
from ckptflow.errors import CheckpointError, RemoteTaskError

P = ParamSpec("P")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

_PIPE_COLUMNS = 10_000  # Nothing is cut or wrapped where no terminal limits the width.


def reports_errors(command: Callable[P, int | None]) -> Callable[P, None]:
    """Make a command of a function that returns an exit code, or ``None`` for success.

    A `CheckpointError` becomes one line on stderr, its notes below it, and its exit code. Any
    other exception is a bug, and keeps its traceback.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except CheckpointError as error:
            _report(error, as_json=bool(kwargs.get("json_output")))
            raise typer.Exit(int(exit_code(error))) from error
        raise typer.Exit(int(code or 0))

    return run


def show(document: Any, text: Callable[[Console], None], *, as_json: bool) -> None:
    """Print a result: ``document`` as JSON, or what ``text`` writes to a console.

    Where no terminal is, the blanks that fill the last column of a table are left out.
    """
    if as_json:
        sys.stdout.write(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")
    elif sys.stdout.isatty():
        text(_console(sys.stdout))
    else:
        written = io.StringIO()
        text(_console(written))
        lines = written.getvalue().splitlines(keepends=True)
        sys.stdout.writelines(re.sub(r" +(?=\n?$)", "", line) for line in lines)


def stderr() -> Console:
    """Return the console for progress and notes."""
    return _console(sys.stderr)


def note(text: str) -> None:
    """Tell the user something that is not part of the result."""
    stderr().print(Text.assemble(("note", "yellow"), f" {text}"))


def progress() -> Progress:
    """Return a progress bar on stderr, which is seen on a terminal only."""
    console = stderr()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def table(*columns: str, numbers: Sequence[str] = (), title: str | None = None) -> Table:
    """Return a table without lines, whose columns in ``numbers`` are aligned to the right."""
    made = Table(
        box=None, pad_edge=False, title=title, title_justify="left", header_style="bold"
    )
    for column in columns:
        right = column in numbers
        made.add_column(column, justify="right" if right else "left", no_wrap=right)
    return made


def add_row(into: Table, cells: Iterable[object], *, style: str | None = None) -> None:
    """Add a row; texts are taken as they are, brackets and all."""
    into.add_row(*(Text("" if cell is None else str(cell)) for cell in cells), style=style)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: dataclasses as objects, bytes as hex."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bool | int | str) or value is None:
        return int(value) if isinstance(value, int) and type(value) is not bool else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, AbstractSet):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return repr(value)


def _report(error: CheckpointError, *, as_json: bool) -> None:
    notes = [str(text) for text in getattr(error, "__notes__", ())]
    console = stderr()
    console.print(Text.assemble(("error", "bold red"), f" ({error.kind}) {error}"))
    for text in notes:
        console.print(Text(f"  {text}"))
    if isinstance(error, RemoteTaskError) and error.remote_traceback:
        console.print(Text(error.remote_traceback.rstrip()))
    if as_json:
        details = {
            "kind": error.kind,
            "message": str(error),
            "notes": notes,
            "exit_code": int(exit_code(error)),
        }
        sys.stdout.write(json.dumps({"error": details}, indent=2) + "\n")


def _console(file: Any) -> Console:
    width = None if file.isatty() else _PIPE_COLUMNS
    return Console(file=file, width=width, highlight=False, markup=False, soft_wrap=False)
