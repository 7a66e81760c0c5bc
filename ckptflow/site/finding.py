"""Find a site file, read it, and say on which line of it something is wrong.

``tests/unit/test_site.py``.
"""

from __future__ import annotations

import os
import re
import sysconfig
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ckptflow.errors import ConfigError

SITES_VARIABLE = "CKPTFLOW_SITES"
_SHIPPED = "site_configs"


def find_site(name_or_path: str | Path) -> Path:
    """Return the file of a site.

    Raises:
        ConfigError: there is none; the message says where it was looked for, and what is there.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path.absolute()
        raise ConfigError(f"There is no site file {path}.")
    folders = site_folders()
    for folder in folders:
        if (folder / f"{path}.toml").is_file():
            return folder / f"{path}.toml"
    known = sorted({file.stem for folder in folders for file in folder.glob("*.toml")})
    raise ConfigError(
        f"There is no site {str(name_or_path)!r}. Known: {', '.join(known) or 'none'}. "
        f"Looked in: {', '.join(map(str, folders))}."
    )


def site_folders() -> list[Path]:
    """Return the folders in which site names are looked up, in that order."""
    extra = os.environ.get(SITES_VARIABLE, "").split(os.pathsep)
    return [
        Path(_SHIPPED).absolute(),
        *(Path(folder).expanduser() for folder in extra if folder),
        Path(__file__).resolve().parents[2] / _SHIPPED,
        Path(sysconfig.get_path("data")) / "share" / "ckptflow" / _SHIPPED,
    ]


def read_site(path: Path, *, what: str = "site file") -> str:
    """Return the text of a site file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {what} {path}: {error}.") from error


def parse(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(place[1]) if place else len(text.splitlines())
        raise ConfigError(f"{source}:{line}: not TOML: {error}.") from None


def explain(error: ValidationError, place_of: Callable[[tuple[str | int, ...]], object]) -> str:
    """Say what pydantic has against a site.

    Args:
        error: all that is wrong.
        place_of: returns where a value stands, such as file and line.
    """
    lines = []
    for problem in error.errors(include_url=False):
        where = _without_tags(problem["loc"])
        message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
        if problem["type"] == "extra_forbidden":
            message = "unknown key"
        elif problem["type"] == "union_tag_invalid":
            context = problem["ctx"]
            where = (*where, context["discriminator"].strip("'"))
            message = f"there is no {context['tag']!r}; there is {context['expected_tags']}"
        dotted = ".".join(map(str, where)) or "site"
        lines.append(f"{place_of(where)}: {dotted}: {message}.")
    return "\n".join(dict.fromkeys(lines))


def _without_tags(where: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Leave out the kind of a tier or an allocation, which pydantic puts behind its place."""
    match where:
        case ("tiers", int(number), str(), *rest):
            return ("tiers", number, *rest)
        case ("executor", "allocation", str(), *rest):
            return ("executor", "allocation", *rest)
    return where


_PART = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_DOTTED = rf"({_PART}(?:\s*\.\s*{_PART})*)"
_HEADER = re.compile(rf"\s*(\[\[?)\s*{_DOTTED}\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(rf"\s*{_DOTTED}\s*=")


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


def line_of(text: str, where: Sequence[str | int]) -> int | None:
    """Return the line, from 1, on which the value at ``where`` stands in a TOML text.

    ``tomllib`` does not tell, so this looks for the header of the table and the key below it.
    For a key that is not there, or in an inline table, it is the nearest line above.
    """
    table: tuple[str | int, ...] = ()
    seen: dict[tuple[str, ...], int] = {}
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        here: tuple[str | int, ...] | None = None
        if header := _HEADER.fullmatch(line):
            name = _parts(header[2])
            table = name
            if header[1] == "[[":
                seen[name] = seen.get(name, -1) + 1
                table = (*table, seen[name])
            here = table
        elif key := _KEY.match(line):
            here = (*table, *_parts(key[1]))
        if here is None or tuple(where[: len(here)]) != here:
            continue
        if best is None or len(here) > best[0]:
            best = (len(here), number)
    return best[1] if best else None
