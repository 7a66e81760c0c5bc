"""The walk over a state: from live objects to a structure, and how to go the same way again.

:class:`Walk` visits a state once. It makes the structure, collects the arrays, and lists all
that cannot be stored. Of each container that it enters it leaves a :class:`Step`: how to look
into such a container, and what was met there. :mod:`ckptflow.data.recorded` follows the steps
the next time. No step holds an array or a container of the state: a recorded walk keeps nothing
of it alive but plain values.

``tests/property/test_state_roundtrip.py`` and ``tests/property/test_recorded_laws.py`` keep
it true.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ckptflow.data import rng, torch_objects
from ckptflow.data.arrays import LiveArray, describe
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.leaves import (
    Node,
    encode_key,
    encode_plain,
    is_short,
    join,
    leaf_type_of,
    segment,
    shown,
)
from ckptflow.data.tree import is_dataclass, is_namedtuple, is_stateful, is_tuple

DEPTH_LIMIT = 128  # Containers inside containers; JSON readers recurse, too.

_FIXED = frozenset({type(None), bool, int, float, complex, str, bytes})  # Their values never
_BUILT_IN = frozenset({dict, list, tuple, set, frozenset})  # change; these have no attributes.
_ORDERED = frozenset({dict, OrderedDict})
_EXACT_KEYS = frozenset({type(None), bool, int, str, bytes})  # Equal if types and values are.


class Differs(Exception):
    """Something is not as it was when the walk was recorded."""


class Found(NamedTuple):
    """An array leaf met on the walk, and the node that waits for its place."""

    name: str
    live: LiveArray
    node: list[Node]
    leaf: Any  # What lies in the state.


@dataclasses.dataclass(slots=True, eq=False)
class Arrays:
    """Items from ``first`` to before ``end`` of a container: arrays."""

    first: int
    end: int


@dataclasses.dataclass(slots=True, eq=False)
class Plain:
    """Items from ``first`` to before ``end`` of a container: plain leaves and sets."""

    first: int
    end: int
    values: Sequence[Any]
    fixed: bool  # Whether the values are of types whose values never change.

    @staticmethod
    def of(first: int, end: int, values: Sequence[Any]) -> Plain:
        """Return such a run; values that may change are not kept."""
        fixed = _FIXED.issuperset(map(type, values))
        return Plain(first, end, values if fixed else (), fixed)

    def same(self, values: Sequence[Any]) -> bool:
        """Tell whether these are the very objects of before, which cannot have changed."""
        return self.fixed and all(map(is_, values, self.values))


@dataclasses.dataclass(slots=True, eq=False)
class Inner:
    """Item ``first`` of a container: a container."""

    first: int
    step: Step


Look: TypeAlias = Callable[[Any], Sequence[Any]]
"""Returns the items of a container in the order of their nodes, or raises `Differs`."""


@dataclasses.dataclass(slots=True, eq=False)
class Step:
    """One container that was met.

    Attributes:
        kind: its type.
        stateful: whether it had ``state_dict`` and ``load_state_dict``.
        look: returns its items.
        node: its node.
        offset: place of the node of its first item in ``node``.
        stride: from there to that of the next item.
        runs: what its items are, all of them.
        arrays: how many arrays are in it, and in what it contains.
    """

    kind: type
    stateful: bool
    look: Look
    node: list[Node]
    offset: int
    stride: int
    runs: list[Arrays | Plain | Inner]
    arrays: int

    def place(self, first: int, end: int) -> slice:
        """Return where in ``node`` the nodes of some items lie."""
        offset, stride = self.offset, self.stride
        return slice(offset + first * stride, offset + (end - 1) * stride + 1, stride)

    def items(self, value: Any) -> Sequence[Any]:
        """Look into a container.

        Raises:
            Differs: the walk would take it for something else, or has other items to visit.
        """
        if type(value) is not self.kind:
            raise Differs
        if self.kind not in _BUILT_IN and (
            is_stateful(value) != self.stateful
            or (self.kind is not OrderedDict and describe(value) is not None)
        ):
            raise Differs
        return self.look(value)


class Walk:
    """One pass over a state. Collects arrays and everything that cannot be stored.

    ``arrays`` get the rest of their nodes, the region, when it is known what they share.

    Args:
        inside: ids of the containers that the visited part lies in.
    """

    def __init__(self, inside: Collection[int] = ()) -> None:
        self.arrays: list[Found] = []
        self.problems: list[str] = []
        self._open: set[int] = set(inside)
        self._names: set[str] = set()

    def visit(self, value: Any) -> Step:
        """Visit a state, or a part; the step stands for a list that has it as its only item."""
        return self._step([value], ["list"], [None], partial(_into_list, 1), items=[value])

    def _node(self, value: Any, path: str | None) -> tuple[Node, Step | type | None]:
        """Return the node of a value, and what it is: a container, an array or a plain leaf."""
        kind = type(value)
        if is_short(value):
            return encode_plain(value), Plain
        if kind in (bytes, bytearray):
            live = describe(np.frombuffer(value, np.uint8))
            assert live is not None, "it is an array"
            return [kind.__name__, self._found(live, value, path)], Arrays
        live = None if kind in (dict, list, tuple) else describe(value)
        if live is not None:
            return self._found(live, value, path), Arrays
        if id(value) in self._open:
            raise Unsupported("contains itself")
        if len(self._open) >= DEPTH_LIMIT:
            raise Unsupported(f"lies more than {DEPTH_LIMIT} containers deep")
        self._open.add(id(value))
        try:
            found = self._container(value, path)
        finally:
            self._open.remove(id(value))
        return (found.node, found) if isinstance(found, Step) else (found, Plain)

    def _found(self, live: LiveArray, leaf: Any, path: str | None) -> list[Node]:
        name = path or ""
        if name in self._names:
            raise Unsupported("two arrays have this one name; rename a key")
        self._names.add(name)
        node: list[Node] = []
        self.arrays.append(Found(name, live, node, leaf))
        return node

    def _container(self, value: Any, path: str | None) -> Step | list[Node]:
        """Return the step of a container, or the node of a set, which holds plain values."""
        look: Look
        if leaf := leaf_type_of(value):
            look = partial(_through, leaf.encode)
            return self._step(value, ["leaf", leaf.label], [path], look)
        if name := rng.rng_name(value):
            return self._step(value, ["rng", name], [path], partial(_into_rng, name))
        if is_stateful(value):
            return self._step(value, ["object"], [path], _into_object)
        if isinstance(value, dict):
            return self._dict(value, path)
        if isinstance(value, list) or is_tuple(value):
            items = list(value)
            paths = [join(path, str(i)) for i in range(len(items))]
            tag = "list" if isinstance(value, list) else "tuple"
            return self._step(value, [tag], paths, partial(_into_list, len(items)), items=items)
        if is_namedtuple(value):
            return self._fields("namedtuple", value, _names_of_tuple, path)
        if is_dataclass(value):
            return self._fields("dataclass", value, _names_of_dataclass, path)
        if isinstance(value, set | frozenset):
            tag = "set" if isinstance(value, set) else "frozenset"
            # Sorted by their text, because the order of a set differs from process to process.
            return [tag, *sorted((encode_key(item) for item in value), key=repr)]
        raise Unsupported(_no_leaf(value))

    def _dict(self, value: dict[Any, Any], path: str | None) -> Step:
        keys, nodes, items = [], [], []
        for key, item in value.items():
            try:
                nodes.append(encode_key(key))
            except Unsupported as problem:
                self.problems.append(f"{shown(path)}: {problem}")
                continue
            keys.append(key)
            items.append(item)
        paths = [join(path, segment(key)) for key in keys]
        return self._step(
            value, ["dict"], paths, _IntoDict(keys, nodes), items=items, keys=nodes
        )

    def _fields(
        self, tag: str, value: Any, names_of: Callable[[Any], tuple[str, ...]], path: str | None
    ) -> Step:
        names = names_of(value)
        if absent := [name for name in names if not hasattr(value, name)]:
            raise Unsupported(f"field {absent[0]!r} of {type(value).__qualname__} is not set")
        paths = [join(path, segment(name)) for name in names]
        look = partial(_into_fields, names_of, names)
        return self._step(value, [tag], paths, look, keys=names)

    def _step(
        self,
        value: Any,
        head: list[Node],
        paths: Sequence[str | None],
        look: Look,
        *,
        items: Sequence[Any] | None = None,
        keys: Sequence[Node] | None = None,
    ) -> Step:
        """Visit the items of a container; its node is the head, then keys and nodes."""
        if items is None:
            items = look(value)
        before = len(self.arrays)
        nodes: list[Node] = []
        kinds: list[Step | type | None] = []
        for item, path in zip(items, paths, strict=True):
            try:
                node, kind = self._node(item, path)
            except Unsupported as problem:
                self.problems.append(f"{shown(path)}: {problem}")
                node, kind = None, None
            nodes.append(node)
            kinds.append(kind)
        return Step(
            kind=type(value),
            stateful=type(value) not in _BUILT_IN and is_stateful(value),
            look=look,
            node=[*head, *(nodes if keys is None else _interleaved(keys, nodes))],
            offset=len(head) + (keys is not None),
            stride=1 if keys is None else 2,
            runs=_runs(items, kinds),
            arrays=len(self.arrays) - before,
        )


def _interleaved(keys: Sequence[Node], nodes: Sequence[Node]) -> list[Node]:
    return list(itertools.chain.from_iterable(zip(keys, nodes, strict=True)))


def _runs(
    items: Sequence[Any], kinds: Sequence[Step | type | None]
) -> list[Arrays | Plain | Inner]:
    """Return what some items are; neighbours that are alike become one run."""
    runs: list[Arrays | Plain | Inner] = []
    first = 0
    for kind, alike in itertools.groupby(kinds):
        if isinstance(kind, Step):
            runs.append(Inner(first, kind))
            first += 1
            continue
        end = first + sum(1 for _ in alike)
        runs.append(
            Arrays(first, end) if kind is Arrays else Plain.of(first, end, items[first:end])
        )
        first = end
    return runs


def _no_leaf(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return (
        f"an object of type {name} cannot be stored as it is. Give it state_dict() and "
        f"load_state_dict(), or call register_leaf({type(value).__qualname__}, label, encode, "
        "decode) for it"
    )


# --- into a container, the first time and again ----------------------------------------------


def _through(encode: Callable[[Any], object], value: Any) -> Sequence[Any]:
    return [encode(value)]


def _into_rng(name: str, value: Any) -> Sequence[Any]:
    if rng.rng_name(value) != name:
        raise Differs
    return [rng.get_state(value)]


def _into_object(value: Any) -> Sequence[Any]:
    return [torch_objects.state_of(value)]


def _into_list(count: int, value: Any) -> Sequence[Any]:
    items = list(value)
    if len(items) != count:
        raise Differs
    return items


def _names_of_tuple(value: Any) -> tuple[str, ...]:
    return tuple(value._fields)


def _names_of_dataclass(value: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(value))


def _into_fields(
    names_of: Callable[[Any], tuple[str, ...]], names: tuple[str, ...], value: Any
) -> Sequence[Any]:
    if names_of(value) != names or not all(hasattr(value, name) for name in names):
        raise Differs
    return [getattr(value, name) for name in names]


class _IntoDict:
    """Looks into dicts of the same keys, in the same order."""

    def __init__(self, keys: list[Any], nodes: list[Node]) -> None:
        self._keys, self._types, self._nodes = keys, list(map(type, keys)), nodes
        self._exact = _EXACT_KEYS.issuperset(self._types)

    def __call__(self, value: Any) -> Sequence[Any]:
        if type(value) in _ORDERED:
            keys, items = list(value), list(value.values())
        else:  # Its class may give other items than it holds.
            pairs = list(value.items())
            keys, items = [key for key, _ in pairs], [item for _, item in pairs]
        if not self._has(keys):
            raise Differs
        return items

    def _has(self, keys: list[Any]) -> bool:
        if self._exact:
            return keys == self._keys and list(map(type, keys)) == self._types
        return repr(list(map(encode_key, keys))) == repr(self._nodes)
