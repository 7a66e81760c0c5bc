"""Train the digits classifier in PyTorch with nothing but a ``Checkpointer`` around the loop.

No Parsl here: model, optimizer and the place in the data are handed over once, and every
object with ``state_dict`` and ``load_state_dict`` is saved and restored as it is. PyTorch's own
generator, which draws the dropout, is saved with them.

    python workflows/train_torch.py --store results/torch --steps 3000

Kill it at any moment and run the same line again: it goes on after the newest checkpoint, and
the digest in its last line is that of an undisturbed run. ``tests/process/test_train_torch.py``
does that.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import digits
import torch

import ckptflow as cf
from ckptflow.data import ResumableSampler


def batches(sampler: ResumableSampler) -> Iterator[torch.Tensor]:
    """Yield row numbers, int64, of one batch after another, epoch after epoch."""
    while True:
        yield from map(torch.from_numpy, sampler.batches())


def train(store: Path, *, run: str, steps: int, every: int, seed: int) -> tuple[float, str]:
    """Train, or go on, up to ``steps`` steps; return the accuracy and a digest of all state."""
    torch.manual_seed(seed)
    data = digits.load()
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(128, 10),
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler = ResumableSampler(len(labels), batch=64, seed=seed, tail="drop")
    objects = {"model": model, "optimizer": optimizer, "data": sampler}
    with cf.Checkpointer(store, run=run, task=f"seed-{seed}", every=every, **objects) as ckpt:
        start = ckpt.resume()
        print(f"starting at step {start} of {steps}", flush=True)
        for step, rows in zip(range(start, steps), batches(sampler), strict=False):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            ckpt.step(step)  # It is complete: all objects are between two steps now.
        if ckpt.last_step is None or ckpt.last_step < steps - 1:
            ckpt.save(steps - 1)  # The end is worth keeping whatever the interval says.
    model.eval()
    with torch.no_grad():
        found = model(torch.from_numpy(data.test_images)).argmax(dim=1)
    accuracy = float((found == torch.from_numpy(data.test_labels)).double().mean())
    return accuracy, digest({name: thing.state_dict() for name, thing in objects.items()})


def digest(state: Any) -> str:
    """Return the SHA-256, in hex, of every tensor and number in a tree of containers."""
    return hashlib.sha256(b"".join(_pieces(state, ""))).hexdigest()


def _pieces(value: Any, path: str) -> list[bytes]:
    if isinstance(value, dict):
        pairs = [(f"{path}/{name}", item) for name, item in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{path}/{index}", item) for index, item in enumerate(value)]
    elif isinstance(value, torch.Tensor):
        return [f"{path} {value.dtype} {tuple(value.shape)}".encode(), value.numpy().tobytes()]
    else:
        return [f"{path} {value!r}".encode()]
    return [piece for name, item in pairs for piece in _pieces(item, name)]


def main(arguments: list[str] | None = None) -> int:
    """Train, and print one line with what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("results/torch"), help="checkpoints")
    parser.add_argument("--name", default="train-torch", help="name of the run")
    parser.add_argument("--steps", type=int, default=3000, help="steps to train")
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    options = parser.parse_args(arguments)
    # One thread and deterministic kernels: sums in the same order before and after a restart.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    accuracy, found = train(
        options.store,
        run=options.name,
        steps=options.steps,
        every=options.every,
        seed=options.seed,
    )
    print(f"accuracy={accuracy:.4f} sha256={found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
