"""What the store knows is read side by side; a tier that is dead or hangs holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.checkpointer.sharded import ShardedCheckpointer
from ckptflow.errors import TierUnavailable
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier
from ckptflow.workflow.seeing.facts import newest_steps, read_facts

T = TypeVar("T")


def save(tiers: list[Tier], task: str, *steps: int, run: str = "exp") -> None:
    with Checkpointer(tiers, run=run, task=task, keep="all") as ckpt:
        ckpt.total_steps = 100
        state = ckpt.restore({"w": np.arange(1000.0)})
        for step in steps:
            state["w"] += 1
            ckpt.save(step, state)


@pytest.fixture
def tiers(tmp_path: Path) -> list[Tier]:
    return [
        PosixTier(tmp_path / "nvme", name="nvme", level=1),
        PosixTier(tmp_path / "pfs", name="pfs", level=3),
    ]


class Dead(TierAround):
    """A tier whose server is gone: every call fails."""

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:
        raise TierUnavailable(f"no route to {self.name}")

    def iter_keys(self, prefix: str) -> Iterator[str]:
        raise TierUnavailable(f"no route to {self.name}")

    iter_folders = iter_keys


class Hanging(TierAround):
    """A tier whose server is gone: no call comes back, until the test is over."""

    def __init__(self, inner: Tier, over: threading.Event) -> None:
        super().__init__(inner)
        self._over = over

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self._over.wait()
        raise TierUnavailable("gone")

    def iter_keys(self, prefix: str) -> Iterator[str]:
        yield self._pass("iter_keys", prefix, lambda: "")

    iter_folders = iter_keys


def test_attempts_and_checkpoints_of_every_task_are_read(tiers: list[Tier]) -> None:
    save(tiers, "a", 1, 2)
    save(tiers, "a", 3)
    save(tiers, "b", 7)
    save(tiers, "of-another-run", 9, run="other")
    found = read_facts(tiers, "exp")
    assert sorted(found.tasks) == ["a", "b"]
    assert found.tiers == (("nvme", 1), ("pfs", 3))
    assert found.notes == ()
    a = found.tasks["a"]
    assert [one.attempt for one in a.attempts] == [1, 2]
    assert [(one.step, one.attempt, one.tiers) for one in a.checkpoints] == [
        (3, 2, ("nvme", "pfs")), (2, 1, ("nvme", "pfs")), (1, 1, ("nvme", "pfs"))
    ]  # fmt: skip
    assert {one.state_bytes for one in a.checkpoints} == {a.checkpoints[0].state_bytes}
    assert all(one.created_s and one.total_steps == 100 for one in a.checkpoints)
    assert newest_steps(found) == {"a": 3, "b": 7}


def test_at_a_glance_only_the_newest_manifest_is_read(tiers: list[Tier]) -> None:
    save(tiers, "a", 1, 2)
    newest, older = read_facts(tiers, "exp", manifests=False).tasks["a"].checkpoints
    assert newest.created_s is not None
    assert newest.total_steps == 100
    assert (older.step, older.tiers, older.created_s) == (1, ("nvme", "pfs"), None)


def test_tasks_that_nobody_asked_for_are_not_read(tiers: list[Tier]) -> None:
    save(tiers, "a", 1)
    save(tiers, "b", 1)
    assert set(read_facts(tiers, "exp", is_wanted=lambda task: task == "b").tasks) == {"b"}


@pytest.mark.parametrize("which", [0, 1])
def test_a_dead_tier_is_left_out_and_named(tiers: list[Tier], which: int) -> None:
    save(tiers, "a", 1)
    alive = tiers[1 - which]
    tiers[which] = Dead(tiers[which])
    found = read_facts(tiers, "exp")
    assert found.tiers == ((alive.name, alive.level),)
    (note,) = found.notes
    assert f"tier {tiers[which].name!r} was left out: no route to" in note
    assert found.tasks["a"].checkpoints[0].tiers == (alive.name,)


def test_a_hanging_tier_is_left_out_and_named(tiers: list[Tier]) -> None:
    save(tiers, "a", 1)
    over = threading.Event()
    try:
        tiers[0] = Hanging(tiers[0], over)
        found = read_facts(tiers, "exp", stall_s=0.3)
    finally:
        over.set()
    assert found.tiers == (("pfs", 3),)
    assert found.tasks["a"].checkpoints[0].tiers == ("pfs",)
    (note,) = found.notes
    assert note.startswith("tier 'nvme' has not answered for 300 ms")


def test_if_no_tier_answers_that_is_all_there_is_to_say(tiers: list[Tier]) -> None:
    found = read_facts([Dead(tier) for tier in tiers], "exp")
    assert (found.tasks, found.tiers, len(found.notes)) == ({}, (), 2)


@pytest.mark.damaged_store
def test_damage_is_part_of_the_answer(tiers: list[Tier]) -> None:
    save(tiers[1:], "a", 1, 2)
    root = tiers[1].root  # type: ignore[attr-defined]
    manifest = next(root.rglob("000000000002.00000001.ckpt"))
    manifest.write_bytes(b"CKFMANI1 and then nothing")
    two, one = read_facts(tiers[1:], "exp").tasks["a"].checkpoints
    assert (two.status, one.status) == ("unreadable", "ok")
    assert two.problem is not None


def test_what_failed_to_restore_says_so_with_the_reason(tiers: list[Tier]) -> None:
    from ckptflow.errors import CorruptionError
    from ckptflow.model import CheckpointId, LineageId
    from ckptflow.store.catalog import Lineage
    from ckptflow.store.quarantine import record_failure

    save(tiers[1:], "a", 1)
    lineage = Lineage(tiers[1:], LineageId("exp", "a"))
    error = CorruptionError("a frame has the wrong digest")
    record_failure(lineage, CheckpointId(1, 1), by=2, error=error, note=print)
    (one,) = read_facts(tiers[1:], "exp").tasks["a"].checkpoints
    assert one.problem is not None
    assert one.problem.startswith("attempt 2 could not restore it: a frame has the wrong")


def test_what_ranks_save_together_is_one_task(tiers: list[Tier]) -> None:
    ranks = [
        ShardedCheckpointer(tiers[1:], run="exp", task="train", rank=rank, world=2, launch="x")
        for rank in range(2)
    ]
    for step in (1, 2):
        for ckpt in ranks:
            if step == 2 and ckpt is ranks[1]:
                continue  # It died before it saved its part.
            ckpt.save(step, ckpt.restore({"w": np.ones(100)}) if step == 1 else
                      {"w": np.ones(100)})  # fmt: skip
            ckpt.wait()
    for ckpt in ranks:
        ckpt.close()
    found = read_facts(tiers[1:], "exp").tasks
    assert set(found) == {"train"}
    two, one = found["train"].checkpoints
    assert (two.step, two.status, two.tiers) == (2, "incomplete", ())
    assert (one.step, one.status, one.tiers) == (1, "ok", ("pfs",))
    assert len(found["train"].attempts) == 1
