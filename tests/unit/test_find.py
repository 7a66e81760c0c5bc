"""Find what a person named, or say what there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ckptflow.errors import NotFoundError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.find import find_checkpoint, find_lineage, find_run, is_there
from ckptflow.tiers.memory import MemoryTier

STATE = {"w": np.arange(8.0)}


@pytest.fixture
def tier(save_state: Callable[..., Lineage]) -> MemoryTier:
    """Two runs; exp/a was taken over by attempt 2 at step 10."""
    tier = MemoryTier("pfs", level=3)
    save_state(tier, "exp/a", 10, STATE)
    lineage = save_state(tier, "exp/a", 20, STATE)
    save_state(tier, "exp/b", 5, STATE)
    save_state(tier, "other/c", 7, STATE)
    lineage.record_resume(2, CheckpointId(10, 1))
    return tier


def test_find_lineage(tier: MemoryTier) -> None:
    lineage = find_lineage([tier], LineageId("exp", "a"))
    assert [found.id.step for found in lineage.checkpoints()] == [20, 10]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("exp", "There is no exp/z in tier 'pfs'; there is exp/a, exp/b"),
        ("nil", "There is no nil/z in tier 'pfs'; there is exp/a, exp/b, other/c"),
    ],
)
def test_an_unknown_lineage_names_those_that_are(
    tier: MemoryTier, run: str, message: str
) -> None:
    with pytest.raises(NotFoundError, match=message):
        find_lineage([tier], LineageId(run, "z"))


def test_find_run(tier: MemoryTier) -> None:
    assert find_run([tier], "exp") == [LineageId("exp", "a"), LineageId("exp", "b")]
    with pytest.raises(NotFoundError, match="no run 'nil' in tier 'pfs'; there is exp, other"):
        find_run([tier], "nil")
    with pytest.raises(NotFoundError, match="no run 'nil' in tier 'memory'; there is nothing"):
        find_run([MemoryTier()], "nil")


def test_the_newest_is_the_newest_that_counts(tier: MemoryTier) -> None:
    lineage = find_lineage([tier], LineageId("exp", "a"))
    assert find_checkpoint(lineage).id == CheckpointId(10, 1)


def test_a_void_one_can_be_named(tier: MemoryTier) -> None:
    lineage = find_lineage([tier], LineageId("exp", "a"))
    assert find_checkpoint(lineage, step=20).void


def test_of_one_step_the_one_that_counts(
    tier: MemoryTier, save_state: Callable[..., Lineage]
) -> None:
    lineage = save_state(tier, "exp/a", 20, STATE, attempt=2)
    assert find_checkpoint(lineage, step=20).id == CheckpointId(20, 2)
    assert find_checkpoint(lineage, step=20, attempt=1).id == CheckpointId(20, 1)


def test_an_unknown_step_names_those_that_are(tier: MemoryTier) -> None:
    lineage = find_lineage([tier], LineageId("exp", "a"))
    with pytest.raises(
        NotFoundError, match="no checkpoint of step 15 in tier 'pfs'; it has 20 \\(void\\), 10"
    ):
        find_checkpoint(lineage, step=15)
    with pytest.raises(NotFoundError, match="no checkpoint of step 10 by attempt 9"):
        find_checkpoint(lineage, step=10, attempt=9)


def test_nothing_that_counts(tier: MemoryTier) -> None:
    lineage = find_lineage([tier], LineageId("exp", "b"))
    lineage.record_resume(2, None)
    with pytest.raises(
        NotFoundError, match="has no checkpoint in tier 'pfs'; it has 5 \\(void\\)"
    ):
        find_checkpoint(lineage)


def test_is_there(tier: MemoryTier) -> None:
    lineage = LineageId("exp", "a")
    assert is_there(tier, lineage, CheckpointId(20, 1))
    tier.delete(f"{lineage.prefix}/{CheckpointId(20, 1).manifest_key}")
    assert not is_there(tier, lineage, CheckpointId(20, 1))
