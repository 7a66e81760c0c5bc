"""The structure: how the regions of a checkpoint, and its small values, make up a state.

A structure is JSON made of scalars and lists only, so that no tool can reorder it. A *node* is
``null``, ``true``, ``false``, a string, an integer, a number with a point or an exponent (a
float), or a list whose first item is a tag:

===============================================  =============================================
node                                             value
===============================================  =============================================
``["list", node…]`` ``["tuple", node…]``          list, tuple
``["set", node…]`` ``["frozenset", node…]``       set, frozenset, of plain nodes
``["dict", key, node, key, node…]``               dict, in order; a key is a plain node or
                                                 ``["tuple", key…]``
``["namedtuple", field, node…]``                  named tuple; to a reader without it, a tuple
``["dataclass", field, node…]``                   dataclass; to a reader without it, a dict
``["object", node]``                              what ``state_dict()`` of an object returned
``["rng", class, node]``                          state of a random number generator
``["leaf", label, node]``                         object of a type the program has registered
``["array", kind, dtype, shape, region]``         array in C order from byte 0 of a region on
``["array", …, region, offset]``                  the same from byte ``offset`` on
``["array", …, region, offset, strides]``         the same with these strides, in bytes
``["int", hex]``                                  integer beyond 2^53, as ``-0x1f…``
``["float", hex]``                                NaN or infinity: the 64 bits, highest first
``["complex", real, imaginary]``                  two float nodes
``["str", hex]``                                  string with lone surrogates: UTF-8 as if they
                                                 were characters
``["bytes", base64]`` ``["bytearray", base64]``   bytes; long ones have an array node instead
``["scalar", dtype, hex]``                        NumPy scalar: the bytes of one element
===============================================  =============================================

``kind`` names the library (:mod:`ckptflow.data.arrays`), ``dtype`` the element type
(:mod:`ckptflow.data.dtypes`). Each array has a *name*: the keys on its path, joined by ``/``
(:func:`ckptflow.data.leaves.segment`).

``tests/property/test_state_roundtrip.py`` keeps it true.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from ckptflow.data import rng, torch_arrays
from ckptflow.data.arrays import KINDS, ArraySpec, is_jax_array
from ckptflow.data.dtypes import itemsize_bytes
from ckptflow.data.leaves import (
    PLAIN_TAGS,
    Node,
    decode_key,
    decode_plain,
    is_plain,
    join,
    segment,
)
from ckptflow.errors import FormatError, StateError


def is_stateful(value: Any) -> bool:
    """Tell whether ``value`` is an object with ``state_dict`` and ``load_state_dict``."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def is_namedtuple(value: Any) -> bool:
    """Tell whether ``value`` is a named tuple."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def is_dataclass(value: Any) -> bool:
    """Tell whether ``value`` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_tuple(value: Any) -> bool:
    """Tell whether ``value`` is a plain tuple; a torch.Size counts as one."""
    return type(value) is tuple or (
        isinstance(value, tuple) and type(value).__module__ == "torch"
    )


def array_node(spec: ArraySpec) -> list[Node]:
    """Return the node of an array."""
    node: list[Node] = ["array", spec.kind, spec.dtype, list(spec.shape), spec.region]
    if spec.offset_bytes or spec.strides_bytes is not None:
        node.append(spec.offset_bytes)
    if spec.strides_bytes is not None:
        node.append(list(spec.strides_bytes))
    return node


def array_spec(node: list[Any]) -> ArraySpec:
    """Return what an array node says.

    Raises:
        FormatError: it is not an array node of this version.
    """
    try:
        kind, dtype, shape, region = node[1:5]
        if (  # As nearly all are.
            len(node) == 5
            and kind in KINDS
            and type(region) is int
            and region >= 0
            and all(type(size) is int and size >= 0 for size in shape)
        ):
            itemsize_bytes(dtype)
            return ArraySpec(dtype, tuple(shape), None, 0, region, kind)
        offset = node[5] if len(node) > 5 else 0
        strides = tuple(node[6]) if len(node) > 6 else None
        numbers = {type(number) for number in (*shape, region, offset, *(strides or ()))}
        sound = (
            numbers == {int}
            and kind in KINDS
            and region >= 0
            and min(shape, default=0) >= 0
            and (strides is None or len(strides) == len(shape))
        )
        itemsize_bytes(dtype)
    except (TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"The checkpoint holds a damaged array: {node!r:.120}.") from error
    if not sound:
        raise FormatError(f"The checkpoint holds a damaged array: {node!r:.120}.")
    return ArraySpec(dtype, tuple(shape), strides, offset, region, kind)


# --- from a structure to its parts -----------------------------------------------------------


def children(node: list[Any], path: str | None) -> Iterator[tuple[str | None, Node]]:
    """Yield the nodes directly inside a tagged node, with their names.

    Raises:
        FormatError: the tag is not of this version.
    """
    tag, rest = node[0], node[1:]
    if tag in ("list", "tuple"):
        yield from ((join(path, str(i)), item) for i, item in enumerate(rest))
    elif tag in ("dict", "namedtuple", "dataclass"):
        for key, item in zip(rest[::2], rest[1::2], strict=True):
            yield join(path, segment(decode_key(key))), item
    elif tag in ("object", "rng", "leaf"):
        yield path, rest[-1]
    elif tag not in ("array", "set", "frozenset") and tag not in PLAIN_TAGS:
        raise FormatError(f"The checkpoint holds a part of the unknown kind {tag!r:.40}.")


def is_array_node(node: Node) -> bool:
    """Tell whether ``node`` is an array."""
    return isinstance(node, list) and len(node) > 4 and node[0] == "array"


def is_long_bytes(node: Node) -> bool:
    """Tell whether ``node`` is bytes that lie in a region."""
    return isinstance(node, list) and len(node) == 2 and is_array_node(node[1]) and (
        node[0] in ("bytes", "bytearray")
    )  # fmt: skip


def iter_arrays(structure: Node, path: str | None = None) -> Iterator[tuple[str, ArraySpec]]:
    """Yield name and spec of each array, in order. Needs nothing but the structure."""
    if not isinstance(structure, list):
        return
    if is_array_node(structure):
        yield path or "", array_spec(structure)
    elif is_long_bytes(structure):
        yield from iter_arrays(structure[1], path)
    else:
        for name, child in children(structure, path):
            yield from iter_arrays(child, name)


def iter_plain(structure: Node, path: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each plain leaf and each set, in order."""
    if isinstance(structure, list):
        if structure[0] in ("set", "frozenset"):
            yield path or "", decode_set(structure)
            return
        if structure[0] not in PLAIN_TAGS:
            for name, child in children(structure, path):
                yield from iter_plain(child, name)
            return
        if is_long_bytes(structure):
            return
    yield path or "", decode_plain(structure)


def decode_set(node: list[Any]) -> set[Any] | frozenset[Any]:
    """Return the value of a set node."""
    items = (decode_key(item) for item in node[1:])
    return set(items) if node[0] == "set" else frozenset(items)


def has_arrays(node: Node) -> bool:
    """Tell whether any part of ``node`` lies in a region."""
    return next(iter_arrays(node), None) is not None


def is_self_contained(node: Node) -> bool:
    """Tell whether the value can be made from the node alone, with the types it had."""
    if not isinstance(node, list):
        return True
    if node[0] in ("array", "namedtuple", "dataclass", "object", "rng") or is_long_bytes(node):
        return False
    return all(is_self_contained(child) for _, child in children(node, None))


def describe_node(node: Node) -> str:
    """Return what a node is, for messages: ``"an array"``, ``"a dict"``."""
    if not isinstance(node, list) or node[0] in PLAIN_TAGS:
        return "a plain value"
    names = {"array": "an array", "object": "an object with state_dict()", "leaf": "a leaf",
             "rng": "a random generator", "namedtuple": "a named tuple"}  # fmt: skip
    return names.get(str(node[0]), f"a {node[0]}")


def describe_value(value: Any) -> str:
    """Return what a value of the state is, for messages, in the words of the nodes."""
    if is_plain(value):
        return "a plain value"
    if isinstance(value, np.ndarray) or torch_arrays.is_tensor(value) or is_jax_array(value):
        return "an array"
    if rng.rng_name(value):
        return "a random generator"
    return f"a {type(value).__qualname__}"


def refuse(headline: str, problems: list[str]) -> StateError:
    """Return the error that lists every problem."""
    noun = "problem" if len(problems) == 1 else "problems"
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return StateError(f"{headline} ({len(problems)} {noun}):{lines}", tuple(problems))
