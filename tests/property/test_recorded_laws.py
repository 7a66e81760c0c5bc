"""A recorded walk finds what a new walk finds, whatever was done to the state in between.

The law: after any changes `RecordedWalk.flatten` gives the structure, the names and the bytes
that `flatten` gives, and regions that lie in the same memory. The changes are those that
programs make, and those that would fool a record that looks at names, identities or addresses
alone.
"""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest
from ckptflow.data.recorded import RecordedWalk
from ckptflow.data.regions import Flattened, flatten, register_leaf
from ckptflow.errors import StateError


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Box:
    content: Any
    label: str = "box"


class Keeper:
    """An object that makes its state anew each time, as torch's do."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> dict[str, Any]:
        return OrderedDict(content=self.content, views=[view(self.content)])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.content = state["content"]


class Mesh:
    def __init__(self, points: Any) -> None:
        self.points = points


register_leaf(Mesh, "recorded-mesh", lambda mesh: {"points": mesh.points}, Mesh)


def view(value: Any) -> Any:
    return value[:] if isinstance(value, np.ndarray) and value.ndim else None


BUFFER = np.arange(256, dtype=np.uint8)  # What several arrays may lie in.
TENSOR = torch.arange(64, dtype=torch.float32)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """An array of its own, one in a common buffer, or a tensor."""
    kind = draw(st.sampled_from(["own", "own", "shared", "strided", "torch", "torch-shared"]))
    dtype = draw(st.sampled_from(["u1", "<f4", ">f4", "M8[s]", "M8[ms]", "i2,f4", "S3"]))
    count = draw(st.integers(0, 5))
    if kind == "own":
        size = count * 2 * np.dtype(dtype).itemsize
        return (
            np.frombuffer(bytearray(draw(st.randoms()).randbytes(size)), dtype)
            .reshape(-1, 2)
            .copy()
        )
    start = draw(st.integers(0, 6)) * 8
    if kind == "shared":
        return BUFFER[start : start + 8 * count].view(
            draw(st.sampled_from(["u1", "<f4", "i8"]))
        )
    if kind == "strided":
        return BUFFER[start : start + 32 : draw(st.sampled_from([1, 2, -1, -3]))]
    if kind == "torch":
        torch_dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.complex64]))
        tensor = torch.full((count, 2), draw(st.integers(1, 9)), dtype=torch_dtype)
        return tensor.conj() if draw(st.booleans()) else torch.nn.Parameter(tensor)
    return TENSOR[start : start + 8].reshape(draw(st.sampled_from([(8,), (2, 4), (4, 2)]))).t()


PLAIN = st.one_of(
    *(st.none(), st.booleans(), st.integers(-2, 2), st.floats(-1, 1), st.text(max_size=2)),
    *(st.sampled_from([0, False, 0.0, -0.0, float("nan"), 1, True, 1.0]),),
    *(st.binary(max_size=3).map(bytearray), st.just(bytes(5000)), st.frozensets(st.integers())),
    *(st.integers(0, 9).map(np.int32), st.just(bytearray(5000))),
)
KEYS = st.sampled_from(["a", "b", "c", 0, 1, False, True, 1.0, None, ("t", 0), b"k"])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
        inner.map(Box),
        inner.map(Keeper),
        inner.map(Mesh),
        st.integers(0, 3).map(random.Random),
        st.integers(0, 3).map(np.random.default_rng),
    )


STATES = st.recursive(PLAIN | arrays(), containers, max_leaves=10)


def homes(value: Any) -> list[tuple[Any, Any]]:
    """Return each place of a state that something else can be put into."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    elif isinstance(value, Box | Keeper | Mesh):
        keys = ["points" if isinstance(value, Mesh) else "content"]
    else:
        children = list(value) if isinstance(value, tuple) else []
        return [home for child in children for home in homes(child)]
    found = [(value, key) for key in keys]
    return found + [home for one in found for home in homes(get(*one))]


def get(container: Any, key: Any) -> Any:
    return container[key] if isinstance(container, dict | list) else getattr(container, key)


def put(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, dict | list):
        container[key] = value
    else:
        setattr(container, key, value)


@st.composite
def change(draw: st.DrawFn, state: list[Any]) -> None:
    """Do something to a state."""
    container, key = draw(st.sampled_from(homes(state)))
    old = get(container, key)
    what = draw(st.sampled_from(CHANGES))
    if what == "other":
        put(container, key, draw(STATES))
    elif what == "plain":
        put(container, key, draw(PLAIN))
    elif what == "alias":
        other = get(*draw(st.sampled_from(homes(state))))
        if isinstance(other, np.ndarray | torch.Tensor):
            put(container, key, other)
    elif what == "same again" and isinstance(old, np.ndarray | torch.Tensor):
        put(container, key, old.copy() if isinstance(old, np.ndarray) else old.clone())
    elif what == "order" and isinstance(container, dict):
        container[key] = container.pop(key)
    elif what == "key" and isinstance(container, dict):
        container[draw(KEYS)] = container.pop(key)
    elif what == "grow" and isinstance(container, list) and container is not state:
        container.append(draw(PLAIN))
    elif isinstance(old, np.ndarray):
        put(container, key, changed(draw, what, old))
    elif isinstance(old, torch.Tensor) and what == "point":
        old.data = draw(
            st.sampled_from([TENSOR[:6], TENSOR[8:14].reshape(2, 3), old.data.half()])
        )
    elif isinstance(old, random.Random | np.random.Generator):
        old.random()


CHANGES = [
    *("other", "plain", "plain", "alias", "same again", "order", "key", "grow"),
    *("dtype", "resize", "shape", "strides", "values", "point"),
]


def changed(draw: st.DrawFn, what: str, array: np.ndarray[Any, Any]) -> Any:
    """Return another array in the same memory, or the same one with other contents."""
    same_size = {1: ["i1", "u1"], 4: ["<f4", ">i4"], 8: ["M8[ms]", "f8", "i4,f4"]}
    if what == "dtype" and array.itemsize in same_size:
        return array.view(draw(st.sampled_from(same_size[array.itemsize])))
    if what == "resize" and array.base is None:
        array.resize((draw(st.integers(0, 900)), 2), refcheck=False)
    if what == "shape" and array.flags.c_contiguous:
        return array.reshape(array.shape[::-1])
    if what == "strides":
        return array.T if draw(st.booleans()) else array[::-1]
    if what == "values" and array.dtype.kind in "uif" and array.flags.writeable:
        array[...] = draw(st.integers(0, 100))
    return array


def summary(flat: Flattened) -> Any:
    live = [None if one.data is None else bytes(one.data) for one in flat.regions]
    return (
        repr(flat.structure),
        [(region.name, region.nbytes, region.item_bytes) for region in flat.regions],
        flat.offsets,
        [bytes(copy) for copy in flat.copy_into(np.zeros(flat.total_bytes, np.uint8))],
        live,
    )


def outcome(walk: Any, state: Any) -> Any:
    try:
        return summary(walk(state))
    except StateError as error:
        return error.mismatches


@given(STATES, st.data(), st.sampled_from(["native", "numpy"]))
def test_a_recorded_walk_finds_what_a_new_one_finds(
    value: Any, data: st.DataObject, backend: str
) -> None:
    state, recorded = [value], RecordedWalk()
    with digest.use(backend):
        for _ in range(4):
            assert outcome(recorded.flatten, state) == outcome(flatten, state)
            data.draw(change(state))
