"""What a site is, layer upon layer: the site file, the user's own file, single settings.

The user's file has a section for each site, of the same form as a site file, and one called
``"*"`` for all. Tables are merged, everything else is replaced; a tier is named by its name:

    [perlmutter.executor.allocation]
    account = "m1234"

    [perlmutter.tiers.scratch]
    path = "/pscratch/sd/m/me/ckptflow"

It is remembered in which layer and on which line each value stands.
``tests/unit/test_site_layers.py``.
"""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.site.finding import line_of, parse, read_site

USER_VARIABLE = "CKPTFLOW_USER"
SET_VARIABLE = "CKPTFLOW_SET"
EVERY_SITE = "*"

Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value stands: a file and the line in it, or a setting."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        source: what it is called in messages.
        text: the file it is from, if it is from one.
        data: what it says.
        section: under which tables of the file that stands.
    """

    source: str
    text: str
    data: Mapping[str, Any]
    section: tuple[str, ...] = ()

    def origin(self, where: Where) -> Origin:
        """Return where the value at ``where`` stands in this layer."""
        return Origin(self.source, line_of(self.text, (*self.section, *where)))


@dataclass(slots=True)
class Merged:
    """What layers add up to.

    Attributes:
        data: the tables.
        origins: where each table was begun, and each value was said last.
    """

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Where, Origin] = field(default_factory=dict)

    def lay(self, layer: Layer) -> None:
        """Lay one more layer on top.

        Raises:
            ConfigError: it speaks of a tier by a number that there is not.
        """
        self._merge(self.data, layer.data, layer, (), ())

    def set(self, dotted: str, value: object, *, source: str) -> None:
        """Set the value at a dotted key; a tier is named by its name or its number.

        Raises:
            ConfigError: the key leads nowhere.
        """
        *parents, last = dotted.split(".")
        node: Any = self.data
        where: Where = ()
        for depth, part in enumerate(parents):
            try:
                key: str | int = part
                if isinstance(node, list):
                    key = _index(node, part)
                    node = node[key]
                else:
                    node = node.setdefault(part, {})
            except (ValueError, IndexError, AttributeError):
                place = ".".join(parents[: depth + 1])
                raise ConfigError(
                    f"{dotted!r} cannot be set: the site has no {place!r}."
                ) from None
            where = (*where, key)
            self.origins.setdefault(where, Origin(source))
        if not isinstance(node, dict):
            raise ConfigError(
                f"{dotted!r} cannot be set: {'.'.join(parents)!r} is not a table."
            )
        node[last] = copy.deepcopy(value)
        self._remember(value, Layer(source, "", {}), (*where, last), ())

    def get(self, dotted: str) -> object:
        """Return the value at a dotted key; ``None`` if there is none."""
        node: Any = self.data
        for part in dotted.split("."):
            try:
                node = node[_index(node, part)] if isinstance(node, list) else node[part]
            except (KeyError, TypeError, ValueError, IndexError):
                return None
        return node

    def origin(self, where: Sequence[str | int]) -> Origin | None:
        """Return where the value at ``where`` stands, or the nearest table around it."""
        for length in range(len(where), -1, -1):
            if found := self.origins.get(tuple(where[:length])):
                return found
        return None

    def _merge(
        self,
        node: dict[str, Any],
        over: Mapping[str, Any],
        layer: Layer,
        where: Where,
        there: Where,
    ) -> None:
        for key, value in over.items():
            here, place = (*where, key), (*there, key)
            old = node.get(key)
            if isinstance(value, Mapping) and isinstance(old, dict):
                self._merge(old, value, layer, here, place)
            elif here == ("tiers",) and isinstance(value, Mapping):
                self._merge_tiers(node.setdefault("tiers", []), value, layer)
            else:
                node[key] = copy.deepcopy(value)
                self._remember(value, layer, here, place)

    def _merge_tiers(self, tiers: Any, over: Mapping[str, Any], layer: Layer) -> None:
        for name, table in over.items():
            place = ("tiers", name)
            if not isinstance(table, Mapping):
                raise ConfigError(f"{layer.origin(place)}: tiers.{name} is not a table.")
            try:
                number = _index(tiers, name)
            except ValueError:
                number = len(tiers)
                tiers.append({})
                tiers[number]["name"] = name
                self._remember(tiers[number], layer, ("tiers", number), place)
            except IndexError:
                raise ConfigError(
                    f"{layer.origin(place)}: the site has no tier number {name}."
                ) from None
            self._merge(tiers[number], table, layer, ("tiers", number), place)

    def _remember(self, value: object, layer: Layer, where: Where, there: Where) -> None:
        for known in [one for one in self.origins if one[: len(where)] == where]:
            del self.origins[known]
        self.origins[where] = layer.origin(there) if there else Origin(layer.source)
        parts: list[tuple[str | int, object]] = []
        if isinstance(value, Mapping):
            parts = list(value.items())
        elif isinstance(value, list):
            parts = list(enumerate(value))
        for key, part in parts:
            self._remember(part, layer, (*where, key), (*there, key) if there else ())


def _index(tiers: Sequence[Any], name: str) -> int:
    """Return the number of a tier that is named by its name, or by its number.

    Raises:
        ValueError: there is no tier of that name.
        IndexError: nor so many.
    """
    for number, tier in enumerate(tiers):
        if isinstance(tier, Mapping) and tier.get("name") == name:
            return number
    number = int(name)
    if not 0 <= number < len(tiers):
        raise IndexError(name)
    return number


def user_file() -> Path:
    """Return where a user's own file is looked for when none is named."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "ckptflow" / "user.toml"


def user_layers(site: str, user: str | Path | None) -> list[Layer]:
    """Return what a user's file says of a site, and of every site.

    Args:
        site: name of the site.
        user: the file; ``CKPTFLOW_USER`` or the usual one, if that exists, when not given.

    Raises:
        ConfigError: it cannot be read, or was named and says nothing of the site.
    """
    named = user if user is not None else os.environ.get(USER_VARIABLE) or None
    path = Path(named).expanduser() if named is not None else user_file()
    if named is None and not path.is_file():
        return []
    text = read_site(path, what="user's file")
    sections = parse(text, str(path))
    layers = []
    for section in (EVERY_SITE, site):
        data = sections.get(section)
        if data is None:
            continue
        if not isinstance(data, dict):
            line = line_of(text, (section,))
            raise ConfigError(f"{path}:{line}: {section} is not a table of a site.")
        layers.append(Layer(str(path), text, data, (section,)))
    if named is not None and not layers:
        raise ConfigError(
            f"{path} says nothing of site {site!r}: it has {', '.join(sections) or 'nothing'}. "
            f"Begin its tables with the name of the site, such as [{site}.executor], or with "
            f'"*" for every site.'
        )
    return layers


def parse_setting(text: str) -> tuple[str, object]:
    """Read ``KEY=VALUE``. The value is one of TOML, or else text as it is.

    Raises:
        ConfigError: there is no key.
    """
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key or not all(key.split(".")):
        raise ConfigError(
            f"{text!r} sets nothing; write for example executor.allocation.account=m1234."
        )
    try:
        return key, tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value.strip()


def settings_in(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that the command line has left for the script."""
    lines = environment.get(SET_VARIABLE, "").splitlines()
    return dict(parse_setting(line) for line in lines if line.strip())
