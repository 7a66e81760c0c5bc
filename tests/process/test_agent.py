"""Agents as real processes: what a task leaves behind arrives, whoever is killed.

The far tier can be shut: the folder it lies in is moved away and a file put in its place, so
that every write there fails as on a file system that is gone, and the agent tries again. So
whatever is killed is killed in the middle of a flush, without a race.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_task import drifting_state_of, state_of, tiers_in

from ckptflow.errors import CheckpointError, FlushError, TierUnavailable
from ckptflow.flush import Flushing
from ckptflow.flush.agent import starting
from ckptflow.flush.agent.asking import ask, folder_of, wait_for_run
from ckptflow.flush.agent.folder import LOCK, is_locked
from ckptflow.flush.agent.ledger import Ledger, in_flight_of
from ckptflow.flush.agent.protocol import connect
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import plan_consolidation
from ckptflow.store.resume import read_state, restore_newest
from ckptflow.tiers.metered import MeteredTier
from ckptflow.workflow import leftovers

PROGRAM = Path(__file__).with_name("agent_task.py")
LONG_S = 60.0


def until(is_so: Callable[[], object], what: str) -> None:
    """Look again and again, for very long: a busy machine must not decide."""
    ends_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < ends_s, f"{what} did not happen within {LONG_S:.0f} s"
        time.sleep(0.02)


class Task:
    """One process of a task."""

    def __init__(
        self, folder: Path, task: str = "task", *words: str, **flushing: object
    ) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(PROGRAM),
                str(folder),
                task,
                json.dumps(flushing),
                *words,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.resumed = int(self.answer().split()[1])

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.over()

    def over(self) -> int:
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        return self.process.wait(LONG_S)


class Place:
    """Tiers in a folder, and the agent for them."""

    def __init__(self, root: Path) -> None:
        self.root, self.tiers = root, tiers_in(root)
        self.folder = folder_of(self.tiers)
        self.site, self.away = root / "site", root / "site.away"
        self.tasks: list[Task] = []

    def task(self, name: str = "task", *words: str, **flushing: object) -> Task:
        self.tasks.append(Task(self.root, name, *words, **flushing))
        return self.tasks[-1]

    def shut(self) -> None:
        self.site.rename(self.away)
        self.site.write_text("not a folder")

    def open(self) -> None:
        self.site.unlink()
        self.away.rename(self.site)

    def steps(self, name: str, task: str = "task") -> list[int]:
        """Restore all that a tier has, alone, and compare it."""
        tier = next(tier for tier in self.tiers if tier.name == name)
        lineage, steps = Lineage(self.tiers, LineageId("exp", task)), []
        for found in lineage.checkpoints_on(tier):
            state, _ = read_state([tier], lineage.manifest_on(tier, found.id), None)
            expected = state_of(found.id.step)
            assert state["state"]["w"].tobytes() == expected["w"].tobytes()
            steps.append(found.id.step)
        return sorted(steps)

    def listed(self, name: str) -> list[int]:
        """Return the steps that a tier has, while others write and delete there."""
        found = (self.root / name).rglob("manifests/*.ckpt")
        return sorted(int(path.name.split(".")[0]) for path in found)

    def agent(self) -> psutil.Process:
        return psutil.Process(ask(self.folder, "status")["pid"])

    def states(self) -> dict[int, str]:
        return {one["step"]: one["state"] for one in ask(self.folder, "status")["progress"]}

    def in_flight(self, task: str = "task") -> list[CheckpointId]:
        return in_flight_of(self.tiers, LineageId("exp", task))

    def end_agent(self) -> None:
        with contextlib.suppress(CheckpointError, psutil.Error):
            agent = self.agent()
            agent.kill()
            agent.wait(LONG_S)
        until(lambda: not is_locked(self.folder / LOCK), "the end of the agent")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    made = Place(tmp_path / "tiers")
    yield made
    for task in made.tasks:
        task.kill()
    made.end_agent()


def begun(place: Place, **flushing: object) -> Task:
    """A task whose step 1 is far away, so that the agent knows all the places."""
    task = place.task(**flushing)
    assert task.tell("save") == "saved 1"
    assert task.tell("wait") == "far 1"
    return task


def test_what_a_killed_task_leaves_behind_arrives(place: Place) -> None:
    task = begun(place)
    place.shut()
    assert task.tell("save") == "saved 2"
    until(lambda: place.in_flight() == [CheckpointId(2, 1)], "taking the request")
    task.kill()
    assert place.agent().is_running()
    place.open()
    until(lambda: 2 in place.listed("site"), "the arrival of step 2")
    assert wait_for_run(place.tiers, "exp", LONG_S, options=Flushing()) == []
    assert place.in_flight() == []


def test_closing_does_not_wait_for_the_copy(place: Place) -> None:
    task = begun(place)
    place.shut()
    task.tell("save")
    assert task.tell("close") == "closed"
    assert place.in_flight() == [CheckpointId(2, 1)]
    place.open()
    assert task.tell("wait") == "far 2"  # A ticket still waits, through the agent.
    task.process.stdin.write("end\n")
    assert task.over() == 0
    assert place.steps("far") == [1, 2]


def test_a_killed_agent_is_replaced_and_the_next_finishes(place: Place) -> None:
    task = begun(place)
    place.shut()
    task.tell("save")
    until(lambda: place.states().get(2) == "waiting", "the first try")
    killed = place.agent()
    killed.kill()
    killed.wait(LONG_S)
    place.open()
    assert task.tell("wait") == "far 2"  # The task has started another.
    assert place.agent().pid != killed.pid
    assert place.steps("far") == [1, 2]


@pytest.mark.slow
def test_with_task_and_agent_killed_whoever_comes_next_finishes(place: Place) -> None:
    task = begun(place)
    place.shut()
    for _ in range(3):
        task.tell("save")
    until(lambda: len(place.in_flight()) == 3, "taking the requests")
    agent = place.agent()
    task.kill()
    agent.kill()
    agent.wait(LONG_S)
    place.open()
    assert wait_for_run(place.tiers, "exp", LONG_S, options=Flushing()) == []
    far = place.steps("far")
    assert max(far) == 4
    assert place.task().resumed == 4


@pytest.mark.slow
def test_what_is_on_its_way_is_not_pruned_by_the_next_attempt(place: Place) -> None:
    task = begun(place)
    place.shut()
    task.tell("save")
    until(lambda: place.in_flight() == [CheckpointId(2, 1)], "taking the request")
    task.kill()
    following = place.task()
    assert following.resumed == 2
    for _ in range(4):  # Twice as many as are kept.
        following.tell("save")
    assert 2 in place.listed("inner")
    place.open()
    assert following.tell("wait") == "far 6"
    assert place.steps("far")[-2:] == [5, 6]


@pytest.mark.slow
def test_tasks_of_a_store_share_an_agent(place: Place) -> None:
    first, second = begun(place), place.task("other")
    agents = {place.agent().pid}
    for _ in range(3):
        first.tell("save")
        second.tell("save")
    assert first.tell("wait") == "far 4"
    assert second.tell("wait") == "far 3"
    agents.add(place.agent().pid)
    assert len(agents) == 1
    assert place.steps("far")[-1] == 4
    assert place.steps("far", "other")[-1] == 3


@pytest.mark.slow
def test_agents_that_are_started_at_once_become_one(place: Place) -> None:
    tasks = [place.task(f"task{number}") for number in range(4)]
    for task in tasks:
        task.process.stdin.write("save\nwait\n")
        task.process.stdin.flush()
    for task in tasks:
        assert [task.answer(), task.answer()] == ["saved 1", "far 1"]
    folder = str(place.folder)

    def running() -> list[int]:
        return [one.pid for one in psutil.process_iter() if _serves(one, folder)]

    # Those that came too late may still be about to end.
    until(lambda: running() == [place.agent().pid], "one agent alone")


def _serves(process: psutil.Process, folder: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return folder in process.cmdline()
    return False


def test_an_agent_is_of_nobody_s_session_and_keeps_nothing_open(place: Place) -> None:
    task = begun(place)
    agent = place.agent()
    assert os.getsid(agent.pid) not in {os.getsid(0), os.getsid(task.process.pid)}
    assert agent.ppid() != task.process.pid
    links = [Path(f"/proc/{agent.pid}/fd/{number}") for number in (0, 1)]
    assert {str(link.readlink()) for link in links} == {"/dev/null"}
    modes = {path.name: path.lstat().st_mode & 0o777 for path in place.folder.rglob("*")}
    files = {name: mode for name, mode in modes.items() if mode not in {0o600, 0o700}}
    assert files == {}
    assert agent.nice() >= 10
    autogroup = Path(f"/proc/{agent.pid}/autogroup")
    if autogroup.exists():  # Else being nice counts against all others.
        assert autogroup.read_text().split("nice ")[1].strip() == "10"
    task.kill()
    assert agent.is_running()


def test_an_agent_is_no_leftover_of_a_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in leftovers.mark(tmp_path, "session").items():
        monkeypatch.setenv(name, value)
    begun(place)
    agent = place.agent()
    assert set(leftovers.mark(tmp_path, "")) - {"SPT_NOENV"} <= set(starting.NOT_INHERITED)
    assert not set(agent.environ()) & set(starting.NOT_INHERITED)
    ended = leftovers.end_leftovers(tmp_path, lambda _session: True)
    assert agent.pid not in {one.pid for one in ended}
    assert agent.is_running()


def test_an_agent_ends_when_it_is_idle(place: Place) -> None:
    task = begun(place, idle_s=0.2)
    agent = place.agent()
    task.tell("save")
    assert task.tell("wait") == "far 2"
    assert agent.is_running()  # As long as somebody may ask for something.
    task.tell("close")
    task.kill()
    agent.wait(LONG_S)
    assert not (place.folder / "socket").exists()
    again = place.task(idle_s=0.2)
    again.tell("save")
    assert again.tell("wait") == "far 3"


def test_an_agent_with_nothing_to_do_costs_nothing(place: Place) -> None:
    """At most 5 % of a core was asked for; time of the processor does not depend on others."""
    task = begun(place)
    agent = place.agent()
    before, began_s = agent.cpu_times(), time.monotonic()
    time.sleep(1.0)
    after, passed_s = agent.cpu_times(), time.monotonic() - began_s
    used_s = after.user + after.system - before.user - before.system
    assert used_s <= 0.05 * passed_s
    task.kill()


def test_a_restore_costs_as_much_after_twenty_deltas_as_after_one(place: Place) -> None:
    """What it opens and reads on the far tier, when the agent has looked after it."""
    task = place.task("task", "drifting")
    assert task.tell("saves") == "saved 20"
    assert task.tell("wait") == "far 20"
    lineage = Lineage(place.tiers, LineageId("exp", "task"))
    far = next(tier for tier in place.tiers if tier.name == "far")
    before = lineage.manifest_on(far, CheckpointId(20, 1))
    assert len(before.packs) > 10
    assert task.tell("close") == "closed"
    task.kill()
    until(lambda: ask(place.folder, "status")["consolidations"], "the consolidation")
    (told,) = ask(place.folder, "status")["consolidations"]
    assert (told["step"], told["tier"], told["error"]) == (20, "far", None)

    outcome = plan_consolidation(lineage, far, CheckpointId(20, 1))
    assert not outcome.verdict.worth
    assert outcome.before.packs <= 2
    metered = MeteredTier(far)
    restored = restore_newest(Lineage([metered], lineage.id), None)
    expected = drifting_state_of(20)
    assert restored.state["state"]["w"].tobytes() == expected["w"].tobytes()
    assert metered.read_bytes <= 1.3 * expected["w"].nbytes
    # The inner tier, too, has what the task kept and no more.
    until(lambda: place.listed("inner") == [19, 20], "the prune of the inner tier")


@pytest.mark.slow
def test_a_stale_socket_is_replaced(place: Place) -> None:
    begun(place).kill()
    place.end_agent()
    assert (place.folder / "socket").exists()
    with pytest.raises(TierUnavailable, match="No agent answers"):
        connect(place.folder)
    task = place.task()
    task.tell("save")
    assert task.tell("wait") == "far 2"


@pytest.mark.parametrize(
    "trap",
    [
        "open to others",
        pytest.param("a link", marks=pytest.mark.slow),
        pytest.param("a file", marks=pytest.mark.slow),
    ],
)
def test_a_folder_that_is_not_ours_alone_is_not_used(
    place: Place, trap: str, tmp_path: Path
) -> None:
    """The task then copies by itself, as it would without an agent."""
    base = place.folder.parent
    if trap == "open to others":
        base.mkdir()
        base.chmod(0o777)
    elif trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(tmp_path / "elsewhere")
    else:
        base.write_text("")
    task = place.task()
    task.tell("save")
    assert task.tell("wait") == "far 1"
    assert task.tell("close") == "closed"
    assert place.steps("far") == [1]
    if trap != "a file":
        assert list(base.iterdir()) == []


@pytest.mark.damaged_store
def test_a_failure_that_nobody_has_heard_of_is_told_once(place: Place) -> None:
    task = begun(place)
    place.shut()
    task.tell("save")
    assert task.tell("close") == "closed"
    task.kill()
    (manifest,) = (place.root / "inner").rglob("000000000002.*.ckpt")
    for pack in (place.root / "inner").rglob("000000000002.*.pack"):
        pack.unlink()
    place.open()
    until(lambda: Ledger(place.folder).failures(), "the failure")
    assert manifest.exists()
    assert place.steps("far") == [1]
    (told,) = wait_for_run(place.tiers, "exp", LONG_S, options=Flushing())
    assert "exp/task step 2 (attempt 1) did not reach tier 'far' (level 4)" in told
    assert wait_for_run(place.tiers, "exp", LONG_S, options=Flushing()) == []
    assert [entry.id.step for entry in Ledger(place.folder).failures()] == [2]


@pytest.mark.slow
def test_asked_to_end_it_saves_what_it_can_and_leaves_the_rest_to_the_next(
    place: Place,
) -> None:
    """The far tier does not answer; but the shared one is as safe, and is scavenged to."""
    task = begun(place, grace_s=LONG_S)
    place.shut()
    for _ in range(2):
        task.tell("save")
    until(lambda: len(place.in_flight()) == 2, "taking the requests")
    task.kill()
    agent = place.agent()
    agent.send_signal(signal.SIGTERM)
    agent.wait(LONG_S)
    assert place.steps("shared") == [1, 2, 3]
    assert len(place.in_flight()) == 2
    place.open()
    assert wait_for_run(place.tiers, "exp", LONG_S, options=Flushing()) == []
    assert place.steps("far")[-1] == 3


def test_a_tier_that_is_away_for_long_is_told_at_the_end_of_the_run(place: Place) -> None:
    """The task goes on, its ticket waits; the run names what is not safe yet, and why."""
    task = begun(place)
    place.shut()
    task.tell("save")
    until(lambda: place.states().get(2) == "waiting", "the first try")
    assert task.tell("close") == "closed"
    (told,) = wait_for_run(place.tiers, "exp", 0.01, options=Flushing())
    assert "exp/task step 2 (attempt 1) to tier 'far' is still on its way: " in told
    assert "did not reach tier 'far' (level 4): Cannot" in told
    place.open()
    assert task.tell("wait") == "far 2"
    assert wait_for_run(place.tiers, "exp", LONG_S, options=Flushing()) == []


@pytest.mark.slow
def test_waiting_for_one_checkpoint(place: Place) -> None:
    task = begun(place)
    place.shut()
    task.tell("save")
    until(lambda: len(place.in_flight()) == 1, "taking the request")
    wanted = {"run": "exp", "task": "task", "step": 2, "target": "far"}
    answer = ask(place.folder, "wait", **wanted, timeout_s=0.01)
    assert [entry["step"] for entry in answer["pending"]] == [2]
    place.open()
    answer = ask(place.folder, "wait", **wanted, timeout_s=LONG_S)
    assert (answer["pending"], answer["failed"]) == ([], [])
    assert 2 in place.steps("far")


def test_what_an_agent_does_not_understand_it_refuses_and_goes_on(place: Place) -> None:
    begun(place)
    for fields in ({"op": "eval"}, {"op": "wait"}, {"op": "flush", "entry": 3, "stores": {}}):
        with pytest.raises(FlushError, match="refused"):
            ask(place.folder, **fields)
    for noise in (b"\x00\x00\x00\x02[]", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b""):
        with connect(place.folder) as connection:
            connection.sendall(noise)
    assert ask(place.folder, "status")["ok"]
