"""Which logs are about a task, from logs as Parsl writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.workflow.seeing.logs import (
    Follower,
    Source,
    excerpt,
    executor_ids,
    shortened,
    sources_of_run,
    sources_of_task,
)
from ckptflow.workflow.seeing.model import Attempt, Life, RunStory, Task, Try

PREFIX = "1796026871.45 2026-11-30 08:21:11 Main-1 Thread-2 parsl.dataflow.dflow:734 f"
PARSL = [
    f"{PREFIX} INFO: Parsl task 3 try 0 launched on executor htex with executor id 11",
    f"{PREFIX} INFO: Parsl task 30 try 0 launched on executor htex with executor id 12",
    f"{PREFIX} DEBUG: Task 3 has AppFuture",
    f"{PREFIX} INFO: Standard out for task 3 will not be redirected.",
    f"{PREFIX} INFO: Task 3 changing state from launched to exec_done",
    f"{PREFIX} INFO: Parsl task 3 try 1 launched on executor htex with executor id 13",
]
WORKER_0 = [
    f"{PREFIX} INFO: Worker 0 started",
    f"{PREFIX} INFO: Received executor task 11",
    "what the task itself logged",
    f"{PREFIX} INFO: Worker 0 started",
    f"{PREFIX} INFO: Received executor task 12",
    f"{PREFIX} INFO: All processing finished for executor task 12",
]
WORKER_1 = [
    f"{PREFIX} INFO: Received executor task 13",
    f"{PREFIX} INFO: All processing finished for executor task 13",
    f"{PREFIX} INFO: after that",
]
MANAGER = [f"{PREFIX} INFO: fine", f"{PREFIX} ERROR: Worker 0 has died"]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    parsl = tmp_path / "parsl" / "000"
    write(tmp_path / "journal.jsonl", ['{"event":"run-started"}'])
    write(parsl / "parsl.log", PARSL)
    write(parsl / "htex" / "interchange.log", [f"{PREFIX} INFO: up"])
    write(parsl / "htex" / "block-0" / "m1" / "worker_0.log", WORKER_0)
    write(parsl / "htex" / "block-1" / "m2" / "worker_1.log", WORKER_1)
    for block, manager in (("0", "m1"), ("1", "m2")):
        write(parsl / "htex" / f"block-{block}" / manager / "manager.log", MANAGER)
        write(parsl / "submit_scripts" / f"parsl.htex.block-{block}.17.sh.err", ["noise"])
        write(parsl / "submit_scripts" / f"parsl.htex.block-{block}.17.sh", ["a script"])
    write(parsl / "task_logs" / "task_0003.stdout", ["hello"])
    return tmp_path


def story(folder: Path, *, parsl: str = "000") -> RunStory:
    stdout = str(folder / "parsl" / "000" / "task_logs" / "task_0003.stdout")
    tries = (
        Try(number=1, life=0, launched_s=1, task_id=3, streams={"stdout": stdout}),
        Try(number=2, life=0, launched_s=9, task_id=3),
    )
    ran = Attempt(number=1, life=0, began_s=1, ended_s=2, ending="lost", where={"block": "0"})
    life = Life(session="s", began_s=0, parsl_folder=str(folder / "parsl" / parsl))
    task = Task(name="work", state="running", tries=tries, attempts=(ran,))
    return RunStory(run="exp", state="running", now_s=10, lives=(life,), tasks=(task,))


def test_the_files_of_a_run_are_found(folder: Path) -> None:
    found = [one.what for one in sources_of_run(story(folder), folder)]
    assert found == [
        "journal", "Parsl", "interchange of htex", "manager m1 of block-0",
        "manager m2 of block-1", "worker 0 of block-0", "worker 1 of block-1",
        "output of the script of block-0", "output of the script of block-1",
    ]  # fmt: skip


def test_the_lines_about_a_task_are_found_where_it_ran(folder: Path) -> None:
    run = story(folder)
    found = {one.what: excerpt(one).lines for one in sources_of_task(run, run.tasks[0], folder)}
    assert found["Parsl"] == (
        "08:21:11 INFO: Parsl task 3 try 0 launched on executor htex with executor id 11",
        "08:21:11 INFO: Task 3 changing state from launched to exec_done",
        "08:21:11 INFO: Parsl task 3 try 1 launched on executor htex with executor id 13",
    )
    # Its own lines, up to the moment its worker was started again.
    assert found["worker 0 of block-0"] == (
        "08:21:11 INFO: Received executor task 11",
        "what the task itself logged",
    )
    assert found["worker 1 of block-1"] == (
        "08:21:11 INFO: Received executor task 13",
        "08:21:11 INFO: All processing finished for executor task 13",
    )
    assert found["manager of block-0"] == ("08:21:11 ERROR: Worker 0 has died",)
    assert found["output of the script of block-1"] == ("noise",)
    assert found["stdout of the task"] == ("hello",)


def test_a_run_folder_that_was_moved_still_has_its_logs(folder: Path, tmp_path: Path) -> None:
    run = story(Path("/gone"), parsl="000")
    assert len(sources_of_run(run, folder)) == 9


def test_numbers_are_not_mixed_up() -> None:
    assert executor_ids(PARSL, {3}) == [("htex", 11), ("htex", 13)]
    assert executor_ids(PARSL, {30}) == [("htex", 12)]
    assert executor_ids(PARSL, set()) == []


def test_only_the_last_lines_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    write(tmp_path / "log", [f"line {n}" for n in range(50)])
    found = excerpt(Source("log", tmp_path / "log"), lines=3)
    assert (found.lines, found.more) == (("line 47", "line 48", "line 49"), 47)
    assert excerpt(Source("log", tmp_path / "log"), lines=0).lines == ()


def test_a_file_that_is_gone_has_no_lines(tmp_path: Path) -> None:
    assert excerpt(Source("log", tmp_path / "gone")).size_bytes == 0


def test_a_line_that_fills_the_screen_is_cut() -> None:
    assert len(shortened("x" * 10_000)) < 500


def test_whoever_follows_gets_new_whole_lines(tmp_path: Path) -> None:
    write(tmp_path / "log", ["old"])
    source, follower = Source("log", tmp_path / "log"), Follower()
    follower.skip([source])
    with (tmp_path / "log").open("a") as file:
        file.write("new\nha")
    assert [line for _, line in follower.new([source])] == ["new"]
    with (tmp_path / "log").open("a") as file:
        file.write("lf\n")
    later = Source("later", tmp_path / "later")
    write(later.path, ["from the beginning"])
    assert [line for _, line in follower.new([source, later])] == [
        "half", "from the beginning"
    ]  # fmt: skip
