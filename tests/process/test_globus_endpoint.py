"""The whole way to an endpoint of Globus Compute and back, but for the hosted service.

Real are the SDK's executor and its client, the broker, the endpoint's interchange, its engine
and workers, and what kills them. The service between them is a stand-in (`compute_service.py`
says what it lacks), so nothing is said here of the hosted one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import rabbitmq as broker
from compute_service import REQUEST_BYTES_MAX, ComputeService

from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier

HERE = Path(__file__).resolve().parent
LIMIT_S = 240.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("globus_endpoint"),
    pytest.mark.timeout(900),  # Processes by the dozen; on a busy machine each takes its time.
    pytest.mark.skipif(broker.MISSING is not None, reason=str(broker.MISSING)),
]


@dataclass
class Place:
    """What one scenario has: a service, an endpoint, a store."""

    service: ComputeService
    endpoint: str
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self, way: str) -> subprocess.Popen[str]:
        """Start the workflow."""
        script = str(HERE / "globus_scenarios.py")
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, script, "service"),
                    *(str(self.store), way, self.service.url, self.endpoint),
                ],
                cwd=self.folder,
                env=environment(self.folder),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def end(self, workflow: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait for the end of the workflow; return what it found."""
        text, _ = workflow.communicate(timeout=LIMIT_S)
        assert workflow.returncode == 0, (self.folder / "log").read_text()[-3000:]
        return dict(json.loads(text))


def expected(steps: int) -> float:
    """The sum of 100 ones multiplied by 1.5, ``steps`` times, as the tasks compute it."""
    return float((np.ones(100) * 1.5**steps).sum())


def environment(folder: Path) -> dict[str, str]:
    paths = [HERE.parents[1], HERE.parent / "services"]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "HOME": str(folder),
        "PYTHONWARNINGS": "default",
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("endpoint")
    endpoint = str(uuid.uuid4())
    with broker.rabbitmq(folder / "broker") as amqp, ComputeService(amqp) as service:
        service.add_endpoint(endpoint)
        script = str(HERE.parent / "services" / "compute_endpoint.py")
        with (folder / "endpoint-log").open("w") as log:
            running = subprocess.Popen(
                [sys.executable, script, str(folder / "at-endpoint"), amqp, endpoint],
                cwd=folder,
                env=environment(folder),
                stderr=log,
            )
        try:
            yield Place(service, endpoint, folder)
        finally:
            below = psutil.Process(running.pid).children(recursive=True)
            running.kill()
            for process in below:
                process.kill()
            psutil.wait_procs(below, timeout=30)
            running.wait()


def task(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    tasks = [one for one in found["summary"]["tasks"] if one["task"].startswith(prefix)]
    assert len(tasks) == 1, [one["task"] for one in found["summary"]["tasks"]]
    return tasks[0]


def wait_for(file: Path, workflow: subprocess.Popen[str], log: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not file.exists():
        assert workflow.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline_s, f"no {file}: {log.read_text()[-3000:]}"
        time.sleep(0.1)


@pytest.fixture(scope="module", params=["sdk", "parsl"])
def lives(place: Place, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A workflow that is killed while its tasks run on the endpoint, and started again."""
    way = request.param
    first = place.start(way)
    wait_for(place.store / f"go-{way}.1", first, place.folder / "log")
    first.kill()
    first.communicate()
    found = place.end(place.start(way))
    (place.store / f"go-{way}").touch()
    return {**found, "way": way, "place": place}


def test_a_killed_workflow_goes_on_from_its_checkpoints(lives: dict[str, Any]) -> None:
    """The first attempt is still there, on the endpoint, when the second resumes."""
    assert lives["outcomes"]["waits"] == {"value": [2, 3, expected(6)]}
    assert task(lives, "waits")["resumed_steps"] == [3]


def test_the_attempt_of_the_killed_workflow_is_fenced(lives: dict[str, Any]) -> None:
    way, store = lives["way"], lives["place"].store
    name = task(lives, "waits")["task"]
    lineage = Lineage([PosixTier(store, level=3)], LineageId(way, name))
    deadline_s = time.monotonic() + LIMIT_S
    while (first := lineage.attempts()[0]).end is None:
        assert time.monotonic() < deadline_s, "the first attempt has not ended"
        time.sleep(0.1)
    assert first.end["outcome"] == "fenced"


def test_the_endpoint_s_own_retries_resume_too(lives: dict[str, Any]) -> None:
    """Of two killed workers the workflow hears of one at the most."""
    attempts, resumed, total = lives["outcomes"]["killed"]["value"]
    assert (attempts, resumed, total) == (3, 6, expected(9))
    assert task(lives, "killed")["lost"] <= 1


def test_a_stop_in_time_and_an_error_arrive(lives: dict[str, Any]) -> None:
    outcomes = lives["outcomes"]
    assert outcomes["usr1"]["value"][2] == expected(10)
    assert outcomes["my_error"] == {"caught": "Mine", "text": "from the script"}


def test_calls_that_are_too_large_together_go_in_several_requests(
    lives: dict[str, Any],
) -> None:
    """Four of 3 MiB each; the SDK would put all of them into one."""
    for number in range(4):
        assert lives["outcomes"][f"three-{number}"] == {"value": 3 << 20}
    sizes = lives["place"].service.submissions()
    assert max(sizes) <= REQUEST_BYTES_MAX
    assert max(sizes) > 2 * (3 << 20)  # Two at a time, and not one by one.


def test_a_workflow_whose_results_are_remembered_ends(lives: dict[str, Any]) -> None:
    """Nothing is submitted but what failed, and nothing hangs for want of results."""
    way, place = lives["way"], lives["place"]
    again = place.end(place.start(way))
    assert task(again, "waits")["status"] == "reused"
    assert task(again, "killed")["status"] == "reused"
    assert again["summary"]["problems"] == []
