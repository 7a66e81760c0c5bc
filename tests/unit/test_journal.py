"""A journal survives being cut anywhere, and being written by many threads."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from ckptflow.workflow.journal import Journal, read


def test_events_come_back_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "deep" / "journal.jsonl") as journal:
        journal.add("run-started", sync=True, pid=1)
        journal.add("task-finished", task="a-seed=1", step=3, path=Path("x"))
    events = list(read(journal.path))
    assert [event["event"] for event in events] == ["run-started", "task-finished"]
    assert events[1]["task"] == "a-seed=1"
    assert events[1]["path"] == "x"
    assert events[0]["time"].endswith("+00:00")


def test_a_rerun_adds_to_it(tmp_path: Path) -> None:
    for number in range(3):
        with Journal(tmp_path / "j") as journal:
            journal.add("run-started", number=number)
    assert [event["number"] for event in read(tmp_path / "j")] == [0, 1, 2]


def test_no_file_has_no_events(tmp_path: Path) -> None:
    assert list(read(tmp_path / "nothing")) == []


def test_cut_at_every_byte_it_keeps_the_whole_lines_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        for number in range(3):
            journal.add("e", number=number, text="é\n")
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 0x0A]
    assert len(ends) == 3
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = [event["number"] for event in read(path)]
        assert kept == list(range(sum(end <= cut for end in ends)))
        with Journal(path) as journal:
            journal.add("e", number=99)
        after = [event["number"] for event in read(path)]
        assert after[-1] == 99
        # A line that lacked only its end is whole again once the next writer ends it.
        assert after[: len(kept)] == kept


def test_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(
        b'nonsense\n[1]\n{"no": "event"}\n{"event": 3}\n\xff\xfe\n{"event": "e"}\n'
    )
    assert list(read(path)) == [{"event": "e"}]


def test_many_threads_do_not_mix_lines(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:

        def write(thread: int) -> None:
            for number in range(50):
                journal.add("e", thread=thread, number=number, filler="x" * 500)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = (tmp_path / "j").read_bytes().splitlines()
    assert len({(e["thread"], e["number"]) for e in map(json.loads, lines)}) == 400


def test_late_events_are_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.close()
    journal.close()
    journal.add("late")
    assert list(read(tmp_path / "j")) == []


def test_a_journal_that_cannot_be_written_says_so() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    failures: list[OSError] = []
    with Journal(full, failed=failures.append) as journal:
        journal.add("e", sync=True)
        journal.add("e", sync=True)
    assert [error.errno for error in failures] == [errno.ENOSPC]
