"""The jobs that `test_ranks.py` starts. Their ranks say on stdout what became of them.

    rank_task.py KIND STORE STEPS[,STEPS…] WORLD[,WORLD…]

One launch after another, each with so many ranks and up to so many steps. Ranks are forked from
this process, which has imported torch for all of them, and have the variables of torchrun. A
line is ``LAUNCH RANK WHAT …``. Without WORLD this process is a rank already, of MPI.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import Any

import numpy as np

import ckptflow as cf
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.posix import PosixTier


def say(*words: object) -> None:
    launch = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
    os.write(1, (" ".join(map(str, (launch, rank, *words))) + "\n").encode())


def digest(*arrays: Any) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


# --- data parallel ---


def train(store: str, steps: int) -> None:
    """Train with `DistributedDataParallel`; the last save comes when its group is gone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(40, 60), torch.nn.BatchNorm1d(60), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Dropout(0.2), torch.nn.Linear(60, 3))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
    with cf.ShardedCheckpointer(
        store, every=3, replicated=["optim/*", "model/*"], model=parallel, optim=optimizer
    ) as ckpt:
        first = ckpt.resume()
        say("resumed", first)
        say("restored", digest(*(p.detach() for p in model.parameters())))
        for step in range(first, steps - 1):
            _update(torch, parallel, optimizer, step, rank)
            ckpt.step(step)
        if first < steps:
            _update(torch, parallel, optimizer, steps - 1, rank)
        dist.destroy_process_group()
        if first < steps:
            ckpt.save(steps - 1).wait()
        moments = [one["exp_avg"] for one in optimizer.state.values()]
        say("parameters", digest(*(p.detach() for p in model.parameters())))
        say("state", digest(*(p.detach() for p in model.parameters()), *moments))
        say("random", torch.rand(1).item())


def _update(torch: Any, model: Any, optimizer: Any, step: int, rank: int) -> None:
    numbers = torch.Generator().manual_seed(1000 * step + rank)
    batch = torch.randn(16, 40, generator=numbers)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# --- fully sharded ---


def shard(store: str, steps: int) -> None:
    """Train with parameters that are DTensors (FSDP2), or restore them whole, if alone."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.ReLU(), torch.nn.Linear(13, 5))
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for parameter in model.parameters():  # So that there is a state to restore into.
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with cf.ShardedCheckpointer(
        store, every="never", rng=False, replicated=["optim/*"], model=model, optim=optimizer
    ) as ckpt:
        first = ckpt.resume()
        say("resumed", first)
        say("restored", digest(*_whole(model, optimizer)))
        for step in range(first, steps):
            _update_shard(torch, model, optimizer, step, rank)
        say("state", digest(*_whole(model, optimizer)))
        dist.barrier()
        dist.destroy_process_group()
        if first < steps:
            ckpt.save(steps - 1).wait()


def _whole(model: Any, optimizer: Any) -> list[Any]:
    tensors = [*model.parameters(), *(one["exp_avg_sq"] for one in optimizer.state.values())]
    return [
        (one.full_tensor() if hasattr(one, "full_tensor") else one).detach() for one in tensors
    ]


def _update_shard(torch: Any, model: Any, optimizer: Any, step: int, rank: int) -> None:
    numbers = torch.Generator().manual_seed(1000 * step + rank)
    loss = model(torch.randn(8, 7, generator=numbers)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# --- MPI ---


def simulate(store: str, steps: int) -> None:
    """Rows of a field, as many as each rank of an MPI job has, and a table that all have."""
    from mpi4py import MPI

    rank, world = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    rows = [101 * place // world for place in (rank, rank + 1)]
    field = np.zeros((rows[1] - rows[0], 17))
    state = {
        "field": cf.Box(field, (rows[0], 0), (101, 17)),
        "table": np.arange(5000.0),
        "step": 0,
    }
    with cf.ShardedCheckpointer(
        store, every="never", rng=False, replicated=["table", "step"]
    ) as ckpt:
        ckpt.restore(state)
        say("resumed", state["step"])
        for step in range(state["step"], steps):
            field += np.arange(rows[0], rows[1])[:, None] * (step + 1)
            state["table"][step] += step
            state["step"] = step + 1
        ckpt.save(steps, state).wait()
    whole = MPI.COMM_WORLD.gather(field)
    if rank == 0:
        say("state", digest(np.concatenate(whole), state["table"]))


# --- a death in the middle ---


class SlowAt(TierAround):
    """Says when the packs of a step come, and takes for ever with them."""

    def __init__(self, inner: Any, step: int) -> None:
        super().__init__(inner)
        self._step = step

    def put(self, key: str, parts: Any) -> None:
        """Wait to be killed."""
        self.inner.put(key, parts)
        if f"packs/{self._step:012d}" in key:
            say("saving", self._step)
            time.sleep(600)


def lose(store: str, steps: int) -> None:
    """Save each step; in the first life rank 1 never gets through with step 3."""
    rank, life = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    tier: Any = PosixTier(store, level=3)
    if (rank, life) == (1, "0"):
        tier = SlowAt(tier, 3)
    state = {"w": np.zeros(50_000), "step": 0, "mine": np.zeros(3)}
    with cf.ShardedCheckpointer(
        tier, every="never", rng=False, replicated=["w", "step"], keep=2
    ) as ckpt:
        ckpt.restore(state)
        say("resumed", state["step"])
        for step in range(state["step"] + 1, steps + 1):
            state["w"][step::7] += step
            state["step"] = step
            state["mine"] += rank
            ckpt.save(step, state).wait()
            say("saved", step)
        say("state", digest(state["w"], state["mine"]))


KINDS = {"train": train, "shard": shard, "simulate": simulate, "lose": lose}


def launch(kind: str, store: str, steps: int, world: int, number: int) -> bool:
    """Fork all ranks of a launch, and tell whether they have ended well."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ |= {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": str(number),
    }
    children = []
    for rank in range(world):
        if child := os.fork():
            children.append(child)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        say("pid", os.getpid())
        status = 1
        try:
            KINDS[kind](store, steps)
            status = 0
        except BaseException:  # noqa: BLE001  A rank ends here, whatever ends it.
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    ended = [os.waitpid(child, 0)[1] for child in children]
    return all(status in {0, signal.SIGKILL} for status in ended)


def _warm_up() -> None:
    """Import what torch imports when it is first used, once for all ranks."""
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import torch.nn.parallel

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()


def main(kind: str, store: str, steps: str, worlds: str = "") -> int:
    warnings.filterwarnings("ignore", message=".*random states belong to ranks")
    if not worlds:
        KINDS[kind](store, int(steps))
        return 0
    if kind in {"train", "shard"}:
        _warm_up()
    pairs = zip(steps.split(","), worlds.split(","), strict=True)
    first = int(os.environ.get("FIRST", "0"))
    for number, (count, world) in enumerate(pairs):
        if not launch(kind, store, int(count), int(world), first + number):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
