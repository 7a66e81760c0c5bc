"""What a shard says of the whole state: its structure, its regions, and which parts lie here.

The structure is that of the state as one rank sees it; its arrays lie in *whole regions*, which
no rank need hold. A whole region is replicated (every rank holds all of it), first (rank 0's is
everybody's), own (this rank's alone), or boxed (ranks hold boxes of a global array). Parts are
boxes of whole regions; a region of plain memory counts as an array of bytes.

It is stored as one text of JSON, in columns, since there may be 10^5 regions. "Shards" in
``docs/reference/format-v1.md``; ``tests/unit/test_divide.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ckptflow.data.boxes import element_count
from ckptflow.data.leaves import Node
from ckptflow.data.tree import array_spec, children, is_array_node, is_long_bytes
from ckptflow.errors import FormatError

Kind = Literal["replicated", "first", "own", "boxed"]
Classify = Callable[[str], Kind]


@dataclass(frozen=True, slots=True)
class WholeRegion:
    """A region of the whole state.

    Attributes:
        name: of its first array; of a boxed one, of the global array.
        kind: who holds it.
        shape: of the array that it is: plain memory is one of bytes.
        item_bytes: of an element of that array.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return element_count(self.shape) * self.item_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a whole region that a shard stores."""

    region: int
    offset: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardMap:
    """What one shard is of its set.

    Attributes:
        rank: whose shard.
        world: how many ranks there were.
        structure: of the state, as this rank saw it.
        regions: that its arrays lie in.
        parts: what this shard stores, in the order of the arrays of its own structure.
        own: names of leaves that belong to this rank alone, arrays and plain values.
        roots: of the groups of replicated regions, as this rank saw them; ``None`` if it did
            not compute them.
    """

    rank: int
    world: int
    structure: Node
    regions: tuple[WholeRegion, ...]
    parts: tuple[Part, ...]
    own: tuple[str, ...]
    roots: tuple[str, ...] | None

    def node(self) -> dict[str, Any]:
        """Return what is stored, a small tree of plain values."""
        columns = {
            "structure": self.structure,
            "names": [one.name for one in self.regions],
            "kinds": "".join(one.kind[0] for one in self.regions),
            "shapes": [one.shape for one in self.regions],
            "items": [one.item_bytes for one in self.regions],
            "parts": [(one.region, one.offset, one.lengths) for one in self.parts],
            "own": self.own,
            "roots": self.roots,
        }
        text = json.dumps(columns, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return {"rank": self.rank, "world": self.world, "map": text}


_KINDS: dict[str, Kind] = {kind[0]: kind for kind in get_args(Kind)}


def read_map(structure: Node, *, where: str) -> ShardMap:
    """Return what the structure of a shard's manifest says of the whole.

    Raises:
        FormatError: it is not that of a shard, or contradicts itself.
    """
    match structure:
        case [
            "dict",
            "state",
            _,
            "rng",
            _,
            "shard",
            ["dict", "rank", rank, "world", world, "map", text],
        ]:
            pass
        case _:
            raise FormatError(f"{where} is no shard of a set.")
    try:
        columns = json.loads(text)  # type: ignore[arg-type]
        regions = tuple(
            WholeRegion(str(name), _KINDS[kind], _sizes(shape), _size(item))
            for name, kind, shape, item in zip(
                columns["names"],
                columns["kinds"],
                columns["shapes"],
                columns["items"],
                strict=True,
            )
        )
        parts = tuple(
            Part(_size(region), _sizes(offset), _sizes(lengths))
            for region, offset, lengths in columns["parts"]
        )
        roots = columns["roots"]
        found = ShardMap(
            _size(rank),
            _size(world),
            columns["structure"],
            regions,
            parts,
            tuple(map(str, columns["own"])),
            None if roots is None else tuple(map(str, roots)),
        )
        _check(found)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where} does not say what it is a shard of: {error!r}.") from error
    return found


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(map(_size, values))


def _check(found: ShardMap) -> None:
    if not found.rank < found.world:
        raise ValueError(f"rank {found.rank} of {found.world}")
    for part in found.parts:
        shape = found.regions[part.region].shape
        if not len(part.offset) == len(part.lengths) == len(shape) or any(
            first + length > size
            for first, length, size in zip(part.offset, part.lengths, shape, strict=True)
        ):
            raise ValueError(f"a part lies outside of region {part.region}")


def with_arrays(node: Node, change: Any, path: str | None = None) -> Node:
    """Return a structure with other array nodes: what ``change(name, spec, node)`` returns."""
    if not isinstance(node, list) or not node:
        return node
    if is_array_node(node):
        return change(path or "", array_spec(node), node)  # type: ignore[no-any-return]
    if is_long_bytes(node):
        return [node[0], with_arrays(node[1], change, path)]
    if not (inner := list(children(node, path))):
        return node
    changed = [with_arrays(child, change, name) for name, child in inner]
    return _with_children(node, changed)


def _with_children(node: list[Any], changed: Sequence[Node]) -> list[Any]:
    tag = node[0]
    if tag in ("list", "tuple"):
        return [tag, *changed]
    if tag in ("dict", "namedtuple", "dataclass"):
        pairs = zip(node[1::2], changed, strict=True)
        return [tag, *(item for pair in pairs for item in pair)]
    return [*node[:-1], *changed]  # Objects, generators and leaves have one child, the last.
