"""A box of water with GROMACS, as a life of a workflow: ``gromacs_water.py STORE TPR``."""

from __future__ import annotations

import sys
from typing import Any

import ckptflow as cf


@cf.bash_app(
    key=(),
    watch="state.cpt",
    valid="gmx check -f {path}",
    with_files=("md.log", "traj.trr", "ener.edr"),
    restart_arg="-cpi {name}",
    stop_signal="TERM",
)
def simulate(tpr: str, ckpt: Any) -> str:
    """Go on where the checkpoint file says; without one GROMACS would begin at zero."""
    return (
        f"gmx mdrun -s {tpr} -nt 1 -reprod -cpt 0.005 -cpo state.cpt -g md.log -o traj.trr "
        f"-e ener.edr -c confout.gro {ckpt.restart_arg()}"
    )


if __name__ == "__main__":
    with cf.run("water", site="local_threads", store=sys.argv[1]):
        assert simulate(sys.argv[2]).result() == 0
