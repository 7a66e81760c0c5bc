"""A plate cools down, its rows shared out among ranks: one task on several processes or nodes.

    ckptflow run workflows/ranks.py
    NODES=2 RANKS=4 ckptflow run workflows/ranks.py --site my-slurm

Each rank has some rows, and gets the rows next to them from its neighbours before each step:
over MPI if mpiexec or srun has started the ranks as MPI ones, else over a socket. A rank stores
its own rows, as a box of the plate, so the task goes on with any number of ranks. The result is
a digest of the last plate: the same to the bit, however often it was interrupted, and on
however many ranks. ``tests/process/test_ranked_tasks.py``.

``PLATES``, ``RANKS``, ``NODES``, ``STEPS`` and ``EVERY`` are read from the environment.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import ckptflow as cf

ROWS, COLUMNS = 240, 160

PLATES = int(os.environ.get("PLATES", "2"))
RANKS = int(os.environ.get("RANKS", "2"))
NODES = int(os.environ.get("NODES", "1"))
STEPS = int(os.environ.get("STEPS", "2000"))
EVERY = os.environ.get("EVERY", "2s")


class Ranks(Protocol):
    """What a rank needs of the others."""

    def exchange(self, mine: list[bytes]) -> list[list[bytes]]:
        """Give something to all ranks, and return what each has given, by rank."""


class OverMpi:
    """The ranks of an MPI job."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._all = MPI.COMM_WORLD

    def exchange(self, mine: list[bytes]) -> list[list[bytes]]:
        """See `Ranks`."""
        return self._all.allgather(mine)


class OverSocket:
    """Ranks that send all they have to rank 0, which sends it to all; enough for an example."""

    def __init__(self, rank: int, world: int) -> None:
        from multiprocessing.connection import Client, Listener

        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._rank, self._world, self._others = rank, world, {}
        if rank == 0:
            with Listener(place, backlog=world) as listener:
                while len(self._others) < world - 1:
                    other = listener.accept()
                    self._others[int(other.recv_bytes())] = other
            return
        while True:
            try:
                self._others[0] = Client(place)
            except ConnectionRefusedError:  # Rank 0 does not listen yet.
                continue
            self._others[0].send_bytes(str(rank).encode())
            return

    def exchange(self, mine: list[bytes]) -> list[list[bytes]]:
        """See `Ranks`."""
        size = len(mine)
        if self._rank:
            for part in mine:
                self._others[0].send_bytes(part)
            return [
                [self._others[0].recv_bytes() for _ in range(size)] for _ in range(self._world)
            ]
        given = [mine] + [
            [self._others[rank].recv_bytes() for _ in range(size)]
            for rank in range(1, self._world)
        ]
        for other in self._others.values():
            for parts in given:
                for part in parts:
                    other.send_bytes(part)
        return given


def all_ranks(rank: int, world: int) -> Ranks:
    """Return what connects the ranks of this task."""
    is_mpi = any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK"))
    return OverMpi() if is_mpi else OverSocket(rank, world)


def hot_corner(plate: int) -> NDArray[np.float64]:
    """Return a plate to begin with."""
    field = np.zeros((ROWS, COLUMNS))
    field[: ROWS // 4 + plate, : COLUMNS // 4] = 100.0
    return field


def advance(mine: NDArray[np.float64], above: Any, below: Any) -> None:
    """Do one step, in place; ``above`` and ``below`` are the rows next to ``mine``."""
    whole = np.vstack([above, mine, below])
    sides = np.pad(whole, ((0, 0), (1, 1)), mode="edge")
    around = sides[:-2, 1:-1] + sides[2:, 1:-1] + sides[1:-1, :-2] + sides[1:-1, 2:]
    mine += 0.2 * (around - 4.0 * mine)


@cf.python_app(key=("plate",), ranks=RANKS, nodes=NODES, every=EVERY, replicated=["step"])
def cool(plate: int, steps: int, ckpt: Any) -> str:
    """Let a plate cool down; every rank calls this, with rows of its own."""
    import hashlib

    rank, world = ckpt.rank, ckpt.world
    first, last = ROWS * rank // world, ROWS * (rank + 1) // world
    mine = hot_corner(plate)[first:last]
    box = cf.Box(mine, (first, 0), (ROWS, COLUMNS))
    state = ckpt.restore({"step": 0, "field": box})
    ranks = all_ranks(rank, world)
    while state["step"] < steps:
        edges = ranks.exchange([mine[0].tobytes(), mine[-1].tobytes()])
        above = np.frombuffer(edges[rank - 1][1]) if rank else mine[0]
        below = np.frombuffer(edges[rank + 1][0]) if rank < world - 1 else mine[-1]
        advance(mine, above, below)
        state["step"] += 1
        ckpt.step(state["step"], state)
    rows = ranks.exchange([mine.tobytes()])
    return hashlib.sha256(b"".join(part for parts in rows for part in parts)).hexdigest()[:16]


if __name__ == "__main__":
    with cf.run("plates", site="local", retries=3) as run:
        plates = [cool(plate, STEPS) for plate in range(PLATES)]
        for number, future in enumerate(plates):
            print(f"plate {number}: {future.result()}")
    print(run.summary())
