"""Any state comes back bit for bit: made anew, and in place, where objects and memory stay.

The law: restore(save(state)) equals state, and restore(save(a), into=b) makes b equal to a for
every b of the same structure, without replacing a container or moving an array.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.regions import array_from, flatten, iter_arrays, plan_restore
from ckptflow.errors import StateError

DTYPES = [
    *(np.dtype(code) for code in "?bBhHiIqQefdFDg"),
    *(np.dtype(code) for code in (">f4", ">i8", ">c16", "M8[ns]", "m8[s]", "S5", "U3", "V3")),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "int4")),
    np.dtype(
        {"names": ["a", "b"], "formats": ["i2", ">f8"], "offsets": [1, 5], "itemsize": 16}
    ),
    np.dtype([("x", "f4", (2,)), ("y", "S1")]),
]

CUTS = [slice(None), slice(None, None, -1), slice(None, None, 2), slice(1, 3)]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """An array of random bits, then turned, cut and stretched."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    seed = draw(st.integers(0, 2**32))
    raw = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    array = np.ndarray(shape, dtype, raw)
    for axis in range(array.ndim):
        cut = draw(st.sampled_from(CUTS))
        array = array[(slice(None),) * axis + (cut,)]
    return array.transpose(draw(st.permutations(range(array.ndim))))


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
    | st.text() | st.binary()
)  # fmt: skip
KEYS = (
    st.text(max_size=4) | st.integers(-3, 3) | st.booleans() | st.none()
    | st.tuples(st.text(max_size=2), st.integers(0, 2))
)  # fmt: skip
STATES = st.recursive(
    PLAIN | arrays(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


def saved(state: Any) -> tuple[Any, list[bytes]]:
    flat = flatten(state)
    copies = [bytes(copy) for copy in flat.copy_into(np.empty(flat.total_bytes, np.uint8))]
    return json.loads(json.dumps(flat.structure, ensure_ascii=False).encode()), copies


def restored(stored: tuple[Any, list[bytes]], target: Any = None) -> Any:
    structure, copies = stored
    plan = plan_restore(structure, [len(copy) for copy in copies], target)
    for buffer, copy in zip(plan.buffers, copies, strict=True):
        buffer[:] = copy
    return plan.finish()


def cells(array: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of all elements, padding included, one by one in C order."""
    return b"".join(array[(*index, ...)].tobytes() for index in np.ndindex(array.shape))


def same(a: Any, b: Any) -> bool:
    """Compare type by type and bit by bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and cells(a) == cells(b)
    if isinstance(a, dict):
        return all(map(same, a, b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return repr(a) == repr(b)


def blank(state: Any) -> Any:
    """Return a state of the same structure with other values, arrays in C order."""
    if isinstance(state, np.ndarray):
        return np.zeros(state.shape, state.dtype)
    if isinstance(state, dict):
        return {key: blank(item) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(blank, state))
    return "other"


def parts(state: Any) -> Iterator[Any]:
    """Yield what must stay the same object: arrays, dicts and lists."""
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, dict | list | tuple):
        if not isinstance(state, tuple):
            yield state
        for item in state.values() if isinstance(state, dict) else state:
            yield from parts(item)


def where(state: Any) -> list[tuple[int, int]]:
    return [
        (id(part), part.ctypes.data if isinstance(part, np.ndarray) else 0)
        for part in parts(state)
    ]


@given(STATES)
def test_a_state_comes_back_anew(state: Any) -> None:
    assert same(restored(saved(state)), state)


@given(STATES)
def test_a_state_comes_back_in_place(state: Any) -> None:
    stored = saved(state)
    target = blank(state)
    before = where(target)
    back = restored(stored, target)
    assert same(back, state)
    if isinstance(target, np.ndarray | dict | list):
        assert back is target
    assert where(back) == before


@given(STATES)
def test_a_state_comes_back_into_itself(state: Any) -> None:
    stored, before = saved(state), where(state)
    for array in parts(state):
        if isinstance(array, np.ndarray):
            array[...] = np.zeros((), array.dtype)
    back = restored(stored, state)
    assert saved(back) == stored
    assert where(back) == before


@given(STATES)
def test_saving_says_the_same_twice(state: Any) -> None:
    assert saved(state) == saved(state)


@given(STATES)
def test_each_array_can_be_read_alone(state: Any) -> None:
    structure, copies = saved(state)
    found = [array_from(spec, copies[spec.region]) for _, spec in iter_arrays(structure)]
    assert same(found, [part for part in parts(state) if isinstance(part, np.ndarray)])


@given(STATES, st.data())
def test_planning_changes_nothing_whether_it_fits_or_not(
    state: Any, data: st.DataObject
) -> None:
    other = data.draw(STATES)
    before = saved(other)
    structure, copies = saved(state)
    with suppress(StateError):
        plan_restore(structure, [len(copy) for copy in copies], other)
    assert saved(other) == before


@st.composite
def views(draw: st.DrawFn, count: int) -> list[np.ndarray[Any, Any]]:
    """Arrays of four numbers cut out of one memory, or of two: many of them overlap."""
    memory = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((2, 24))
    cut = []
    for _ in range(count):
        step = draw(st.sampled_from([1, 2, 3, 5, -1, -2]))
        first = draw(st.integers(max(0, -3 * step), min(23, 23 - 3 * step)))
        row = memory[draw(st.integers(0, 1))]
        cut.append(np.lib.stride_tricks.as_strided(row[first:], (4,), (8 * step,)))
    return cut


def sharing(arrays: list[np.ndarray[Any, Any]]) -> list[bool]:
    return [np.shares_memory(a, b) for a in arrays for b in arrays]


@given(views(6))
def test_what_shared_memory_shares_it_again(state: list[np.ndarray[Any, Any]]) -> None:
    back = restored(saved(state))
    assert same(back, state)
    assert sharing(back) == sharing(state)


@given(views(6), views(6))
def test_whatever_shares_memory_in_the_target_each_array_gets_its_own_values(
    state: list[np.ndarray[Any, Any]], target: list[np.ndarray[Any, Any]]
) -> None:
    stored = saved(state)
    assert same(restored(stored, target), restored(stored))
