"""A task that leaves its copies to an agent does them itself wherever no agent can.

The agent is one of this very process, on its real socket, so that it can be made to refuse, to
die and to be slow at will. ``tests/process/test_agent.py`` has real ones.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import CheckpointError, FlushError, TierFull, TierUnavailable
from ckptflow.flush import Flusher, Flushing, FlushRequest
from ckptflow.flush.agent import __main__ as program
from ckptflow.flush.agent import client as clients
from ckptflow.flush.agent import process, starting
from ckptflow.flush.agent import server as servers
from ckptflow.flush.agent.asking import ask, wait_for_run
from ckptflow.flush.agent.client import AgentFlusher, open_flusher
from ckptflow.flush.agent.folder import make_agent_folder, prune_lock_path, try_lock
from ckptflow.flush.agent.ledger import Entry, Ledger
from ckptflow.flush.agent.protocol import Message, connect, send
from ckptflow.flush.agent.server import Agent
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
LINEAGE = LineageId("exp", "task")
OPTIONS = Flushing(agent=True, retry_s=0, idle_s=3600)
LONG_S = 60.0


class Outcome:
    """Who waits for a copy."""

    def __init__(self) -> None:
        self.over, self.error = threading.Event(), None

    def __call__(self, error: CheckpointError | None) -> None:
        self.error = error
        self.over.set()


class Serving:
    """Agents of this process, one after another."""

    def __init__(self, tiers: list[Tier]) -> None:
        self.tiers = tiers
        self.folder = make_agent_folder([tier.spec for tier in tiers])
        self.started = 0
        self._running: list[tuple[Agent, threading.Thread]] = []
        self._lock = threading.Lock()

    def start(self, *_arguments: object) -> str:
        """Called by any client; one agent is enough for all."""
        with self._lock:
            if not self._running:
                self.started += 1
                agent = Agent(self.folder, self.tiers, OPTIONS)
                agent.listen()
                thread = threading.Thread(target=agent.serve)
                thread.start()
                self._running.append((agent, thread))
        return "ready"

    def wait_for_clients(self, count: int) -> None:
        ((agent, _),) = self._running
        while len(agent._connections) != count:
            time.sleep(0.001)

    def stop(self) -> None:
        """A client may start another meanwhile: that one goes on."""
        with self._lock:
            ending, self._running = self._running, []
        for agent, thread in ending:
            agent.stop(0.0)
            thread.join()


@pytest.fixture
def disk(tmp_path: Path, save_state: SaveState) -> PosixTier:
    tier = PosixTier(tmp_path / "disk", name="disk", level=1)
    for step in (1, 2, 3):
        state = {"w": np.random.default_rng(step).standard_normal(300)}
        save_state(tier, str(LINEAGE), step, state)
    return tier


@pytest.fixture
def pfs(tmp_path: Path) -> PosixTier:
    return PosixTier(tmp_path / "pfs", name="pfs", level=3)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Serving]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made: list[Serving] = []

    def make(*tiers: Tier) -> Serving:
        made.append(Serving(list(tiers)))
        monkeypatch.setattr("ckptflow.flush.agent.starting.start", made[-1].start)
        return made[-1]

    yield make
    for one in made:
        one.stop()


def flusher_of(*tiers: Tier) -> AgentFlusher:
    return AgentFlusher(tiers, options=OPTIONS, own=partial(Flusher, tiers, options=OPTIONS))


def request(
    source: Tier, target: Tier, step: int, done: Callable[[CheckpointError | None], None]
) -> FlushRequest:
    manifest: Manifest = Lineage([source], LINEAGE).manifest_on(source, CheckpointId(step, 1))
    return FlushRequest(manifest, target, done, Retention(newest=None))


def steps_on(tier: Tier) -> list[int]:
    return sorted(found.id.step for found in Lineage([tier], LINEAGE).valid())


def test_the_agent_copies_and_tells(disk, pfs, serve) -> None:
    serving, flusher = serve(disk, pfs), flusher_of(disk, pfs)
    outcomes = [Outcome() for _ in range(3)]
    for step, done in enumerate(outcomes, start=1):
        flusher.submit(request(disk, pfs, step, done))
    for done in outcomes:
        assert done.over.wait(LONG_S)
        assert done.error is None
    flusher.close()
    assert steps_on(pfs) == [1, 2, 3]
    assert serving.started == 1
    assert flusher.in_flight(LINEAGE) == []


def test_an_agent_that_ends_is_replaced_and_asked_again(disk, pfs, serve) -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold(operation: str, key: str) -> None:
        if operation == "put" and not go_on.is_set():
            held.set()
            go_on.wait(LONG_S)

    serving, flusher = serve(disk, FaultyTier(pfs, hold)), flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    assert held.wait(LONG_S)
    serving.stop()
    go_on.set()
    assert done.over.wait(LONG_S)
    flusher.close()
    assert done.error is None
    assert serving.started == 2
    assert steps_on(pfs) == [1]


def test_a_memory_of_this_process_is_copied_from_and_to_by_it(pfs, serve, save_state) -> None:
    memory = MemoryTier("memory", level=0)
    save_state(memory, str(LINEAGE), 1, {"w": np.arange(9.0)})
    # The agent opens the tiers anew, and its memory is another one.
    serve(MemoryTier("memory", level=0), pfs)
    flusher = flusher_of(memory, pfs)
    flusher.submit(request(memory, pfs, 1, done := Outcome()))
    flusher.close()
    assert done.error is None
    assert steps_on(pfs) == [1]


def test_what_is_memory_here_is_not_called_safe_because_the_agent_has_some(disk, serve) -> None:
    elsewhere, here = MemoryTier("far", level=3), MemoryTier("far", level=3)
    serve(disk, elsewhere)
    flusher = flusher_of(disk, here)
    flusher.submit(request(disk, here, 1, done := Outcome()))
    flusher.close()
    assert done.error is None
    assert steps_on(here) == [1]
    assert list(elsewhere.iter_keys("")) == []


def test_where_no_agent_can_be_started(disk, pfs, serve, monkeypatch) -> None:
    serve(disk, pfs)

    def refuse(*_arguments: object) -> str:
        raise TierUnavailable("no process can be made")

    monkeypatch.setattr("ckptflow.flush.agent.starting.start", refuse)
    flusher = flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    assert done.over.wait(LONG_S)
    flusher.submit(request(disk, pfs, 2, again := Outcome()))
    flusher.close()
    assert (done.error, again.error) == (None, None)
    assert steps_on(pfs) == [1, 2]


def test_agents_that_die_again_and_again_are_not_asked_for_ever(
    disk, pfs, serve, monkeypatch
) -> None:
    serving = serve(disk, pfs)
    monkeypatch.setattr(clients, "send", lambda connection, _message: connection.shutdown(2))
    flusher = flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    flusher.close()
    assert done.error is None
    assert steps_on(pfs) == [1]
    assert serving.started == 1


def test_an_agent_that_takes_nothing_is_not_waited_for_for_ever(
    disk, pfs, serve, monkeypatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hang(operation: str, key: str) -> None:
        if operation == "get" and "manifests" in key:
            asked.set()
            go_on.wait(LONG_S)

    serve(FaultyTier(disk, hang), pfs)
    monkeypatch.setattr(clients, "TAKE_S", 0.01)
    flusher = flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    assert asked.wait(LONG_S)
    flusher.close()
    assert done.error is None
    assert steps_on(pfs) == [1]
    go_on.set()
    for thread in threading.enumerate():  # The agent takes it in the end.
        if thread.name == "ckptflow-client":
            thread.join(LONG_S)
    ask(flusher.folder, "wait", timeout_s=LONG_S)


def test_a_failure_comes_with_the_kind_of_its_cause(disk, pfs, serve) -> None:
    def full(operation: str, key: str) -> None:
        if operation == "put":
            raise TierFull("no room left")

    serve(disk, FaultyTier(pfs, full))
    flusher = flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    assert done.over.wait(LONG_S)
    flusher.close()
    assert isinstance(done.error, FlushError)
    assert isinstance(done.error.__cause__, TierFull)
    assert "did not reach tier 'pfs' (level 3): no room left" in str(done.error)


def test_a_folder_that_is_not_safe_is_done_without(disk, pfs, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "ckptflow").mkdir()
    (tmp_path / "ckptflow").chmod(0o777)
    flusher = open_flusher([disk, pfs], options=OPTIONS, after_copy=lambda _request: None)
    assert isinstance(flusher, Flusher)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    flusher.close()
    assert done.error is None


def test_one_tier_needs_no_agent(disk, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    open_flusher([disk], options=OPTIONS, after_copy=lambda _request: None).close()
    assert not (tmp_path / "ckptflow").exists()


def test_a_save_to_a_tier_and_a_prune_by_the_agent_exclude_each_other(disk, pfs, serve) -> None:
    serving, flusher = serve(disk, pfs), flusher_of(disk, pfs)
    path = prune_lock_path(serving.folder, LINEAGE, "pfs")
    with flusher.tier_lock(LINEAGE, pfs):
        assert try_lock(path) is None
    shutil.rmtree(serving.folder)  # By whatever cleans up: saves go on.
    with flusher.tier_lock(LINEAGE, pfs):
        pass


def test_more_than_one_client(disk, pfs, serve) -> None:
    serving = serve(disk, pfs)
    flushers = [flusher_of(disk, pfs) for _ in range(3)]
    outcomes = [Outcome() for _ in flushers]
    for flusher, done in zip(flushers, outcomes, strict=True):
        flusher.submit(request(disk, pfs, 2, done))
    for flusher, done in zip(flushers, outcomes, strict=True):
        assert done.over.wait(LONG_S)
        flusher.close()
    assert [one.error for one in outcomes] == [None] * 3
    with connect(serving.folder):
        pass


class HeldUp:
    """Holds up the first put of a pack until it may fail: the tier is full."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, operation: str, key: str) -> None:
        if operation == "put" and "packs" in key:
            self.reached.set()
            assert self.go_on.wait(LONG_S)
            raise TierFull("no room left")


def test_a_failure_after_the_task_has_gone_is_told_to_the_end_of_the_run(
    disk, pfs, serve, monkeypatch
) -> None:
    full, left, answer = HeldUp(), threading.Event(), Agent._answer

    def noting(agent: Agent, message: Message, client: Any) -> Message:
        answered = answer(agent, message, client)
        if message["op"] == "leave":
            left.set()
        return answered

    monkeypatch.setattr(Agent, "_answer", noting)
    serving, flusher = serve(disk, FaultyTier(pfs, full)), flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, Outcome()))
    assert full.reached.wait(LONG_S)
    flusher.close()
    assert left.wait(LONG_S)
    full.go_on.set()
    (problem,) = wait_for_run(serving.tiers, "exp", LONG_S, options=OPTIONS)
    assert "no room left" in problem
    assert wait_for_run(serving.tiers, "exp", LONG_S, options=OPTIONS) == []


def test_who_has_gone_was_told_nothing(disk, pfs, serve) -> None:
    full = HeldUp()
    serving = serve(disk, FaultyTier(pfs, full))
    Ledger(serving.folder).add(
        Entry(LINEAGE, CheckpointId(1, 1), "pfs", Retention(newest=None), 1.0)
    )
    serving.start()
    with connect(serving.folder) as connection:
        send(connection, {"op": "wait", "run": "exp", "timeout_s": LONG_S})
        serving.wait_for_clients(1)
    full.go_on.set()
    serving.wait_for_clients(0)
    (problem,) = wait_for_run(serving.tiers, "exp", LONG_S, options=OPTIONS)
    assert "no room left" in problem


def test_what_breaks_the_conversation_does_not_break_the_copies(
    disk, pfs, serve, monkeypatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("LANG")

    serve(disk, pfs)
    monkeypatch.setattr(clients, "connected", broken)
    flusher = flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    assert done.over.wait(LONG_S)
    flusher.submit(request(disk, pfs, 2, again := Outcome()))
    flusher.close()
    assert (done.error, again.error) == (None, None)
    assert steps_on(pfs) == [1, 2]


def test_an_agent_of_another_version_is_asked_once(disk, pfs, serve, monkeypatch) -> None:
    asked = []

    def other_version(*_arguments: object) -> socket.socket:
        one, other = socket.socketpair()
        asked.append(other)
        data = json.dumps({"version": 2, "ok": False}).encode()
        other.sendall(len(data).to_bytes(4, "big") + data)
        return one

    serve(disk, pfs)
    monkeypatch.setattr(clients, "connected", other_version)
    flusher = flusher_of(disk, pfs)
    flusher.submit(request(disk, pfs, 1, done := Outcome()))
    assert done.over.wait(LONG_S)
    flusher.close()
    assert done.error is None
    assert steps_on(pfs) == [1]
    assert len(asked) == 1
    asked[0].close()


class Changing(Mapping[str, str]):
    """An environment from which another thread takes something while it is looked at."""

    def __iter__(self) -> Iterator[str]:
        return iter(["GONE", "HOME"])

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: str) -> str:
        return {"HOME": "/somewhere"}[key]


def test_an_environment_that_changes_meanwhile(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", Changing())
        inherited = starting._environment()
    assert inherited["HOME"] == "/somewhere"
    assert "GONE" not in inherited


def test_a_task_with_many_open_files_hears_its_agent() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2048:
        pytest.skip("this system allows no descriptors from 1024 on")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        os.write(writer, b"ready")
        os.close(writer)
        assert starting._answer(high) == "ready"
    finally:
        os.close(high)
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_while_a_tier_hangs_an_agent_answers_and_ends(disk, pfs, serve) -> None:
    reached, go_on, gave_up = threading.Event(), threading.Event(), threading.Event()

    def hang(_operation: str, _key: str) -> None:
        reached.set()
        if not go_on.wait(LONG_S):
            gave_up.set()

    serving = serve(FaultyTier(disk, hang), pfs)
    Ledger(serving.folder).add(
        Entry(LINEAGE, CheckpointId(1, 1), "pfs", Retention(newest=None), 1.0)
    )
    serving.start()
    try:
        assert reached.wait(LONG_S)
        assert ask(serving.folder, "status")["failures"] == []
        (problem,) = wait_for_run(serving.tiers, "exp", 0.0, options=OPTIONS)
        assert "is still on its way" in problem
        serving.stop()
        assert not gave_up.is_set()
    finally:
        go_on.set()


def test_a_second_signal_after_the_end_is_nothing(serve) -> None:
    agent = Agent(serve().folder, [], Flushing(idle_s=0.0))
    agent.listen()
    agent.serve()
    agent.stop(1.0)


def test_an_agent_that_stays_for_no_time_at_all_does_not_spin(serve, monkeypatch) -> None:
    pauses, select = list[float](), servers.select.select

    def noting(readers: Any, writers: Any, others: Any, timeout_s: float) -> Any:
        pauses.append(timeout_s)
        return select(readers, writers, others, timeout_s)

    agent = Agent(serve().folder, [], Flushing(idle_s=0.0))
    agent.listen()
    with monkeypatch.context() as patch:
        patch.setattr(servers.select, "select", noting)
        agent.serve()
    assert min(pauses) > 0.0


def test_what_cleaned_up_its_folder_does_not_stop_an_agent(serve, monkeypatch) -> None:
    folder = serve().folder
    shutil.rmtree(folder / "leases")
    monkeypatch.setattr(process, "_step_back", lambda _nice: None)
    monkeypatch.setattr(process.signal, "signal", lambda *_: None)
    assert process.run_agent(folder, [], Flushing(idle_s=0.0))


def test_how_an_agent_began_is_said_once(tmp_path, monkeypatch) -> None:
    """Later the number of that pipe may be one of a file of its store."""
    reader, writer = os.pipe()
    duplicate = os.dup2

    def run_agent(*_arguments: object, on_begin: Callable[[str], None]) -> None:
        on_begin("ready")
        descriptor = os.open(tmp_path / "pack", os.O_WRONLY | os.O_CREAT, 0o600)
        if descriptor != writer:
            duplicate(descriptor, writer)
            os.close(descriptor)
        raise TierUnavailable("the store went away")

    monkeypatch.setattr(program, "run_agent", run_agent)
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"tiers": [], "options": {}}'))
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup2", lambda *_: None)
        with pytest.raises(TierUnavailable):
            program.main(str(tmp_path), str(writer))
    os.close(writer)  # It is open still.
    assert os.read(reader, 100) == b"ready"
    os.close(reader)
    assert (tmp_path / "pack").read_bytes() == b""


def test_a_target_that_hangs_when_it_is_looked_at_holds_nobody_up(
    disk: PosixTier, pfs: PosixTier, tmp_path: Path, serve
) -> None:
    let_go, looked = threading.Event(), threading.Event()

    def hang(operation: str, _key: str) -> None:
        if operation not in ("iter_keys", "iter_folders"):
            looked.set()
            assert let_go.wait(LONG_S)

    bucket = FaultyTier(PosixTier(tmp_path / "bucket", name="bucket", level=4), hang)
    serve(disk, pfs, bucket.inner)
    flusher = flusher_of(disk, pfs, bucket)
    first, second, third = Outcome(), Outcome(), Outcome()
    flusher.submit(request(disk, bucket, 1, first))  # It comes back.
    assert looked.wait(LONG_S)
    flusher.submit(request(disk, pfs, 2, second))
    flusher.submit(request(disk, bucket, 3, third))
    assert second.over.wait(LONG_S)
    assert second.error is None
    assert not first.over.is_set()
    let_go.set()
    for done in (first, third):
        assert done.over.wait(LONG_S)
        assert done.error is None
    flusher.close()
    assert steps_on(bucket.inner) == [1, 3]
