"""Arrays of every element type and library as memory, and their names in a checkpoint."""

from __future__ import annotations

import array
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptflow.data.arrays import (
    ArraySpec,
    array_from,
    describe,
    new_array,
    read_into,
    write_from,
)
from ckptflow.data.dtypes import EXTENDED_BYTES, Unsupported, dtype_name, numpy_dtype
from ckptflow.data.memory import bytes_at, cells_at, contiguous_strides
from ckptflow.data.regions import flatten, plan_restore
from ckptflow.errors import FormatError

RECORD = np.dtype(
    {"names": ["a", "b"], "formats": ["<i2", ">f8"], "offsets": [4, 8], "itemsize": 24}
)
DTYPES = [
    *(np.dtype(code) for code in "?bBhHiIlLqQefdgFDG"),
    *(np.dtype(code) for code in (">f4", ">i8", ">c16", ">M8[ms]", "S5", "U3", ">U3", "V7")),
    *(np.dtype(code) for code in ("M8[ns]", "M8[25us]", "m8[D]", "M8")),
    *(np.dtype(getattr(ml_dtypes, n)) for n in EXTENDED_BYTES if hasattr(ml_dtypes, n)),
    RECORD,
    np.dtype([("x", "<f4", (2, 3)), ("y", RECORD), ("z", "S2")]),
    np.dtype([("x", "i1"), ("y", "f8")], align=True),
    np.dtype([(("a title", "x"), "i4"), ("y", "i4")]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_comes_back_from_its_name(dtype: np.dtype[Any]) -> None:
    assert numpy_dtype(dtype_name(dtype)) == dtype


@pytest.mark.parametrize(
    "name", ["O", "object", "i4,f8", "nonsense", "{", '{"names":["a"]}', "T", ""]
)
def test_names_that_are_no_stored_type_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match="no such type"):
        numpy_dtype(name)


def test_a_long_double_of_another_machine_is_refused_and_says_so() -> None:
    with pytest.raises(FormatError, match="long double of another kind of machine"):
        numpy_dtype("longdouble-105")


def test_a_type_that_numpy_lacks_can_be_shown_as_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ArraySpec("bfloat16", (2,), None, 0, 0, "torch")
    region = np.array([0x3F80, 0x4000], np.uint16).view(np.uint8)
    assert array_from(spec, region).tolist() == [1.0, 2.0]
    numpy_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(FormatError, match="install ml_dtypes"):
        array_from(spec, region)
    assert array_from(spec, region, as_bits=True).tolist() == [0x3F80, 0x4000]


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (np.dtype(object), "holds Python objects"),
        (np.dtype([("a", object)]), "holds Python objects"),
        (np.dtype(">g"), "byte-swapped long double"),
    ],
    ids=str,
)
def test_types_that_cannot_be_stored(dtype: np.dtype[Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        dtype_name(dtype)


def test_an_array_that_is_more_than_its_elements_is_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    with pytest.raises(Unsupported, match=r"MaskedArray may carry more than its elements"):
        describe(masked)


@pytest.mark.parametrize(
    "value", [3, "text", b"bytes", bytearray(b"x"), None, [1], {}, np.float32(1), int]
)
def test_what_is_no_array(value: object) -> None:
    assert describe(value) is None


def test_opaque_cells_copy_signalling_nans_and_padding_bit_for_bit() -> None:
    bits = np.array([0x7FF0000000000001, 0xFFF8DEADBEEF0001], np.uint64)
    floats = bits.view(np.float64)
    live = describe(floats)
    assert live is not None
    out = np.zeros(16, np.uint8)
    read_into(live, out, ArraySpec("<f8", (2,), None, 0, 0, "numpy"))
    assert out.view(np.uint64).tolist() == bits.tolist()


def test_views_by_address_are_read_only_unless_asked_and_keep_the_owner() -> None:
    memory = np.arange(8, dtype=np.uint8)
    view = bytes_at(memory.ctypes.data, 8, memory)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    bytes_at(memory.ctypes.data, 8, memory, writable=True)[0] = 99
    assert memory[0] == 99
    owned = np.arange(1000, dtype=np.uint8)
    view = bytes_at(owned.ctypes.data, 1000, owned)
    del owned
    assert view.sum() == np.arange(1000, dtype=np.uint8).sum()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (4,), (2, 3, 4), (1, 5, 1)])
def test_contiguous_strides_are_numpys(shape: tuple[int, ...]) -> None:
    if 0 not in shape:  # NumPy gives empty arrays strides of its own.
        assert contiguous_strides(shape, 8) == np.zeros(shape).strides


def test_an_array_that_reaches_outside_its_region_is_refused() -> None:
    region = np.zeros(16, np.uint8)
    for spec in (
        ArraySpec("<f8", (3,), None, 0, 0, "numpy"),
        ArraySpec("<f8", (2,), None, 8, 0, "numpy"),
        ArraySpec("<f8", (2,), (-8,), 0, 0, "numpy"),
        ArraySpec("<f8", (2,), (1 << 60,), 0, 0, "numpy"),
    ):
        with pytest.raises(FormatError, match=r"at bytes .* of region 0, which has 16"):
            array_from(spec, region)


def test_array_from_takes_plain_bytes_and_shares_a_writable_region() -> None:
    spec = ArraySpec("<i4", (2, 2), (4, 8), 0, 0, "numpy")
    assert array_from(spec, np.arange(4, dtype="<i4").tobytes()).tolist() == [[0, 2], [1, 3]]
    region = np.zeros(16, np.uint8)
    array_from(spec, region)[1, 0] = 5
    assert region.view("<i4").tolist() == [0, 5, 0, 0]


# --- other libraries: stand-ins that speak the documented protocol over host memory ----------


def test_buffers_of_the_standard_library_are_arrays() -> None:
    live = describe(array.array("d", [1.0, 2.0]))
    assert live is not None
    assert (live.kind, live.dtype, live.layout.shape, live.access) == (
        "buffer",
        "<f8",
        (2,),
        "memory",
    )


class HostDLPack:
    """An array of some library that exports DLPack on the CPU; NumPy does the exporting."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


def test_dlpack_on_the_host_shares_memory() -> None:
    values = np.arange(6.0).reshape(2, 3)
    live = describe(HostDLPack(values))
    assert live is not None
    assert (live.kind, live.layout.address) == ("buffer", values.ctypes.data)


class FakeCupyArray:
    """CuPy's ndarray as far as it is used here, with "device" memory on the host."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.device_memory = values
        self.dtype = values.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.device_memory.__array_interface__, "version": 3}

    def get(self) -> np.ndarray[Any, Any]:
        return self.device_memory.copy()

    def set(self, values: np.ndarray[Any, Any]) -> None:
        assert (values.dtype, values.shape) == (self.dtype, self.device_memory.shape)
        self.device_memory[...] = values


def test_a_cuda_array_is_copied_by_its_own_get_and_set() -> None:
    source = FakeCupyArray(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    live = describe(source)
    assert live is not None
    assert (live.kind, live.place, live.on_host) == ("cupy", "cuda:0", False)
    spec = ArraySpec("<f8", (2, 3), None, 0, 0, "cupy")
    region = np.zeros(48, np.uint8)
    read_into(live, region, spec)
    assert region.view("<f8").tolist() == [0, 1, 2, 3, 4, 5]
    target = FakeCupyArray(np.zeros((2, 3)))
    into = describe(target)
    assert into is not None
    write_from(into, target, region, spec)
    assert np.array_equal(target.device_memory, source.device_memory)


def test_a_masked_or_uncopiable_cuda_array_is_refused() -> None:
    class Masked(FakeCupyArray):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "mask": object()}

    class Bare:
        __cuda_array_interface__ = np.zeros(2).__array_interface__

    with pytest.raises(Unsupported, match="masked device array"):
        describe(Masked(np.zeros(2)))
    with pytest.raises(Unsupported, match=r"no get\(\) and set\(\).*cupy.asarray"):
        describe(Bare())


class FakeJaxArray:
    """jax.Array as far as it is used here: read-only host values through ``__array__``."""

    is_fully_addressable = True
    sharding = "the device it came from"

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values.copy()
        self.values.flags.writeable = False
        self.dtype = self.values.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.values


@pytest.fixture
def fake_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    jax: Any = types.ModuleType("jax")
    jax.Array = FakeJaxArray
    jax.device_put = lambda values, place: FakeJaxArray(values)
    monkeypatch.setitem(sys.modules, "jax", jax)


@pytest.mark.usefixtures("fake_jax")
def test_a_jax_array_is_immutable_and_comes_back_as_a_new_one() -> None:
    old = FakeJaxArray(np.arange(3.0))
    live = describe(old)
    assert live is not None
    assert (live.kind, live.access) == ("jax", "immutable")
    spec = ArraySpec("<f8", (3,), None, 0, 0, "jax")
    new = new_array(spec, np.full(24, 0, np.uint8), like=old)
    assert isinstance(new, FakeJaxArray)
    assert new.values.tolist() == [0, 0, 0]


@pytest.mark.usefixtures("fake_jax")
def test_a_jax_array_spread_over_processes_is_refused() -> None:
    spread = FakeJaxArray(np.zeros(2))
    spread.is_fully_addressable = False
    with pytest.raises(Unsupported, match="store the local shards"):
        describe(spread)


def copied(state: Any, target: Any) -> Any:
    flat = flatten(state)
    copies = flat.copy_into(np.empty(flat.total_bytes, np.uint8))
    plan = plan_restore(flat.structure, [len(copy) for copy in copies], target)
    for buffer, copy in zip(plan.buffers, copies, strict=True):
        buffer[:] = copy
    return plan.finish()


def test_device_arrays_that_share_memory_are_stored_once_and_filled_in_place() -> None:
    memory = np.arange(12.0).reshape(3, 4)
    state = {"part": FakeCupyArray(memory[1:]), "all": FakeCupyArray(memory)}
    (region,) = flatten(state).regions
    assert (region.name, region.nbytes, region.data, len(region.pieces)) == (
        "part",
        96,
        None,
        1,
    )
    target = {"part": FakeCupyArray(np.zeros((2, 4))), "all": FakeCupyArray(np.zeros((3, 4)))}
    kept = dict(target)
    assert copied(state, target) == kept
    assert np.array_equal(kept["all"].device_memory, memory)
    assert np.array_equal(kept["part"].device_memory, memory[1:])


def test_device_arrays_with_gaps_are_gathered_by_their_library() -> None:
    memory = np.arange(12.0)
    state = {
        "a": FakeCupyArray(memory[::3]),
        "b": FakeCupyArray(np.broadcast_to(memory[::6], (2, 2))),
    }
    target = {"a": FakeCupyArray(np.zeros(8)[::2]), "b": FakeCupyArray(np.zeros((2, 2)))}
    copied(state, target)
    assert target["a"].device_memory.tolist() == [0, 3, 6, 9]
    assert target["b"].device_memory.tolist() == [[0, 6], [0, 6]]


@pytest.mark.usefixtures("fake_jax")
def test_a_jax_array_in_a_state_is_replaced_by_a_new_one() -> None:
    old = FakeJaxArray(np.zeros(3))
    target = {"x": old, "y": FakeJaxArray(np.zeros(1))}
    copied({"x": FakeJaxArray(np.arange(3.0)), "y": FakeJaxArray(np.ones(1))}, target)
    assert target["x"] is not old
    assert (target["x"].values.tolist(), target["y"].values.tolist()) == ([0, 1, 2], [1])
    assert old.values.tolist() == [0, 0, 0]


def test_cells_have_no_meaning() -> None:
    live = describe(np.zeros(3, RECORD))
    assert live is not None
    assert cells_at(live.layout, live.owner).dtype == np.dtype("V24")
