"""What a task sees of its checkpoints if nothing goes wrong, and if it asks for nonsense."""

from __future__ import annotations

import random
import shutil
import struct
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import (
    ConfigError,
    NotFoundError,
    Preempted,
    StateError,
    TierUnavailable,
)
from ckptflow.model import STEP_MAX
from ckptflow.site import load
from ckptflow.store.catalog import Lineage
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier


@pytest.fixture
def disk() -> MemoryTier:
    return MemoryTier("disk")


def fresh() -> dict[str, Any]:
    return {"i": 0, "w": np.zeros(500), "log": []}


def advance(state: dict[str, Any]) -> None:
    state["i"] += 1
    state["w"][state["i"] :: 7] += 1.5 / state["i"]
    state["log"].append(state["i"])


def run(disk: Any, steps: int, *, every: int | None = 2, **options: Any) -> dict[str, Any]:
    """The loop of the documentation: restore, step, return the final state."""
    with Checkpointer(disk, every=every, **options) as ckpt:
        state = ckpt.restore(fresh())
        while state["i"] < steps:
            advance(state)
            ckpt.step(state["i"], state)
    return state


def steps_of(ckpt: Checkpointer) -> list[int]:
    return [found.id.step for found in ckpt.lineage.valid()]


# --- the loop ---


def test_interrupted_anywhere_it_ends_with_the_same_bits(disk: MemoryTier) -> None:
    expected = run(MemoryTier(), 20)
    for stop in (1, 2, 5, 6, 13, 20):
        state = run(disk, stop)
    assert state["w"].tobytes() == expected["w"].tobytes()
    assert (state["i"], state["log"]) == (expected["i"], expected["log"])


def test_nothing_to_restore_gives_back_what_was_given(disk: MemoryTier) -> None:
    with Checkpointer(disk) as ckpt:
        state = fresh()
        assert ckpt.restore(state) is state
        assert (ckpt.restored_step, ckpt.last_step, ckpt.attempt) == (None, None, 1)


def test_restore_is_in_place(disk: MemoryTier) -> None:
    run(disk, 4)
    with Checkpointer(disk) as ckpt:
        state = fresh()
        array = state["w"]
        assert ckpt.restore(state) is state
        assert state["w"] is array
        assert array.any()
        assert (state["i"], state["log"]) == (4, [1, 2, 3, 4])
        assert (ckpt.restored_step, ckpt.last_step, ckpt.attempt) == (4, 4, 2)


def test_restore_without_a_target_builds_the_state(disk: MemoryTier) -> None:
    expected = run(disk, 4)
    with Checkpointer(disk) as ckpt:
        state = ckpt.restore()
    assert state["w"].tobytes() == expected["w"].tobytes()
    assert state["log"] == [1, 2, 3, 4]


def test_the_initial_state_may_be_made_by_a_function(disk: MemoryTier) -> None:
    with Checkpointer(disk) as ckpt:
        assert ckpt.restore(fresh)["i"] == 0
    run(disk, 4)
    with Checkpointer(disk) as ckpt:
        assert ckpt.restore(fresh)["i"] == 4


def test_a_step_that_is_asked_for(disk: MemoryTier) -> None:
    run(disk, 6, keep="all")
    with Checkpointer(disk, keep="all") as ckpt:
        assert ckpt.restore(fresh(), step=4)["i"] == 4
        with pytest.raises(NotFoundError, match=r"no checkpoint of step 5; it has 6, 4, 2"):
            ckpt.restore(fresh(), step=5)


class Model:
    def __init__(self) -> None:
        self.w = np.zeros(30)

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.w[...] = state["w"]


def test_objects_given_at_construction(disk: MemoryTier) -> None:
    model, data = Model(), {"seen": 0}
    with Checkpointer(disk, every=1, model=model, data=data) as ckpt:
        assert ckpt.resume() == 0
        model.w += 3
        data["seen"] = 11
        ckpt.step(5)
    model, data = Model(), {"seen": 0}
    with Checkpointer(disk, model=model, data=data) as ckpt:
        assert ckpt.resume() == 6  # Step 5 is complete.
    assert model.w.tolist() == [3.0] * 30
    assert data == {"seen": 11}


def test_resume_needs_objects(disk: MemoryTier) -> None:
    with pytest.raises(ConfigError, match=r"resume\(\) restores the objects given"):
        Checkpointer(disk).resume()


def test_tasks_and_runs_do_not_meet(disk: MemoryTier) -> None:
    for run_name, task in (("a", "x"), ("a", "y"), ("b", "x")):
        with Checkpointer(disk, run=run_name, task=task) as ckpt:
            assert ckpt.attempt == 1
            ckpt.save(1, {"name": f"{run_name}{task}"})
    with Checkpointer(disk, run="a", task="y") as ckpt:
        assert ckpt.restore({"name": ""}) == {"name": "ay"}
        assert (ckpt.run, ckpt.task) == ("a", "y")


def test_a_checkpointer_that_is_not_used_leaves_no_trace(disk: MemoryTier) -> None:
    with Checkpointer(disk, every=1) as ckpt:
        assert not ckpt.claimed
    assert list(disk.iter_keys("")) == []
    assert repr(ckpt) == "<Checkpointer default/main, attempt None>"


def test_a_folder_is_a_store(tmp_path: Path) -> None:
    expected = run(tmp_path / "store", 5)
    state = run(str(tmp_path / "store"), 5)
    assert state["w"].tobytes() == expected["w"].tobytes()


# --- when, and what stays ---


def test_every_says_when(disk: MemoryTier) -> None:
    with Checkpointer(disk, every=3, keep="all") as ckpt:
        state = ckpt.restore(fresh())
        tickets = {}
        for step in range(1, 11):
            due = ckpt.due(step)
            tickets[step] = ckpt.step(step, state)
            assert due == (tickets[step] is not None)
        ckpt.wait()
        assert [step for step, ticket in tickets.items() if ticket] == [3, 6, 9]
        assert steps_of(ckpt) == [9, 6, 3]
        assert ckpt.decide(10).reason == "1 steps since the last save, less than 3"


def test_without_an_interval_only_save_saves(disk: MemoryTier) -> None:
    with Checkpointer(disk, every="never") as ckpt:
        assert [ckpt.step(step, fresh()) for step in range(5)] == [None] * 5
        ckpt.save(5, fresh()).wait()
        assert steps_of(ckpt) == [5]


@pytest.mark.parametrize(("keep", "left"), [(1, [9]), (3, [9, 8, 7]), (None, [9, 8])])
def test_keep_says_what_stays(disk: MemoryTier, keep: int | None, left: list[int]) -> None:
    with Checkpointer(disk, every=1, keep=keep) as ckpt:
        for step in range(10):
            ckpt.step(step, fresh())
    assert steps_of(ckpt) == left


def test_the_best_stays(disk: MemoryTier) -> None:
    with Checkpointer(disk, keep="newest=1,best=loss:min") as ckpt:
        for step, loss in enumerate([3.0, np.float32(1.0), 2, np.nan]):
            ckpt.save(step, fresh(), metrics={"loss": loss})
    assert steps_of(ckpt) == [3, 1]
    manifest = ckpt.lineage.manifest(ckpt.lineage.valid()[1])
    assert manifest.metrics == {"loss": 1.0}


def test_deltas_are_small_also_after_a_restart(disk: MemoryTier) -> None:
    big = {"w": np.random.default_rng(1).standard_normal(50_000)}
    for step in (1, 2, 3):
        with Checkpointer(disk) as ckpt:
            state = ckpt.restore({"w": np.zeros(50_000)} if step > 1 else big)
            state["w"][step] = step
            ckpt.save(step, state).wait()
            state_bytes, stored_bytes = ckpt.written_bytes
        assert state_bytes >= 400_000
        assert (stored_bytes < 40_000) == (step > 1)


# --- what is captured ---


def test_changes_right_after_a_save_do_not_leak_into_it(disk: MemoryTier) -> None:
    """Many saves of a large state, each changed everywhere as soon as `save` has returned."""
    size, rounds = 300_000, 30
    state = {"w": np.zeros(size), "list": [0] * 50, "i": 0}
    expected = {}
    with Checkpointer(disk, keep="all", rng=False) as ckpt:
        for step in range(rounds):
            state["w"][:] = np.arange(step, step + size)
            state["list"][:] = [step] * 50
            state["i"] = step
            expected[step] = state["w"].tobytes()
            ckpt.save(step, state)
            state["w"][:] = -1.0
            state["list"][:] = [-1] * 50
            state["i"] = -1
    with Checkpointer(disk, keep="all") as ckpt:
        assert steps_of(ckpt) == list(reversed(range(rounds)))
        for step in range(rounds):
            restored = ckpt.restore(state, step=step)
            assert restored["w"].tobytes() == expected[step]
            assert (restored["i"], restored["list"]) == (step, [step] * 50)


def test_nor_do_those_of_tensors(disk: MemoryTier) -> None:
    """Their memory is that of the CPU already: to bring them there is no copy."""
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    state = {"w": torch.zeros(90_000), "b": torch.zeros(300)}
    with Checkpointer(disk, keep="all", rng=False) as ckpt:
        for step in range(3):
            for one in state.values():
                one.fill_(step)
            ckpt.save(step, state)
            for one in state.values():
                one.add_(1000.0)
    with Checkpointer(disk, keep="all") as ckpt:
        for step in range(3):
            restored = ckpt.restore(state, step=step)
            assert all(bool((one == step).all()) for one in restored.values())


@pytest.mark.parametrize("every", [1, "auto"])
def test_whatever_says_when_a_save_is_written_in_the_background(every: int | str) -> None:
    """The call returns while storage stands still, also at a rate that the user has fixed."""
    stands_still, goes_on = threading.Event(), threading.Event()

    def wait(operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            stands_still.set()
            assert goes_on.wait(60)

    with Checkpointer(FaultyTier(MemoryTier("disk"), wait), every=every) as ckpt:
        state = {"w": np.random.default_rng(0).standard_normal(1000)}
        ticket = ckpt.step(1, state)
        assert ticket is not None
        assert stands_still.wait(60)
        assert (ticket.captured, ticket.durable) == (True, False)
        state["w"] += 1  # The loop goes on.
        goes_on.set()
        ticket.wait()


@pytest.mark.parametrize("budget_bytes", [0, 1000, None])
def test_gathered_arrays_do_not_leak_either(disk: MemoryTier, budget_bytes: int | None) -> None:
    base = np.arange(20_000.0).reshape(100, 200)
    state = {
        "column": base[:, 3],
        "reversed": base[::-1, ::2],
        "big_endian": base.astype(">f8"),
    }
    expected = {name: array.copy() for name, array in state.items()}
    with Checkpointer(disk, budget_bytes=budget_bytes) as ckpt:
        for step in range(5):
            base[:] = np.arange(20_000.0).reshape(100, 200)
            ckpt.save(step, state)
            base[:] = -step
    with Checkpointer(disk) as ckpt:
        restored = ckpt.restore()
    for name, array in expected.items():
        assert restored[name].tobytes() == array.tobytes()


NANS = {
    "quiet": 0x7FF8_0000_0000_0000,
    "payload": 0x7FF8_0000_DEAD_BEEF,
    "signalling": 0x7FF0_0000_0000_0001,
    "negative signalling": 0xFFF4_0000_0000_1234,
}


def test_every_bit_of_a_nan_comes_back(disk: MemoryTier) -> None:
    doubles = np.array(list(NANS.values()), np.uint64).view(np.float64)
    singles = np.array([0x7F800001, 0x7FC12345, 0xFFBFFFFF], np.uint32).view(np.float32)
    halves = np.array([0x7C01, 0xFE55], np.uint16).view(np.float16)
    plain = {name: struct.unpack("<d", struct.pack("<Q", n))[0] for name, n in NANS.items()}
    state = {"d": doubles, "s": singles, "h": halves, "plain": plain, "one": singles[0]}
    with Checkpointer(disk) as ckpt:
        ckpt.save(1, state)
    with Checkpointer(disk) as ckpt:
        in_place = ckpt.restore(
            {
                "d": np.zeros(4),
                "s": np.zeros(3, np.float32),
                "h": np.zeros(2, np.float16),
                "plain": dict.fromkeys(plain, 0.0),
                "one": np.float32(0),
            }
        )
        anew = ckpt.restore()
    for restored in (in_place, anew):
        for name in ("d", "s", "h", "one"):
            assert restored[name].tobytes() == state[name].tobytes(), name
        bits = {name: struct.pack("<d", value) for name, value in restored["plain"].items()}
        assert bits == {name: struct.pack("<d", value) for name, value in plain.items()}


LEGACY = np.random.mtrand._rand  # What the functions of numpy.random share.


def draws() -> list[float]:
    return [random.random(), float(LEGACY.random()), random.gauss(0, 1)]


def test_random_numbers_go_on_where_they_were(disk: MemoryTier) -> None:
    random.seed(1)
    LEGACY.seed(2)
    own = np.random.default_rng(3)
    with Checkpointer(disk) as ckpt:
        draws()
        own.random(3)
        ckpt.save(1, {"own": own})
        expected = [*draws(), own.random()]
    random.seed(99)
    LEGACY.seed(99)
    with Checkpointer(disk) as ckpt:
        other = np.random.default_rng(99)
        state = ckpt.restore({"own": other})
        assert state["own"] is other
        assert [*draws(), other.random()] == expected


def test_random_numbers_are_left_alone_when_asked(disk: MemoryTier) -> None:
    random.seed(1)
    with Checkpointer(disk, rng=False) as ckpt:
        ckpt.save(1, {"a": 1})
        random.seed(2)
        expected = random.Random(2).random()
        ckpt.restore({"a": 1})
        assert random.random() == expected


def test_names_that_look_alike_are_kept_apart(disk: MemoryTier) -> None:
    """No two arrays of a tree have one name, however their keys are spelled."""
    keys: list[Any] = ["a/b", "a~1b", "a", "[0]", 0, "0", True, "True", None, "None", (0,), ""]
    state = {key: np.full(40, number) for number, key in enumerate(keys)}
    state["a"] = {"b": np.full(40, 100), "": np.full(40, 101)}
    with Checkpointer(disk) as ckpt:
        ckpt.save(1, state)
        ckpt.save(2, state)
    with Checkpointer(disk) as ckpt:
        restored = ckpt.restore()
    assert list(restored) == keys
    for number, key in enumerate(keys):
        if key != "a":
            assert restored[key].tolist() == [number] * 40, key
    assert restored["a"]["b"].tolist() == [100] * 40
    assert restored["a"][""].tolist() == [101] * 40


# --- nonsense ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "chunk=12"}, r"chunk_bytes is a multiple of 8, at least 16, not 12"),
        ({"packing": "chunk=8"}, r"not 8"),
        ({"packing": "chunk=0"}, r"not 0"),
        ({"packing": "cell=100"}, r"cell_bytes is a multiple of 8, at least 16, that divides"),
        ({"packing": "tiny"}, r"'tiny' does not say how to store checkpoints"),
        (
            {"chunk_bytes": 256},
            r"chunk_bytes is no object .* packing=Packing\(chunk_bytes=256\)",
        ),
        ({"budget_bytes": -1}, r"budget_bytes must not be negative, got -1"),
        ({"run": "a b"}, r"'a b' cannot be the name of a run"),
        ({"task": ""}, r"'' cannot be the name of a task"),
        ({"every": "often"}, r"often"),
        ({"keep": 0}, r"newest of 1 or more, got 0"),
        ({"flush_every": {"pfs": 3}}, r"flush_every names 'pfs'; the tiers are \['disk'\]"),
        ({"flush_every": {"disk": 0}}, r"'disk': every must be 1 or more, got 0"),
    ],
)
def test_options_that_make_no_sense(
    disk: MemoryTier, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Checkpointer(disk, **options)


def test_stores_that_are_none(tmp_path: Path, disk: MemoryTier) -> None:
    with pytest.raises(ConfigError, match=r"'gopher://x': a store is a folder, or an address"):
        Checkpointer("gopher://x")
    with pytest.raises(ConfigError, match="at least one tier"):
        Checkpointer([])
    with pytest.raises(ConfigError, match=r"told apart by their names.*\['disk', 'disk'\]"):
        Checkpointer([disk, MemoryTier("disk", level=3)])
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"needs a folder, but .*file is a file"):
        Checkpointer(tmp_path / "file")


def test_a_store_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TierUnavailable, match=r"Cannot create .* on tier 'store' .*[Nn]ot a"):
        Checkpointer(tmp_path / "file" / "store").restore(fresh())


def test_a_store_that_does_not_answer(disk: MemoryTier) -> None:
    def dead(operation: str, _key: str) -> None:
        raise TierUnavailable(f"{operation}: no answer from the file server")

    for use in (
        lambda ckpt: ckpt.restore(fresh()),
        lambda ckpt: ckpt.save(1, fresh()),
        lambda ckpt: ckpt.attempt,
    ):
        with pytest.raises(TierUnavailable, match="no answer from the file server"):
            use(Checkpointer(FaultyTier(disk, dead)))


def test_tiers_are_sorted_by_level(disk: MemoryTier) -> None:
    pfs = MemoryTier("pfs", level=3)
    with Checkpointer([pfs, disk]) as ckpt:
        ckpt.save(1, fresh()).wait(3)
        assert [tier.name for tier in ckpt.lineage.tiers] == ["disk", "pfs"]
        assert ckpt.lineage.valid()[0].tiers == (disk, pfs)


@pytest.mark.parametrize("step", [-1, 1.5, "1", None, True, STEP_MAX + 1, np.float64(3)])
def test_a_step_that_is_no_counter(disk: MemoryTier, step: Any) -> None:
    with (
        Checkpointer(disk) as ckpt,
        pytest.raises(ConfigError, match=f"A step is an integer from 0 to {STEP_MAX}, not "),
    ):
        ckpt.save(step, fresh())


@pytest.mark.parametrize("step", [np.int64(7), np.uint8(7), np.array(7)[()]])
def test_a_step_of_numpy_is_a_step(disk: MemoryTier, step: Any) -> None:
    with Checkpointer(disk, every=1) as ckpt:
        ckpt.save(step, fresh(), metrics={"n": np.int64(3)}).wait()
        assert ckpt.step(step + 1, fresh()) is not None
    with Checkpointer(disk) as ckpt:
        ckpt.restore(fresh())
        assert ckpt.restored_step == 8


def test_the_greatest_step_is_found_again(disk: MemoryTier) -> None:
    with Checkpointer(disk) as ckpt:
        ckpt.save(STEP_MAX, fresh())
    assert steps_of(ckpt) == [STEP_MAX]


@pytest.mark.parametrize("again", [5, 4, 0])
def test_a_step_that_goes_backwards(disk: MemoryTier, again: int) -> None:
    message = (
        rf"the save of step {again} comes after step 5\. Steps must grow; to go back, restore"
    )
    with Checkpointer(disk) as ckpt:
        ckpt.save(5, fresh())
        with pytest.raises(ConfigError, match=message):
            ckpt.save(again, fresh())
    with Checkpointer(disk) as ckpt:
        ckpt.restore(fresh())
        with pytest.raises(ConfigError, match=message):
            ckpt.save(again, fresh())
    assert steps_of(ckpt) == [5]


def test_checkpoints_that_were_not_looked_at(disk: MemoryTier) -> None:
    run(disk, 6)
    with (
        Checkpointer(disk) as ckpt,
        pytest.raises(
            ConfigError,
            match=r"default/main has checkpoints up to step 6 \(attempt 1\), which this "
            r"attempt did not restore\. Call restore\(\) before the first save",
        ),
    ):
        ckpt.save(1, fresh())
    assert steps_of(ckpt) == [6, 4]


@pytest.mark.parametrize("metrics", [{"loss": "low"}, {"loss": None}, {3: 1.0}, {"z": 1j}])
def test_metrics_that_are_no_numbers(disk: MemoryTier, metrics: Any) -> None:
    with (
        Checkpointer(disk) as ckpt,
        pytest.raises(ConfigError, match=r"metrics are numbers by name"),
    ):
        ckpt.save(1, fresh(), metrics=metrics)


def test_a_save_of_nothing(disk: MemoryTier) -> None:
    with (
        Checkpointer(disk) as ckpt,
        pytest.raises(ConfigError, match=r"save\(\) needs a state: none was given, here or at"),
    ):
        ckpt.save(1)


def test_restore_of_nothing_to_nothing(disk: MemoryTier) -> None:
    with pytest.raises(NotFoundError, match=r"has no checkpoint; give restore\(\) an initial"):
        Checkpointer(disk).restore()


def test_objects_are_refused_by_name_and_nothing_is_written(disk: MemoryTier) -> None:
    state = {"ok": np.ones(3), "opt": {"hook": object()}, "objects": np.array([object()])}
    with Checkpointer(disk) as ckpt:
        with pytest.raises(StateError, match="cannot be saved") as caught:
            ckpt.save(1, state)
        assert len(caught.value.mismatches) == 2
        assert "opt/hook" in " ".join(caught.value.mismatches)
        assert "objects" in " ".join(caught.value.mismatches)
        ckpt.save(1, {"ok": np.ones(3)}).wait()
        assert steps_of(ckpt) == [1]


def test_a_read_only_target(disk: MemoryTier) -> None:
    run(disk, 2)
    state = fresh()
    state["w"].flags.writeable = False
    with (
        Checkpointer(disk) as ckpt,
        pytest.raises(StateError, match=r"(?s)nothing was changed.*'?w'?.*read-only"),
    ):
        ckpt.restore(state)
    assert not state["w"].any()
    assert state["i"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.zeros(501)}, r"500.*501"),
        ({"w": np.zeros(500, np.float32)}, r"f8.*f4"),
        ({"more": 1}, "more"),
    ],
)
def test_a_target_of_another_shape(
    disk: MemoryTier, change: dict[str, Any], message: str
) -> None:
    run(disk, 2)
    state = {**fresh(), **change}
    with (
        Checkpointer(disk) as ckpt,
        pytest.raises(StateError, match=rf"(?s)nothing was changed.*{message}"),
    ):
        ckpt.restore(state)
    assert state["i"] == 0
    assert not state["w"].any()


def test_after_close_nothing_is_saved(disk: MemoryTier) -> None:
    with Checkpointer(disk) as ckpt:
        ckpt.save(1, fresh())
    with pytest.raises(ConfigError, match=r"save of step 2 after close\(\)"):
        ckpt.save(2, fresh())
    ckpt.close()
    assert steps_of(ckpt) == [1]


# --- stopping ---


def stopping_after(steps: int) -> Callable[[], str | None]:
    asked = 0

    def stop() -> str | None:
        nonlocal asked
        asked += 1
        return "SIGUSR2 from the scheduler" if asked >= steps else None

    return stop


def test_a_stop_saves_and_says_how_far_it_came(disk: MemoryTier) -> None:
    run(disk, 4)
    with pytest.raises(Preempted, match="SIGUSR2 from the scheduler") as caught:
        run(disk, 100, every=50, stop=stopping_after(3))
    preempted = caught.value
    assert str(preempted) == (
        "default/main stopped at step 7 (SIGUSR2 from the scheduler); step 7 is saved."
    )
    assert (preempted.task, preempted.step, preempted.resumed_step) == ("default/main", 7, 4)
    assert run(disk, 20)["w"].tobytes() == run(MemoryTier(), 20)["w"].tobytes()


def test_a_stop_at_a_step_that_is_saved_already_saves_nothing_more(disk: MemoryTier) -> None:
    with Checkpointer(disk, stop=lambda: "time is up") as ckpt:
        state = ckpt.restore(fresh())
        ckpt.save(3, state)
        with pytest.raises(Preempted, match=r"\(time is up\); step 3 is saved") as caught:
            ckpt.step(3, state)
    assert caught.value.step == 3
    assert steps_of(ckpt) == [3]


def test_a_stop_sends_the_last_checkpoint_to_every_tier(disk: MemoryTier) -> None:
    pfs = MemoryTier("pfs", level=3)
    with pytest.raises(Preempted, match="step 5 is saved"):
        run(
            [disk, pfs],
            100,
            every=1,
            keep="all",
            flush_every={"pfs": 3},
            stop=stopping_after(5),
        )
    assert [found.id.step for found in Lineage([pfs], _lineage_id()).valid()] == [5, 4, 1]


def _lineage_id() -> Any:
    return Checkpointer(MemoryTier()).lineage.id


# --- attempts that are claimed already ---


def test_programs_of_one_attempt_follow_each_other(disk: MemoryTier) -> None:
    """The first says where the attempt went on from; what it saves is not void for the next."""
    run(disk, 4)
    lineage = Lineage([disk], _lineage_id())
    attempt = lineage.claim()
    for expected in (4, 5, 6):
        with Checkpointer(disk, attempt=attempt, keep="all") as ckpt:
            assert (ckpt.claimed, ckpt.attempt) == (True, 2)
            state = ckpt.restore(fresh())
            assert state["i"] == expected
            advance(state)
            ckpt.save(state["i"], state)
    assert steps_of(ckpt) == [7, 6, 5, 4, 2]
    records = lineage.attempts()
    assert [record.attempt for record in records] == [1, 2]
    assert records[1].resume is not None
    assert records[1].resume["step"] == 4


def test_the_first_program_of_an_attempt_may_not_ignore_what_is_there(
    disk: MemoryTier,
) -> None:
    run(disk, 4)
    attempt = Lineage([disk], _lineage_id()).claim()
    with (
        Checkpointer(disk, attempt=attempt) as ckpt,
        pytest.raises(ConfigError, match="which this attempt did not restore"),
    ):
        ckpt.save(1, fresh())


# --- exports ---


def test_an_export_names_the_bits(disk: MemoryTier) -> None:
    with Checkpointer(disk) as ckpt:
        state = ckpt.restore(fresh())
        advance(state)
        first = ckpt.export(state)
        assert (first.run, first.task, first.step) == ("default", "main", 0)
        assert first.tiers == (disk.spec,)
        again = ckpt.export(state)  # Saved already.
        assert again == first
        advance(state)
        later = ckpt.export(state, step=9)
        assert later.root != first.root
        assert steps_of(ckpt) == [9, 0]
        assert ckpt.export(step=0) == first
        with pytest.raises(NotFoundError, match="default/main has no checkpoint of step 4"):
            ckpt.export(state, step=4)


def test_no_warning_in_an_ordinary_run(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tiers = [
            PosixTier(tmp_path / "a", name="a"),
            PosixTier(tmp_path / "b", name="b", level=3),
        ]
        for steps in (5, 9):
            run(tiers, steps, every=1)
    assert caught == []


def test_an_export_reaches_a_tier_that_other_nodes_see(tmp_path: Path) -> None:
    """The copy outward is due only every tenth time, but another node has to find this one."""
    own_disk = PosixTier(tmp_path / "node", name="node", level=1)
    shared = PosixTier(tmp_path / "pfs", name="pfs", level=3)
    with Checkpointer([own_disk, shared], flush_every={"pfs": 10}) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"w": np.full(1000, step)})
        export = ckpt.export()
    shutil.rmtree(tmp_path / "node")
    assert load(export)["w"].tolist() == [3] * 1000
