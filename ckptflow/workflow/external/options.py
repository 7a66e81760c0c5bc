"""What a bash app may say of a code that writes restart files of its own.

``tests/unit/test_external_options.py``.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from ckptflow.errors import ConfigError
from ckptflow.workflow.external.names import (
    Watched,
    checked_name,
    has_step_field,
    is_glob,
    parse_watch,
)

_TEMPLATE_FIELDS = frozenset({"path", "name", "step"})
_FOLDER_FIELDS = frozenset({"run", "task"})
_SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP")


class CodeOptions(TypedDict, total=False):
    """What a bash app may say of files that its command writes by itself.

    Attributes:
        watch: which files are restart files: ``"restart.*"``, ``"state.cpt"``.
        with_files: what belongs to a checkpoint besides: logs and trajectories that the code
            appends to, parts with ``{step}`` in their names, patterns.
        restart_arg: what the command gets to go on, as ``"-r {path}"``.
        stop_file: the code ends in good order when a file of this name appears.
        stop_signal: or when it gets this signal: ``"USR1"``, ``"TERM"``, ...
        grace_s: how long that may take; then it is killed.
        valid: a command that ends with 0 if a restart file is sound: ``"gmx check -f {path}"``.
        valid_s: how long that may take.
        ends_with: the last bytes of every complete restart file.
        stable_s: how long a file has to stay as it is before it counts as written.
        tidy: how many restart files to leave in the folder when newer ones are safe; all if
            not given.
        folder: where the task works, with ``{run}``, ``{task}`` and ``$VARIABLES``; below
            the folder of the run if not given.
    """

    watch: str
    with_files: Sequence[str]
    restart_arg: str
    stop_file: str | None
    stop_signal: str | None
    grace_s: float
    valid: str | None
    valid_s: float
    ends_with: bytes
    stable_s: float
    tidy: int | None
    folder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The options of a code, checked; see `CodeOptions`.

    Attributes:
        is_thinned: whether the app says with ``every=`` which files are worth taking in.
        work: where the folders of the tasks of the run are; set by the run.
    """

    watch: str
    with_files: tuple[str, ...] = ()
    restart_arg: str | None = None
    stop_file: str | None = None
    stop_signal: str | None = None
    grace_s: float = 30.0
    valid: str | None = None
    valid_s: float = 60.0
    ends_with: bytes = b""
    stable_s: float = 1.0
    tidy: int | None = None
    folder: str | None = None
    is_thinned: bool = False
    work: str = ""

    @property
    def watched(self) -> Watched:
        """Which names are those of restart files."""
        return parse_watch(self.watch)

    @property
    def is_checked(self) -> bool:
        """Whether a file itself can show that it is complete."""
        return bool(self.valid or self.ends_with)

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a way to ask the code to end."""
        return bool(self.stop_file or self.stop_signal)


def parse_code(options: Mapping[str, Any], *, every: object = None) -> Code | None:
    """Return the options of a code among those of an app, or ``None`` without ``watch=``.

    Args:
        options: of the app, those of others among them.
        every: when to take a file in, if the app says so.

    Raises:
        ConfigError: one makes no sense, or needs ``watch=``.
    """
    names = {field.name for field in fields(Code)} - {"is_thinned", "work"}
    given = {name: value for name, value in options.items() if name in names}
    if not given:
        return None
    if not isinstance(given.get("watch"), str):
        raise ConfigError(
            f"{min(given)}= is about restart files that a code writes; say which they "
            f"are by watch='restart.*'."
        )
    with_files = given.get("with_files", ())
    if isinstance(with_files, str):
        raise ConfigError(f"with_files= is a tuple of names, not the text {with_files!r}.")
    code = Code(**{**given, "with_files": tuple(with_files)}, is_thinned=every is not None)
    _check_names(code)
    _check_texts(code)
    _check_numbers(code)
    return code


def _check_names(code: Code) -> None:
    watched = code.watched
    for name in code.with_files:
        checked_name(name, "with_files=")
        if has_step_field(name) and not watched.has_step:
            raise ConfigError(
                f"with_files= has {name!r}, but watch={code.watch!r} does not tell the step."
            )
        if has_step_field(name) and is_glob(name):
            raise ConfigError(
                f"with_files= has {name!r}: how many files a step has is known only without a "
                f"star. Name each of them."
            )
    if len(set(code.with_files)) < len(code.with_files):
        raise ConfigError(f"with_files={code.with_files!r} names a file twice.")
    if code.stop_file is not None:
        checked_name(code.stop_file, "stop_file=")
        if watched.step_of(code.stop_file) is not None or code.stop_file in code.with_files:
            raise ConfigError(f"stop_file={code.stop_file!r} is also a file to take in.")


def _check_texts(code: Code) -> None:
    for option, text, known in (
        ("restart_arg", code.restart_arg, _TEMPLATE_FIELDS),
        ("valid", code.valid, _TEMPLATE_FIELDS),
        ("folder", code.folder, _FOLDER_FIELDS),
    ):
        if text is not None:
            check_template(option, text, known)
    if code.valid is not None and not ("{path}" in code.valid or "{name}" in code.valid):
        raise ConfigError(f"valid={code.valid!r} looks at no file; write {{path}} in it.")
    if code.stop_signal is not None and code.stop_signal not in _SIGNALS:
        raise ConfigError(f"stop_signal={code.stop_signal!r} is none of {', '.join(_SIGNALS)}.")
    if not isinstance(code.ends_with, bytes):
        raise ConfigError(f"ends_with= is bytes, as b'END\\n', not {code.ends_with!r}.")


def _check_numbers(code: Code) -> None:
    for option, value in (
        ("grace_s", code.grace_s),
        ("valid_s", code.valid_s),
        ("stable_s", code.stable_s),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{option}={value!r} is no number of seconds.")
        if value < 0 or not math.isfinite(value):
            raise ConfigError(f"{option}={value!r} is no number of seconds from 0 up.")
    if code.tidy is not None and (
        isinstance(code.tidy, bool) or not isinstance(code.tidy, int) or code.tidy < 1
    ):
        raise ConfigError(f"tidy={code.tidy!r}: at least 1 restart file stays, or None: all.")


def check_template(option: str, text: str, known: frozenset[str] = _TEMPLATE_FIELDS) -> None:
    """Check the fields in braces of a text that is filled in later.

    Raises:
        ConfigError: there is one that nobody fills in, or a brace alone.
    """
    try:
        named = {
            field for _, field, _, _ in string.Formatter().parse(text) if field is not None
        }
    except ValueError as error:
        raise ConfigError(f"{option}={text!r}: {error}.") from error
    if unknown := sorted(named - known):
        fields_text = ", ".join(f"{{{name}}}" for name in sorted(known))
        raise ConfigError(f"{option}={text!r} has {{{unknown[0]}}}; there is {fields_text}.")
