"""A training that is killed again and again ends in the bits of one that was not.

Method: the programs send themselves SIGKILL at chosen moments of chosen steps, so each case is
the same in every run; only what the writer thread had done by then differs, and the step that
the next process resumes at tells that.
"""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

STEPS = 24


class Life(NamedTuple):
    """Where each process of a training resumed, what ended it, and what it has come to."""

    resumed: list[int]
    signals: list[int]
    final: str


def live(program: str, folder: Path, *arguments: str) -> list[Life]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program)), str(folder), *arguments],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[Life] = []
    words = [line.split() for line in done.stdout.splitlines() if not line.startswith("{")]
    for name, value in words:
        if name == "run":
            found.append(Life([], [], ""))
        elif name == "final":
            found[-1] = found[-1]._replace(final=value)
        elif name == "resumed":
            found[-1].resumed.append(int(value))
        elif name == "signal":
            found[-1].signals.append(int(value))
    return found


def test_killed_at_several_steps_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    deaths = "1:update,7:backward,9:saved,14:batch,20:update"
    undisturbed, killed = live("torch_trainer.py", tmp_path, "cpu", "", deaths)
    assert killed.signals == [9] * 5 + [0]
    # Saved are steps 3, 6, 9 …; of step 9 only the writer knows whether it was in time.
    assert killed.resumed[:3] == [0, 0, 7]
    assert killed.resumed[3] in {7, 10}
    assert killed.resumed[4:] == [13, 19]
    assert killed.final == undisturbed.final


@pytest.mark.slow
def test_killed_in_every_step_at_one_moment_or_another(tmp_path: Path) -> None:
    moments = itertools.cycle(("batch", "backward", "update", "saved"))
    deaths = ",".join(f"{step}:{next(moments)}" for step in range(STEPS))
    undisturbed, killed = live("torch_trainer.py", tmp_path, "cpu", "", deaths)
    assert killed.signals == [9] * STEPS + [0]
    assert killed.final == undisturbed.final


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "package"),
    [("lightning_trainer.py", "pytorch_lightning"), ("huggingface_trainer.py", "transformers")],
)
def test_with_frameworks_it_ends_in_the_same_bits(
    tmp_path: Path, program: str, package: str
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    # Epochs have five steps; after every third there is a validation.
    undisturbed, killed = live(program, tmp_path, "", "3,6,10,17")
    assert killed.signals == [9] * 4 + [0]
    assert killed.final == undisturbed.final
