"""Plain leaves come back with their type and their bits; names never collide."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import leaves
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.leaves import (
    decode_key,
    decode_plain,
    encode_key,
    encode_plain,
    is_plain,
    register_leaf,
    segment,
)
from ckptflow.data.regions import flatten, plan_restore
from ckptflow.errors import ConfigError, FormatError, StateError

ANY_TEXT = st.text(st.characters(exclude_categories=()))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | ANY_TEXT
    | st.binary()
)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


def through_json(node: Any) -> Any:
    """The way a manifest goes: UTF-8 text without escapes, which must be valid UTF-8."""
    return json.loads(json.dumps(node, ensure_ascii=False).encode())


def bits(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value)
    return struct.pack("<dd", value.real, value.imag) if isinstance(value, complex) else value


@given(PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    back = decode_plain(through_json(encode_plain(value)))
    assert type(back) is type(value)
    assert bits(back) == bits(value)


@pytest.mark.parametrize(
    "pattern", [0x7FF0000000000001, 0x7FF8000000000123, 0xFFF0000000000000, 1 << 63, 1]
)
def test_floats_keep_every_bit(pattern: int) -> None:
    (value,) = struct.unpack("<d", struct.pack("<Q", pattern))
    back = decode_plain(through_json(encode_plain(value)))
    assert struct.unpack("<Q", struct.pack("<d", back)) == (pattern,)


def test_an_integer_beyond_the_limit_of_int_to_str_comes_back() -> None:
    value = -(1 << 40_000) + 1
    assert decode_plain(through_json(encode_plain(value))) == value


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1), np.float64("nan"), np.bool_(1), np.int8(-3), np.complex64(1j),
        np.str_("é"), np.str_(""), np.bytes_(b"x\0y"), np.datetime64("2024-01-01", "ns"),
        np.timedelta64(5, "D"), np.str_("a\0"), np.bytes_(b"a\0"), np.longdouble(1) / 3,
        np.float16(1), ml_dtypes.bfloat16(1.5), ml_dtypes.float8_e5m2(2),
        np.array((1, 2.0), "i4,f8")[()],
    ],
    ids=repr,
)  # fmt: skip
def test_numpy_scalars_keep_their_dtype(value: np.generic) -> None:
    back = decode_plain(through_json(encode_plain(value)))
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "value", [IntEnum("E", "A").A, type("S", (str,), {})("x"), object(), [], 1j.conjugate]
)
def test_subclasses_and_objects_are_not_plain(value: object) -> None:
    assert not is_plain(value)
    with pytest.raises(Unsupported, match="no plain value"):
        encode_plain(value)


@given(KEYS)
def test_keys_come_back_with_their_type(key: Any) -> None:
    back = decode_key(through_json(encode_key(key)))
    assert repr(back) == repr(key)


@given(st.lists(KEYS, unique_by=repr, max_size=8))
def test_different_keys_have_different_names_in_valid_text(keys: list[Any]) -> None:
    names = [segment(key) for key in keys]
    assert len(set(names)) == len(names)
    assert not any("/" in name.encode().decode() for name in names)


@pytest.mark.parametrize(
    ("key", "name"),
    [("w", "w"), ("a/b", "a~1b"), ("~", "~0"), (0, "[0]"), ("0", "0"), ("[0]", "~20]"),
     (("a", 1), "[('a', 1)]"), (None, "[None]"), ("", ""), (True, "[True]"),
     ("\udc80", "~udc80")],
)  # fmt: skip
def test_names(key: object, name: str) -> None:
    assert segment(key) == name


@pytest.mark.parametrize("key", [np.int64(1), frozenset(), IntEnum("E", "A").A, (1, object())])
def test_keys_that_would_not_come_back_are_refused(key: object) -> None:
    with pytest.raises(Unsupported, match="keys are str, int, float, bool, None, bytes"):
        encode_key(key)


@pytest.mark.parametrize(
    "node",
    [["int"], ["int", "zz"], ["float", "00"], ["scalar", "<f8", "00"], ["bytes", "*"],
     ["new", 1],
     [], [["int", "1"]], ["complex", 1], ["scalar", "O", ""]],
)  # fmt: skip
def test_damaged_nodes_are_refused(node: Any) -> None:
    with pytest.raises(FormatError, match=r"The checkpoint (holds|names)"):
        decode_plain(node)


# --- opt-in ---------------------------------------------------------------------------------


@dataclass
class Point:
    x: float
    trail: Any


class Mesh:
    def __init__(self, points: Any) -> None:
        self.points = points


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "_by_type", {})
    monkeypatch.setattr(leaves, "_by_label", {})


def register_mesh() -> None:
    register_leaf(
        Mesh,
        "mesh",
        encode=lambda mesh: {"p": mesh.points},
        decode=lambda tree: Mesh(tree["p"]),
    )


def restored(state: Any, target: Any = None) -> Any:
    flat = flatten(state)
    arena = np.empty(flat.total_bytes, np.uint8)
    copies = flat.copy_into(arena)
    plan = plan_restore(through_json(flat.structure), [len(c) for c in copies], target)
    for buffer, copy in zip(plan.buffers, copies, strict=True):
        buffer[:] = copy
    return plan.finish()


def test_an_object_without_opt_in_is_refused_with_its_name_type_and_the_way_out() -> None:
    with pytest.raises(
        StateError, match=r"'mesh/0': an object of type .*Mesh .*register_leaf\(Mesh"
    ):
        flatten({"mesh": [Mesh(1)]})


def test_a_registered_type_comes_back_by_its_label() -> None:
    register_mesh()
    back = restored({"m": Mesh(np.arange(3.0))})
    assert isinstance(back["m"], Mesh)
    assert back["m"].points.tolist() == [0, 1, 2]
    target = {"m": Mesh(None)}
    assert restored({"m": Mesh(np.arange(3.0))}, target) is target
    assert target["m"].points.tolist() == [0, 1, 2]


def test_a_label_that_the_restoring_program_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register_mesh()
    flat = flatten({"m": Mesh(5)})
    monkeypatch.setattr(leaves, "_by_label", {})
    with pytest.raises(StateError, match=r"'m': a leaf 'mesh' .*call register_leaf"):
        plan_restore(flat.structure, [], None)


def test_a_label_belongs_to_one_type_but_may_be_registered_again() -> None:
    register_mesh()
    register_mesh()
    with pytest.raises(ConfigError, match="'mesh' belongs to Mesh; give Point another one"):
        register_leaf(Point, "mesh", encode=vars, decode=lambda tree: Point(**tree))
    with pytest.raises(ConfigError, match="not empty"):
        register_leaf(Point, "", encode=vars, decode=lambda tree: Point(**tree))


def test_a_registered_dataclass_comes_back_as_itself_without_a_target() -> None:
    register_leaf(Point, "point", encode=vars, decode=lambda tree: Point(**tree))
    back = restored([Point(1.5, np.zeros(2))])
    assert isinstance(back[0], Point)
    assert back[0].x == 1.5


@pytest.mark.parametrize("key", [{"a": 1}, ["bytearray", ""], ["tuple", {"a": 1}]])
def test_a_key_that_cannot_be_one_is_not_of_this_format(key: object) -> None:
    with pytest.raises(FormatError, match="as a key, which it cannot be"):
        plan_restore(["dict", key, 1], [], None)
