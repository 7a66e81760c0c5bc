"""A recorded walk: what it takes over, what it notices, and what it lets go."""

from __future__ import annotations

import gc
import weakref
from operator import is_
from typing import Any

import numpy as np
import pytest
import torch

from ckptflow.data import digest
from ckptflow.data.facts import Facts
from ckptflow.data.recorded import RecordedWalk
from ckptflow.data.regions import flatten
from ckptflow.data.walk import Differs, Walk
from ckptflow.errors import StateError


class Counting:
    """An object that counts how often it is asked for its state."""

    def __init__(self, content: Any) -> None:
        self.content, self.calls = content, 0

    def state_dict(self) -> dict[str, Any]:
        self.calls += 1
        return {"content": self.content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.content = state["content"]


@pytest.fixture(params=digest.available(), ids=str)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


def snapshot(walk: RecordedWalk, state: object) -> list[bytes]:
    flat = walk.flatten(state)
    return [bytes(copy) for copy in flat.copy_into(np.empty(flat.total_bytes, np.uint8))]


def test_the_structure_is_taken_over_where_nothing_changed() -> None:
    state = {"step": 1, "a": {"b": np.zeros(3)}, "c": [np.ones(2), "text"]}
    walk = RecordedWalk()
    first = walk.flatten(state).structure
    assert walk.flatten(state).structure is first
    state["step"] = 2
    second = walk.flatten(state).structure
    assert second == flatten(state).structure
    assert second[4] is first[4]
    assert first[2] == 1, "who got the first structure keeps it"


def test_an_object_is_asked_once_as_long_as_the_record_fits() -> None:
    keeper = Counting(np.zeros(4))
    walk = RecordedWalk()
    for calls in (1, 2, 3):
        walk.flatten({"keeper": keeper})
        assert keeper.calls == calls
    keeper.content = keeper.content + 1  # Elsewhere, and nothing else.
    assert snapshot(walk, {"keeper": keeper}) == [np.ones(4).tobytes()]
    assert keeper.calls == 4
    keeper.content = np.zeros(5)
    walk.flatten({"keeper": keeper})
    assert keeper.calls == 6, "the record did not fit, so the state was walked anew"


def test_arrays_that_moved_are_read_where_they_are_now(backend: object) -> None:
    state = {"a": np.arange(8), "b": np.ones((2, 3)), "c": np.arange(6)[::2]}
    walk = RecordedWalk()
    walk.flatten(state)
    for name in list(state):
        state[name] = state[name][:] + 1
    state["c"] = np.repeat(state["c"], 2)[::2]
    flat = walk.flatten(state)
    assert np.shares_memory(flat.regions[0].data, state["a"])
    assert snapshot(walk, state) == [state[name].tobytes() for name in "abc"]


def test_arrays_that_share_may_move_together_only() -> None:
    buffers = [np.arange(16.0), np.arange(16.0) + 16]
    halves = [(buffer[:10], buffer[6:]) for buffer in buffers]
    walk, state = RecordedWalk(), {"a": halves[0][0], "b": halves[0][1]}
    assert len(walk.flatten(state).regions) == 1
    state.update(a=halves[1][0], b=halves[1][1])
    assert snapshot(walk, state) == [buffers[1].tobytes()]
    state["a"] = halves[0][0]
    assert snapshot(walk, state) == [halves[0][0].tobytes(), halves[1][1].tobytes()]


def test_arrays_that_come_to_share_are_noticed() -> None:
    state = {"a": np.zeros(4), "b": np.ones(4)}
    walk = RecordedWalk()
    assert len(walk.flatten(state).regions) == 2
    state["b"] = state["a"]
    assert len(walk.flatten(state).regions) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda array: array.view("<i4"),
        lambda array: array.view(">f4"),
        lambda array: array.reshape(3, 2),
        lambda array: array.T,
        lambda array: array[:, :2],
        lambda array: array.reshape(-1)[::-1],
        lambda array: np.recarray(6, "<f4", array),
        torch.from_numpy,
        memoryview,
        lambda array: array.tolist(),
        lambda array: array[:0],
        lambda array: np.lib.stride_tricks.as_strided(array, (2, 3), (4, 8)),
    ],
)
def test_another_array_at_the_same_address_is_another_array(
    backend: object, other: Any
) -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    state, walk = {"a": array, "b": np.zeros(2)}, RecordedWalk()
    walk.flatten(state)
    state["a"] = other(array)
    assert walk.flatten(state).structure == flatten(state).structure
    assert snapshot(walk, state) == snapshot(RecordedWalk(), state)


def test_an_array_may_be_resized_in_place(backend: object) -> None:
    array = np.arange(6.0)
    walk = RecordedWalk()
    walk.flatten([array])
    array.resize(100_000, refcheck=False)
    assert snapshot(walk, [array]) == [array.tobytes()]


def test_a_tensor_may_be_pointed_elsewhere() -> None:
    tensor = torch.zeros(4)
    walk = RecordedWalk()
    walk.flatten([tensor])
    for data in (torch.ones(4), torch.ones(5), torch.ones(4).half(), torch.ones(8)[::2]):
        tensor.data = data
        assert snapshot(walk, [tensor]) == [tensor.numpy().tobytes()]


@pytest.mark.parametrize("lazily", [torch.Tensor.conj, lambda tensor: tensor.conj().imag])
def test_what_is_negated_or_conjugated_lazily_is_resolved_each_time(lazily: Any) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    walk, state = RecordedWalk(), [lazily(tensor.clone()).clone()]
    for _ in range(2):
        state[0] = state[0].clone()
        assert snapshot(walk, state) == [
            state[0].resolve_conj().resolve_neg().numpy().tobytes()
        ]
    state[0] = lazily(tensor)
    for factor in (1, 2):
        tensor *= factor
        assert snapshot(walk, state) == [
            state[0].resolve_conj().resolve_neg().numpy().tobytes()
        ]


def test_memory_that_was_taken_away_is_refused_as_on_a_new_walk() -> None:
    tensor = torch.zeros(4)
    walk = RecordedWalk()
    walk.flatten([tensor])
    tensor.untyped_storage().resize_(0)
    with pytest.raises(StateError, match="without memory of its own"):
        walk.flatten([tensor])
    tensor.untyped_storage().resize_(16)
    assert len(snapshot(walk, [tensor])[0]) == 16


def test_no_array_lives_longer_for_being_recorded() -> None:
    array, tensor, walk = np.zeros(4), torch.zeros(4), RecordedWalk()
    state = {"a": array, "t": [tensor], "keeper": Counting(np.ones(3)), "s": np.ones(6)[::2]}
    walk.flatten(state)
    walk.flatten(state)
    gone = [weakref.ref(array), weakref.ref(tensor), weakref.ref(state["s"])]
    del array, tensor, state
    assert [one() for one in gone] == [None, None, None]


def test_a_snapshot_to_be_keeps_its_arrays() -> None:
    walk = RecordedWalk()
    walk.flatten({"a": np.zeros(4)})
    flat = walk.flatten({"a": np.full(4, 7.0)})
    assert [bytes(one) for one in flat.copy_into(np.empty(flat.total_bytes, np.uint8))] == [
        np.full(4, 7.0).tobytes()
    ]


def test_a_bytearray_may_grow_between_two_walks() -> None:
    state, walk = [bytearray(5000), bytearray(b"short")], RecordedWalk()
    for _ in range(3):
        assert snapshot(walk, state) == [bytes(state[0])]
        state[0] += bytes(1000)  # It may not while anybody has a view of it.
        state[1] += b"er"
    del state[0][100:]
    assert walk.flatten(state).regions == []


def test_what_holds_no_array_may_change_as_it_likes() -> None:
    keeper = Counting(np.zeros(2))
    state: dict[str, Any] = {"keeper": keeper, "losses": [], "best": None, "seen": {1, 2}}
    walk = RecordedWalk()
    walk.flatten(state)
    for losses, best, seen in (
        ([0.5], {"step": 3}, {3}),
        ([0.5, 0.25, {"of": (1, 2)}], {"step": 4, "loss": {}}, set()),
        ({"a": 1}, None, frozenset({1})),
        (-0.0, [1], {1: 2}),
    ):
        state.update(losses=losses, best=best, seen=seen)
        calls = keeper.calls
        assert repr(walk.flatten(state).structure) == repr(flatten(state).structure)
        assert keeper.calls == calls + 2, "one call each"
    state["losses"] = [np.zeros(3)]
    assert len(walk.flatten(state).regions) == 2


@pytest.mark.parametrize("key", [True, 1.0, 2])
def test_a_key_is_not_the_same_as_one_that_is_equal(key: object) -> None:
    walk = RecordedWalk()
    walk.flatten({1: np.zeros(2)})
    state = {key: np.zeros(2)}
    flat = walk.flatten(state)
    assert repr(flat.structure) == repr(flatten(state).structure)
    assert flat.names == [f"[{key!r}]"]


def test_a_state_that_cannot_be_stored_is_refused_and_the_next_one_is_stored() -> None:
    state: dict[str, Any] = {"a": np.zeros(2), "b": 1}
    walk = RecordedWalk()
    walk.flatten(state)
    state["b"] = object()
    with pytest.raises(StateError, match="'b': an object of type builtins"):
        walk.flatten(state)
    state["b"] = state
    with pytest.raises(StateError, match="'b': contains itself"):
        walk.flatten(state)
    state["b"] = 2
    assert walk.flatten(state).structure == flatten(state).structure


def test_what_an_object_raises_breaks_the_record_and_nothing_else() -> None:
    keeper = Counting(np.zeros(2))
    state, walk = {"step": 1, "keeper": keeper}, RecordedWalk()
    walk.flatten(state)
    state["step"], keeper.content = 2, property()
    with pytest.raises(StateError, match="property"):
        walk.flatten(state)
    keeper.content = np.ones(2)
    assert walk.flatten(state).structure == flatten(state).structure


def test_facts_tell_of_one_array_among_many(backend: object) -> None:
    arrays = [np.arange(number % 7) for number in range(3_000)]
    walk = Walk()
    walk.visit(arrays)
    facts = Facts(walk.arrays)
    addresses, owners = facts.look(arrays)
    assert addresses.tolist() == [array.__array_interface__["data"][0] for array in arrays]
    assert all(map(is_, owners, arrays))
    with pytest.raises(Differs):
        facts.look([*arrays[:-1], arrays[-1][:1]])
    with pytest.raises(Differs):
        facts.look(arrays[:-1])


@pytest.mark.parametrize("on", [True, False])
def test_the_cycle_collector_is_as_it_was(on: bool) -> None:
    class Looking(Counting):
        def state_dict(self) -> dict[str, Any]:
            assert not gc.isenabled(), "none begins while a state is walked the first time"
            return super().state_dict()

    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        flatten([Looking(1)])
        assert gc.isenabled() == on
        with pytest.raises(StateError, match="builtins"):
            flatten([object()])
        assert gc.isenabled() == on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_an_instance_may_become_an_object_with_a_state() -> None:
    class Plain(dict):
        pass

    state, walk = [Plain(a=np.zeros(3))], RecordedWalk()
    walk.flatten(state)
    state[0].state_dict = lambda: {"b": 1}
    state[0].load_state_dict = lambda _state: None
    assert walk.flatten(state).structure == flatten(state).structure
    assert walk.flatten(state).structure[1][0] == "object"
