"""The training that `test_torch_resume.py` kills: all that makes a resume inexact is in it.

A convolution with batch statistics, dropout, augmentation drawn from three generators,
shuffled batches, a schedule, mixed precision with a scaler that changes, and an average of the
model.

    torch_trainer.py FOLDER DEVICE STEP:MOMENT[,STEP:MOMENT ...] ...

For each list of deaths: one process after the other trains, and sends itself SIGKILL at the
given moment of the given step; the last trains to the end and says what its state has come to.
They are forks of one process, which has imported torch and done nothing else with it.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from typing import Any

import numpy as np
import torch

from ckptflow import Checkpointer

STEPS, EVERY, ROWS, BATCH = 24, 3, 40, 8
MOMENTS = ("batch", "backward", "update", "saved")
nn: Any = torch.nn


class Batches:
    """Shuffled row numbers that know where they are."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.order, self.position = torch.arange(ROWS), ROWS

    def draw(self) -> Any:
        if self.position == ROWS:
            self.order = self.order[torch.randperm(ROWS, generator=self.generator)]
            self.position = 0
        self.position += BATCH
        return self.order[self.position - BATCH : self.position]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator, "order": self.order, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.position = state["order"], state["position"]


def make(device: str) -> dict[str, Any]:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(4 * 6 * 6, 5),
    ).to(device)  # fmt: skip
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optim": optim,
        "sched": torch.optim.lr_scheduler.OneCycleLR(optim, 0.02, total_steps=STEPS),
        "scaler": torch.amp.GradScaler(device, init_scale=2.0**16, growth_interval=4),
        "ema": torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        ),
        "data": Batches(),
    }


def augmented(images: Any) -> Any:
    """Flip, shift and blur with noise: from Python's generator, NumPy's and torch's."""
    if random.random() < 0.5:
        images = images.flip(-1)
    images = images.roll(int(np.random.randint(-1, 2)), -2)  # noqa: NPY002 -- the global one
    return images + 0.1 * torch.randn(images.shape)


def advance(o: dict[str, Any], images: Any, labels: Any, device: str, die_at: str) -> None:
    rows = o["data"].draw()
    x, y = augmented(images[rows]).to(device), labels[rows].to(device)
    die_if(die_at == "batch")
    o["optim"].zero_grad()
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(o["model"](x), y)
    o["scaler"].scale(loss).backward()
    die_if(die_at == "backward")
    o["scaler"].step(o["optim"])
    o["scaler"].update()
    o["sched"].step()
    o["ema"].update_parameters(o["model"])
    die_if(die_at == "update")


def die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def train(store: str, device: str, die_at: tuple[int, str]) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)  # noqa: NPY002
    images, labels = torch.randn(ROWS, 1, 8, 8), torch.randint(5, (ROWS,))
    objects = make(device)
    with Checkpointer(store, every=EVERY, **objects) as ckpt:
        start = ckpt.resume()
        say("resumed", start)
        for step in range(start, STEPS):
            moment = die_at[1] if step == die_at[0] else ""
            advance(objects, images, labels, device, moment)
            ticket = ckpt.step(step)
            die_if(moment == "saved")  # The checkpoint of this step may be half written.
            if ticket is not None:
                ticket.wait()
    say("final", digest(objects))


def digest(objects: dict[str, Any]) -> str:
    states = {name: thing.state_dict() for name, thing in objects.items()}
    generator = states["data"].pop("generator")
    states["random"] = [
        generator.get_state(), torch.get_rng_state(), random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    ]  # fmt: skip
    total = hashlib.sha256()
    _add(total, states)
    return total.hexdigest()


def _add(total: Any, value: Any) -> None:
    if isinstance(value, dict):
        _add(total, list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            _add(total, item)
    elif isinstance(value, torch.Tensor):
        total.update(f"{value.dtype} {tuple(value.shape)} {value.device}".encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    else:
        total.update(repr(value).encode())


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def in_a_process(store: str, device: str, die_at: tuple[int, str]) -> int:
    """Train in a fork; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(store, device, die_at)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main(folder: str, device: str, lives: list[str]) -> None:
    torch.optim.SGD([torch.zeros(1)])  # Imports what every fork would import.
    for number, deaths in enumerate(lives):
        say("run", number)
        for death in [*filter(None, deaths.split(",")), "-1:"]:
            step, _, moment = death.partition(":")
            assert moment in {*MOMENTS, ""}, moment
            signal_ = in_a_process(f"{folder}/{number}", device, (int(step), moment))
            say("signal", signal_)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
