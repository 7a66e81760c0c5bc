"""What a store holds, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.survey import survey_checkpoints, survey_lineage
from ckptflow.tiers.memory import MemoryTier

STATE = {"w": np.arange(100.0)}


def test_a_lineage_at_a_glance(save_state: Callable[..., Lineage]) -> None:
    tier = MemoryTier("disk")
    for step in (10, 20, 30):
        lineage = save_state(tier, "exp/a", step, STATE)
    save_state(tier, "exp/b", 1, STATE)
    lineage.record_resume(2, CheckpointId(20, 1))
    found = survey_lineage(lineage)
    assert (found.checkpoints, found.void, found.attempts) == (2, 1, 1)
    assert found.newest == CheckpointId(20, 1)
    assert found.saved == lineage.manifest(lineage.valid()[0]).created
    assert found.state_bytes == 2 * 800
    keys = [key for key in tier.iter_keys("") if key.startswith("lineages/exp/a/")]
    assert found.stored_bytes == {"disk": sum(tier.size(key) for key in keys)}


def test_checkpoints_on_several_tiers(save_state: Callable[..., Lineage]) -> None:
    inner, outer = MemoryTier("inner", level=1), MemoryTier("outer", level=3)
    save_state(inner, "exp/a", 1, STATE)
    save_state(inner, "exp/a", 2, STATE)
    lineage = save_state(outer, "exp/a", 1, STATE)
    both = Lineage([inner, outer], lineage.id)
    assert [(one.id.step, one.tiers, one.status) for one in survey_checkpoints(both)] == [
        (2, ("inner",), "ok"),
        (1, ("inner", "outer"), "ok"),
    ]


def test_an_unreadable_manifest_is_part_of_the_answer(
    save_state: Callable[..., Lineage],
) -> None:
    tier = MemoryTier()
    lineage = save_state(tier, "exp/a", 1, STATE)
    key = f"{lineage.id.prefix}/{CheckpointId(1, 1).manifest_key}"
    tier.put(key, [tier.get(key)[:-3]])
    (one,) = survey_checkpoints(lineage)
    assert (one.status, one.manifest) == ("unreadable", None)
    assert one.problem is not None
    assert "has no sound copy" in one.problem
    found = survey_lineage(lineage)
    assert (found.newest, found.saved, found.state_bytes) == (CheckpointId(1, 1), None, 0)


class Pruning(MemoryTier):
    """Loses the oldest checkpoint as soon as its keys have been listed."""

    def iter_keys(self, prefix: str) -> Iterator[str]:
        keys = list(super().iter_keys(prefix))
        for key in keys:
            if "000000000001.00000001" in key:
                self.delete(key)
        yield from keys


def test_what_is_pruned_meanwhile_is_left_out(save_state: Callable[..., Lineage]) -> None:
    tier = Pruning("disk")
    save_state(tier, "exp/a", 1, STATE)
    lineage = save_state(tier, "exp/a", 2, STATE)
    assert [one.id.step for one in survey_checkpoints(lineage)] == [2]
    save_state(tier, "exp/a", 1, STATE)
    assert survey_lineage(lineage).checkpoints == 1


def test_nothing_saved_yet() -> None:
    found = survey_lineage(Lineage([MemoryTier("m")], LineageId("exp", "a")))
    assert (found.checkpoints, found.newest, found.stored_bytes) == (0, None, {"m": 0})
