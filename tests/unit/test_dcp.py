"""``torch.distributed.checkpoint`` over our store, in one process: what it writes and reads.

Several ranks, resharding: ``tests/process/test_dcp_ranks.py``.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptflow
from ckptflow import Checkpointer, MemoryTier, PosixTier
from ckptflow.checkpointer import CheckpointWarning
from ckptflow.errors import ConfigError, FormatError
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.verify import verify
from ckptflow.testing.crashes import crash_everywhere

torch: Any = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
import torch.distributed.checkpoint as dcp  # noqa: E402

from ckptflow.bridges.dcp import sessions  # noqa: E402
from ckptflow.bridges.dcp.document import metadata_node, metadata_of  # noqa: E402
from ckptflow.bridges.dcp.writing import Writer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

MIB = 1 << 20


def save(tier: Any, state: dict[str, Any], step: int, **options: Any) -> None:
    dcp.save(state, storage_writer=ckptflow.torch.writer(tier, step=step, **options))


def load(tier: Any, state: dict[str, Any], step: int | None = None, **options: Any) -> Any:
    reader = ckptflow.torch.reader(tier, step=step)
    dcp.load(state, storage_reader=reader, **options)
    return reader.step


def lineage(tier: Any) -> Lineage:
    return Lineage([tier], LineageId("default", "main"))


def written(tier: Any, step: int) -> int:
    found = lineage(tier).valid_of_step(step)[0]
    return lineage(tier).manifest(found).written_bytes


def bits(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def failure(caught: Any) -> str:
    """Return what torch says of the errors of all ranks."""
    return "".join(str(error) for error in caught.value.failures.values())


@pytest.fixture
def new_process() -> Iterator[Any]:
    """Forget what this process remembers of stores, as another one would."""
    yield sessions._sessions.clear
    sessions._sessions.clear()


STATE = {
    "model": {
        "weight": torch.arange(12.0).reshape(3, 4),
        "half": torch.rand(7).to(torch.bfloat16),
        "eight": torch.rand(5).to(torch.float8_e5m2),
        "wave": torch.rand(3, dtype=torch.complex64),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "turned": torch.arange(20).reshape(4, 5).T[::2],
    },
    "optim": {
        "state": {0: {"step": torch.tensor(3)}},
        "groups": [{"lr": 0.1, "betas": (1, 2)}],
    },
    "long": "x" * 10_000,
    "none": None,
}


def blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else "?"


def test_what_is_saved_is_loaded() -> None:
    tier, back = MemoryTier(), blank(STATE)
    save(tier, STATE, 7)
    assert load(tier, back) == 7
    for name, tensor in STATE["model"].items():
        assert back["model"][name].dtype == tensor.dtype
        assert bits(back["model"][name]) == bits(tensor)
    assert back["optim"] == STATE["optim"]
    assert (back["long"], back["none"]) == (STATE["long"], None)


def test_it_is_an_ordinary_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, STATE, 7)
    own = lineage(PosixTier(tmp_path))
    (report,) = verify(own, own.valid()[0])
    assert report.sound
    tree = Checkpointer(tmp_path).restore()
    assert torch.equal(tree["tensors"]["model.weight"]["0,0"], STATE["model"]["weight"])
    assert bits(tree["tensors"]["model.scalar"]["0"]) == bits(STATE["model"]["scalar"])
    assert torch.load(io.BytesIO(tree["bytes"]["long"])) == STATE["long"]
    assert tree["metadata"]["entries"]["model.half"]["dtype"] == "bfloat16"


def test_what_did_not_change_is_not_written_again() -> None:
    tier, generator = MemoryTier(), torch.Generator().manual_seed(1)
    state = {"w": torch.rand(MIB, generator=generator), "b": torch.rand(MIB // 4)}
    one_writer = ckptflow.torch.writer(tier)
    dcp.save(state, storage_writer=one_writer, checkpoint_id="1")
    assert written(tier, 1) > 4 * MIB
    state["w"][5000:6000] += 1
    dcp.save(state, storage_writer=one_writer, checkpoint_id=Path("2"))
    assert 4000 <= written(tier, 2) < 4000 * 4
    state["w"][5000:6000] += 1
    save(tier, state, 3)  # Another writer for each is what torch's users do.
    assert 4000 <= written(tier, 3) < 4000 * 4
    save(tier, state, 4)
    assert written(tier, 4) == 0
    back = {"w": torch.zeros(MIB)}
    load(tier, back)
    assert torch.equal(back["w"], state["w"])


def test_parts_of_tensors_and_of_states_are_read_alone() -> None:
    tier, state = MemoryTier(), {"a": torch.rand(300, 7), "b": torch.rand(5), "c": 3}
    save(tier, state, 1)
    back = {"b": torch.zeros(5)}
    load(tier, back)
    assert torch.equal(back["b"], state["b"])
    back = {"b": torch.zeros(5), "new": torch.zeros(2)}
    with pytest.raises(dcp.api.CheckpointException, match="new"):
        load(tier, back)
    load(tier, back, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    assert torch.equal(back["b"], state["b"])


def test_a_load_may_change_the_type_as_torchs_own_does() -> None:
    tier, back = MemoryTier(), {"w": torch.zeros(4, dtype=torch.float64)}
    save(tier, {"w": torch.arange(4.0)}, 1)
    load(tier, back)
    assert back["w"].tolist() == [0, 1, 2, 3]


def test_tensors_that_share_memory_are_stored_once() -> None:
    tier, base = MemoryTier(), torch.rand(1000)
    save(tier, {"a": base, "b": base, "part": base[100:200].reshape(4, 25).T}, 1)
    manifest = lineage(tier).manifest(lineage(tier).valid()[0])
    assert manifest.state_bytes == 4000
    back = {"a": torch.zeros(1000), "b": torch.zeros(1000), "part": torch.zeros(25, 4)}
    load(tier, back)
    assert torch.equal(back["b"], base)
    assert torch.equal(back["part"], base[100:200].reshape(4, 25).T)


def test_loads_of_more_than_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptflow.bridges.dcp.reading.PART_BYTES", 1000)
    tier, state = MemoryTier(), {f"t{i}": torch.rand(i, 30) for i in range(12)}
    save(tier, state, 1)
    back = blank(state)
    load(tier, back)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_plans_that_are_kept_by_the_planner() -> None:
    planners = [dcp.DefaultSavePlanner(enable_plan_caching=True) for _ in range(4)]
    tiers, state = (MemoryTier(), MemoryTier()), {"w": torch.zeros(50), "n": 0}
    try:
        for step, planner in enumerate(planners):
            state["w"] += 1
            state["n"] = step
            tier = tiers[step // 3]  # The kept plan was made for another store, too.
            writer = ckptflow.torch.writer(tier, step=step)
            dcp.save(state, storage_writer=writer, planner=planner)
            back = blank(state)
            assert load(tier, back) == step
            assert (back["w"][0].item(), back["n"]) == (step + 1, step)
    finally:
        for name, value in vars(dcp.SavePlanner).items():
            if name.startswith("_cached"):
                value.clear()


def test_async_saves_store_the_values_of_the_call() -> None:
    tier, state = MemoryTier(), {"w": torch.zeros(MIB), "n": 0}
    for step in range(3):
        future = dcp.async_save(state, storage_writer=ckptflow.torch.writer(tier, step=step))
        state["w"] += 1  # At once: what is stored must be what was.
        future.result()
    for step in range(3):
        back = {"w": torch.full((MIB,), -1.0)}
        load(tier, back, step)
        assert back["w"].unique().tolist() == [step]


# --- the commit --------------------------------------------------------------------------


def test_a_save_that_dies_anywhere_is_not_there(new_process: Any) -> None:
    first = {"w": torch.rand(3000), "n": 1}
    second = {"w": first["w"] + 1, "n": 2}

    def make_store() -> list[MemoryTier]:
        tier = MemoryTier()
        save(tier, first, 1)
        return [tier]

    def action(tiers: Any) -> None:
        try:
            save(tiers[0], second, 2)
        except dcp.api.CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error

    def check(tiers: Any, died_at: int | None) -> None:
        new_process()
        back = blank(first)
        expected = second if died_at is None else first
        if died_at is not None and load(tiers[0], back) == 2:
            expected = second  # It died when all was there: after the commit.
        load(tiers[0], back)
        assert torch.equal(back["w"], expected["w"])
        save(tiers[0], second, 3)  # And the next process goes on.
        load(tiers[0], back)
        assert torch.equal(back["w"], second["w"])

    assert crash_everywhere(make_store, action, check) >= 3


class Stopped(Writer):
    """All ranks have written, and nobody commits."""

    def finish(self, metadata: Any, results: Any) -> None:
        raise RuntimeError("stopped before the commit")


def test_what_was_written_for_a_save_that_was_not_committed_is_not_relied_on() -> None:
    tier = MemoryTier()
    state = {"w": torch.rand(MIB)}
    save(tier, state, 1)
    state["w"][:100_000] += 1
    with pytest.raises(dcp.api.CheckpointException, match="stopped before"):
        dcp.save(state, storage_writer=Stopped(tier, step=2))
    assert load(tier, blank(state)) == 1
    save(tier, state, 2)
    assert written(tier, 2) > 4 * MIB
    back = blank(state)
    assert load(tier, back) == 2
    assert torch.equal(back["w"], state["w"])


def test_packs_that_a_prune_takes_meanwhile_undo_the_commit() -> None:
    class Pruned(MemoryTier):
        def put(self, key: str, parts: Any) -> None:
            super().put(key, parts)
            if key.endswith("2.00000001.ckpt"):
                for pack in [*self.iter_keys(LineageId("default", "main").prefix + "/packs")]:
                    self.delete(pack)

    tier, state = Pruned(), {"w": torch.rand(3000)}
    save(tier, state, 1)
    with pytest.raises(dcp.api.CheckpointException) as caught:
        save(tier, state, 2)
    assert "was taken back: a prune took" in failure(caught)
    assert [found.id.step for found in lineage(tier).valid()] == [1]
    save(tier, state, 3)
    back = blank(state)
    assert load(tier, back) == 3
    assert torch.equal(back["w"], state["w"])


@pytest.mark.damaged_store
def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.rand(5000), "v": torch.rand(5000)}, 1)
    (pack,) = tmp_path.rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    with pytest.raises(dcp.api.CheckpointException) as caught:
        load(tmp_path, {"w": torch.zeros(5000), "v": torch.zeros(5000)})
    assert "CorruptionError" in failure(caught) or "digest" in failure(caught)


@pytest.mark.damaged_store
def test_a_damaged_manifest_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, {"n": torch.tensor(1)}, 1)
    save(tmp_path, {"n": torch.tensor(2)}, 2)
    newest = max(tmp_path.rglob("*.ckpt"))
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match="passed over"):
        assert load(tmp_path, back := {"n": torch.tensor(0)}) == 1
    assert back["n"] == 1


# --- steps and attempts ------------------------------------------------------------------


def test_steps_grow_and_going_back_makes_later_ones_void(new_process: Any) -> None:
    tier, state = MemoryTier(), {"n": torch.tensor(0)}
    for step in (10, 20, 30):
        state["n"].fill_(step)
        save(tier, state, step)
    with pytest.raises(dcp.api.CheckpointException) as caught:
        save(tier, state, 30)
    assert "step 30, so one of step 30 may not be saved now: steps grow" in failure(caught)
    new_process()
    with pytest.raises(dcp.api.CheckpointException) as caught:
        save(tier, state, 5)
    assert "To go back, load an earlier one first" in failure(caught)
    assert load(tier, state, 10) == 10
    state["n"].fill_(15)
    save(tier, state, 15)
    assert [found.id.step for found in lineage(tier).valid()] == [15, 10]
    assert load(tier, state) == 15
    save(tier, state, 25)
    assert [found.id.step for found in lineage(tier).valid()] == [25, 15, 10]


def test_looking_at_an_older_one_voids_nothing() -> None:
    tier, state = MemoryTier(), {"n": torch.tensor(0)}
    for step in (10, 20):
        save(tier, state, step)
    load(tier, state, 10)
    save(tier, state, 30)
    assert [found.id.step for found in lineage(tier).valid()] == [30, 20, 10]


def test_who_was_overtaken_does_not_commit(new_process: Any) -> None:
    tier, state = MemoryTier(), {"n": torch.tensor(0)}
    writer = ckptflow.torch.writer(tier)
    dcp.save(state, storage_writer=writer, checkpoint_id="1")
    lineage(tier).claim()
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.save(state, storage_writer=writer, checkpoint_id="2")
    assert "attempt 2 has taken over" in failure(caught)
    assert [found.id.step for found in lineage(tier).valid()] == [1]


def test_a_writer_that_is_sent_elsewhere_knows_what_was_loaded(
    new_process: Any, tmp_path: Path
) -> None:
    state = {"n": torch.tensor(0)}
    for step in (10, 20):
        save(tmp_path, state, step)
    load(tmp_path, state, 10)
    sent = pickle.dumps(ckptflow.torch.writer(tmp_path, step=15))
    new_process()
    dcp.save(state, storage_writer=pickle.loads(sent))
    assert load(tmp_path, state) == 15


def test_only_what_is_kept_stays() -> None:
    tier = MemoryTier()
    for step in range(5):
        save(tier, {"w": torch.full((3000,), float(step))}, step, keep=2)
    assert [found.id.step for found in lineage(tier).valid()] == [4, 3]
    load(tier, back := {"w": torch.zeros(3000)}, 3)
    assert back["w"][0] == 3


def test_other_runs_and_tasks_are_apart() -> None:
    tier = MemoryTier()
    save(tier, {"n": torch.tensor(1)}, 1, run="a")
    save(tier, {"n": torch.tensor(2)}, 1, run="a", task="b")
    reader = ckptflow.torch.reader(tier, run="a", task="b")
    dcp.load(back := {"n": torch.tensor(0)}, storage_reader=reader)
    assert back["n"] == 2


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint_id", "message"),
    [(None, "Which step is saved"), ("final", "not 'final'"), (-1, "not -1")],
)
def test_a_step_is_needed(checkpoint_id: Any, message: str) -> None:
    with pytest.raises((ConfigError, dcp.api.CheckpointException), match=message):
        dcp.save(
            {}, storage_writer=ckptflow.torch.writer(MemoryTier()), checkpoint_id=checkpoint_id
        )


def test_nothing_to_load() -> None:
    tier = MemoryTier()
    with pytest.raises(dcp.api.CheckpointException, match="has no checkpoint"):
        load(tier, {"n": torch.tensor(1)})
    save(tier, {"n": torch.tensor(1)}, 3)
    with pytest.raises(dcp.api.CheckpointException, match="has no checkpoint of step 4"):
        load(tier, {"n": torch.tensor(1)}, 4)


def test_a_state_without_anything() -> None:
    tier = MemoryTier()
    save(tier, {}, 1)
    assert load(tier, {}) == 1


def test_checkpoints_of_others_are_named() -> None:
    tier = MemoryTier()
    with Checkpointer(tier) as ckpt:
        ckpt.save(1, {"u": np.ones(3)})
    with pytest.raises(dcp.api.CheckpointException, match="not saved by torch"):
        load(tier, {"u": torch.ones(3)})


def test_one_commit_is_for_all_ranks() -> None:
    writer = ckptflow.torch.writer(MemoryTier(), step=1)
    with pytest.raises(ConfigError, match="commits one for all"):
        dcp.save({"n": torch.ones(1)}, storage_writer=writer, use_collectives=False)


def test_one_tier_is_written_and_several_may_be_read() -> None:
    tiers = [MemoryTier(name="a", level=0), MemoryTier(name="b", level=3)]
    with pytest.raises(ConfigError, match=r"writes to one tier.*'a', 'b'"):
        ckptflow.torch.writer(tiers)
    save(tiers[1], {"n": torch.tensor(5)}, 1)
    load(tiers, back := {"n": torch.tensor(0)})
    assert back["n"] == 5


def test_ranks_have_to_find_the_same_checkpoint() -> None:
    tier, plans = MemoryTier(), []
    for step in (1, 2):
        save(tier, {"n": torch.tensor(step)}, step)
        reader = ckptflow.torch.reader(tier)
        reader.read_metadata()
        plans.append(reader.prepare_local_plan(dcp.LoadPlan([])))
    assert reader.prepare_global_plan(plans[:1]) == plans[:1]
    with pytest.raises(ConfigError, match=r"rank 0 step 1 \(attempt 1\), rank 1 step 2"):
        reader.prepare_global_plan(plans)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (object(), r"'planner_data/mine': an object of type builtins.object"),
        (
            torch.ones(3),
            r"(?s)planner keeps .* cannot be stored.*'planner_data/mine': an array",
        ),
    ],
)
def test_planners_that_keep_objects_are_refused(thing: Any, message: str) -> None:
    class Keeps(dcp.DefaultSavePlanner):  # type: ignore[misc]
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            metadata.planner_data = {"mine": thing}
            return plans, metadata

    writer = ckptflow.torch.writer(MemoryTier(), step=1)
    with pytest.raises(dcp.api.CheckpointException, match=message):
        dcp.save({"n": torch.ones(1)}, storage_writer=writer, planner=Keeps())


# --- nothing of a checkpoint is executed ---------------------------------------------------


class Bomb:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


class Careful(dcp.DefaultLoadPlanner):  # type: ignore[misc]
    """A planner that takes tensors and plain values only."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        super().load_bytes(read_item, value)


def test_bytes_are_given_to_the_planner_and_never_looked_into(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.ones(3), "bomb": Bomb()}, 1)
    load(tmp_path, {"w": torch.zeros(3)})
    Checkpointer(tmp_path).restore()
    reader = ckptflow.torch.reader(tmp_path)
    assert set(reader.read_metadata().state_dict_metadata) == {"w", "bomb"}
    with pytest.raises(dcp.api.CheckpointException, match=r"[Ww]eights.?only"):
        load(tmp_path, {"bomb": 0}, planner=Careful())
    assert not Path("exploded").exists()
    load(tmp_path, {"bomb": 0})  # What torch's own planner does with its bytes is its own.
    assert Path("exploded").exists()


def test_metadata_names_nothing_but_torchs_own(tmp_path: Path) -> None:
    node = metadata_node(dcp.Metadata({"w": _entry_of(torch.ones(3))}))
    assert metadata_of(node).state_dict_metadata["w"].size == torch.Size([3])
    forged = json.loads(json.dumps(node).replace('"float32"', '"load"'))
    assert forged != node
    with pytest.raises(FormatError, match="does not say what its tensors are"):
        metadata_of(forged)


def _entry_of(tensor: Any) -> Any:
    properties = dcp.metadata.TensorProperties.create_from_tensor(tensor)
    chunk = dcp.ChunkStorageMetadata(torch.Size([0]), tensor.shape)
    return dcp.TensorStorageMetadata(properties, tensor.shape, [chunk])
