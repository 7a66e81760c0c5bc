"""What an agent does with requests: durable before taken, told when over, pruned after."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    NotFoundError,
    TierFull,
    TierUnavailable,
)
from ckptflow.flush import Flushing
from ckptflow.flush.agent.folder import make_agent_folder
from ckptflow.flush.agent.ledger import Entry, Ledger, in_flight
from ckptflow.flush.agent.work import Work
from ckptflow.flush.lanes import Lane
from ckptflow.flush.requests import Flight
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import plan_consolidation
from ckptflow.store.descriptor import ensure_store, store_id
from ckptflow.store.resume import restore_newest
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
LINEAGE = LineageId("exp", "task")
LONG_S = 60.0


class Follower:
    """Who waits for a copy."""

    def __init__(self) -> None:
        self.over, self.error = threading.Event(), None

    def __call__(self, _entry: Entry, error: CheckpointError | None) -> bool:
        self.error = error
        self.over.set()
        return True


class Gate:
    """Holds up puts until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, operation: str, key: str) -> None:
        if operation == "put":
            self.reached.set()
            assert self.opened.wait(LONG_S)


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier = MemoryTier("near", level=1)
    same = np.random.default_rng(0).standard_normal(300)  # Lies in the pack of step 1.
    for step in range(1, 6):
        state = {"same": same, "w": np.random.default_rng(step).standard_normal(300)}
        save_state(tier, str(LINEAGE), step, state)
    return tier


@pytest.fixture
def far() -> MemoryTier:
    return MemoryTier("far", level=3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return make_agent_folder([])


@pytest.fixture
def begin(folder: Path) -> Iterator[Callable[..., Work]]:
    made: list[Work] = []

    def make(*tiers: Tier) -> Work:
        made.append(Work(folder, tiers, Flushing()))
        return made[-1]

    yield make
    for work in made:
        work.close()


def entry(step: int, target: str = "far", newest: int = 2) -> Entry:
    return Entry(LINEAGE, CheckpointId(step, 1), target, Retention(newest=newest), float(step))


def steps_on(tier: Tier) -> list[int]:
    return sorted(found.id.step for found in Lineage([tier], LINEAGE).valid())


def test_a_request_is_durable_when_it_is_taken_and_gone_when_it_is_over(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    gate, done = Gate(), Follower()
    work = begin(near, FaultyTier(far, gate))
    work.take(entry(1), follower=done)
    assert in_flight(folder, LINEAGE) == [CheckpointId(1, 1)]
    assert work.busy
    work.take(entry(1), follower=(also := Follower()))  # Asked for twice, copied once.
    gate.opened.set()
    assert done.over.wait(LONG_S)
    assert also.over.wait(LONG_S)
    assert done.error is None
    assert steps_on(far) == [1]
    assert in_flight(folder, LINEAGE) == []
    assert not work.busy


def test_the_next_agent_takes_up_what_the_last_one_left(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    ledger = Ledger(folder)
    for one in (entry(1), entry(2), entry(9), entry(1, "unknown")):
        ledger.add(one)
    work = begin(near, far)
    assert work.recover()
    pending, failed = work.wait(lambda _entry: True, LONG_S, awaited=False)
    assert pending == []
    assert steps_on(far)[-1] == 2
    assert {(one.id.step, one.target) for one in failed} == {(9, "far"), (1, "unknown")}


def test_it_waits_for_a_tier_that_does_not_answer_at_its_start(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    down = [True]

    def fail(_operation: str, _key: str) -> None:
        if down[0]:
            raise TierUnavailable("no answer")

    Ledger(folder).add(entry(1))
    work = begin(FaultyTier(near, fail), FaultyTier(far, fail))
    assert not work.recover()
    assert in_flight(folder, LINEAGE) == [CheckpointId(1, 1)]
    down[0] = False
    assert work.recover()
    assert work.wait(lambda _entry: True, LONG_S, awaited=False) == ([], [])
    assert steps_on(far) == [1]


def test_what_it_does_not_see_it_does_not_take(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    work = begin(near, far)
    with pytest.raises(NotFoundError, match=r"finds exp/task step 8 \(attempt 1\) on no tier"):
        work.take(entry(8))
    with pytest.raises(ConfigError, match="no tier 'bucket'"):
        work.take(entry(1, "bucket"))
    ensure_store(far)
    with pytest.raises(ConfigError, match="Tier 'far' is another place"):
        work.take(entry(1), stores={"near": str(store_id(near)), "far": "somewhere else"})
    assert in_flight(folder, LINEAGE) == []
    work.take(entry(1), stores={"near": str(store_id(near)), "far": str(store_id(far))})


def test_a_place_that_was_seen_is_known_while_it_does_not_answer(
    near: MemoryTier, far: MemoryTier, begin: Callable[..., Work]
) -> None:
    down = [False]

    def fail(operation: str, _key: str) -> None:
        if down[0] and operation == "get":
            raise TierUnavailable("no answer")

    ensure_store(far)
    stores, tiers = {"far": str(store_id(far))}, (near, FaultyTier(far, fail))
    begin(*tiers).take(entry(1), stores=stores)
    following = begin(*tiers)
    down[0] = True
    following.take(entry(2), stores=stores)
    down[0] = False


def test_a_failure_is_kept_and_told(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    def full(operation: str, _key: str) -> None:
        if operation == "put":
            raise TierFull("no room left")

    done, work = Follower(), begin(near, FaultyTier(far, full))
    work.take(entry(1), follower=done)
    assert done.over.wait(LONG_S)
    assert isinstance(done.error.__cause__, TierFull)
    work.take(entry(2))  # Nobody hears of that.
    work.wait(lambda _entry: True, LONG_S, awaited=False)
    reported = {one.id.step: one.reported for one in work.failures()}
    assert reported[2] is False
    assert "no room left" in work.failures()[0].error
    assert in_flight(folder, LINEAGE) == []


def test_the_tier_is_pruned_by_the_retention_of_the_request(
    near: MemoryTier, far: MemoryTier, begin: Callable[..., Work]
) -> None:
    work = begin(near, far)
    for step in range(1, 6):
        work.take(entry(step, newest=2), follower=(done := Follower()))
        assert done.over.wait(LONG_S)
    assert steps_on(far) == [4, 5]


def test_when_its_task_has_gone_a_lineage_is_looked_after(
    near: MemoryTier, far: MemoryTier, begin: Callable[..., Work]
) -> None:
    """The newest is consolidated far away, and on the inner tier what is not kept goes."""
    work, task = begin(near, far), Follower()
    for step in range(1, 6):
        one = replace(entry(step), elsewhere=(("near", Retention(newest=1)),))
        task.over.clear()
        work.take(one, follower=task)
        assert task.over.wait(LONG_S)
    assert steps_on(near) == [1, 2, 3, 4, 5]
    work.unfollow(task)
    until(lambda: not work.busy)
    assert steps_on(near) == [5]
    assert [one.step for one in work.upkept()] == [5]
    lineage = Lineage([far], LINEAGE)
    assert not plan_consolidation(lineage, far, CheckpointId(5, 1)).verdict.worth
    restored = restore_newest(lineage, None)
    assert (
        restored.state["w"].tobytes() == np.random.default_rng(5).standard_normal(300).tobytes()
    )


def until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(LONG_S / 0.005)):
        if is_so():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen")


def test_an_attempt_that_was_overtaken_prunes_nothing(
    near: MemoryTier, far: MemoryTier, begin: Callable[..., Work]
) -> None:
    lineage = Lineage([near, far], LINEAGE)
    ensure_store(far)
    assert lineage.claim() == 2
    work = begin(near, far)
    for step in (1, 2, 3):
        work.take(entry(step, newest=1), follower=(done := Follower()))
        assert done.over.wait(LONG_S)
        assert done.error is None
    assert steps_on(far) == [1, 2, 3]


def test_scavenging_goes_before_and_what_is_left_goes_on_after(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    gate, bucket = Gate(), MemoryTier("bucket", level=4)
    work = begin(near, far, FaultyTier(bucket, gate))
    for step in (1, 2):
        work.take(entry(step, "bucket", newest=9))
    assert gate.reached.wait(LONG_S)
    report = work.scavenge(LONG_S, go_on=True)
    assert steps_on(far) == [1, 2, 3, 4, 5]  # As safe as the bucket, and it answers.
    assert report.complete
    assert set(in_flight(folder, LINEAGE)) == {CheckpointId(1, 1), CheckpointId(2, 1)}
    gate.opened.set()
    assert work.wait(lambda _entry: True, LONG_S, awaited=False) == ([], [])
    assert steps_on(bucket) == [1, 2]


def test_dying_before_any_change_of_the_target_loses_nothing(
    near: MemoryTier, folder: Path
) -> None:
    """The agent dies in the middle of a flush; the next one completes it from the ledger."""
    counting = CrashingTier(MemoryTier("far", level=3))
    _flushed(near, counting, folder)
    assert counting.changes >= 4
    for crash_at in range(counting.changes):
        inner = MemoryTier("far", level=3)
        Ledger(folder).add(entry(3))
        with pytest.raises(Crash):
            _flushed(near, CrashingTier(inner, crash_at=crash_at), folder)
        is_last = crash_at == counting.changes - 1  # It takes back that it holds the packs.
        assert steps_on(inner) == ([3] if is_last else [])
        assert in_flight(folder, LINEAGE) == [CheckpointId(3, 1)]
        _flushed(near, inner, folder)
        assert steps_on(inner) == [3]
        assert in_flight(folder, LINEAGE) == []
        assert objects_on(inner) == objects_on(counting.inner)


def objects_on(tier: Tier) -> dict[str, bytes]:
    """All but notices, which the dead leave behind for a day."""
    keys = (key for key in tier.iter_keys(LINEAGE.prefix) if "/guards/" not in key)
    return {key: tier.get(key) for key in keys}


def _flushed(near: MemoryTier, far: Tier, folder: Path) -> None:
    """Carry out the ledger; raise what ends the thread that does it."""
    died: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda what: died.append(what.exc_value)
    try:
        work = Work(folder, [near, far], Flushing(consolidate=False))
        ledger = Ledger(folder)
        if not ledger.pending():
            ledger.add(entry(3))
        work.recover()
        while work.busy and not died:
            work.wait(lambda _entry: True, 0.01, awaited=False)
        if not died:
            work.close()
    finally:
        threading.excepthook = before
    if died:
        raise died[0]


def test_waiting_tells_of_what_is_on_file_and_could_not_be_begun(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    def away(_operation: str, _key: str) -> None:
        raise TierUnavailable("no answer")

    Ledger(folder).add(entry(1))
    work = begin(FaultyTier(near, away), FaultyTier(far, away))
    assert not work.recover()
    assert not work.copying
    pending, failed = work.wait(lambda _entry: True, 0.0, awaited=False)
    assert ([one.name for one in pending], failed) == ([entry(1).name], [])


def test_a_failure_that_cannot_be_noted_is_told_and_stops_nothing(
    near: MemoryTier,
    far: MemoryTier,
    folder: Path,
    begin: Callable[..., Work],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [True]

    def fail(operation: str, _key: str) -> None:
        if operation == "put" and full[0]:
            raise TierFull("no room left")

    def no_room(_ledger: Ledger, _entry: Entry) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    work = begin(near, FaultyTier(far, fail))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_write_failed", no_room)
        work.take(entry(1), follower=(done := Follower()))
        assert done.over.wait(LONG_S)
    assert isinstance(done.error.__cause__, TierFull)
    assert in_flight(folder, LINEAGE) == [CheckpointId(1, 1)]  # For the next agent.
    full[0] = False
    work.take(entry(2), follower=(done := Follower()))
    assert done.over.wait(LONG_S)
    assert done.error is None
    assert steps_on(far)[-1] == 2


def test_what_is_asked_for_while_it_is_skipped_is_not_told_as_there(
    near: MemoryTier,
    far: MemoryTier,
    folder: Path,
    begin: Callable[..., Work],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put, asked, done = list[str](), list[str](), Follower()

    def note(operation: str, key: str) -> None:
        if operation == "put":
            put.append(key)

    is_superseded = Lane.is_superseded

    def late(lane: Lane, flight: Flight) -> bool:
        skips = is_superseded(lane, flight)
        if skips and not asked:  # Its task asks right now.
            asked.append("once")
            work.take(entry(1, newest=1), follower=done)
        return skips

    work = begin(near, FaultyTier(far, note))
    work.take(entry(3, newest=1), follower=(newest := Follower()))
    assert newest.over.wait(LONG_S)
    monkeypatch.setattr(Lane, "is_superseded", late)
    Ledger(folder).add(entry(1, newest=1))
    assert work.recover()
    assert done.over.wait(LONG_S)
    assert (asked, done.error) == (["once"], None)
    assert f"{LINEAGE.prefix}/{CheckpointId(1, 1).manifest_key}" in put


def test_scavenging_that_breaks_leaves_nothing_paused(
    near: MemoryTier,
    far: MemoryTier,
    begin: Callable[..., Work],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        raise OverflowError("timestamp too large")

    monkeypatch.setattr("ckptflow.flush.agent.work.scavenge", broken)
    work = begin(near, far)
    with pytest.raises(OverflowError):
        work.scavenge(1e10, go_on=True)
    work.take(entry(1), follower=(done := Follower()))
    assert done.over.wait(LONG_S)
    assert done.error is None


def test_nothing_is_begun_while_scavenging_goes_before(
    near: MemoryTier, far: MemoryTier, folder: Path, begin: Callable[..., Work]
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hang(operation: str, _key: str) -> None:
        if operation == "get" and threading.current_thread().name == "recovery":
            reached.set()
            assert go_on.wait(LONG_S)

    Ledger(folder).add(entry(1))
    work, begun = begin(FaultyTier(near, hang), far), list[bool]()
    thread = threading.Thread(target=lambda: begun.append(work.recover()), name="recovery")
    thread.start()
    assert reached.wait(LONG_S)
    work.scavenge(LONG_S, go_on=False)
    go_on.set()
    thread.join()
    assert begun == [False]
    assert not work.copying
