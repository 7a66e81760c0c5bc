"""Names of restart files: which files of a folder are meant, and of which step each is.

    restart.*                       the digits at the star are the step
    ck.(?P<step>[0-9]+).rst         a regular expression, with a group called step
    state.cpt                       one file, written again and again; its states are counted

A folder may stand before the name. Names are relative to the task's folder and never lead out
of it, wherever they come from: the decorator, the folder, or a checkpoint of somebody else.
``tests/unit/test_external_names.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ckptflow.errors import ConfigError
from ckptflow.model import STEP_MAX

STEP_FIELD = "{step}"
_GROUP = "(?P<step>"
_GLOB = frozenset("*?[")
_DIGITS_MAX = 18  # A longer number is no step; int() of a hostile one takes for ever.


@dataclass(frozen=True, slots=True)
class Watched:
    """Which names are those of restart files.

    Attributes:
        text: as it was given.
        folder: the part before the name, relative to the task's folder; ``""``: that itself.
        regex: what a name has to match as a whole.
        has_step: whether names say the step.
    """

    text: str
    folder: str
    regex: re.Pattern[str]
    has_step: bool

    def step_of(self, name: str) -> int | None:
        """Return the step that a name tells; 0 if such names tell none, ``None`` for others.

        Args:
            name: the name alone, without a folder.
        """
        found = self.regex.fullmatch(name)
        if found is None:
            return None
        if not self.has_step:
            return 0
        digits = found["step"] or ""
        if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
            return None
        step = int(digits)
        return step if step <= STEP_MAX else None

    def path_of(self, name: str) -> str:
        """Return the path of a file of that name, relative to the task's folder."""
        return f"{self.folder}/{name}" if self.folder else name

    def is_near(self, name: str) -> bool:
        """Tell whether a name would be meant if it had a number where it has something else."""
        if self.has_step and _GROUP not in self.text and self.step_of(name) is None:
            before, after = self.text.rpartition("/")[2].split("*")
            return name.startswith(before) and name.endswith(after) and name != before + after
        return False


def parse_watch(text: str) -> Watched:
    """Return what ``watch=`` means.

    Raises:
        ConfigError: it is no name, or no regular expression, or leads out of the folder.
    """
    folder, _, name = text.rpartition("/")
    if _GROUP in text:
        at = text.index(_GROUP)
        folder, _, _ = text[:at].rpartition("/")
        name = text[len(folder) + 1 if folder else 0 :]
    if not name or any(char in folder for char in _GLOB):
        raise ConfigError(f"watch={text!r} names no files; see the guide on external codes.")
    if folder:
        checked_name(folder, "watch=")
    if _GROUP in name:
        try:
            return Watched(text, folder, re.compile(name), has_step=True)
        except re.error as error:
            raise ConfigError(f"watch={text!r} is no regular expression: {error}.") from error
    if name.count("*") > 1 or "?" in name or "[" in name:
        raise ConfigError(
            f"watch={text!r} does not say where the step is: write one star, as in "
            f"'restart.*', or a regular expression with a group (?P<step>[0-9]+)."
        )
    checked_name(name.replace("*", "0"), "watch=")
    before, star, after = name.partition("*")
    number = "(?P<step>[0-9]+)" if star else ""
    regex = re.compile(re.escape(before) + number + re.escape(after))
    return Watched(text, folder, regex, has_step=bool(star))


def checked_name(name: str, what: str) -> str:
    """Return a path that stays within the task's folder.

    Raises:
        ConfigError: it does not.
    """
    path = PurePosixPath(name)
    if (
        not name
        or path.is_absolute()
        or ".." in path.parts
        or not path.parts
        or "\0" in name
        or name.endswith("/")
        or str(path) != name
    ):
        raise ConfigError(f"{what} {name!r} is no path of a file within the task's folder.")
    return name


def is_glob(name: str) -> bool:
    """Tell whether a name stands for all files that match it."""
    return any(char in name for char in _GLOB)


def has_step_field(name: str) -> bool:
    """Tell whether a name says the step as ``{step}``: such a file is written once."""
    return STEP_FIELD in name


def with_step(name: str, digits: str) -> str:
    """Return the name of a file of a step, whose digits are written as in the restart file."""
    return name.replace(STEP_FIELD, digits)


def digits_of(watched: Watched, name: str) -> str:
    """Return the digits of the step as a file name writes them, ``""`` if it has none."""
    found = watched.regex.fullmatch(name) if watched.has_step else None
    return "" if found is None else found["step"]
