"""Full, Basic, List and Tree of the ICPP 2023 paper on Merkle-tree de-duplication, for the CPU.

Tan et al., "Scalable Incremental Checkpointing using GPU-Accelerated De-Duplication", ICPP
2023. Written anew from the description of the algorithm, for comparisons: the same decisions
and the same bytes, not the same speed, since theirs runs on a GPU. What is kept:

* the format: a header of 32 bytes, 4 bytes an index or root, 8 bytes a referenced checkpoint,
  8 bytes a pair of shifted regions, then whole chunks, the last one padded;
* one map from the digest of a chunk, or of a region, to where it occurred first. It is never
  evicted, and the lowest offset represents equal chunks ("TreeLowOffset");
* the tree of an increment: pass A records regions of which all is new, pass B merges regions
  that were seen before;
* the tree of the first checkpoint as published: all nodes are recorded, but repeats are looked
  up before they are hashed, so they never merge, and zeros cost 8 bytes a chunk;
* restore: the whole chain of differences is read, back to the first checkpoint.

What differs: digests are CKH-128, not a hash with a truncated rotate; and any number of chunks
makes a right tree, while published regions across the break of the lowest level lose chunks.

``tests/unit/test_icpp23.py`` derives the regions of small states by hand, and restores.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ckptflow.data import digest
from ckptflow.data.backend import kernels
from ckptflow.data.ranges import copy_ranges

Words = NDArray[np.uint64]
Ids = NDArray[np.uint32]
Spans = NDArray[np.int64]

# Reference, number, bytes of the state, bytes of a chunk; firsts, referenced, shifts.
HEADER = struct.Struct("<IIQIIII")
FIRST, FIXED, SHIFT, DONE = 0, 1, 2, 3
EMPTY = 0xFFFFFFFF

_NO_DIGESTS: Words = np.empty((0, 2), np.uint64)


@dataclass(slots=True)
class Difference:
    """One encoded checkpoint, what it holds, and how long that took."""

    parts: list[bytes | memoryview]
    metadata_bytes: int
    payload_bytes: int
    first_count: int  # Regions stored here.
    shift_count: int  # Regions that refer to an equal one.
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Regions:
    """What a checkpoint consists of, as ids of nodes; what is in none did not change."""

    first: Ids
    shift: Ids
    source: Ids
    source_number: Ids  # Of the checkpoint that holds the source.


# --- the implicit heap ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heap:
    """A heap of ``2 n - 1`` nodes whose leaves, from left to right, are the ``n`` chunks.

    Node ``i`` has the children ``2 i + 1`` and ``2 i + 2``. The leaves of the lowest level come
    first from left to right, although their ids are the highest ones.
    """

    leaf_count: int

    @property
    def node_count(self) -> int:
        """How many nodes there are, leaves included."""
        return 2 * self.leaf_count - 1

    @property
    def height(self) -> int:
        """How far the lowest level is below the root."""
        return (self.leaf_count - 1).bit_length()

    @property
    def deep(self) -> int:
        """How many leaves are on the lowest level."""
        return 2 * self.leaf_count - (1 << self.height)

    def leaf_nodes(self) -> Spans:
        """Return the node of every chunk."""
        chunk = np.arange(self.leaf_count)
        lowest = (1 << self.height) - 1 + chunk
        return np.where(chunk < self.deep, lowest, self.leaf_count - 1 + chunk - self.deep)

    def inner_levels(self) -> list[tuple[int, int]]:
        """Return the ranges of inner nodes, by level, the lowest first."""
        levels = []
        for depth in range(self.height):
            end = min((1 << (depth + 1)) - 1, self.leaf_count - 1)
            levels.append(((1 << depth) - 1, end))
        return levels[::-1]

    def spans(self, nodes: Ids) -> tuple[Spans, Spans]:
        """Return the first chunk of each node, and the one after its last."""
        one = nodes.astype(np.int64) + 1
        depth = np.frexp(one.astype(np.float64))[1].astype(np.int64) - 1
        below = self.height - depth
        position = (one << below) - (1 << self.height)
        return self._chunk_at(position), self._chunk_at(position + (1 << below))

    def _chunk_at(self, position: Spans) -> Spans:
        """Return the chunk at a place of the lowest level, were that level full."""
        return np.where(position < self.deep, position, self.deep + (position - self.deep) // 2)


class Row:
    """Chunks without a tree: every node is a chunk."""

    def __init__(self, leaf_count: int) -> None:
        self.leaf_count = leaf_count

    def spans(self, nodes: Ids) -> tuple[Spans, Spans]:
        """Return the first chunk of each node, and the one after its last."""
        first = nodes.astype(np.int64)
        return first, first + 1


# --- the record of first occurrences ------------------------------------------------------


class Record:
    """The map from a digest to the node and the checkpoint of its first occurrence."""

    def __init__(self) -> None:
        self.count = 0
        self._allocate(16)

    def _allocate(self, capacity: int) -> None:
        self.keys = np.zeros((capacity, 2), np.uint64)
        self.node = np.full(capacity, EMPTY, np.uint32)
        self.number = np.zeros(capacity, np.uint32)

    @property
    def table(self) -> tuple[Words, Ids, Ids]:
        """The columns of the map."""
        return self.keys, self.node, self.number

    def reserve(self, more: int) -> None:
        """Make room as the original does: for all nodes of a tree, before each checkpoint."""
        needed = (self.count + more) * 3 // 2
        if needed > len(self.node):
            old = self.table
            self._allocate(1 << needed.bit_length())
            _rehash(old, self.table)

    def add(self, digests: Words, nodes: Spans, number: int) -> None:
        """Record digests in this order; one that is known keeps its first occurrence."""
        self.count += _add(digests, nodes, number, self.table)

    def find(self, digests: Words) -> Spans:
        """Return the slot of each digest, or -1."""
        return _find(digests, self.table)


@njit(cache=True)
def _slot(low, high, keys, node):
    mask = np.uint64(len(node) - 1)
    at = low & mask
    while node[at] != EMPTY and (keys[at, 0] != low or keys[at, 1] != high):
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True)
def _rehash(old, new):
    old_keys, old_node, old_number = old
    keys, node, number = new
    for i in range(len(old_node)):
        if old_node[i] != EMPTY:
            at = _slot(old_keys[i, 0], old_keys[i, 1], keys, node)
            keys[at, 0], keys[at, 1] = old_keys[i, 0], old_keys[i, 1]
            node[at], number[at] = old_node[i], old_number[i]


@njit(cache=True)
def _add(digests, nodes, number_now, table):
    keys, node, number = table
    added = 0
    for i in range(len(digests)):
        at = _slot(digests[i, 0], digests[i, 1], keys, node)
        if node[at] == EMPTY:
            keys[at, 0], keys[at, 1] = digests[i, 0], digests[i, 1]
            node[at], number[at] = nodes[i], number_now
            added += 1
    return added


@njit(cache=True)
def _find(digests, table):
    keys, node, _ = table
    slots = np.empty(len(digests), np.int64)
    for i in range(len(digests)):
        at = _slot(digests[i, 0], digests[i, 1], keys, node)
        slots[i] = -1 if node[at] == EMPTY else np.int64(at)
    return slots


@njit(cache=True)
def _label(digests, old, leaves, table, labels):
    """Record every chunk, then label it. In order, so that the lowest offset comes first."""
    leaf_nodes, number_now = leaves
    keys, node, number = table
    added = 0
    for i in range(len(digests)):
        at = _slot(digests[i, 0], digests[i, 1], keys, node)
        new = node[at] == EMPTY
        if new:
            keys[at, 0], keys[at, 1] = digests[i, 0], digests[i, 1]
            node[at], number[at] = leaf_nodes[i], number_now
            added += 1
        if i < len(old) and old[i, 0] == digests[i, 0] and old[i, 1] == digests[i, 1]:
            labels[leaf_nodes[i]] = FIXED
        else:
            labels[leaf_nodes[i]] = FIRST if new else SHIFT
    return added


@njit(cache=True)
def _merge(start, end, found, labels, emitted):
    """Pass B of one level: label its nodes; return which regions end below it."""
    count = 0
    asked = 0
    for n in range(start, end):
        left, right = 2 * n + 1, 2 * n + 2
        if labels[left] == labels[right] and labels[left] != SHIFT:
            labels[n] = labels[left]
            continue
        if labels[left] == labels[right]:
            asked += 1
            if found[asked - 1]:
                labels[n] = SHIFT
                continue
        labels[n] = DONE
        for child in (left, right):
            if labels[child] == FIRST or labels[child] == SHIFT:
                emitted[count] = child
                count += 1
    return count


# --- the methods --------------------------------------------------------------------------


class Full:
    """Store the whole state each time."""

    name = "Full"

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes, self.count = chunk_bytes, 0

    def save(self, state: NDArray[np.uint8]) -> Difference:
        """Encode the next checkpoint."""
        began = time.perf_counter()
        copy = state.copy()  # The state may change once this has returned.
        head = HEADER.pack(self.count, self.count, len(state), self.chunk_bytes, 0, 0, 0)
        self.count += 1
        seconds = {"scan": 0.0, "encode": time.perf_counter() - began}
        return Difference([head, copy.data], len(head), len(copy), 1, 0, seconds)

    def restore(
        self, read: Callable[[int], bytes], number: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return the state of a checkpoint, given how to read the bytes of each."""
        stored = np.frombuffer(read(number), np.uint8)[HEADER.size :]
        state = np.empty_like(stored) if into is None else into[: len(stored)]
        np.copyto(state, stored)
        return state


class Basic:
    """Store the chunks that differ from the one at the same offset before."""

    name = "Basic"

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes, self.count = chunk_bytes, 0
        self.leaves = _NO_DIGESTS

    def save(self, state: NDArray[np.uint8]) -> Difference:
        """Encode the next checkpoint."""
        began = time.perf_counter()
        leaves = digest.chunk_digests(state, self.chunk_bytes)
        regions = self.regions(leaves)
        self.leaves = leaves
        scanned = time.perf_counter()
        difference = self._encode(state, regions)
        self.count += 1
        encoded = time.perf_counter()
        difference.seconds = {"scan": scanned - began, "encode": encoded - scanned}
        return difference

    def regions(self, leaves: Words) -> Regions:
        """Return what a state with these digests consists of."""
        changed = np.arange(len(leaves), dtype=np.uint32)
        if self.count:
            changed = changed[(leaves != self.leaves).any(axis=1)]
        none = changed[:0]
        return Regions(changed, none, none, none)

    def shape(self, leaf_count: int) -> Heap | Row:
        """Return what the ids of nodes mean."""
        return Row(leaf_count)

    def _encode(self, state: NDArray[np.uint8], regions: Regions) -> Difference:
        chunk_bytes = self.chunk_bytes
        start, end = self.shape(len(self.leaves)).spans(regions.first)
        target = np.cumsum(end - start) - (end - start)
        payload = np.zeros(int((end - start).sum()) * chunk_bytes, np.uint8)
        begin = start * chunk_bytes
        copy_ranges(
            state,
            payload,
            begin.astype(np.uint64),
            (target * chunk_bytes).astype(np.uint64),
            (np.minimum(end * chunk_bytes, len(state)) - begin).astype(np.uint64),
        )
        order = np.argsort(regions.source_number, kind="stable")
        pairs = np.stack([regions.shift[order], regions.source[order]], axis=1)
        numbers, counts = np.unique(regions.source_number, return_counts=True)
        referenced = np.stack([numbers, counts], axis=1)
        head = HEADER.pack(
            0, self.count, len(state), chunk_bytes, len(regions.first), len(numbers), len(pairs)
        )
        metadata = b"".join(
            [head, *(ids.astype("<u4").tobytes() for ids in (regions.first, referenced, pairs))]
        )
        return Difference(
            [metadata, payload.data],
            len(metadata),
            len(payload),
            len(regions.first),
            len(regions.shift),
        )

    def restore(
        self, read: Callable[[int], bytes], number: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return the state of a checkpoint, given how to read the bytes of each.

        Reads every one from ``number`` back to the first, as the original does. Memory to
        restore ``into`` has room for the last chunk as a whole.
        """
        piece = Piece.decode(read(number), self.shape)
        padded_bytes = piece.leaf_count * self.chunk_bytes
        state = np.empty(padded_bytes, np.uint8) if into is None else into[:padded_bytes]
        owner, leaf = np.full(piece.leaf_count, number, np.uint32), np.arange(piece.leaf_count)
        for at in range(number, -1, -1):
            if at < number:
                piece = Piece.decode(read(at), self.shape)
            _resolve(
                at,
                (owner, leaf),
                (piece.offset, piece.source, piece.source_number),
                piece.data.reshape(-1, self.chunk_bytes),
                state.reshape(-1, self.chunk_bytes),
            )
        return state[: piece.size_bytes]


class List(Basic):
    """Store the chunks never seen before; refer to equal ones of any checkpoint."""

    name = "List"

    def __init__(self, chunk_bytes: int) -> None:
        super().__init__(chunk_bytes)
        self.record = Record()

    def regions(self, leaves: Words) -> Regions:
        """Return what a state with these digests consists of."""
        labels = np.empty(len(leaves), np.uint8)
        self.record.reserve(len(leaves))
        self._label(leaves, np.arange(len(leaves)), labels)
        shift = np.flatnonzero(labels == SHIFT)
        slots = self.record.find(leaves[shift])
        return Regions(
            np.flatnonzero(labels == FIRST).astype(np.uint32),
            shift.astype(np.uint32),
            self.record.node[slots],
            self.record.number[slots],
        )

    def _label(self, leaves: Words, nodes: Spans, labels: NDArray[np.uint8]) -> None:
        self.record.count += _label(
            leaves, self.leaves, (nodes, self.count), self.record.table, labels
        )


class Tree(List):
    """List, with equal labels merged upwards in a binary tree: one id a region."""

    name = "Tree"

    def shape(self, leaf_count: int) -> Heap | Row:
        """Return what the ids of nodes mean."""
        return Heap(leaf_count)

    def regions(self, leaves: Words) -> Regions:
        """Return what a state with these digests consists of."""
        heap = Heap(len(leaves))
        leaf_nodes = heap.leaf_nodes()
        labels = np.full(heap.node_count, DONE, np.uint8)
        nodes = np.zeros((heap.node_count, 2), np.uint64)
        self.record.reserve(heap.node_count)
        nodes[leaf_nodes] = leaves
        self._label(leaves, leaf_nodes, labels)
        first_checkpoint = self.count == 0
        levels = heap.inner_levels()
        if not first_checkpoint:
            for start, end in levels:
                self._record_new(start, end, labels, nodes)
        roots = [
            self._merged(start, end, labels, nodes, look_up=not first_checkpoint)
            for start, end in levels
        ]
        if first_checkpoint:
            for start, end in levels:
                self._hash(np.arange(start, end), nodes)
                self.record.add(nodes[start:end], np.arange(start, end), self.count)
        roots.append(np.zeros(int(labels[0] in (FIRST, SHIFT)), np.int64))
        return self._emitted(np.concatenate(roots), labels, nodes, heap)

    def _record_new(
        self, start: int, end: int, labels: NDArray[np.uint8], nodes: Words
    ) -> None:
        """Pass A of one level: record the regions of which all is new."""
        new = self._with_both(FIRST, start, end, labels)
        labels[new] = FIRST
        self._hash(new, nodes)
        self.record.add(nodes[new], new, self.count)

    def _merged(
        self, start: int, end: int, labels: NDArray[np.uint8], nodes: Words, *, look_up: bool
    ) -> Spans:
        """Pass B of one level: merge what was seen before; return the regions that end here.

        Without ``look_up`` as if every node were found missing: its digest is not there yet.
        """
        both = self._with_both(SHIFT, start, end, labels)
        found = np.zeros(len(both), np.bool_)
        if look_up:
            self._hash(both, nodes)
            found = self.record.find(nodes[both]) >= 0
        emitted = np.empty(2 * (end - start), np.int64)
        return emitted[: _merge(start, end, found, labels, emitted)].copy()

    def _emitted(
        self, roots: Spans, labels: NDArray[np.uint8], nodes: Words, heap: Heap
    ) -> Regions:
        roots = roots[np.argsort(heap.spans(roots)[0])]
        kind = labels[roots]
        shift = roots[kind == SHIFT]
        slots = self.record.find(nodes[shift])
        return Regions(
            roots[kind == FIRST].astype(np.uint32),
            shift.astype(np.uint32),
            self.record.node[slots],
            self.record.number[slots],
        )

    @staticmethod
    def _with_both(label: int, start: int, end: int, labels: NDArray[np.uint8]) -> Spans:
        """Return the nodes from ``start`` to ``end`` of which both children have a label."""
        children = labels[2 * start + 1 : 2 * end + 1].reshape(-1, 2)
        return start + np.flatnonzero((children == label).all(axis=1))

    @staticmethod
    def _hash(which: Spans, nodes: Words) -> None:
        """Set the digests of these inner nodes from those of their children."""
        if not len(which):
            return
        children = np.empty((2 * len(which), 2), np.uint64)
        children[0::2], children[1::2] = nodes[2 * which + 1], nodes[2 * which + 2]
        out = np.empty((len(which), 2), np.uint64)
        kernels().digest_parents(children, _NO_DIGESTS, _NO_DIGESTS, out)
        nodes[which] = out


METHODS: Sequence[type[Full | Basic]] = (Full, Basic, List, Tree)


# --- restore ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """One decoded difference, chunk by chunk.

    ``offset`` is the number of the chunk in ``data``, or -1; ``source`` the equal chunk in
    checkpoint ``source_number``, or -1; neither: the same chunk of the checkpoint before.
    """

    size_bytes: int
    leaf_count: int
    offset: Spans
    source: Spans
    source_number: Ids
    data: NDArray[np.uint8]

    @classmethod
    def decode(cls, stored: bytes, shape: Callable[[int], Heap | Row]) -> Piece:
        """Read what `Basic.save` wrote."""
        _, _, size_bytes, chunk_bytes, firsts, referenced, shifts = HEADER.unpack_from(stored)
        count = firsts + 2 * referenced + 2 * shifts
        ids = np.frombuffer(stored, "<u4", count, HEADER.size)
        data = np.frombuffer(stored, np.uint8, offset=HEADER.size + 4 * count)
        first = ids[:firsts]
        by_number = ids[firsts : firsts + 2 * referenced].reshape(-1, 2)
        pairs = ids[firsts + 2 * referenced :].reshape(-1, 2)
        leaf_count = -(-size_bytes // chunk_bytes)
        heap = shape(leaf_count)
        offset, source = np.full(leaf_count, -1), np.full(leaf_count, -1)
        source_number = np.zeros(leaf_count, np.uint32)
        _spread(*heap.spans(first), offset)
        numbers = np.repeat(by_number[:, 0], by_number[:, 1])
        start, end = heap.spans(pairs[:, 0])
        _spread_shifts(start, end, (heap.spans(pairs[:, 1])[0], numbers), source, source_number)
        return cls(size_bytes, leaf_count, offset, source, source_number, data)


@njit(cache=True)
def _spread(start, end, offset):
    stored = 0
    for i in range(len(start)):
        for leaf in range(start[i], end[i]):
            offset[leaf] = stored
            stored += 1


@njit(cache=True)
def _spread_shifts(start, end, sources, source, source_number):
    source_start, numbers = sources
    for i in range(len(start)):
        for leaf in range(start[i], end[i]):
            source[leaf] = source_start[i] + leaf - start[i]
            source_number[leaf] = numbers[i]


@njit(cache=True)
def _resolve(at, wanted, piece, data, state):
    """Copy the chunks that checkpoint ``at`` holds; pass the others on to older ones."""
    owner, leaf = wanted
    offset, source, source_number = piece
    for i in range(len(owner)):
        while owner[i] == at and leaf[i] >= 0:
            here = leaf[i]
            if offset[here] >= 0:
                state[i] = data[offset[here]]
                leaf[i] = -1
            elif source[here] >= 0:
                leaf[i], owner[i] = source[here], source_number[here]
            else:
                owner[i] = at - 1
