"""States that programs really have, from checkpoint to checkpoint.

`STATES` maps a name to a source: called with ``quick``, it yields the state, a dictionary of
arrays, as it is at each of `CHECKPOINTS` checkpoints. These are the live arrays of the program:
whoever wants the next state is done with this one. Everything comes from fixed seeds.

Among them are states that increments cannot help, since every word changes in every step:
they show what an increment costs where it saves nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflows"))
import digits
import gray_scott

CHECKPOINTS = 6  # The first is full; five increments follow.

State: TypeAlias = dict[str, NDArray[Any]]
Source: TypeAlias = Callable[[bool], Iterator[State]]


# --- training ---------------------------------------------------------------------------


def training(part: str, steps: int, quick: bool) -> Iterator[State]:  # noqa: FBT001 - a Source.
    """Weights or moments of a transformer in training, ``steps`` steps between checkpoints."""
    for state in _trained(quick)[steps]:
        yield {name: array for name, array in state.items() if name.startswith(part)}


@cache
def _trained(quick: bool) -> dict[int, list[State]]:  # noqa: FBT001
    """Train once; return the states of all checkpoints, by the steps between them.

    Rows of the images are the tokens. As mixed precision does it, the optimizer works on fp32
    weights, and the bf16 ones are those, rounded.
    """
    import torch

    torch.set_num_threads(
        1
    )  # Small matrices gain nothing from more, and lose where cores are busy.
    torch.manual_seed(0)
    data = digits.load()
    images = torch.from_numpy(data.train_images.astype(np.float32)).reshape(-1, 8, 8)
    labels = torch.from_numpy(data.train_labels)
    width, warm_up = (128, 40) if quick else (320, 60)
    block = torch.nn.TransformerEncoderLayer(
        width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
    )
    model = torch.nn.Sequential(
        torch.nn.Linear(8, width),
        torch.nn.TransformerEncoder(block, num_layers=3),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * width, digits.CLASSES),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    def step() -> None:
        rows = torch.randint(len(labels), (16,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()

    def snapshot() -> State:
        state: State = {}
        for name, weight in model.named_parameters():
            moments = optimizer.state[weight]
            half = weight.detach().to(torch.bfloat16).view(torch.int16)
            state[f"fp32.{name}"] = weight.detach().numpy().copy()
            state[f"bf16.{name}"] = half.numpy().view(np.uint16).copy()
            state[f"adam.m.{name}"] = moments["exp_avg"].numpy().copy()
            state[f"adam.v.{name}"] = moments["exp_avg_sq"].numpy().copy()
        return state

    for _ in range(warm_up):
        step()
    taken: dict[int, list[State]] = {1: [], 10: []}
    for between, snapshots in taken.items():
        for _ in range(CHECKPOINTS):
            for _ in range(between):
                step()
            snapshots.append(snapshot())
    return taken


# --- fields -----------------------------------------------------------------------------


def reaction(quick: bool) -> Iterator[State]:  # noqa: FBT001
    """Gray-Scott, u and v in fp64, 10 steps between checkpoints, pattern half grown."""
    size, warm_up = (384, 1000) if quick else (1024, 1000)
    state = gray_scott.initial_state(0, size=size, frames=1)
    scratch, chemistry = gray_scott.Scratch(state), gray_scott.Chemistry()
    for _ in range(warm_up):
        gray_scott.advance(state, scratch, chemistry)
    for _ in range(CHECKPOINTS):
        for _ in range(10):
            gray_scott.advance(state, scratch, chemistry)
        yield {"u": state["u"], "v": state["v"]}


def heat(dtype: type[np.floating[Any]], quick: bool) -> Iterator[State]:  # noqa: FBT001
    """The heat equation on a square plate with cold edges, 10 explicit steps between.

    It starts from random temperatures, smoothed by 50 steps, and changes everywhere.
    """
    size = 640 if quick else 1792
    field = np.zeros((size + 2, size + 2), dtype)
    inside = field[1:-1, 1:-1]
    inside[:] = 300.0 + 50.0 * np.random.default_rng(0).standard_normal((size, size))
    change = np.empty_like(inside)

    def step() -> None:
        np.multiply(inside, dtype(-4.0), out=change)
        for neighbour in (field[:-2, 1:-1], field[2:, 1:-1], field[1:-1, :-2], field[1:-1, 2:]):
            np.add(change, neighbour, out=change)
        np.multiply(change, dtype(0.2), out=change)
        np.add(inside, change, out=inside)

    for _ in range(50):
        step()
    for _ in range(CHECKPOINTS):
        for _ in range(10):
            step()
        yield {"temperature": field}


# --- particles --------------------------------------------------------------------------


def particles(quick: bool) -> Iterator[State]:  # noqa: FBT001
    """Positions in fp32, all of which drift and jitter."""
    rng, position = _cloud(quick)
    drift = np.array([1e-3, -5e-4, 2e-4], np.float32)
    for _ in range(CHECKPOINTS):
        yield {"position": position}
        position += drift + np.float32(1e-3) * rng.standard_normal(position.shape, np.float32)
        position %= np.float32(1.0)


def particles_sorted(quick: bool) -> Iterator[State]:  # noqa: FBT001
    """Positions of which 2 % move far; then all are sorted by cell again, so most shift."""
    rng, position = _cloud(quick)
    for _ in range(CHECKPOINTS):
        cell = (position * np.float32(32.0)).astype(np.int32)
        number = (cell[:, 0] * 32 + cell[:, 1]) * 32 + cell[:, 2]
        position = position[np.argsort(number, kind="stable")]
        yield {"position": position}
        moved = rng.choice(len(position), len(position) // 50, replace=False)
        position[moved] = rng.random((len(moved), 3), np.float32)


def particles_shuffled(quick: bool) -> Iterator[State]:  # noqa: FBT001
    """Positions that do not move, in another order each time: nothing new, nothing in place."""
    rng, position = _cloud(quick)
    for _ in range(CHECKPOINTS):
        position = position[rng.permutation(len(position))]
        yield {"position": position}


def _cloud(quick: bool) -> tuple[np.random.Generator, NDArray[np.float32]]:  # noqa: FBT001
    rng = np.random.default_rng(0)
    return rng, rng.random((400_000 if quick else 2_000_000, 3), np.float32)


# --- tables and counters ----------------------------------------------------------------


def embedding(updated_pct: float, quick: bool) -> Iterator[State]:  # noqa: FBT001
    """A table of fp32 rows of 256 bytes, of which some are updated in a step."""
    rng = np.random.default_rng(0)
    rows, width = (1 << 14 if quick else 1 << 17), 64
    table = rng.standard_normal((rows, width), np.float32)
    for _ in range(CHECKPOINTS):
        yield {"table": table}
        updated = rng.choice(rows, round(rows * updated_pct / 100), replace=False)
        table[updated] -= np.float32(1e-3) * rng.standard_normal(
            (len(updated), width), np.float32
        )


def counters(quick: bool) -> Iterator[State]:  # noqa: FBT001
    """Counters, u32, of which a random fifth grows a little."""
    rng = np.random.default_rng(0)
    count = rng.geometric(1e-3, (1 << 20 if quick else 1 << 23)).astype(np.uint32)
    for _ in range(CHECKPOINTS):
        yield {"count": count}
        touched = rng.random(len(count)) < 0.2
        count[touched] += rng.poisson(3.0, int(touched.sum())).astype(np.uint32) + np.uint32(1)


# --- made up ----------------------------------------------------------------------------


def random_words(changed_pct: float, quick: bool) -> Iterator[State]:  # noqa: FBT001
    """Noise, of which scattered words of 4 bytes become other noise."""
    rng, words = _noise(quick)
    for _ in range(CHECKPOINTS):
        yield {"words": words}
        count = round(len(words) * changed_pct / 100)
        changed = rng.choice(len(words), count, replace=False)
        words[changed] = rng.integers(0, 1 << 32, count, np.uint32)


def noise(quick: bool) -> Iterator[State]:  # noqa: FBT001
    """New noise each time: the worst case."""
    rng, words = _noise(quick)
    for _ in range(CHECKPOINTS):
        yield {"words": words}
        words[:] = rng.integers(0, 1 << 32, len(words), np.uint32)


def _noise(quick: bool) -> tuple[np.random.Generator, NDArray[np.uint32]]:  # noqa: FBT001
    rng = np.random.default_rng(0)
    return rng, rng.integers(0, 1 << 32, 1 << 20 if quick else 1 << 23, np.uint32)


_PARTS = {"fp32": "weights fp32", "bf16": "weights bf16", "adam": "Adam m and v fp32"}

STATES: dict[str, Source] = {
    **{
        f"{what}, {steps} step{'s' * (steps > 1)}": partial(training, part, steps)
        for part, what in _PARTS.items()
        for steps in (1, 10)
        if importlib.util.find_spec("torch")  # Without PyTorch its rows are left out.
    },
    "Gray-Scott fp64": reaction,
    "heat fp64": partial(heat, np.float64),
    "heat fp32": partial(heat, np.float32),
    "particles, all move": particles,
    "particles, 2 % move, sorted": particles_sorted,
    "particles, shuffled": particles_shuffled,
    "embedding, 1 % of rows": partial(embedding, 1.0),
    "embedding, 5 % of rows": partial(embedding, 5.0),
    "counters u32, 20 % touched": counters,
    "noise, unchanged": partial(random_words, 0.0),
    "noise, 0.1 % of words": partial(random_words, 0.1),
    "noise, 1 % of words": partial(random_words, 1.0),
    "noise, 5 % of words": partial(random_words, 5.0),
    "noise, all new": noise,
}
