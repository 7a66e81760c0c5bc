"""Tasks on the real engine of a Globus Compute endpoint: straight, and through Parsl.

Starting an engine takes seconds, so one script (`globus_scenarios.py`) meets most misfortunes
in one run, and the tests look at what became of each. There is no service and no broker here;
`test_globus_endpoint.py` has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 240.0
WAYS = ["sdk", "parsl"]

pytestmark = pytest.mark.xdist_group("globus_compute")


def expected(steps: int) -> float:
    """The sum of 100 ones multiplied by 1.5, ``steps`` times, as the tasks compute it."""
    values = np.ones(100)
    for _ in range(steps):
        values *= 1.5
    return float(values.sum())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("engine")
    done = subprocess.run(
        [sys.executable, str(HERE / "globus_scenarios.py"), "engine", str(folder / "store")],
        cwd=folder,
        env={
            **os.environ,
            # The engine finds its programs by PATH.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(HERE.parents[1]),
            "HOME": str(folder),
            "PYTHONWARNINGS": "default",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout), "store": folder / "store"}


def task(found: dict[str, Any], way: str, prefix: str) -> dict[str, Any]:
    tasks = [one for one in found[way]["summary"]["tasks"] if one["task"].startswith(prefix)]
    assert len(tasks) == 1, [one["task"] for one in tasks]
    return tasks[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_worker_s_task_resumes_at_its_newest_step(
    found: dict[str, Any], way: str
) -> None:
    """The engine tells it in the text of a traceback; the price is that of a loss."""
    assert found[way]["outcomes"]["killed"] == {"value": [3, 6, expected(9)]}
    killed = task(found, way, "killed")
    assert (killed["tries"], killed["lost"]) == (3, 2)
    assert killed["resumed_steps"] == [None, 3, 6]


@pytest.mark.parametrize("name", ["usr1", "term"])
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_signal_saves_and_the_retry_is_free(
    found: dict[str, Any], way: str, name: str
) -> None:
    """Two stops against a budget of two, and room for a third: `Preempted` has arrived."""
    assert found[way]["outcomes"][name] == {"value": [3, 8, expected(10)]}
    stopped = [t for t in found[way]["summary"]["tasks"] if t["task"].startswith("signalled")]
    assert [(t["tries"], t["preempted"], t["lost"]) for t in stopped] == [(3, 2, 0)] * 2


@pytest.mark.parametrize("way", WAYS)
def test_arrays_are_handed_on_as_references(found: dict[str, Any], way: str) -> None:
    """16 MiB, more than the service carries."""
    assert found[way]["outcomes"]["exported"] == {"value": 2 * (1 << 20) * 3.5}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_is_too_large_is_refused_before_it_is_sent(
    found: dict[str, Any], way: str
) -> None:
    refused = found[way]["outcomes"]["argument"]
    assert refused["error"] == "TooLarge"
    assert "Most of it, 12.3 MiB, is value." in refused["text"]
    assert "ckpt.export(state)" in refused["text"]
    assert task(found, way, "length")["tries"] == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_is_too_large_is_told_by_the_worker(
    found: dict[str, Any], way: str
) -> None:
    """And is not computed again; one that just fits comes back."""
    refused = found[way]["outcomes"]["result"]
    assert refused["error"] == "TooLarge"
    assert "The result of large needs 12.2 MiB" in refused["text"]
    tries = {
        t["status"]: t["tries"] for t in found[way]["summary"]["tasks"] if "large" in t["task"]
    }
    assert tries == {"failed": 1, "finished": 1}
    assert found[way]["outcomes"]["fits"] == {"value": 7 << 20}


@pytest.mark.parametrize("way", WAYS)
def test_errors_arrive_as_what_they_are(found: dict[str, Any], way: str) -> None:
    outcomes = found[way]["outcomes"]
    assert outcomes["my_error"] == {"caught": "Mine", "text": "from the script"}
    assert outcomes["odd_error"] == {
        "error": "RemoteTaskError",
        "text": "odd_error raised worker_only.Odd: strange",
    }
    assert outcomes["leaves"]["error"] == "TaskExited"
    assert outcomes["mistaken"]["error"] == "TypeError"
    assert task(found, way, "my_error")["tries"] == 3
    assert task(found, way, "mistaken")["tries"] == 1


@pytest.mark.parametrize("way", WAYS)
def test_bash_apps_run_on_the_endpoint(found: dict[str, Any], way: str) -> None:
    assert found[way]["outcomes"]["command"] == {"value": 0}
    assert (found["store"] / f"{way}.txt").read_text() == "hello\n"


@pytest.mark.parametrize("way", WAYS)
def test_nothing_else_went_wrong(found: dict[str, Any], way: str) -> None:
    assert found[way]["summary"]["problems"] == []
    assert found[way]["summary"]["exit_code"] == 1  # Tasks failed, as they were made to.


def test_a_rerun_reuses_results_and_tries_failures_again(found: dict[str, Any]) -> None:
    for name in ("killed", "usr1", "term", "exported", "fits", "command"):
        again, before = (found[way]["outcomes"][name] for way in ("sdk again", "sdk"))
        assert again == before
    for prefix in ("killed", "exported", "command"):
        assert task(found, "sdk again", prefix)["status"] == "reused"
        assert task(found, "sdk again", prefix)["tries"] == 0
    assert task(found, "sdk again", "my_error")["tries"] == 3
