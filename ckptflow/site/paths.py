"""Paths with variables: ``$SCRATCH/ckptflow``, ``/tmp/${USER}``, ``~/store``.

What all nodes see is expanded where the workflow starts, and everybody gets the same path. A
path of the node itself is expanded there, where the allocation has set its own. A variable
that is not set is an error, and never an empty part of a path.
``tests/unit/test_site_paths.py``.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from ckptflow.errors import ConfigError

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def variables_in(path: Path) -> list[str]:
    """Return the names of the variables in a path."""
    return [braced or plain for braced, plain in _VARIABLE.findall(str(path))]


def expand(path: Path, environment: Mapping[str, str], *, what: str) -> Path:
    """Return ``path`` with its variables and its ``~`` replaced.

    Args:
        path: it may have none.
        environment: the variables.
        what: whose path it is, for messages.

    Raises:
        ConfigError: a variable is not set or empty, or what comes out is not absolute.
    """
    names = variables_in(path)
    if "USER" in names and not environment.get("USER"):
        environment = {**environment, "USER": getpass.getuser()}  # Not all daemons set it.
    unset = [name for name in names if not environment.get(name)]
    if unset:
        raise ConfigError(
            f"{what}: {str(path)!r} needs the environment variable {unset[0]}, which is not "
            f"set on {socket.gethostname()}. Set it, or give another path."
        )
    text = _VARIABLE.sub(lambda found: environment[found[1] or found[2]], str(path))
    expanded = Path(text).expanduser()
    if starts_itself(path) and not expanded.is_absolute():
        raise ConfigError(f"{what}: {str(path)!r} means {text!r} here, which is not absolute.")
    return expanded


def starts_itself(path: Path) -> bool:
    """Return whether a path says itself where it begins: it is not taken below a folder."""
    return str(path).startswith(("$", "~"))


def below(folder: Path, path: Path) -> Path:
    """Return a path taken below ``folder``, unless it says itself where it begins."""
    return path if starts_itself(path) else folder / path
