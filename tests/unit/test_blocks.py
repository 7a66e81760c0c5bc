"""Blocks: noted when they are asked for and when they end, held, and found when abandoned."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    ManagerLost,
    WorkerLost,
)
from parsl.jobs.states import JobState, JobStatus

from ckptflow.workflow.blocks.abandoned import (
    CLEARED,
    AbandonedBlock,
    cancel_blocks,
    find_blocks,
)
from ckptflow.workflow.blocks.following import Blocks, block_name

SESSION, OTHER = "0123456789abcdef", "fedcba9876543210"


class Provider:
    label, clusters = "slurm", None

    def __init__(self) -> None:
        self.names: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, command: str, tasks_per_node: int, job_name: str = "") -> str | None:
        self.names.append(job_name)
        return str(100 + len(self.names)) if command else None

    def cancel(self, jobs: list[str]) -> list[bool]:
        self.cancelled += jobs
        return [job != "stuck" for job in jobs]


class Executor:
    label = "htex"

    def __init__(self) -> None:
        self.provider = Provider()
        self.bad_state_is_set = False
        self.status_facade: dict[str, JobStatus] = {}
        self.blocks_to_job_id: dict[str, str] = {}
        self.managers: list[dict[str, str]] = []
        self.held: list[str] = []
        self.dead = False

    def connected_managers(self) -> list[dict[str, str]]:
        if self.dead:
            raise CommandClientBadError
        return self.managers

    def _hold_block(self, number: str) -> None:
        if self.dead:
            raise CommandClientBadError
        self.held.append(number)


class Scene:
    def __init__(self, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.now_s = 0.0
        self.executor = Executor()

        def note(event: str, *, sync: bool = False, **fields: object) -> None:
            self.events.append({"event": event, "sync": sync, **fields})

        self.blocks = Blocks(SESSION, note, clock=lambda: self.now_s, **options)
        self.blocks.record([self.executor, SimpleNamespace(label="threads")])
        self.blocks.follow({"htex": self.executor, "threads": SimpleNamespace(provider=None)})

    def named(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]


def test_a_block_is_noted_with_its_number_before_anything_else() -> None:
    scene = Scene()
    assert scene.executor.provider.submit("run", 1, "parsl.htex.block-7") == "101"
    (event,) = scene.named("block-submitted")
    assert event["sync"]
    assert (event["block"], event["job"], event["batch_system"]) == ("7", "101", "slurm")
    (name,) = scene.executor.provider.names
    assert name.startswith(block_name(SESSION))
    assert len(block_name(SESSION)) <= 15


def test_a_block_that_was_not_got_is_not_noted() -> None:
    scene = Scene()
    assert scene.executor.provider.submit("", 1, "parsl.htex.block-7") is None
    assert scene.named("block-submitted") == []


def test_the_end_of_a_block_is_noted_once() -> None:
    scene = Scene()
    scene.executor.blocks_to_job_id = {"0": "101"}
    for state in (JobState.PENDING, JobState.RUNNING, JobState.TIMEOUT, JobState.COMPLETED):
        scene.executor.status_facade = {"0": JobStatus(state)}
        scene.blocks.look()
    (event,) = scene.named("block-ended")
    assert (event["block"], event["job"], event["state"]) == ("0", "101", "TIMEOUT")


def test_a_block_is_held_once_and_a_dead_interchange_is_no_trouble() -> None:
    scene = Scene()
    scene.blocks.hold("htex", "0", "warned")
    scene.blocks.hold("htex", "0", "warned")
    assert scene.executor.held == ["0"]
    assert [event["block"] for event in scene.named("block-held")] == ["0"]
    scene.executor.dead = True
    scene.blocks.hold("htex", "1", "warned")
    scene.blocks.hold("nobody", "1", "warned")
    assert len(scene.named("block-held")) == 1
    scene.blocks.look_at_managers()


def lost(manager: str) -> ManagerLost:
    return ManagerLost(manager.encode(), "node1")


def test_a_manager_is_lost_with_its_block_or_by_itself() -> None:
    scene = Scene(walltime_s=1000.0, margin_s=100.0)
    scene.executor.managers = [
        {"manager": f"m{number}", "block_id": str(number)} for number in range(3)
    ]
    scene.executor.status_facade = {str(n): JobStatus(JobState.RUNNING) for n in range(3)}
    scene.blocks.look()
    scene.blocks.look_at_managers()
    assert not any(scene.blocks.was_ending(lost(f"m{n}")) for n in range(3))
    scene.blocks.hold("htex", "0", "warned")
    scene.executor.status_facade["1"] = JobStatus(JobState.COMPLETED)
    scene.blocks.look()
    assert [scene.blocks.was_ending(lost(f"m{n}")) for n in range(3)] == [True, True, False]
    scene.now_s = 950.0
    assert scene.blocks.was_ending(lost("m2"))
    assert not scene.blocks.was_ending(lost("unknown"))
    assert not scene.blocks.was_ending(WorkerLost(0, "node1"))


def test_blocks_of_a_failed_executor_are_cancelled() -> None:
    """Parsl leaves them: in the queue, to run for nobody."""
    scene = Scene()
    executor = scene.executor
    executor.blocks_to_job_id = {"0": "101", "1": "102", "2": "stuck"}
    executor.status_facade = {
        "0": JobStatus(JobState.COMPLETED),
        "1": JobStatus(JobState.PENDING),
        "2": JobStatus(JobState.RUNNING),
        "3": JobStatus(JobState.FAILED),
    }
    assert scene.blocks.cancel() == []
    assert executor.provider.cancelled == []
    executor.bad_state_is_set = True
    assert scene.blocks.cancel() == ["block 2 of htex (stuck) was not cancelled"]
    assert executor.provider.cancelled == ["102", "stuck"]


# --- abandoned ones ---


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of Slurm that work on a file of ``number|state|name``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "queue").touch()
    squeue = (
        'case "$*" in *--jobs=*) number=${*##*--jobs=}; number=${number%% *}; '
        'grep "^$number|" "$Q" || exit 1;; *) cat "$Q";; esac'
    )
    scancel = 'echo "$@" >> "$Q.cancelled"; grep -v "^$1|" "$Q" > "$Q.new"; mv "$Q.new" "$Q"'
    for name, script in (("squeue", squeue), ("scancel", scancel)):
        (folder / name).write_text(f'#!/bin/bash\nQ="{folder}/queue"\n{script}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "queue"


def started(session: str) -> list[dict[str, Any]]:
    return [
        {"event": "run-started", "session": session},
        {"event": "blocks-come-from", "batch_system": "slurm", "clusters": None},
    ]


def is_dead(session: str) -> bool:
    return session == SESSION


def test_blocks_of_dead_sessions_are_found_by_name_and_cancelled(slurm: Path) -> None:
    ours, theirs = f"{block_name(SESSION)}.parsl.htex.block-0", f"{block_name(OTHER)}.block-0"
    slurm.write_text(f"11|RUNNING|{ours}\n12|PENDING|{theirs}\n13|RUNNING|somebody's|work\n")
    blocks, problems, _ = find_blocks([*started(SESSION), *started(OTHER)], is_dead)
    assert problems == []
    assert blocks == [AbandonedBlock("slurm", "11", "RUNNING", SESSION)]
    assert cancel_blocks(blocks, gone_s=60) == []
    assert Path(f"{slurm}.cancelled").read_text() == "11\n"


def test_a_number_that_now_belongs_to_another_is_not_cancelled(slurm: Path) -> None:
    slurm.write_text("11|RUNNING|another program\n")
    submitted = {"event": "block-submitted", "job": "11", "batch_system": "slurm"}
    assert find_blocks([*started(SESSION), submitted], is_dead) == ([], [], True)


def test_nobody_is_asked_about_runs_that_ended_in_order(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    submitted = {"event": "block-submitted", "job": "11", "batch_system": "slurm"}
    ended, over = {"event": "block-ended", "job": "11"}, {"event": "run-ended"}
    assert find_blocks([*started(SESSION), submitted, ended, over], is_dead) == ([], [], False)
    local = [{"event": "run-started", "session": SESSION},
             {"event": "blocks-come-from", "batch_system": "local"}]  # fmt: skip
    assert find_blocks(local, is_dead) == ([], [], False)
    blocks, problems, _ = find_blocks([*started(SESSION), submitted, over], is_dead)
    assert blocks == []
    assert "squeue cannot be run" in problems[0]


def test_what_was_cleared_once_is_not_asked_for_again(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    events = [*started(SESSION), *started(OTHER), {"event": CLEARED}]
    assert find_blocks(events, is_dead) == ([], [], False)
    assert find_blocks(events, lambda session: not is_dead(session))[1] != []  # It is newer.


def test_a_batch_system_that_fails_is_told(slurm: Path) -> None:
    (slurm.parent / "squeue").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    _, problems, _ = find_blocks(started(SESSION), is_dead)
    assert problems == ["squeue ended with 1 and said: no controller"]
    (slurm.parent / "scancel").write_text("#!/bin/sh\necho denied >&2\nexit 1\n")
    block = AbandonedBlock("slurm", "11", "RUNNING", SESSION)
    (problem,) = cancel_blocks([block])
    assert "block 11 of a dead session was not cancelled: scancel ended with 1" in problem


def test_blocks_of_pbs_are_found_by_number_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{block_name(SESSION)}."
    (tmp_path / "qstat").write_text(
        '#!/bin/sh\n[ "$2" = 21.pbs ] && [ ! -e "$0.gone" ] || exit 35\n'
        f"printf 'Job Id: 21.pbs\\n    Job_Name = {name}\\n    job_state = R\\n'\n"
    )
    gone = tmp_path / "qstat.gone"
    (tmp_path / "qdel").write_text(f'#!/bin/sh\n[ "$1" = 21.pbs ] && touch "{gone}"\n')
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    events = [
        {"event": "run-started", "session": SESSION},
        {"event": "blocks-come-from", "batch_system": "pbspro"},
        {"event": "block-submitted", "job": "21.pbs", "batch_system": "pbspro"},
        {"event": "block-submitted", "job": "22.pbs", "batch_system": "pbspro"},
    ]
    blocks, problems, _ = find_blocks(events, is_dead)
    assert (blocks, problems) == ([AbandonedBlock("pbspro", "21.pbs", "R", SESSION)], [])
    assert cancel_blocks(blocks, gone_s=60) == []
