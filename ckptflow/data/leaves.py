"""Plain leaves as JSON, names of leaves, and the explicit opt-in for other types.

JSON holds None, booleans, strings, finite floats and small integers as themselves. What it
cannot hold exactly becomes a list that starts with a tag, so each value comes back with its
type and its bits: integers of any size, NaN payloads, complex numbers, bytes, NumPy scalars.

Objects of other types are refused, never pickled. Who needs one gives two functions::

    register_leaf(Mesh, "mesh", encode=lambda mesh: {"points": mesh.points},
                  decode=lambda tree: Mesh(tree["points"]))

The checkpoint then names the label only; the type and the function come from the program
that restores. ``tests/unit/test_leaves.py`` keeps it true.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ckptflow.data.dtypes import Unsupported, dtype_name, numpy_dtype
from ckptflow.errors import ConfigError, FormatError

Node: TypeAlias = "bool | int | float | str | list[Node] | None"
"""One node of the structure; see :mod:`ckptflow.data.tree` for the grammar."""

INT_LIMIT = 1 << 53  # JSON readers that use doubles are exact below this.
BYTES_LIMIT = 4096  # Longer bytes become a region of their own.

_UTF_32 = ("utf-32-le", "surrogatepass")
_SURROGATE = re.compile("[\ud800-\udfff]")


# --- values --------------------------------------------------------------------------------


def is_plain(value: object) -> bool:
    """Tell whether ``value`` is a plain leaf: exactly one of the types, no subclass."""
    return type(value) in _ENCODERS or isinstance(value, np.generic)


def is_short(value: object) -> bool:
    """Tell whether ``value`` is a plain leaf, and no long bytes, which have a region."""
    if type(value) in (bytes, bytearray):
        return len(value) <= BYTES_LIMIT  # type: ignore[arg-type]
    return is_plain(value)


def encode_plain(value: Any) -> Node:
    """Return the node of a plain leaf; long bytes are the caller's to store.

    Raises:
        Unsupported: the type is not plain.
    """
    if isinstance(value, np.str_):  # NumPy would cut NULs off the end of strings.
        return ["scalar", f"<U{len(value)}", value.encode(*_UTF_32).hex()]
    if isinstance(value, np.bytes_):
        return ["scalar", f"|S{len(value)}", value.hex()]
    if isinstance(value, np.generic):
        return ["scalar", dtype_name(value.dtype), value.tobytes().hex()]
    encode = _ENCODERS.get(type(value))
    if encode is None:
        raise Unsupported(f"a {type(value).__qualname__} is no plain value")
    return encode(value)


def _encode_int(value: int) -> Node:
    return value if -INT_LIMIT < value < INT_LIMIT else ["int", hex(value)]


def _encode_float(value: float) -> Node:
    return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]


def _encode_str(value: str) -> Node:
    if _SURROGATE.search(value):
        return ["str", value.encode("utf-8", "surrogatepass").hex()]
    return value


def _encode_bytes(value: bytes | bytearray) -> Node:
    return [type(value).__name__, base64.b64encode(value).decode("ascii")]


_ENCODERS: dict[type, Callable[[Any], Node]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _encode_int,
    float: _encode_float,
    complex: lambda value: ["complex", _encode_float(value.real), _encode_float(value.imag)],
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
}


def decode_plain(node: Node) -> Any:
    """Return the value of a plain node.

    Raises:
        FormatError: the node is none of the plain kinds.
    """
    if not isinstance(node, list):
        return node
    tag = node[0] if node else None
    if not isinstance(tag, str) or tag not in _DECODERS:
        raise FormatError(f"The checkpoint holds a value of the unknown kind {tag!r:.40}.")
    try:
        return _DECODERS[tag](*node[1:])
    except (TypeError, ValueError, struct.error) as error:
        raise FormatError(f"The checkpoint holds a damaged value: {node!s:.80}.") from error


def _decode_scalar(dtype_name: str, bits: str) -> Any:
    raw = bytes.fromhex(bits)
    dtype = numpy_dtype(dtype_name)
    if len(raw) != dtype.itemsize:
        raise FormatError(f"The checkpoint holds a {dtype_name} of {len(raw)} bytes.")
    if dtype.kind in "US":
        return np.bytes_(raw) if dtype.kind == "S" else np.str_(raw.decode(*_UTF_32))
    return np.ndarray((), dtype, bytearray(raw or 1))[()]  # NumPy wants memory even for none.


_DECODERS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "float": lambda bits: struct.unpack(">d", bytes.fromhex(bits))[0],
    "complex": lambda real, imag: complex(decode_plain(real), decode_plain(imag)),
    "str": lambda raw: bytes.fromhex(raw).decode("utf-8", "surrogatepass"),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "scalar": _decode_scalar,
}
PLAIN_TAGS = frozenset(_DECODERS)


def encode_key(key: object) -> Node:
    """Return the node of a dict key, which keeps its type: 0 is not "0".

    Raises:
        Unsupported: keys of this type cannot be stored.
    """
    if type(key) is tuple:
        return ["tuple", *(encode_key(item) for item in key)]
    if type(key) in (str, int, bool, float, bytes, type(None)):
        return encode_plain(key)
    raise Unsupported(
        f"a dict key of type {type(key).__qualname__} ({key!r:.60}); "
        "keys are str, int, float, bool, None, bytes or tuples of these"
    )


def decode_key(node: Node) -> Any:
    """Return a dict key.

    Raises:
        FormatError: it cannot be one.
    """
    if isinstance(node, str):
        return node
    if isinstance(node, list) and node[:1] == ["tuple"]:
        return tuple(decode_key(item) for item in node[1:])
    key = decode_plain(node)
    if not isinstance(key, Hashable):
        raise FormatError(f"The checkpoint holds {key!r} as a key, which it cannot be.")
    return key


# --- names ---------------------------------------------------------------------------------

_ESCAPED = re.compile("[~/\ud800-\udfff]|^\\[")
_ESCAPES = {"~": "~0", "/": "~1", "[": "~2"}


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _ESCAPES.get(char) or f"~u{ord(char):04x}"


def segment(key: object) -> str:
    """Return the part of a name that stands for one key, field or position.

    Two keys never share one: ``/`` and ``~`` inside a string are escaped as in JSON Pointer,
    and keys that are no strings stand in brackets, ``[0]``, which no string starts with.
    """
    text = key if isinstance(key, str) else repr(key)
    escaped = _ESCAPED.sub(_escape, text)
    return escaped if isinstance(key, str) else f"[{escaped}]"


def join(path: str | None, part: str) -> str:
    """Return the name of something inside ``path``; None is the root."""
    return part if path is None else f"{path}/{part}"


def shown(path: str | None) -> str:
    """Return a name for messages."""
    return "the state itself" if path is None else repr(path)


# --- opt-in --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeafType:
    """How to store objects of one type: see :func:`register_leaf`."""

    type: type
    label: str
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]


_by_type: dict[type, LeafType] = {}
_by_label: dict[str, LeafType] = {}


def register_leaf(
    type: type,  # noqa: A002 -- reads as a sentence at the call
    label: str,
    encode: Callable[[Any], object],
    decode: Callable[[Any], object],
) -> None:
    """Let objects of exactly ``type`` be leaves of a state.

    Register it again, after a reload say, and the newer functions are used.

    Args:
        type: the class; subclasses need their own.
        label: what the checkpoint calls it, for example ``"mesh"``. Never change it.
        encode: takes the object, returns a state: plain values, containers, arrays.
        decode: takes such a state with new arrays, returns the object.

    Raises:
        ConfigError: the label is empty or belongs to another type.
    """
    if not label:
        raise ConfigError("A leaf type needs a label that is not empty.")
    other = _by_label.get(label)
    if other and other.type.__qualname__ != type.__qualname__:
        raise ConfigError(
            f"The label {label!r} belongs to {other.type.__qualname__}; "
            f"give {type.__qualname__} another one."
        )
    if other:
        _by_type.pop(other.type, None)
    leaf = LeafType(type, label, encode, decode)
    _by_type[type] = _by_label[label] = leaf


def leaf_type_of(value: object) -> LeafType | None:
    """Return how ``value`` is stored if its type was registered."""
    return _by_type.get(type(value))


def leaf_types() -> tuple[LeafType, ...]:
    """Return all registered types: as long as they are the same, so is what a leaf is."""
    return tuple(_by_type.values())


def leaf_type_called(label: str) -> LeafType | None:
    """Return the registered type of this label."""
    return _by_label.get(label)
