"""Fit a structure onto the state that is there, and say everything that does not fit.

:class:`Fit` walks structure and state side by side and changes nothing. It leaves behind a
*slot* for each array, for :mod:`ckptflow.data.regions` to find memory for, and a function that
puts the state together once the bytes are there. What it does where:

* Containers of the state stay the same objects. Keys, fields and the lengths of lists must
  agree, with three exceptions, because states grow: a place that is still empty in the state
  (None, ``{}``, ``[]``, ``()``) takes whatever the checkpoint has; a list without arrays is
  replaced, however long; plain values are replaced, also by ones of another type.
* A frozen dataclass, a tuple or a named tuple cannot be changed. If all of its parts could be
  filled in place, it stays; else a new one takes its place. No ``__init__`` or
  ``__post_init__`` runs: fields are set, other attributes are taken over from the old one.
* An object with ``state_dict`` gets its arrays filled in place, then ``load_state_dict`` with
  a rebuilt dict. If its state has no arrays and it has ``state_mismatch``, that is asked before
  anything has changed what speaks against the state: a text, or None. A torch module must
  agree key by key; what its ``get_extra_state`` returned is built anew. Of other objects, parts
  without arrays are theirs to judge; None or an empty container on either side fits anything,
  and dicts keyed by numbers may have other keys. Torch's own optimizers and schedulers take
  over the very arrays that they are given, so theirs may be more or fewer; but an optimizer's
  groups of parameters have to agree.

``tests/unit/test_regions.py``, ``test_regions_torch.py`` and ``test_torch_objects.py`` keep it
true.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

from ckptflow.data import arrays, rng, torch_arrays, torch_objects
from ckptflow.data.arrays import ArraySpec, LiveArray
from ckptflow.data.assembling import (
    Build,
    nothing,
    rebuild,
    replace_all,
    replace_set,
    same_or,
    set_fields,
    update,
)
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.leaves import (
    Node,
    decode_key,
    decode_plain,
    is_plain,
    join,
    leaf_type_called,
    segment,
    shown,
)
from ckptflow.data.memory import Layout
from ckptflow.data.tree import (
    array_spec,
    children,
    decode_set,
    describe_node,
    describe_value,
    has_arrays,
    is_array_node,
    is_dataclass,
    is_long_bytes,
    is_namedtuple,
    is_self_contained,
    is_stateful,
    is_tuple,
)
from ckptflow.errors import FormatError


class Absent(enum.Enum):
    """Stands for the state where there is none, since None is a value."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class Mode(enum.Enum):
    """Who owns the containers, and how strictly they have to agree."""

    STATE = "state"  # Ours to change in place.
    MODULE = "module"  # A torch module's dict: rebuilt, keys must agree.
    OBJECT = "object"  # Another object's dict: rebuilt, the object judges what it grew.
    ADOPTER = "adopter"  # Of one that takes over the very arrays: torch's own optimizers.

    @property
    def judges(self) -> bool:
        """Whether the owner of a dict says itself what fits."""
        return self in {Mode.OBJECT, Mode.ADOPTER}


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """One array of the checkpoint, and the array of the state that it goes to, if any."""

    name: str
    spec: ArraySpec
    stored: Layout  # Where the elements lie within the region.
    mode: Mode
    target: Any = ABSENT
    live: LiveArray | None = None
    region: Any = None  # All bytes of its region, once there is memory for them.
    scattered: bool = True  # Whether the bytes have to be copied from the region to the target.

    def is_whole(self, nbytes: int) -> bool:
        """Tell whether the target is memory that a region of ``nbytes`` can lie in as it is."""
        spec, live = self.spec, self.live
        return (
            live is not None
            and nbytes > 0
            and spec.strides_bytes is None
            and spec.offset_bytes == 0
            and spec.size_bytes == nbytes
            and live.fits(self.stored)
        )

    def fill(self) -> None:
        """Copy the elements into the target, unless they were read to where it lies."""
        if self.live is None or self.live.access == "immutable":
            return
        if self.scattered:
            arrays.write_from(self.live, self.target, self.region, self.spec)
        elif self.live.kind == "torch":
            torch_arrays.mark_changed(self.live.owner)

    def value(self) -> Any:
        """Return the array: the target itself, or a new one."""
        if self.live is None:
            return arrays.new_array(self.spec, self.region)
        if self.live.access == "immutable":
            return arrays.new_array(self.spec, self.region, like=self.target)
        return self.target


class Fit:
    """One pass over a structure and a state. Nothing is changed."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.mismatches: list[str] = []

    def node(self, node: Node, target: Any, path: str | None, mode: Mode = Mode.STATE) -> Build:
        """Return the function that makes the value of ``node``, in ``target`` if possible."""
        if is_array_node(node):
            return self._array(node, target, path, mode)  # type: ignore[arg-type]
        if is_long_bytes(node):
            return self._long_bytes(node, target, path, mode)  # type: ignore[arg-type]
        if not isinstance(node, list) or not node:
            return self._plain(node, target, path, mode)
        fit = _FITS.get(str(node[0]))
        if fit is not None:
            return fit(self, node, target, path, mode)
        return self._plain(node, target, path, mode)

    def refuse(self, path: str | None, what: str) -> Build:
        """Note a mismatch."""
        self.mismatches.append(f"{shown(path)}: {what}")
        return nothing

    def _differ(self, node: Node, target: Any, path: str | None, mode: Mode) -> Build:
        """Node and target are of different kinds: refuse, or leave it to the object."""
        if mode.judges and (_is_empty_node(node) or not has_arrays(node)):
            return self.node(node, ABSENT, path, mode)
        return self.refuse(
            path,
            f"{describe_node(node)} in the checkpoint, {describe_value(target)} in the state",
        )

    # --- leaves ------------------------------------------------------------------------------

    def _plain(self, node: Node, target: Any, path: str | None, mode: Mode) -> Build:
        value = decode_plain(node)
        if target is not ABSENT and not is_plain(target):
            if not mode.judges:
                return self._differ(node, target, path, mode)
            return lambda: value
        if type(target) is bytearray and type(value) is bytearray:
            return lambda: replace_all(target, value)
        return lambda: value

    def _long_bytes(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        if target is not ABSENT and not is_plain(target):
            return self._differ(node, target, path, mode)
        elements = self._array(node[1], ABSENT, path, mode)
        if node[0] == "bytes":
            return lambda: elements().tobytes()
        if type(target) is bytearray:
            return lambda: replace_all(target, elements().tobytes())
        return lambda: bytearray(elements().tobytes())

    def _array(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        spec = array_spec(node)
        slot = Slot(path or "", spec, spec.layout(), mode)
        self.slots.append(slot)
        if target is ABSENT or _is_empty(target):
            if missing := arrays.library_missing(slot.spec.kind):
                return self.refuse(
                    path, f"an array of {missing} in the checkpoint: import {missing} first"
                )
            return slot.value
        try:
            live = arrays.describe(target)
        except Unsupported as problem:
            return self.refuse(path, str(problem))
        if live is None:
            return self._differ(node, target, path, mode)
        if mismatch := _array_mismatch(slot.spec, live):
            return self.refuse(path, mismatch)
        slot.target, slot.live = target, live
        return slot.value

    def _rng(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        name = str(node[1])
        state = self.node(node[2], ABSENT, path)
        if target is ABSENT or _is_empty(target):
            return lambda: rng.new_generator(name, state())
        own = rng.rng_name(target)
        if own != name:
            if own is None:
                return self._differ(node, target, path, mode)
            return self.refuse(path, f"a {name} in the checkpoint, a {own} in the state")

        def build() -> Any:
            rng.set_state(target, state())
            return target

        return build

    def _leaf(self, node: list[Any], _target: Any, path: str | None, _mode: Mode) -> Build:
        label = str(node[1])
        leaf = leaf_type_called(label)
        if leaf is None:
            return self.refuse(
                path, f"a leaf {label!r} in the checkpoint: call register_leaf for it first"
            )
        tree = self.node(node[2], ABSENT, path)
        return lambda: leaf.decode(tree())

    def _set(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        value = decode_set(node)
        if target is ABSENT or _is_empty(target) or isinstance(target, type(value)):
            if isinstance(target, set) and mode is Mode.STATE:
                return lambda: replace_set(target, value)
            return lambda: value
        return self._differ(node, target, path, mode)

    # --- containers --------------------------------------------------------------------------

    def _dict(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        items = self._keyed(node)
        if target is not ABSENT and not _is_empty(target) and not isinstance(target, dict):
            return self._differ(node, target, path, mode)
        old = target if isinstance(target, dict) else {}
        if old:
            self._compare_keys(node, items, old, path, mode)
        builds = {
            key: self.node(item, self._own(old, key, mode), join(path, segment(key)), mode)
            for key, item in items.items()
        }
        if mode is Mode.STATE and isinstance(target, dict):
            return lambda: update(target, builds)
        return lambda: rebuild(old, builds)

    def _own(self, old: dict[Any, Any], key: Any, mode: Mode) -> Any:
        """Return what the state has under a key; what a module has besides tensors is new."""
        if mode is Mode.MODULE and torch_objects.is_extra_state(key):
            return ABSENT
        return old.get(key, ABSENT)

    def _keyed(self, node: list[Any]) -> dict[Any, Node]:
        if len(node) % 2 == 0:
            raise FormatError(f"The checkpoint holds a {node[0]} with a key but no value.")
        keys = [decode_key(key) for key in node[1::2]]
        return dict(zip(keys, node[2::2], strict=True))

    def _compare_keys(
        self,
        node: list[Any],
        items: dict[Any, Node],
        old: Iterable[Any],
        path: str | None,
        mode: Mode,
    ) -> None:
        own = set(old)
        extra = [key for key in items if key not in own]
        missing = [key for key in old if key not in items]
        if mode.judges and (
            len(node) == 1
            or not has_arrays(node)
            or all(isinstance(key, int) for key in (*extra, *missing))
            or (mode is Mode.ADOPTER and not (extra and missing))
        ):
            return
        for key in extra:
            self.refuse(join(path, segment(key)), "in the checkpoint, but not in the state")
        for key in missing:
            self.refuse(join(path, segment(key)), "in the state, but not in the checkpoint")

    def _list(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        if target is not ABSENT and not _is_empty(target) and not isinstance(target, list):
            return self._differ(node, target, path, mode)
        old = target if isinstance(target, list) else []
        if not self._lengths_fit(node, old, path, mode):
            return nothing
        builds = self._items(node, old, path, mode)
        if mode is Mode.STATE and isinstance(target, list):
            return lambda: replace_all(target, [build() for build in builds])
        return lambda: [build() for build in builds]

    def _tuple(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        if target is not ABSENT and not _is_empty(target) and not is_tuple(target):
            return self._differ(node, target, path, mode)
        old = target if isinstance(target, tuple) else ()
        if not self._lengths_fit(node, old, path, mode):
            return nothing
        builds = self._items(node, old, path, mode)
        return lambda: same_or(old, [build() for build in builds], type(old))

    def _lengths_fit(self, node: list[Any], old: Any, path: str | None, mode: Mode) -> bool:
        grows = not old or (not has_arrays(node) if mode.judges else is_self_contained(node))
        may_differ = mode is Mode.ADOPTER or (mode.judges and len(node) == 1)
        if len(node) - 1 == len(old) or grows or may_differ:
            return True
        self.refuse(
            path, f"{len(node) - 1} items in the checkpoint, {len(old)} items in the state"
        )
        return False

    def _items(self, node: list[Any], old: Any, path: str | None, mode: Mode) -> list[Build]:
        kept = list(old) if len(old) == len(node) - 1 else [ABSENT] * (len(node) - 1)
        return [
            self.node(item, kept[i], name, mode)
            for i, (name, item) in enumerate(children(node, path))
        ]

    def _namedtuple(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        if target is ABSENT or _is_empty(target):
            plain = [self.node(item, ABSENT, name, mode) for name, item in children(node, path)]
            return lambda: tuple(build() for build in plain)
        if not is_namedtuple(target):
            return self._differ(node, target, path, mode)
        builds = self._fields(node, target, target._fields, path, mode)
        return lambda: same_or(
            target, [builds[field]() for field in target._fields], type(target)._make
        )

    def _dataclass(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        if target is ABSENT or _is_empty(target):
            return self._dict(node, ABSENT, path, mode)
        if not is_dataclass(target):
            return self._differ(node, target, path, mode)
        names = tuple(field.name for field in dataclasses.fields(target))
        builds = self._fields(node, target, names, path, mode)
        return lambda: set_fields(target, builds)

    def _fields(
        self, node: list[Any], target: Any, names: tuple[str, ...], path: str | None, mode: Mode
    ) -> dict[str, Build]:
        items = self._keyed(node)
        self._compare_keys(node, items, names, path, Mode.STATE)
        return {
            name: self.node(
                item, getattr(target, name, ABSENT), join(path, segment(name)), mode
            )
            for name, item in items.items()
            if name in names
        }

    def _object(self, node: list[Any], target: Any, path: str | None, mode: Mode) -> Build:
        if target is ABSENT or _is_empty(target):
            return self.node(node[1], ABSENT, path, mode)
        if not is_stateful(target):
            return self._differ(node, target, path, mode)
        if (problem := self._object_refuses(node[1], target, path)) is not None:
            return self.refuse(path, problem)
        inner = _mode_of(target)
        own = torch_objects.state_of(target)
        state = self.node(node[1], own, path, inner)
        if torch_objects.is_optimizer(target):
            for where, what in torch_objects.group_mismatches(node[1], own):
                self.refuse(join(path, where), what)

        def build() -> Any:
            torch_objects.load_state(target, state())
            return target

        return build

    def _object_refuses(self, node: Node, target: Any, path: str | None) -> str | None:
        """Return what an object that can tell has against a state without arrays."""
        ask = getattr(target, "state_mismatch", None)
        if not callable(ask) or not is_self_contained(node):
            return None
        refused = len(self.mismatches)
        state = self.node(node, ABSENT, path)
        problem: str | None = ask(state()) if len(self.mismatches) == refused else None
        return problem


_FITS: dict[str, Callable[[Fit, list[Any], Any, str | None, Mode], Build]] = {
    "dict": Fit._dict,  # noqa: SLF001
    "list": Fit._list,  # noqa: SLF001
    "tuple": Fit._tuple,  # noqa: SLF001
    "set": Fit._set,  # noqa: SLF001
    "frozenset": Fit._set,  # noqa: SLF001
    "namedtuple": Fit._namedtuple,  # noqa: SLF001
    "dataclass": Fit._dataclass,  # noqa: SLF001
    "object": Fit._object,  # noqa: SLF001
    "rng": Fit._rng,  # noqa: SLF001
    "leaf": Fit._leaf,  # noqa: SLF001
}


def _array_mismatch(spec: ArraySpec, live: LiveArray) -> str | None:
    """Return every way in which a checkpoint's array differs from the state's, or None."""
    own = (live.kind, live.dtype, live.layout.shape)
    if (spec.kind, spec.dtype, spec.shape) == own and live.access != "read-only":
        return None
    pairs = (
        ("a {} array", spec.kind, live.kind),
        ("dtype {}", spec.dtype, live.dtype),
        ("shape {}", spec.shape, live.layout.shape),
    )
    found = [
        f"{text.format(old)} in the checkpoint, {text.format(own)} in the state"
        for text, old, own in pairs
        if old != own
    ]
    if live.access == "read-only":
        found.append("the state's array is read-only, so it cannot be restored in place")
    return "; ".join(found) or None


def _mode_of(target: Any) -> Mode:
    if torch_objects.is_module(target):
        return Mode.MODULE
    adopts = torch_objects.is_optimizer(target) or torch_objects.is_scheduler(target)
    return Mode.ADOPTER if adopts else Mode.OBJECT


def _is_empty(value: Any) -> bool:
    """Tell whether a place in the state has nothing in it yet."""
    return value is None or (isinstance(value, dict | list | tuple) and len(value) == 0)


def _is_empty_node(node: Node) -> bool:
    return node is None or node in (["dict"], ["list"], ["tuple"])
