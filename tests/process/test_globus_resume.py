"""Processes that die while Globus works for them; those that follow go on with the same task.

Method: the imitated service is a process of its own, so it remembers what a dead client asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SERVICES = HERE.parent / "services"
PROGRAM = HERE / "globus_deaths.py"
PATIENCE_S = 120.0


def wait_for(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S} s"
        time.sleep(0.02)


@dataclass
class Service:
    """The imitated service, and what it was asked."""

    folder: Path
    url: str

    def asked(self, method: str, path: str) -> list[str | None]:
        """Return the codes of the answers to such requests."""
        log = self.folder / "requests"
        lines = log.read_text().splitlines() if log.exists() else []
        rows = [json.loads(line) for line in lines]
        return [code for *what, code in rows if what == [method, f"/v0.10{path}"]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    process = subprocess.Popen([sys.executable, SERVICES / "globus_service.py", tmp_path])
    try:
        wait_for((tmp_path / "port").exists)
        yield Service(tmp_path, f"http://127.0.0.1:{(tmp_path / 'port').read_text()}")
    finally:
        process.kill()
        process.wait()


def started(service: Service, what: str, **more: object) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(HERE.parents[1]), str(SERVICES)])
    return subprocess.Popen(
        [sys.executable, PROGRAM, what, service.url, service.folder],
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
        **more,
    )


def test_a_killed_put_is_taken_up_with_the_task_that_runs(service: Service) -> None:
    (service.folder / "hold").touch()
    first = started(service, "put")
    wait_for(lambda: len(service.asked("POST", "/transfer")) == 1)
    first.kill()
    first.wait()
    assert not (service.folder / "remote" / "store" / "a" / "key").exists()

    polls = len((service.folder / "requests").read_text().splitlines())
    second = started(service, "put")
    wait_for(lambda: len((service.folder / "requests").read_text().splitlines()) > polls + 3)
    (service.folder / "hold").unlink()
    assert second.wait(PATIENCE_S) == 0
    # Where the kill came before the note of the task, the same submission id is sent again.
    assert service.asked("POST", "/transfer") in [["Accepted"], ["Accepted", "Duplicate"]]
    assert (service.folder / "remote" / "store" / "a" / "key").stat().st_size == 40 * 256


def test_a_death_at_each_request(service: Service) -> None:
    """No half is seen, the next put ends well, and no transfer is asked for twice in vain."""
    with started(service, "sweep", stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    trials = [json.loads(line) for line in output.splitlines()]
    assert process.returncode == 0
    died = [trial for trial in trials if trial["died"]]
    assert len(died) >= 12, "six requests at least, before and after each"
    assert all(trial["whole"] and trial["again"] == 0 for trial in trials)
    assert not any(trial["half"] for trial in trials)
    accepted = service.asked("POST", "/transfer").count("Accepted")
    # One transfer for each value, and one more where the death came between the rename and its
    # note; the trials in which nobody died put twice.
    assert accepted == len(died) + 1 + 2 * (len(trials) - len(died))
