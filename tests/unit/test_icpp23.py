"""The published methods that `bench/icpp23.py` compares with do what their description says.

States of eight chunks, one letter each, whose regions can be derived by hand; then any states,
which must come back bit by bit from the bytes alone. The first checkpoint behaves as
published, not as it should: zeros cost 8 bytes a chunk.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the published methods are written with numba")

BENCH = Path(__file__).resolve().parents[2] / "bench"
CHUNK_BYTES = 16


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Where dataclasses look for the types of their fields.
    spec.loader.exec_module(module)
    return module


methods = load("icpp23_methods")
rivals = load("icpp23_rivals")


def state(letters, tail_bytes=CHUNK_BYTES):
    """One chunk a letter; the last one may be short. A dot is a chunk of zeros."""
    text = "".join(letter * CHUNK_BYTES for letter in letters).replace(".", "\0")
    return np.frombuffer(text.encode(), np.uint8)[: len(text) - CHUNK_BYTES + tail_bytes]


def save_all(method, states):
    differences = [method.save(each) for each in states]
    return differences, [b"".join(each.parts) for each in differences]


def regions(name, *states):
    """Return (stored, shifted) regions of the last of these states."""
    method = getattr(methods, name)(CHUNK_BYTES)
    differences, _ = save_all(method, [state(letters) for letters in states])
    return differences[-1].first_count, differences[-1].shift_count


# --- regions, by hand -----------------------------------------------------------------

BY_HAND = [
    # states, List: (stored, shifted), Tree: (stored, shifted)
    (["abcdefgh"], (8, 0), (1, 0)),  # All new: the root.
    (["abcdefgh", "abcdefgh"], (0, 0), (0, 0)),  # Identical.
    (["abcdefgh", "ijklmnop"], (8, 0), (1, 0)),  # Nothing is as before.
    (["abcdefgh", "abcdefgx"], (1, 0), (1, 0)),  # One chunk.
    (["abcdefgh", "abcdijkl"], (4, 0), (1, 0)),  # Half: one child of the root.
    (["abcdefgh", "abcijkfg"], (3, 2), (2, 2)),  # i, (j k), f, g: f and g are no known pair.
    (["abcdefgh", "efghabcd"], (0, 8), (0, 2)),  # Swapped halves: both were recorded.
    (["abcdefgh", "habcdefg"], (0, 8), (0, 8)),  # Shifted by one: no pair was recorded.
    (["abcdefgh", "ghabcdef"], (0, 8), (0, 4)),  # By two: the pairs were, pairs of them not.
    (["abcdefgh", "ijijefgh"], (2, 2), (1, 1)),  # New twice: the second refers to the first.
    (["........"], (1, 7), (1, 7)),  # As published: pairs of repeats are not merged,
    (["abcdefgh", "........"], (1, 7), (1, 7)),  # and here none was recorded.
    (["........", "bbbb...."], (1, 3), (1, 3)),
    (["........", "abcdefgh", "........"], (0, 8), (0, 1)),  # The first records even the root.
    (["aabbccdd"], (4, 4), (4, 4)),
    (["aabbccdd", "bbaaccdd"], (0, 4), (0, 2)),  # The first records pairs of repeats, too.
    (["abcdefgh", "aibjckdl", "aibjckdl"], (0, 0), (0, 0)),
    (["abcdefgh", "aibjckdl", "ckdlaibj"], (0, 8), (0, 8)),  # Mixed regions are not recorded.
]  # fmt: skip


@pytest.mark.parametrize(("states", "of_list", "of_tree"), BY_HAND)
def test_regions_are_those_derived_by_hand(states, of_list, of_tree):
    assert regions("List", *states) == of_list
    assert regions("Tree", *states) == of_tree


def test_basic_stores_what_differs_at_the_same_offset():
    assert regions("Basic", "abcdefgh") == (8, 0)
    assert regions("Basic", "abcdefgh", "efghefgx") == (5, 0)


# --- bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [1, 2, 3, 64, 1000])
@pytest.mark.parametrize("name", ["List", "Tree"])
def test_a_first_checkpoint_of_zeros_costs_eight_bytes_a_chunk_but_one(name, chunks):
    method = getattr(methods, name)(CHUNK_BYTES)
    (difference,), (stored,) = save_all(method, [state("." * chunks)])
    referenced = 8 if chunks > 1 else 0
    assert difference.metadata_bytes == 32 + 4 + referenced + 8 * (chunks - 1)
    assert difference.payload_bytes == CHUNK_BYTES
    assert len(stored) == difference.metadata_bytes + CHUNK_BYTES


def test_the_bytes_are_those_of_the_format():
    method = methods.Tree(CHUNK_BYTES)
    _, (_, stored) = save_all(method, [state("abcdefgh"), state("efghabix", tail_bytes=5)])
    # Nodes 7 to 14 are the leaves; node 2 is the right half, 5 the pair (a b), 6 (i x).
    expected = struct.pack("<IIQIIII", 0, 1, 7 * CHUNK_BYTES + 5, CHUNK_BYTES, 1, 1, 2)
    expected += struct.pack("<I", 6) + struct.pack("<II", 0, 2)
    expected += struct.pack("<IIII", 1, 2, 5, 3)
    assert stored == expected + b"i" * CHUNK_BYTES + b"x" * 5 + bytes(CHUNK_BYTES - 5)


def test_a_full_checkpoint_is_a_header_and_the_state():
    _, (stored,) = save_all(methods.Full(CHUNK_BYTES), [state("ab")])
    assert stored[:32] == struct.pack("<IIQIIII", 0, 0, 32, 16, 0, 0, 0)
    assert stored[32:] == state("ab").tobytes()


# --- the tree of any number of chunks ---------------------------------------------------


@pytest.mark.parametrize("leaf_count", [1, 2, 3, 5, 8, 13, 100])
def test_every_node_spans_the_chunks_below_it(leaf_count):
    heap = methods.Heap(leaf_count)
    below = {int(node): [chunk] for chunk, node in enumerate(heap.leaf_nodes())}
    for node in range(leaf_count - 2, -1, -1):
        below[node] = below[2 * node + 1] + below[2 * node + 2]
    start, end = heap.spans(np.arange(heap.node_count, dtype=np.uint32))
    assert {n: list(range(start[n], end[n])) for n in range(heap.node_count)} == below
    inner = [node for a, b in heap.inner_levels() for node in range(a, b)]
    assert sorted(inner) == list(range(leaf_count - 1))


# --- restore ----------------------------------------------------------------------------


@st.composite
def histories(draw):
    chunks = draw(st.integers(1, 40))
    tail_bytes = draw(st.integers(1, CHUNK_BYTES))
    letters = st.text(alphabet="ab.xyz", min_size=chunks, max_size=chunks)
    texts = [draw(letters)]
    for _ in range(draw(st.integers(0, 5))):
        old, at = texts[-1], draw(st.integers(0, chunks))
        edit = draw(st.sampled_from(["new", "patch", "rotate", "insert", "same", "back"]))
        new = draw(letters)
        text = {
            "new": new,
            "patch": old[:at] + new[at : at + 4] + old[at + 4 :],
            "rotate": old[at:] + old[:at],
            "insert": (old[:at] + new[:2] + old[at:])[:chunks],
            "same": old,
            "back": texts[0],
        }[edit]
        texts.append(text)
    return [state(text, tail_bytes) for text in texts]


@pytest.mark.parametrize("name", ["Full", "Basic", "List", "Tree"])
@given(states=histories())
def test_every_checkpoint_comes_back_from_the_bytes_alone(name, states):
    method = getattr(methods, name)(CHUNK_BYTES)
    differences, stored = save_all(method, states)
    for number, expected in enumerate(states):
        restored = method.restore(stored.__getitem__, number)
        np.testing.assert_array_equal(restored, expected)
    for difference, each in zip(differences, stored, strict=True):
        assert len(each) == difference.metadata_bytes + difference.payload_bytes


def test_the_record_keeps_what_it_knows_when_it_grows(rng):
    record = methods.Record()
    digests = rng.integers(0, 1 << 63, (3000, 2), dtype=np.uint64)
    digests[:, 0] &= np.uint64(0xFF)  # Long searches.
    for number, part in enumerate(np.split(digests, 3)):
        record.reserve(len(part))
        record.add(part, np.arange(1000), number)
        record.add(part, np.arange(1000) + 7, number + 1)
    slots = record.find(digests)
    np.testing.assert_array_equal(record.node[slots], np.tile(np.arange(1000), 3))
    np.testing.assert_array_equal(record.number[slots], np.repeat(np.arange(3), 1000))
    assert record.count == 3000
    assert (record.find(digests + np.uint64(1 << 63)) == -1).all()


# --- all ways, behind one interface -----------------------------------------------------


WAYS = [
    pytest.param(
        way,
        id=f"{way.name} {way.chunk_bytes}",
        marks=[pytest.mark.slow] if way.name.startswith("borg") else [],
    )
    for way in rivals.ways([64])
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_back_what_it_was_given_and_counts_what_it_stored(way, tmp_path, rng):
    if way.missing:
        pytest.skip(f"{way.name} is {way.missing}")
    states = [np.zeros(5003, np.uint8)]
    states += [rng.integers(0, 256, 5003, dtype=np.uint8)] * 2
    states.append(np.roll(states[1], 64))
    keeper = way.make(tmp_path / "tier")
    saved = [keeper.save(each) for each in states]
    for number, expected in enumerate(states):
        into = np.full(5003 + rivals.ROOM_BYTES, 0xA5, np.uint8)
        np.testing.assert_array_equal(keeper.restore(number, into), expected)
    assert all(set(each.seconds) == set(rivals.PHASES) for each in saved)
    if not way.program:
        files = [path for path in (tmp_path / "tier").rglob("*") if path.is_file()]
        on_disk = sum(path.stat().st_size for path in files)
        assert on_disk == sum(each.stored_bytes for each in saved)


def test_what_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = {way.name: way.missing for way in rivals.ways([64]) if way.missing}
    assert missing == dict.fromkeys(
        ("xdelta3 -9", "borg default", "borg fixed"), "not installed"
    )


def test_a_call_within_a_timed_call_counts_once():
    watch = rivals.Watch()
    with watch():
        seconds = watch.seconds
        with watch():
            pass
        assert watch.seconds == seconds == 0.0
    assert watch.seconds > 0.0
