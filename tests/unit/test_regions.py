"""A state to regions and back: what is stored, shared, kept in place, refused."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ckptflow.data.regions import (
    ALIGNMENT_BYTES,
    ArraySpec,
    Flattened,
    RestorePlan,
    array_from,
    flatten,
    iter_arrays,
    iter_plain,
    plan_restore,
)
from ckptflow.errors import FormatError, StateError


def saved(state: Any) -> tuple[Any, list[bytes]]:
    """Return structure and region bytes, as they would come out of a store."""
    flat = flatten(state)
    copies = [bytes(copy) for copy in flat.copy_into(np.empty(flat.total_bytes, np.uint8))]
    return json.loads(json.dumps(flat.structure, ensure_ascii=False).encode()), copies


def planned(stored: tuple[Any, list[bytes]], target: Any = None) -> RestorePlan:
    structure, copies = stored
    return plan_restore(structure, [len(copy) for copy in copies], target)


def restored(stored: tuple[Any, list[bytes]], target: Any = None) -> Any:
    plan = planned(stored, target)
    for buffer, copy in zip(plan.buffers, stored[1], strict=True):
        buffer[:] = copy
    return plan.finish()


def mismatches(stored: tuple[Any, list[bytes]], target: Any) -> tuple[str, ...]:
    with pytest.raises(
        StateError, match=r"does not fit the state .*nothing was changed"
    ) as caught:
        planned(stored, target)
    return caught.value.mismatches


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


# --- what is stored ---------------------------------------------------------------------


def test_dense_arrays_are_not_copied_in_whatever_order_their_axes_lie() -> None:
    a = np.arange(12.0).reshape(3, 4)
    for view in (a, a.T, np.asfortranarray(a), a[::-1], a[:, ::-1], a[None, ..., None]):
        (region,) = flatten({"a": view}).regions
        assert region.data is not None
        assert region.nbytes == a.nbytes
        assert np.shares_memory(region.data, view)
        assert not region.data.flags.writeable


def test_of_an_array_with_gaps_only_the_viewed_bytes_are_stored() -> None:
    table = np.arange(100, dtype="<i4").reshape(10, 10)
    flat = flatten({"column": table[:, 3], "corner": np.ones((9, 9))[:2, :2]})
    assert [region.nbytes for region in flat.regions] == [40, 32]
    _, copies = saved({"column": table[:, 3]})
    assert np.frombuffer(copies[0], "<i4").tolist() == table[:, 3].tolist()


def test_a_broadcast_array_stores_one_element() -> None:
    flat = flatten(np.broadcast_to(np.float64(3), (1000, 1000)))
    assert [region.nbytes for region in flat.regions] == [8]
    gapped = np.broadcast_to(np.arange(10.0)[::2], (100, 5))
    assert [region.nbytes for region in flatten(gapped).regions] == [40]
    assert np.array_equal(restored(saved(gapped)), gapped)


def test_shared_memory_is_stored_once_and_comes_back_shared() -> None:
    base = np.arange(20.0)
    state = {"again": base, "part": base[5:9], "comb": base[::3], "base": base}
    flat = flatten(state)
    assert [region.name for region in flat.regions] == ["again"]
    assert flat.total_bytes == 192
    back = restored(saved(state))
    back["base"][6] = -1.0
    assert (back["part"][1], back["comb"][2], back["again"][6]) == (-1.0, -1.0, -1.0)


def test_gapped_views_that_share_elements_come_back_shared_and_store_no_strangers() -> None:
    memory = np.full(40, 7.0)
    state = {"a": memory[::4], "b": memory[8::2]}
    stored = saved(state)
    assert np.frombuffer(stored[1][0]).tolist().count(7.0) == len(
        {*range(0, 40, 4), *range(8, 40, 2)}
    )
    back = restored(stored)
    back["a"][2] = 0.5
    assert back["b"][0] == 0.5


def test_gaps_between_views_are_not_written_on_the_way_back() -> None:
    memory = np.arange(40.0)
    stored = saved({"a": memory[::4], "b": memory[8::2]})
    other = np.full(40, -1.0)
    restored(stored, {"a": other[::4], "b": other[8::2]})
    expected = np.full(40, -1.0)
    expected[::4], expected[8::2] = memory[::4], memory[8::2]
    assert np.array_equal(other, expected)


def test_the_snapshot_is_aligned_whole_and_apart_from_the_state() -> None:
    state = {
        "a": np.arange(5, dtype=np.uint8),
        "b": np.arange(30.0)[::3],
        "e": np.empty((0, 2)),
    }
    flat = flatten(state)
    arena = np.full(flat.total_bytes + 9, 255, np.uint8)
    views = flat.copy_into(arena.data)
    state["a"][:] = 0
    state["b"][:] = 0
    assert bytes(views[0]) == bytes(range(5))
    assert np.frombuffer(views[1]).tolist() == list(range(0, 30, 3))
    assert len(views[2]) == 0
    starts = [address(np.frombuffer(view, np.uint8)) - address(arena) for view in views[:2]]
    assert [start % ALIGNMENT_BYTES for start in starts] == [0, 0]


@pytest.mark.parametrize(
    "arena", [np.zeros(63, np.uint8), bytes(1000)], ids=["small", "read-only"]
)
def test_an_arena_that_does_not_do_is_refused(arena: Any) -> None:
    with pytest.raises(ValueError, match="the snapshot needs 64 writable ones"):
        flatten(np.zeros(2)).copy_into(arena)


def test_long_bytes_become_a_region_and_come_back_as_bytes() -> None:
    state = {
        "long": bytes(range(256)) * 100,
        "buffer": bytearray(b"ab" * 5000),
        "short": b"abc",
    }
    assert [region.nbytes for region in flatten(state).regions] == [25600, 10000]
    back = restored(saved(state))
    assert back == state
    assert [type(value) for value in back.values()] == [bytes, bytearray, bytes]
    target = {"long": b"", "buffer": bytearray(), "short": b""}
    buffer = target["buffer"]
    assert restored(saved(state), target)["buffer"] is buffer
    assert target == state


def test_a_sparse_file_beyond_two_gibibytes_is_one_region_in_place(tmp_path: Path) -> None:
    size = (1 << 31) + 4096
    old = np.memmap(tmp_path / "old", np.uint8, "w+", shape=(size,))
    new = np.memmap(tmp_path / "new", np.uint8, "w+", shape=(size,))
    old[[0, 1 << 31, size - 1]] = 1, 2, 3
    flat = flatten({"huge": old})
    (region,) = flat.regions
    assert region.data is not None
    assert (region.nbytes, region.data.size, flat.total_bytes) == (size, size, size)
    plan = plan_restore(flat.structure, [size], {"huge": new})
    assert plan.in_place_bytes == size
    for place in (0, 1 << 31, size - 1):  # The pages between stay holes in the file.
        plan.buffers[0][place] = int(region.data[place])
    assert plan.finish()["huge"] is new
    assert new[[0, 1 << 31, size - 1]].tolist() == [1, 2, 3]


def test_many_arrays_cost_one_walk_and_a_compact_structure() -> None:
    state = {f"layer/{i}": np.zeros(4, np.float32) for i in range(20_000)}
    flat = flatten(state)
    assert len(flat.regions) == 20_000
    assert len(json.dumps(flat.structure, separators=(",", ":"))) < 60 * 20_000
    plan = plan_restore(flat.structure, [16] * 20_000, state)
    assert plan.in_place_bytes == 320_000


# --- structure, read by others ----------------------------------------------------------


def test_a_reader_without_the_program_sees_names_arrays_and_values() -> None:
    structure, _ = saved(
        {"a/b": np.zeros(3), "a": {"b": np.ones(2, "<f4")}, 1: [None, {"s"}], "1": 2.5}
    )
    assert list(iter_arrays(structure)) == [
        ("a~1b", ArraySpec("<f8", (3,), None, 0, 0, "numpy")),
        ("a/b", ArraySpec("<f4", (2,), None, 0, 1, "numpy")),
    ]
    assert list(iter_plain(structure)) == [("[1]/0", None), ("[1]/1", {"s"}), ("1", 2.5)]


def test_a_state_that_is_one_array_or_one_value() -> None:
    assert list(iter_arrays(saved(np.zeros(2))[0])) == [
        ("", ArraySpec("<f8", (2,), None, 0, 0, "numpy"))
    ]
    assert restored(saved(np.arange(3))).tolist() == [0, 1, 2]
    assert restored(saved(5)) == 5
    assert restored(saved(None)) is None


@pytest.mark.parametrize(
    "structure",
    [
        ["new", 1], [1], ["dict", "key"], ["array", "numpy", "<f8", [2], 5],
        ["array", "numpy", "<f8", [3], 0],
        ["array", "numpy", "<f8", [-1], 0], ["array", "other", "<f8", [2], 0],
        ["array", "numpy", "<f8", [2], -1],
        ["array", "numpy", "O", [2], 0], ["array", "numpy", "<f8", [True], 0],
        ["array", "numpy", "<f8", [2], 0, 0, [8, 8]], ["array", "numpy", "<f8", [2], 0, 1],
    ],
    ids=str,
)  # fmt: skip
def test_a_structure_that_contradicts_itself_is_refused(structure: Any) -> None:
    with pytest.raises(FormatError, match="The checkpoint"):
        plan_restore(structure, [16], None)


# --- what cannot be stored --------------------------------------------------------------


def test_two_arrays_of_one_name_are_refused() -> None:
    nan_keys = {float("nan"): np.zeros(1), float("nan"): np.ones(1)}
    with pytest.raises(StateError, match=r"'\[nan\]': two arrays have this one name"):
        flatten(nan_keys)


def test_every_problem_is_named_and_nothing_was_touched() -> None:
    loop: list[Any] = []
    loop.append(loop)
    state = {
        "objects": np.array([1, None], object),
        "handle": open,
        "loop": loop,
        "masked": np.ma.masked_array([1]),
        np.int64(3): 1,
        "fine": np.zeros(2),
    }
    with pytest.raises(StateError, match=r"The state cannot be saved \(5 problems\)") as caught:
        flatten(state)
    places = sorted(problem.split(":")[0] for problem in caught.value.mismatches)
    assert places == ["'handle'", "'loop/0'", "'masked'", "'objects'", "the state itself"]


def test_containers_without_end_and_fields_without_value_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(StateError, match="more than 128 containers deep"):
        flatten(deep)

    @dataclass
    class Half:
        given: int
        late: int = field(init=False)

    with pytest.raises(StateError, match=r"field 'late' of .*Half is not set"):
        flatten(Half(1))


def test_a_container_met_twice_is_no_loop() -> None:
    shared = {"w": np.zeros(2)}
    state = [shared, shared]
    assert len(flatten(state).regions) == 1
    back = restored(saved(state))
    assert back[0] is not back[1]
    assert np.shares_memory(back[0]["w"], back[1]["w"])


# --- back: without a target -------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Model:
    w: Any
    step: int = 0


@dataclass(frozen=True)
class Frozen:
    w: Any
    step: int = 0


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    w: Any
    step: int = 0


def test_without_a_target_classes_come_back_as_plain_containers() -> None:
    back = restored(
        saved(
            {
                "p": Pair(1, [2]),
                "m": Model(3),
                "o": OrderedDict(a=1),
                "s": {1, 2},
                "f": frozenset("a"),
            }
        )
    )
    assert back == {
        "p": (1, [2]),
        "m": {"w": 3, "step": 0},
        "o": {"a": 1},
        "s": {1, 2},
        "f": frozenset("a"),
    }
    assert [type(value) for value in back.values()] == [tuple, dict, dict, set, frozenset]


def test_keys_keep_type_and_order() -> None:
    state = {"b": 1, 0: 2, "0": 3, None: 4, (1, "x"): 5, True: 6, 2.5: 7, b"k": 8, "": 9}
    back = restored(saved(state))
    assert list(back.items()) == list(state.items())
    assert [type(key) for key in back] == [type(key) for key in state]


# --- back: in place ---------------------------------------------------------------------


def test_the_same_objects_and_the_same_memory_come_back() -> None:
    inner = [np.arange(3.0), np.array(2.5)]
    state = {
        "w": np.arange(6.0).reshape(2, 3),
        "inner": inner,
        "step": 7,
        "pair": (np.ones(2), "x"),
    }
    stored = saved(state)
    arrays = [state["w"], *inner, state["pair"][0]]
    places = [address(array) for array in arrays]
    for array in arrays:
        array[...] = -1
    state["step"] = 0
    plan = planned(stored, state)
    assert plan.in_place_bytes == sum(array.nbytes for array in arrays)
    back = restored(stored, state)
    assert back is state
    assert back["inner"] is inner
    assert [address(array) for array in arrays] == places
    assert back["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (inner[0].tolist(), float(inner[1]), back["step"]) == ([0, 1, 2], 2.5, 7)
    assert back["pair"][0] is arrays[-1]


def test_layouts_may_differ_between_checkpoint_and_state() -> None:
    values = np.arange(12.0).reshape(3, 4)
    wide = np.zeros((3, 8))
    for target in (
        np.zeros((3, 4), order="F"),
        wide[:, ::2],
        np.zeros((4, 3))[:, ::-1].T,
        np.zeros((3, 4)),
    ):
        for source in (values, np.asfortranarray(values), np.repeat(values, 2, 1)[:, ::2]):
            target[...] = -1
            state = {"a": target}
            assert restored(saved({"a": source}), state)["a"] is target
            assert np.array_equal(target, values)
    assert not wide[:, 1::2].any()


def test_views_that_fill_a_buffer_together_are_restored_in_place() -> None:
    stored = saved({"u": (uv := np.arange(20.0).reshape(10, 2))[:, 0], "v": uv[:, 1]})
    own = np.zeros((10, 2))
    target = {"u": own[:, 0], "v": own[:, 1]}
    plan = planned(stored, target)
    assert plan.in_place_bytes == 160
    restored(stored, target)
    assert np.array_equal(own, uv)


def test_shared_in_the_checkpoint_but_apart_in_the_state() -> None:
    base = np.arange(6.0)
    stored = saved({"a": base, "b": base, "c": base[2:4]})
    target = {"a": np.zeros(6), "b": np.zeros(6), "c": np.zeros(2)}
    restored(stored, target)
    assert [target[key].tolist() for key in "abc"] == [[0, 1, 2, 3, 4, 5]] * 2 + [[2, 3]]
    target["a"][2] = 9
    assert (target["b"][2], target["c"][0]) == (2, 2)


def test_shared_in_the_state_but_apart_in_the_checkpoint_get_apart() -> None:
    stored = saved({"w": np.zeros(3), "best": np.ones(3), "last": np.full(3, 2.0)})
    w = np.full(3, 5.0)
    target = {"w": w, "best": w, "last": w}
    restored(stored, target)
    assert target["w"] is w
    assert [target[key].tolist() for key in target] == [[0] * 3, [1] * 3, [2] * 3]


def test_shared_in_both_but_differently_gets_apart() -> None:
    row = np.arange(15.0)
    stored = saved({"a": row[:10], "b": row[5:]})
    same = np.zeros(10)
    target = {"a": same, "b": same}
    restored(stored, target)
    assert target["a"] is same
    assert (same.tolist(), target["b"].tolist()) == (row[:10].tolist(), row[5:].tolist())


def test_a_new_array_may_share_with_one_in_place() -> None:
    base = np.arange(4.0)
    target: dict[str, Any] = {"a": np.zeros(4), "b": None}
    restored(saved({"a": base, "b": base[:2]}), target)
    assert np.shares_memory(target["a"], target["b"])


def test_dict_classes_and_sets_stay_themselves() -> None:
    state = {"d": defaultdict(list, a=[1]), "c": Counter("aab"), "s": {1}, "f": frozenset({1})}
    target = {"d": defaultdict(list, a=[]), "c": Counter("ab"), "s": {5, 6}, "f": frozenset()}
    kept = [target["d"], target["c"], target["s"]]
    restored(saved(state), target)
    assert target == state
    assert all(target[key] is own for key, own in zip("dcs", kept, strict=True))


def test_dataclasses_are_set_in_place_and_frozen_ones_replaced_without_running_init() -> None:
    class Counting:
        inits = 0

    @dataclass
    class Derived:
        w: Any
        size: int = field(init=False)

        def __post_init__(self) -> None:
            Counting.inits += 1
            self.size = len(self.w)

    model, frozen, slots, derived = (
        Model(np.zeros(2)),
        Frozen(np.zeros(2)),
        FrozenSlots(np.zeros(2)),
        Derived([1]),
    )
    target = {"m": model, "f": frozen, "s": slots, "d": derived}
    inits = Counting.inits
    ones = np.ones(2)
    other = Derived([1, 2, 3])
    restored(
        saved(
            {
                "m": Model(ones, 4),
                "f": Frozen(ones.copy(), 4),
                "s": FrozenSlots(ones.copy(), 4),
                "d": other,
            }
        ),
        target,
    )
    assert target["m"] is model
    assert target["d"] is derived
    assert (derived.w, derived.size, Counting.inits) == ([1, 2, 3], 3, inits + 1)
    for key, old in (("f", frozen), ("s", slots)):
        new = target[key]
        assert type(new) is type(old)
        assert new is not old
        assert new.w is old.w
        assert (new.step, new.w.tolist()) == (4, [1, 1])
    same = {"f": Frozen(np.zeros(2), 4)}
    kept = same["f"]
    restored(saved({"f": Frozen(ones, 4)}), same)
    assert (same["f"].w is kept.w, same["f"].w.tolist()) == (True, [1, 1])


def test_named_tuples_keep_their_class_and_their_arrays() -> None:
    target = {"p": Pair(np.zeros(2), 1)}
    left = target["p"].left
    restored(saved({"p": Pair(np.ones(2), 5)}), target)
    assert isinstance(target["p"], Pair)
    assert target["p"].left is left
    assert (left.tolist(), target["p"].right) == ([1, 1], 5)
    other = namedtuple("other", "left middle")(1, 2)  # noqa: PYI024 -- a class made at run time
    assert mismatches(saved({"p": Pair(1, 2)}), {"p": other}) == (
        "'p/right': in the checkpoint, but not in the state",
        "'p/middle': in the state, but not in the checkpoint",
    )


def test_what_is_empty_in_the_state_takes_what_the_checkpoint_has() -> None:
    state = {
        "losses": [1.0, 2.0],
        "best": np.arange(3.0),
        "more": {"a": [np.ones(2)]},
        "t": (1,),
    }
    losses: list[float] = []
    target: dict[str, Any] = {"losses": losses, "best": None, "more": {}, "t": ()}
    restored(saved(state), target)
    assert target["losses"] is losses
    assert losses == [1.0, 2.0]
    assert target["best"].tolist() == [0, 1, 2]
    assert target["more"]["a"][0].tolist() == [1, 1]
    everything: dict[str, Any] = {}
    assert restored(saved(state), everything) is everything
    assert list(everything) == list(state)


def test_a_list_without_arrays_is_a_value_of_any_length() -> None:
    history = [{"loss": 0.5}]
    target = {"history": history, "betas": (1,)}
    restored(saved({"history": [{"loss": 0.5}, {"loss": 0.25}, 3], "betas": (1, 2)}), target)
    assert target["history"] is history
    assert target == {"history": [{"loss": 0.5}, {"loss": 0.25}, 3], "betas": (1, 2)}


# --- back: what does not fit ------------------------------------------------------------


def test_every_mismatch_is_named_and_nothing_is_changed() -> None:
    stored = saved(
        {
            "shape": np.ones((2, 3)), "dtype": np.ones(2, "<f4"), "both": np.ones(2, "<i4"),
            "extra": 1,
            "plain": 5, "kind": {"a": 1}, "list": [np.ones(1), np.ones(1)],
            "locked": np.ones(2), "fine": np.ones(2),
        }
    )  # fmt: skip
    locked = np.zeros(2)
    locked.flags.writeable = False
    fine = np.zeros(2)
    target = {
        "shape": np.zeros((3, 2)), "dtype": np.zeros(2), "both": np.zeros(3), "missing": 1,
        "plain": np.zeros(2), "kind": [1], "list": [np.ones(1)], "locked": locked, "fine": fine,
    }  # fmt: skip
    assert mismatches(stored, target) == (
        "'extra': in the checkpoint, but not in the state",
        "'missing': in the state, but not in the checkpoint",
        "'shape': shape (2, 3) in the checkpoint, shape (3, 2) in the state",
        "'dtype': dtype <f4 in the checkpoint, dtype <f8 in the state",
        "'both': dtype <i4 in the checkpoint, dtype <f8 in the state; "
        "shape (2,) in the checkpoint, shape (3,) in the state",
        "'plain': a plain value in the checkpoint, an array in the state",
        "'kind': a dict in the checkpoint, a list in the state",
        "'list': 2 items in the checkpoint, 1 items in the state",
        "'locked': the state's array is read-only, so it cannot be restored in place",
    )
    assert not fine.any()


def test_a_leaf_of_the_state_that_could_never_be_stored_is_named() -> None:
    stored = saved({"a": np.zeros(2)})
    assert "holds Python objects" in mismatches(stored, {"a": np.array([None, 1])})[0]
    assert mismatches(stored, {"a": 3}) == (
        "'a': an array in the checkpoint, a plain value in the state",
    )
    assert mismatches(stored, [1]) == (
        "the state itself: a dict in the checkpoint, a list in the state",
    )


def test_arrays_of_a_library_that_is_not_imported_need_its_import() -> None:
    (problem,) = mismatches(
        (["dict", "w", ["array", "cupy", "<f8", [2], 0]], [bytes(16)]), {"w": None}
    )
    assert problem == "'w': an array of cupy in the checkpoint: import cupy first"


# --- objects ----------------------------------------------------------------------------


class Solver:
    """Any object with the two methods; ``u`` is live memory, the rest are values."""

    def __init__(self, n: int = 3) -> None:
        self.u = np.zeros(n)
        self.rows: dict[int, Any] = {}
        self.note: Any = None
        self.history = Counter("a")
        self.loaded = 0

    def state_dict(self) -> dict[str, Any]:
        return {"u": self.u, "rows": self.rows, "note": self.note, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.u, self.rows, self.note = state["u"], state["rows"], state["note"]
        self.history = state["history"]
        self.loaded += 1


def test_an_object_is_filled_in_place_then_loaded_once() -> None:
    old = Solver()
    old.u[:], old.note, old.history = [1, 2, 3], "text", Counter("aabb")
    old.rows = {0: {"m": np.ones(2)}, 5: {"m": np.full(2, 5.0)}}
    new = Solver()
    new.rows = {0: {"m": np.zeros(2)}}
    u, row, rows = new.u, new.rows[0]["m"], new.rows
    assert restored(saved({"s": old}), {"s": new})["s"] is new
    assert new.loaded == 1
    assert new.u is u
    assert new.rows[0]["m"] is row
    assert (u.tolist(), row.tolist(), new.rows[5]["m"].tolist()) == ([1, 2, 3], [1, 1], [5, 5])
    assert rows == {0: {"m": row}}, "the object's own containers are its own to change"
    assert (new.note, new.history, type(new.history)) == ("text", Counter("aabb"), Counter)


def test_an_object_may_be_younger_or_older_than_the_checkpoint() -> None:
    young, old = Solver(), Solver()
    old.rows, old.note = {0: {"m": np.ones(2)}}, [1, 2]
    restored(saved(young), old)
    assert (old.rows, old.note) == ({}, None)


def test_arrays_of_an_object_must_fit_and_are_named() -> None:
    target = Solver(4)
    assert mismatches(saved({"s": Solver(3)}), {"s": target}) == (
        "'s/u': shape (3,) in the checkpoint, shape (4,) in the state",
    )
    assert target.loaded == 0
    assert mismatches(saved({"s": Solver(3)}), {"s": 5}) == (
        "'s': an object with state_dict() in the checkpoint, a plain value in the state",
    )


def test_without_a_target_an_object_comes_back_as_its_state_dict() -> None:
    back = restored(saved(Solver()))
    assert back["u"].tolist() == [0, 0, 0]
    assert (back["rows"], back["note"]) == ({}, None)


def test_an_object_whose_arrays_became_one_is_refused() -> None:
    old, new = Solver(), Solver()
    old.rows = {0: {"m": np.ones(3)}}
    new.rows = {0: {"m": new.u}}
    assert mismatches(saved({"s": old}), {"s": new}) == (
        "'s/rows/[0]/m': shares memory with 's/u' in the state, "
        "but has a value of its own in the checkpoint",
    )


# --- cost -------------------------------------------------------------------------------


def test_planning_and_the_snapshot_take_no_memory_of_the_states_size() -> None:
    state = {
        "w": np.zeros(8 << 20, np.uint8),
        "strided": np.zeros((1 << 20, 4), np.uint8)[:, ::2],
    }
    flat: Flattened = flatten(state)
    arena = np.empty(flat.total_bytes, np.uint8)
    tracemalloc.start()
    try:
        flatten(state).copy_into(arena)
        plan_restore(
            flat.structure,
            [region.nbytes for region in flat.regions],
            {"w": state["w"], "strided": state["strided"]},
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 << 20, "only the strided array, 2 MiB, needs a buffer of its own"


def test_array_from_reads_any_region() -> None:
    structure, copies = saved({"a": np.arange(6.0).reshape(2, 3).T})
    ((_, spec),) = iter_arrays(structure)
    assert array_from(spec, copies[spec.region]).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_structure_nested_too_deeply_is_not_of_this_format() -> None:
    """No save writes one: it refuses such a state."""
    structure: Any = 1
    for _ in range(3000):
        structure = ["list", structure]
    with pytest.raises(FormatError, match="nested too deeply"):
        plan_restore(structure, [], None)
