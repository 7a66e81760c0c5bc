"""Which sites there are, and how a user begins with one.

``tests/unit/test_site_catalogue.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.site import load_site, read_layers
from ckptflow.site.finding import find_site, parse, read_site, site_folders
from ckptflow.site.layers import user_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A site that can be named.

    Attributes:
        name: its name.
        description: one line, from its file.
        path: its file.
        provider: who gives the nodes.
        problem: why it cannot be used; empty if it can.
    """

    name: str
    description: str
    path: Path
    provider: str
    problem: str


def known_sites() -> list[Entry]:
    """Return the sites that can be named here, each as its name is looked up."""
    first: dict[str, Path] = {}
    for folder in site_folders():
        for path in sorted(folder.glob("*.toml")):
            first.setdefault(path.stem, path)
    return [_entry(name, path) for name, path in sorted(first.items())]


def _entry(name: str, path: Path) -> Entry:
    try:
        site = load_site(path, purpose="show")
    except ConfigError as error:
        return Entry(name, "", path, "", str(error).splitlines()[0])
    provider = (
        "threads" if site.executor.kind == "threads" else site.executor.allocation.provider
    )
    return Entry(name, site.description, path, provider, "")


def start_user_section(site: str, path: Path | None = None) -> Path:
    """Write what a user has to say of a site into a file of theirs, to be filled in.

    What stands there already stays.

    Args:
        site: name of the site.
        path: the file; the usual one if not given.

    Returns:
        the file.

    Raises:
        ConfigError: there is no such site, the file has a section of it, or cannot be written.
    """
    merged, _ = read_layers(site)
    name = str(merged.data["name"])
    path = (path or user_file()).expanduser()
    old = read_site(path, what="user's file") if path.exists() else ""
    if name in parse(old, str(path)):
        raise ConfigError(f"{path} has a section of {name!r} already; it was left as it is.")
    text = "\n".join(_section(name, merged.data))
    _write(path, ("\n" if old and not old.endswith("\n\n") else "") + text, new=not old)
    return path


def copy_site(name: str, source: str, folder: Path) -> Path:
    """Copy the file of a site, under another name, to be changed; return the new file.

    Raises:
        ConfigError: there is no such site, the name is none, or the new file exists.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a site: letters, digits, - and _ only.")
    text = read_site(find_site(source))
    renamed, count = re.subn(r'(?m)^name\s*=\s*"[^"]*"', f'name = "{name}"', text, count=1)
    path = folder / f"{name}.toml"
    if path.exists():
        raise ConfigError(f"{path} exists already; it was left as it is.")
    _write(path, renamed if count else f'name = "{name}"\n{text}', new=True)
    return path


def _section(name: str, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines: what is required, empty, and what else is often changed, as comments."""
    yield f"# {name}: {data.get('description', '')}".rstrip(": ")
    tables: dict[str, list[str]] = {}
    for key, what in data.get("required", {}).items():
        table, _, last = key.rpartition(".")
        tables.setdefault(table, []).append(f'{last} = ""  # {what}')
    executor = data.get("executor", {})
    tables.setdefault("executor", []).extend(
        f"# {key} = {_literal(executor[key])}"
        for key in ("walltime", "workers")
        if key in executor
    )
    tables["executor"].append('# worker_init = ""  # shell commands before workers start')
    allocation = executor.get("allocation", {})
    changed = ("partition", "queue", "qos", "nodes", "max_blocks")
    tables.setdefault("executor.allocation", []).extend(
        f"# {key} = {_literal(allocation[key])}" for key in changed if key in allocation
    )
    for table, lines in tables.items():
        if lines:
            yield f"[{'.'.join(_key(part) for part in (name, *table.split('.')))}]"
            yield from lines
            yield ""


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _key(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"'


def _write(path: Path, text: str, *, new: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if new else os.O_APPEND)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
