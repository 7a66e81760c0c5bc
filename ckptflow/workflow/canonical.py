"""Bytes that stand for a value: equal values, and only those, give equal bytes.

Task identities and memo keys are digests of these bytes, so they must be the same in every
process, on every host and in every run. Each value is written as a type letter, a length and
its bytes; nothing depends on hash seeds, on the order of sets and dicts, or on pickle.

Two kinds of values are taken for each other on purpose: a NumPy scalar is the Python number
that it equals (``np.int64(3)`` is ``3``), and a path is its text as it was given, since the
text is what the caller chose to name the data by. ``tests/unit/test_identity.py`` holds both,
and the law in the first sentence.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import struct
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from parsl.data_provider.files import File

from ckptflow.errors import ConfigError

Fallback = Callable[[object], bytes | None]
"""Asked for a value of a type not known here; returns bytes for it, or ``None``."""

_PLAIN_REPR = frozenset({type(None), bool, int, float, complex, str, bytes})

DEPTH_MAX = 100  # Deeper nesting is taken for a value that contains itself.


def encode(value: object, *, fallback: Fallback | None = None) -> bytes:
    """Return the canonical bytes of ``value``.

    Besides the plain types this knows NumPy arrays and scalars, dataclasses, enumerations,
    named tuples, paths, dates, Parsl files (by URL) and functions (by name). An object of
    another type may have a method ``__ckptflow_key__`` that returns a value of a known one.

    Raises:
        ConfigError: a part of the value is of a type that has no canonical bytes.
    """
    return _encode(value, fallback, 0)


def digest_hex(value: object, *, digits: int, fallback: Fallback | None = None) -> str:
    """Return ``digits`` hex digits of the SHA-256 of the canonical bytes."""
    return hashlib.sha256(encode(value, fallback=fallback)).hexdigest()[:digits]


def plain_scalar(value: object) -> object:
    """Return the Python number or text that a NumPy scalar equals; other values as they are."""
    if isinstance(value, np.number | np.bool_ | np.str_ | np.bytes_):
        plain: object = value.item()
        # A time span is a number to NumPy, and a long double has no Python number.
        if type(plain) in (bool, int, float, complex, str, bytes) and value.dtype.kind != "m":
            return plain
    return value


def encode_call(
    function: tuple[str, str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    fallback: Fallback | None = None,
) -> bytes:
    """Return bytes that stand for a call; like `encode`, but fast for plain arguments.

    Raises:
        ConfigError: an argument is of a type that has no canonical bytes.
    """
    if all(type(value) in _PLAIN_REPR for value in (*args, *kwargs.values())):
        # Their repr is exact and tells them apart, and costs a tenth.
        return repr((function, tuple(args), sorted(kwargs.items()))).encode(
            "utf-8", "surrogatepass"
        )
    return encode((function, list(args), dict(kwargs)), fallback=fallback)


def _tagged(tag: bytes, *parts: bytes) -> bytes:
    """Join a tag and parts so that no other tag and parts give the same bytes."""
    return b"".join(
        (tag, b":", _lengths(len(parts)).pack(len(parts), *map(len, parts)), *parts)
    )


@functools.lru_cache(maxsize=64)
def _lengths(count: int) -> struct.Struct:
    return struct.Struct(f"<Q{count}Q")


def _encode(value: object, fallback: Fallback | None, depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise ConfigError(
            f"An argument is nested more than {DEPTH_MAX} deep, or contains itself; name the "
            f"arguments that tell tasks apart with key=(...)."
        )
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    encode_part = functools.partial(_encode, fallback=fallback, depth=depth + 1)
    for known in (_encode_container, _encode_array, _encode_object):
        found = known(value, encode_part)
        if found is not None:
            return found
    offered = fallback(value) if fallback else None
    if offered is not None:
        return _tagged(b"fallback", _name_of(type(value)), offered)
    kind = type(value)
    raise ConfigError(
        f"No canonical bytes for a {kind.__module__}.{kind.__qualname__}. Name the "
        f"arguments that tell tasks apart with key=(...), or give the class a method "
        f"__ckptflow_key__ that returns plain values."
    )


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"none:",
    bool: lambda value: b"true:" if value else b"false:",
    int: lambda value: _tagged(b"int", str(value).encode()),
    float: lambda value: _tagged(b"float", struct.pack("<d", value)),
    complex: lambda value: _tagged(b"complex", struct.pack("<dd", value.real, value.imag)),
    str: lambda value: _tagged(b"str", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _tagged(b"bytes", value),
    bytearray: lambda value: _tagged(b"bytearray", bytes(value)),
    type(Ellipsis): lambda _: b"ellipsis:",
    dt.datetime: lambda value: _tagged(b"datetime", value.isoformat().encode()),
    dt.date: lambda value: _tagged(b"date", value.isoformat().encode()),
    dt.time: lambda value: _tagged(b"time", value.isoformat().encode()),
    dt.timedelta: lambda value: _tagged(
        b"timedelta", str((value.days, value.seconds, value.microseconds)).encode()
    ),
    decimal.Decimal: lambda value: _tagged(b"decimal", str(value).encode()),
    fractions.Fraction: lambda value: _tagged(b"fraction", str(value).encode()),
    uuid.UUID: lambda value: _tagged(b"uuid", value.bytes),
    types.FunctionType: lambda value: _tagged(b"function", _name_of(value)),
    types.BuiltinFunctionType: lambda value: _tagged(b"function", _name_of(value)),
    type: lambda value: _tagged(b"class", _name_of(value)),
    range: lambda value: _tagged(b"range", str((value.start, value.stop, value.step)).encode()),
}

EncodePart = Callable[[object], bytes]


def _encode_container(value: object, encode_part: EncodePart) -> bytes | None:
    kind = type(value)
    if kind is list or kind is tuple:
        return _tagged(kind.__name__.encode(), *map(encode_part, _items(value)))
    if kind is set or kind is frozenset:
        return _tagged(b"set", *sorted(map(encode_part, _items(value))))
    if isinstance(value, dict):
        pairs = sorted((encode_part(key), encode_part(item)) for key, item in value.items())
        return _tagged(
            b"dict", _subclass_of(dict, kind), *(part for pair in pairs for part in pair)
        )
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _tagged(b"namedtuple", _name_of(kind), *map(encode_part, value))
    if kind is slice:
        return _tagged(b"slice", *map(encode_part, (value.start, value.stop, value.step)))  # type: ignore[attr-defined]
    return None


def _encode_array(value: object, encode_part: EncodePart) -> bytes | None:
    if isinstance(value, memoryview):
        return _tagged(
            b"memoryview", value.format.encode(), str(value.shape).encode(), value.tobytes()
        )
    plain = plain_scalar(value)
    if plain is not value:
        return encode_part(plain)
    if isinstance(value, np.dtype):
        return _tagged(b"dtype", str(value).encode())
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return _tagged(
            b"array", str(value.dtype).encode(), str(value.shape).encode(), value.tobytes()
        )
    return None


def _encode_object(value: object, encode_part: EncodePart) -> bytes | None:
    kind = type(value)
    if isinstance(value, type):  # A class whose metaclass is not ``type`` itself.
        return _tagged(b"class", _name_of(value))
    own = getattr(value, "__ckptflow_key__", None)
    found = None
    if callable(own):
        found = _tagged(b"own", _name_of(kind), encode_part(own()))
    elif isinstance(value, enum.Enum):
        found = _tagged(b"enum", _name_of(kind), value.name.encode())
    elif isinstance(value, PurePath):
        found = _tagged(b"path", str(value).encode("utf-8", "surrogatepass"))
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        parts = [encode_part((name, getattr(value, name, None))) for name in names]
        found = _tagged(b"dataclass", _name_of(kind), *parts)
    elif isinstance(value, File):
        found = _tagged(b"file", str(value.url).encode())
    return found


def _items(value: object) -> Iterable[object]:
    assert isinstance(value, Iterable)
    return value


def _subclass_of(base: type, kind: type) -> bytes:
    return b"" if kind is base else _name_of(kind)


def _name_of(thing: Any) -> bytes:
    # Without the module: a class is ``__main__.Deck`` in a script, and ``x.Deck`` imported.
    return str(getattr(thing, "__qualname__", thing)).encode()
