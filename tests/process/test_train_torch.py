"""The PyTorch workflow, killed without warning, ends in the bits of an undisturbed run.

Method: the script runs in a process of its own and is sent SIGKILL as soon as it has committed
a checkpoint that is not its last; the same command is given until it ends by itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckptflow.store.catalog import Lineage, lineages
from ckptflow.tiers.posix import PosixTier

pytest.importorskip("torch")
pytest.importorskip("sklearn")

STEPS, EVERY = 4000, 200
PATIENCE_S = 120.0


def command(repository: Path, store: Path) -> list[str]:
    script = repository / "workflows" / "train_torch.py"
    return [
        sys.executable, str(script), f"--store={store}", f"--steps={STEPS}", f"--every={EVERY}"
    ]  # fmt: skip


def newest_step(store: Path) -> int:
    tier = PosixTier(store)
    found = [Lineage([tier], lineage).valid() for lineage in lineages([tier])]
    return max((checkpoints[0].id.step for checkpoints in found if checkpoints), default=0)


def start_and_kill(arguments: list[str], store: Path, *, beyond: int) -> int:
    """Start; kill once a step greater than ``beyond`` is committed; return the newest step."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    limit = time.monotonic() + PATIENCE_S
    while newest_step(store) <= beyond:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit, "no checkpoint was committed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    return newest_step(store)


def run(arguments: list[str]) -> str:
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return done.stdout


@pytest.mark.slow
def test_killed_twice_it_ends_in_the_same_bits(repository: Path, tmp_path: Path) -> None:
    undisturbed = run(command(repository, tmp_path / "a"))
    killed = command(repository, tmp_path / "b")
    first = start_and_kill(killed, tmp_path / "b", beyond=0)
    second = start_and_kill(killed, tmp_path / "b", beyond=first)
    finished = run(killed)
    assert f"starting at step {second + 1} of {STEPS}" in finished
    assert 0 < first < second < STEPS
    assert finished.splitlines()[-1] == undisturbed.splitlines()[-1]
    accuracy = re.search(r"accuracy=([\d.]+) sha256=[0-9a-f]{64}", finished)
    assert accuracy
    assert float(accuracy[1]) > 0.9


@pytest.mark.slow
def test_a_run_that_has_ended_ends_again_in_the_same_bits(
    repository: Path, tmp_path: Path
) -> None:
    arguments = command(repository, tmp_path / "store")
    first = run(arguments)
    again = run(arguments)
    assert f"starting at step {STEPS} of {STEPS}" in again
    assert again.splitlines()[-1] == first.splitlines()[-1]
