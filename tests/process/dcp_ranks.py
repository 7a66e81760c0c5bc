"""Ranks that save and load with ``torch.distributed.checkpoint``, for `test_dcp_ranks.py`.

    dcp_ranks.py FOLDER WORLD:ACTION[:STEP] ...

For each word as many ranks as WORLD are started, with a process group of gloo, and do one
thing: ``save``, ``save-cached`` (three steps, by planners that keep their plans), ``async`` or
``async-process``, ``load``, or ``die`` (rank 1 is killed in the middle of a save). They are
forks of one process, which has imported torch and done nothing else with it. Each rank prints
what came of it.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import ckptflow.torch
from ckptflow.bridges.dcp.writing import Writer

TIMEOUT_S = 150  # After that a rank gives up; one that dies is noticed at once.
SHAPES = {
    "rows": (7, 5), "columns": (4, 9), "both": (6, 6), "few": (2, 3), "large": (600, 700)
}  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [
    {"rows": Shard(0), "columns": Shard(1), "both": Replicate(), "few": Shard(0),
     "large": Shard(0)},
    {"rows": Shard(1), "columns": Replicate(), "both": Shard(0), "few": Shard(1),
     "large": Shard(1)},
]  # fmt: skip


def values(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    found = {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}
    found["large"][step % 600] += step  # All else is as it was.
    return found


def state(step: int, mesh: Any, layout: dict[str, Any]) -> dict[str, Any]:
    tensors = {
        name: distribute_tensor(value, mesh, [layout[name]])
        for name, value in values(step).items()
    }
    return {
        "model": tensors,
        "plain": torch.full((11,), float(step)),
        "step": step,
        "lr": [0.1],
    }


class Dies(Writer):
    """Is killed when it has written, before anybody commits."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        future = super().write_data(plan, planner)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return future


def act(store: Path, action: str, step: int, mesh: Any) -> str:
    if action == "load":
        return load(store, step if step >= 0 else None, mesh)
    writer = ckptflow.torch.writer(store, step=step)
    if action == "save":
        dcp.save(state(step, mesh, LAYOUTS[0]), storage_writer=writer)
    elif action == "save-cached":
        for now in (step, step + 1, step + 2):
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            dcp.save(
                state(now, mesh, LAYOUTS[0]),
                storage_writer=writer,
                checkpoint_id=str(now),
                planner=planner,
            )
    elif action.startswith("async"):
        _, _, kind = action.partition("-")
        saved = state(step, mesh, LAYOUTS[0])
        future = dcp.async_save(
            saved,
            storage_writer=writer,
            async_checkpointer_type=AsyncCheckpointerType(kind or "thread"),
        )
        for tensor in saved["model"].values():
            tensor.to_local().fill_(-1)  # At once: what is stored must be what was.
        future.result()
    elif action == "die":
        dcp.save(state(step, mesh, LAYOUTS[0]), storage_writer=Dies(store, step=step))
    return "saved"


def load(store: Path, step: int | None, mesh: Any) -> str:
    found = {}
    for layout in LAYOUTS:
        back = state(0, mesh, layout)
        for tensor in back["model"].values():
            tensor.to_local().fill_(-1)
        reader = ckptflow.torch.reader(store, step=step)
        dcp.load(back, storage_reader=reader)
        expected = values(back["step"])
        for name, tensor in back["model"].items():
            assert isinstance(tensor, DTensor)
            assert torch.equal(tensor.full_tensor(), expected[name]), name
        assert back["plain"].tolist() == [back["step"]] * 11
        found[back["step"]] = reader.step
    return f"loaded {found}"


def run_rank(folder: Path, action: str, step: int, rank: int, world: int, number: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / f"rendezvous{number}"), world),
        rank=rank,
        world_size=world,
        timeout=dt.timedelta(seconds=TIMEOUT_S),
    )
    try:
        found = act(folder / "store", action, step, DeviceMesh("cpu", list(range(world))))
    except dcp.api.CheckpointException as error:
        found = f"refused {next(iter(error.failures.values()))[0]!r:.60}"
    except RuntimeError as error:
        found = f"broken {error!r:.60}"
    sys.stdout.write(f"{number} {rank} {found}\n")
    sys.stdout.flush()


def main(folder: Path, words: list[str]) -> None:
    for number, word in enumerate(words):
        world, action, step = [*word.split(":"), "-1"][:3]
        children = []
        for rank in range(int(world)):
            child = os.fork()
            if child == 0:
                try:
                    run_rank(folder, action, int(step), rank, int(world), number)
                    os._exit(0)
                except BaseException:  # noqa: BLE001
                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            if status and not os.WIFSIGNALED(status):
                sys.exit(f"{word} failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
