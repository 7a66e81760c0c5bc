"""GROMACS, killed and restarted: ``gmx check`` says which checkpoint file is sound."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gmx") is None, reason="GROMACS (gmx) is not installed"),
]
LIFE = Path(__file__).with_name("gromacs_water.py")
LONGEST_S = 240.0

TOPOLOGY = """
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spc.itp"
[ system ]
water
[ molecules ]
"""
PARAMETERS = """
integrator = md
nsteps = 8000
dt = 0.001
cutoff-scheme = Verlet
coulombtype = reaction-field
rcoulomb = 0.9
rvdw = 0.9
gen-vel = yes
gen-seed = 1
gen-temp = 300
nstxout = 1000
nstenergy = 1000
nstlog = 1000
"""


@pytest.fixture(scope="module")
def tpr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("water")
    (folder / "topol.top").write_text(TOPOLOGY)
    (folder / "grompp.mdp").write_text(PARAMETERS)
    box = ["-box", "2.2", "2.2", "2.2"]
    for arguments in (
        ["solvate", "-cs", "spc216.gro", *box, "-o", "conf.gro", "-p", "topol.top"],
        ["grompp", "-maxwarn", "5", "-c", "conf.gro", "-o", "md.tpr"],
    ):
        done = subprocess.run(
            ["gmx", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder / "md.tpr"


def files(store: Path) -> dict[str, bytes]:
    work = store / "runs" / "water" / "work" / "simulate"
    names = ("confout.gro", "traj.trr", "ener.edr")
    return {name: (work / name).read_bytes() for name in names}


def test_water_that_was_killed_ends_with_the_same_bits(tmp_path: Path, tpr: Path) -> None:
    subprocess.run([sys.executable, str(LIFE), str(tmp_path / "calm"), str(tpr)], check=True)
    store = tmp_path / "disturbed"
    lineage = Lineage([PosixTier(store, level=3)], LineageId("water", "simulate"))
    for _ in range(2):
        before = lineage.newest() if store.exists() else None
        life = subprocess.Popen([sys.executable, str(LIFE), str(store), str(tpr)])
        end_s = time.monotonic() + LONGEST_S
        while not store.exists() or lineage.newest() == before:
            assert life.poll() is None, "it was over before it could be killed"
            assert time.monotonic() < end_s
            time.sleep(0.02)
        life.kill()
        life.wait()
    subprocess.run([sys.executable, str(LIFE), str(store), str(tpr)], check=True)
    assert files(store) == files(tmp_path / "calm")
    resumed = [one.resume["step"] for one in lineage.attempts() if one.resume]
    assert len([step for step in resumed if step]) >= 2
