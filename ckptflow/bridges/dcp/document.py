"""What a checkpoint of ``torch.distributed.checkpoint`` looks like as a state.

====================================  ======================================================
``metadata/entries/<name>``           of a tensor: type, size, chunks; None for other values
``metadata/planner_data``             what the planner keeps with it: plain values only
``tensors/<name>/<offsets>``          one chunk, an array of torch; offsets as ``0,128``
``bytes/<name>``                      what the planner made of a value that is no tensor
====================================  ======================================================

So it is a state like any other, of plain values, arrays and bytes, and nothing in it is a
pickle of ours. What a planner hands over as bytes (torch's own makes them with ``torch.save``)
is stored as it is and handed back to a planner; it is never looked into.
``tests/unit/test_dcp.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptflow.data.leaves import Node, decode_key, encode_key, join, segment
from ckptflow.data.regions import flatten, plan_restore
from ckptflow.data.tree import is_array_node, is_long_bytes, refuse
from ckptflow.errors import FormatError

_PROPERTIES = ("dtype", "layout", "memory_format")
_KINDS = (torch.dtype, torch.layout, torch.memory_format)
_NAMES = {
    name: value for name, value in vars(torch).items() if isinstance(value, _KINDS)
}  # All that a name from a checkpoint can become.


def offsets_key(offsets: Sequence[int]) -> str:
    """Return the key of a chunk that begins at ``offsets``."""
    return ",".join(map(str, offsets)) or "0"


def tensor_name(name: str, offsets: Sequence[int]) -> str:
    """Return the name of the array that holds a chunk of a tensor."""
    return join(join("tensors", segment(name)), segment(offsets_key(offsets)))


def joined_node(metadata: Metadata, parts: Sequence[tuple[Node, int]]) -> Node:
    """Return the structure of a checkpoint.

    Args:
        metadata: what torch says about it.
        parts: for each rank the node of its tensors and bytes, whose regions count from 0, and
            the number of the first of these regions in the checkpoint.

    Raises:
        StateError: the planner keeps something that is no plain value.
    """
    tensors: dict[str, dict[str, Node]] = {}
    values: dict[str, Node] = {}
    for node, first in parts:
        own = _items(node)
        for name, chunks in _items(own["tensors"]).items():
            of_tensor = tensors.setdefault(name, {})
            of_tensor |= {key: _moved(one, first) for key, one in _items(chunks).items()}
        values |= {name: _moved(one, first) for name, one in _items(own["bytes"]).items()}
    state = {
        "metadata": metadata_node(metadata),
        "tensors": _dict({name: _dict(chunks) for name, chunks in tensors.items()}),
        "bytes": _dict(values),
    }
    return _dict({"state": _dict(state), "rng": None})


def parts_of_state(structure: Node) -> tuple[Node, dict[str, Node]]:
    """Return the node of the metadata, and those of all bytes by name.

    Raises:
        FormatError: it is not the structure of such a checkpoint.
    """
    try:
        state = _items(_items(structure)["state"])
        return state["metadata"], _items(state["bytes"])
    except (KeyError, TypeError, IndexError) as error:
        raise FormatError("It was not saved by torch.distributed.checkpoint.") from error


def _items(node: Any) -> dict[Any, Node]:
    return {decode_key(key): one for key, one in zip(node[1::2], node[2::2], strict=True)}


def _dict(items: Mapping[str, Node]) -> Node:
    return ["dict", *(part for key, node in items.items() for part in (encode_key(key), node))]


def _moved(node: Any, first: int) -> Node:
    """Return the node of an array or of bytes; regions count from ``first``."""
    if is_array_node(node):
        return [*node[:4], node[4] + first, *node[5:]]
    return [node[0], _moved(node[1], first)] if is_long_bytes(node) else node


def metadata_node(metadata: Metadata) -> Node:
    """Return the node of what torch says about a checkpoint.

    Raises:
        StateError: the planner keeps something that is no plain value.
    """
    entries = {
        name: None if isinstance(entry, BytesStorageMetadata) else _plain(entry)
        for name, entry in metadata.state_dict_metadata.items()
    }
    flat = flatten({"entries": entries, "planner_data": metadata.planner_data})
    if flat.names:
        raise refuse(
            "What the planner keeps with the checkpoint cannot be stored",
            [f"{name!r}: an array; give the planner plain values" for name in flat.names],
        )
    return flat.structure


def metadata_of(node: Node) -> Metadata:
    """Return what torch said about a checkpoint.

    Raises:
        FormatError: the node says something else.
    """
    try:
        stored = plan_restore(node, (), None).finish()
        entries = {
            name: BytesStorageMetadata() if entry is None else _entry(entry)
            for name, entry in stored["entries"].items()
        }
        planner_data = stored["planner_data"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError("The checkpoint does not say what its tensors are.") from error
    return Metadata(state_dict_metadata=entries, planner_data=planner_data)


def _plain(entry: TensorStorageMetadata) -> dict[str, Any]:
    properties = entry.properties
    return {
        **{name: str(getattr(properties, name)).removeprefix("torch.") for name in _PROPERTIES},
        "requires_grad": bool(properties.requires_grad),
        "pin_memory": bool(properties.pin_memory),
        "size": list(entry.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
    }


def _entry(stored: dict[str, Any]) -> TensorStorageMetadata:
    properties = TensorProperties(
        **{name: _NAMES[stored[name]] for name in _PROPERTIES},
        requires_grad=stored["requires_grad"],
        pin_memory=stored["pin_memory"],
    )
    chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        for offsets, sizes in stored["chunks"]
    ]
    return TensorStorageMetadata(properties, torch.Size(stored["size"]), chunks)
