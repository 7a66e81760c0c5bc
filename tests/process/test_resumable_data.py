"""Each sample once an epoch, to the bit, whenever a training or a worker of it is killed.

The programs are `served_lives.py` and `lost_workers.py`. Of what a life has written down counts
what lies before the position at which the next one resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from ckptflow.data import ResumableSampler

FOLDER = Path(__file__).parent
SAMPLES, BATCH, EPOCHS = 5, 3, 2  # As in the program.
PATIENCE_S = 200.0
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def run(program: str, folder: Path, *arguments: object) -> str:
    """Run to the end, and leave no process behind.

    A worker of torch whose parent is killed while it starts takes what is its parent then for
    its own, and waits for work for ever. So output goes to a file, which nobody needs to close.
    """
    command = [sys.executable, str(FOLDER / program), str(folder), *map(str, arguments)]
    said = folder / "said"
    with said.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        assert process.wait(PATIENCE_S) == 0, said.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return said.read_text()


def check(log: Path) -> str:
    """Check the samples that were served, and return the bits of the end."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    served: list[dict[str, list[int]]] = []
    for entry in entries:
        if "resumed" in entry:
            served = [one for one in served if one["position"] <= entry["resumed"]]
        elif "samples" in entry:
            served.append(entry)
    expected = [
        int(index)
        for sampler in [ResumableSampler(SAMPLES, batch=BATCH, seed=3)]
        for _ in range(EPOCHS)
        for indices in sampler.batches()
        for index in indices
    ]
    found = [index for one in served for index in one["samples"]]
    assert found == expected
    assert set(Counter(found).values()) == {EPOCHS}
    return entries[-1]["end"]


@pytest.mark.parametrize(
    ("workers", "moments"),
    [
        ("none", "every"),
        pytest.param("none", 10, marks=pytest.mark.slow),
        pytest.param(2, "every", marks=[pytest.mark.slow, needs_torch]),
        pytest.param(4, 5, marks=[pytest.mark.slow, needs_torch]),
    ],
)
def test_killed_at_any_moment_each_sample_is_served_once(
    workers: str | int, moments: str | int, tmp_path: Path
) -> None:
    run("served_lives.py", tmp_path, workers, moments)
    logs = sorted(tmp_path.glob("*/log"))
    assert len(logs) > 1
    assert len({check(log) for log in logs}) == 1


@needs_torch
def test_the_death_of_a_worker_is_told_and_the_position_is_kept(tmp_path: Path) -> None:
    said = run("lost_workers.py", tmp_path, "dies")
    assert "What loads the data is gone, or too slow" in said
    assert said.splitlines()[-1] == "served 0 1 2 3 4 5 6 7 8 9"


@needs_torch
@pytest.mark.slow
def test_so_is_that_of_one_that_stays_over_epochs(tmp_path: Path) -> None:
    said = run("lost_workers.py", tmp_path, "dies", "persistent")
    assert "What loads the data is gone, or too slow" in said
    assert said.splitlines()[-1] == "served 0 1 2 3 4 5 6 7 8 9"


@needs_torch
@pytest.mark.slow
def test_a_worker_that_hangs_is_told_after_the_loader_s_timeout(tmp_path: Path) -> None:
    said = run("lost_workers.py", tmp_path, "hangs")
    assert "too slow: DataLoader timed out after 1 seconds" in said


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("times", range(2))
def test_a_worker_killed_from_outside_ends_the_program_by_name(
    times: int, tmp_path: Path
) -> None:
    """By torch's own name if the loop is not waiting for a batch at that moment."""
    command = [sys.executable, str(FOLDER / "lost_workers.py"), str(tmp_path), "waits"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        workers = process.stdout.readline().split()[1:]
        os.kill(int(workers[times]), signal.SIGKILL)
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert "LoaderFailed after" in said or "RuntimeError: DataLoader worker" in errors
