"""The training that `test_torch_resume.py` kills: all that makes a resume inexact is in it.

A convolution with batch statistics, dropout, augmentation drawn from three generators,
shuffled batches, a schedule, mixed precision with a scaler that changes, and an average of the
model.

    torch_trainer.py FOLDER DEVICE LIFE ...

The moments are batch, backward, update and saved; see `lives.py`.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import lives
import numpy as np
import torch
from lives import die_if, say

from ckptflow import Checkpointer

STEPS, EVERY, ROWS, BATCH = 24, 3, 40, 8
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


def train(store: str, device: str, last_step: int, last_moment: str) -> None:
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
            moment = last_moment if step == last_step else ""
            advance(objects, images, labels, device, moment)
            ticket = ckpt.step(step)
            die_if(moment == "saved")  # The checkpoint of this step may be half written.
            if ticket is not None:
                ticket.wait()
    states = {name: thing.state_dict() for name, thing in objects.items()}
    states["random"] = [
        states["data"].pop("generator").get_state(), torch.get_rng_state(), random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    ]  # fmt: skip
    say("final", lives.digest(states))


if __name__ == "__main__":
    folder, device = sys.argv[1:3]
    lives.run(lambda store, *death: train(store, device, *death), folder, sys.argv[3:])
