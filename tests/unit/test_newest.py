"""One listing tells of all tasks what each lineage tells of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptflow.errors import NotFoundError, TierError, TierUnavailable
from ckptflow.model import STORE_KEY, CheckpointId, LineageId, Shard
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.newest import Newest, newest_of_run
from ckptflow.store.setback import checkpoint_of_step, set_back
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier

SaveState = Callable[..., Lineage]


def commit(tier: MemoryTier, lineage: LineageId, step: int, attempt: int) -> None:
    """Put the key of a manifest; nobody reads what is in it."""
    ensure_store(tier)
    tier.put(f"{lineage.prefix}/{CheckpointId(step, attempt).manifest_key}", [b"x"])


histories = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 4), st.sampled_from(["in", "out", "both"])),
    max_size=8,
)
setbacks = st.lists(st.tuples(st.integers(2, 6), st.none() | st.integers(0, 9)), max_size=3)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.tuples(histories, setbacks)))
def test_it_agrees_with_each_lineage(tasks: dict[str, tuple[list, list]]) -> None:  # type: ignore[type-arg]
    inner, outer = MemoryTier("in", level=0), MemoryTier("out", level=3)
    for tier in (inner, outer):
        ensure_store(tier)
    for task, (history, resumes) in tasks.items():
        lineage = Lineage([inner, outer], LineageId("r", task))
        for step, attempt, where in history:
            for tier in (inner, outer):
                if where in (tier.name, "both"):
                    commit(tier, lineage.id, step, attempt)
        for attempt, back in resumes:
            lineage.record_resume(attempt, None if back is None else CheckpointId(back, 1))
    commit(outer, LineageId("other", "a"), 99, 1)
    found = newest_of_run([inner, outer], "r")
    for task in tasks:
        newest = Lineage([inner, outer], LineageId("r", task)).newest()
        one = found.get(task)
        assert (one.step if one else None) == (newest.id.step if newest else None)
        if one and newest:
            assert one.tiers == tuple(tier.name for tier in newest.tiers)


def test_what_ranks_saved_together_counts_when_it_is_complete() -> None:
    tier = MemoryTier()
    whole = LineageId("r", "t")
    for step, ranks in ((1, (0, 1)), (2, (0, 1)), (3, (0,))):
        for rank in ranks:
            commit(tier, Shard(whole, rank, 2).lineage, step, 1)
    assert newest_of_run([tier], "r") == {"t": Newest(2, (tier.name,))}
    Lineage([tier], whole).record_resume(2, CheckpointId(1, 1))
    assert newest_of_run([tier], "r") == {"t": Newest(1, (tier.name,))}


def test_a_tier_that_fails_is_passed_over_but_not_the_one_with_the_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner, outer = MemoryTier("in", level=0), MemoryTier("out", level=3)
    commit(outer, LineageId("r", "t"), 5, 1)
    real = MemoryTier.iter_keys

    def failing(name: str) -> Callable[..., object]:
        def iter_keys(self: MemoryTier, prefix: str) -> object:
            if self.name == name:
                raise TierUnavailable(f"{name} is away")
            return real(self, prefix)

        return iter_keys

    commit(inner, LineageId("r", "t"), 6, 1)
    notes: list[str] = []
    monkeypatch.setattr(MemoryTier, "iter_keys", failing("in"))
    assert newest_of_run([inner, outer], "r", note=notes.append) == {"t": Newest(5, ("out",))}
    assert "in is away" in notes[0]
    monkeypatch.setattr(MemoryTier, "iter_keys", failing("out"))
    with pytest.raises(TierError, match="out is away"):
        newest_of_run([inner, outer], "r")


def test_a_store_that_is_not_there_has_no_tasks(tmp_path: Path) -> None:
    assert newest_of_run([PosixTier(tmp_path / "nil")], "r") == {}
    assert not (tmp_path / "nil").exists()


def test_ten_thousand_tasks_cost_one_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are read only of the one task that went back."""
    tier = MemoryTier()
    for number in range(10_000):
        lineage = Lineage([tier], LineageId("r", f"t-{number}"))
        commit(tier, lineage.id, number, 1)
    lineage.record_resume(2, None)
    calls: list[str] = []

    def counting(name: str) -> Callable[..., object]:
        real = getattr(MemoryTier, name)

        def counted(self: MemoryTier, key: str, *args: object, **more: object) -> object:
            if key != STORE_KEY:
                calls.append(name)
            return real(self, key, *args, **more)

        return counted

    for name in ("iter_keys", "iter_folders", "get"):
        monkeypatch.setattr(MemoryTier, name, counting(name))
    found = newest_of_run([tier], "r")
    assert len(found) == 10_000
    assert found["t-7"] == Newest(7, (tier.name,))
    assert found["t-9999"] is None
    assert sorted(calls) == ["get", "iter_keys"]


# --- setting back ----------------------------------------------------------------------


def test_a_lineage_is_set_back_and_goes_on_from_there(save_state: SaveState) -> None:
    tier = MemoryTier()
    for step in (10, 20, 30):
        lineage = save_state(tier, "r/t", step, {"w": np.arange(step)})
    assert set_back(lineage, checkpoint_of_step(lineage, 20), reason="why not") == 2
    newest = lineage.newest()
    assert newest is not None
    assert newest.id == CheckpointId(20, 1)
    assert [one.id.step for one in lineage.checkpoints()] == [30, 20, 10]
    record = lineage.attempts()[-1]
    assert record.end is not None
    assert (record.end["outcome"], record.end["reason"]) == ("set-back", "why not")
    with pytest.raises(
        NotFoundError, match="no checkpoint of step 30 that counts; it has 20, 10"
    ):
        checkpoint_of_step(lineage, 30)
    set_back(lineage, None, reason="all of it")
    assert lineage.newest() is None


def test_who_still_runs_a_task_that_is_set_back_is_fenced(save_state: SaveState) -> None:
    tier = MemoryTier()
    lineage = save_state(tier, "r/t", 10, {"w": np.arange(3)})
    running = lineage.claim()
    set_back(lineage, None, reason="x")
    with pytest.raises(Exception, match="has taken over from attempt"):
        lineage.check_fence(running)
    commit(tier, lineage.id, 20, running)  # It was on its way already.
    assert lineage.newest() is None


def test_a_set_of_shards_is_set_back_as_a_whole() -> None:
    tier, whole = MemoryTier(), LineageId("r", "t")
    lineage = Lineage([tier], whole)
    ensure_store(tier)
    claim = b'{"attempt": 1, "launch": "x", "world": 2}'
    tier.create(f"{whole.prefix}/attempts/00000001.claim", claim)
    lineage.record_resume(1, None)
    for step in (10, 20):
        for rank in range(2):
            commit(tier, Shard(whole, rank, 2).lineage, step, 1)
    assert checkpoint_of_step(lineage, 20) == CheckpointId(20, 1)
    set_back(lineage, checkpoint_of_step(lineage, 10), reason="x")
    assert newest_of_run([tier], "r") == {"t": Newest(10, (tier.name,))}
