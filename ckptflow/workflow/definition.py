"""What a task is made of beside its name, and how that differs from one start to the next.

A task is known by its app and its key. What it computes also depends on its code, on the
arguments outside of the key, on what is in its input files, and on the version that the app
gives itself. All of it goes to the journal when a task is launched, short enough to be read:
numbers as they are; a text, an array or an object as its type and a digest, since an argument
may be a password. ``tests/unit/test_definition.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from parsl.data_provider.files import File

from ckptflow.errors import ConfigError
from ckptflow.model import Export
from ckptflow.workflow.canonical import digest_hex, plain_scalar
from ckptflow.workflow.identity import PARSL_PARAMETERS

PARTS_MAX = 32  # Of one argument that are told apart; a longer one counts as a whole.
SHOWN_MAX = 8  # Differences that a sentence names; the others are counted.

_DIGITS = 12
_NUMBER_MAX = 32
AUTO_VERSION = "auto"


@dataclass(frozen=True, slots=True)
class Definition:
    """What one launch of a task was made of.

    Attributes:
        arguments: short text of each argument outside of the key, by name.
        code: digest of its code; ``None`` if that is not known.
        parts: digest of each definition in the code, if they are known.
        version: the version that the app gives itself, if it does.
    """

    arguments: Mapping[str, str]
    code: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Differences:
    """What has changed.

    Attributes:
        texts: one short text for each change.
        version: whether the app says itself that it is another one.
    """

    texts: tuple[str, ...] = ()
    version: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __str__(self) -> str:
        shown = list(self.texts[:SHOWN_MAX])
        more = len(self.texts) - len(shown)
        return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def differences(before: Definition, now: Definition) -> Differences:
    """Return what has changed from one launch to another.

    Code that is not known on both sides is not compared, nor that of an app which vouches for
    it with a version of its own.
    """
    texts = list(code_differences(before, now))
    version = before.version != now.version
    if version and not texts:
        texts.append(f"version: {before.version or 'none'} -> {now.version or 'none'}")
    names = {**before.arguments, **now.arguments}
    for name in names:
        old, new = before.arguments.get(name), now.arguments.get(name)
        if old != new:
            texts.append(f"{name}: {old or 'not there'} -> {new or 'not there'}")
    return Differences(tuple(texts), version)


def code_differences(before: Definition, now: Definition) -> Iterator[str]:
    """Yield what has changed in the code."""
    vouched = now.version is not None and not now.version.startswith(f"{AUTO_VERSION}:")
    if vouched or None in (before.code, now.code) or before.code == now.code:
        return
    changes = list(changed_parts(before.parts, now.parts))
    yield from changes or [f"its code: #{before.code} -> #{now.code}"]


def changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield which definitions of a code have changed, come and gone."""
    if not before or not now:
        return
    for name in {**before, **now}:
        if name not in now:
            yield f"{name} is not used any more"
        elif name not in before:
            yield f"{name} is new"
        elif before[name] != now[name]:
            yield f"{name} has changed"


def argument_texts(
    arguments: Mapping[str, Any], *, key: Collection[str], files: Mapping[str, str]
) -> dict[str, str]:
    """Return a short text for each argument that may change without another task coming of it.

    Args:
        arguments: by name of the parameter.
        key: parameters that name the task.
        files: digest of each input file, by where it stands.
    """
    texts: dict[str, str] = {}
    for name, value in arguments.items():
        if name not in key and name not in PARSL_PARAMETERS:
            for where, part in _parts(name, value, files):
                texts[where] = _text(part)
                if where in files:
                    texts[where] = f"{_name_of_file(part)} #{files[where][:_DIGITS]}"
    for where, digest in files.items():  # In the key, or deep within an argument.
        texts.setdefault(where, f"#{digest[:_DIGITS]}")
    return texts


def _parts(name: str, value: Any, files: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield an argument, or the parts of which it is made if they are few and have names."""
    if isinstance(value, Export) or name in files:
        yield name, value
    elif isinstance(value, dict) and 0 < len(value) <= PARTS_MAX:
        for key, part in value.items():
            yield f"{name}[{key!r}]", part
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value)[:PARTS_MAX]:
            yield f"{name}.{one.name}", getattr(value, one.name, None)
    elif isinstance(value, list | tuple) and f"{name}[0]" in files:
        for number, part in enumerate(value):
            yield f"{name}[{number}]", part
    else:
        yield name, value


def _text(value: Any) -> str:
    value = plain_scalar(value)
    if value is None or type(value) in (bool, int, float):
        text = repr(value)
        if len(text) <= _NUMBER_MAX:
            return text
    if isinstance(value, Export):
        return f"{value.run}/{value.task}@{value.step} #{value.root[:_DIGITS]}"
    kind = type(value).__name__
    try:
        return f"{kind} #{digest_hex(value, digits=_DIGITS)}"
    except ConfigError:
        return f"{kind}, which cannot be compared"


def _name_of_file(value: Any) -> str:
    if isinstance(value, File):
        return str(value.filename)
    return PurePath(str(value)).name
