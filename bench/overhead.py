"""What checkpoints cost a training loop of PyTorch, with one every 1, 10 and 50 iterations.

A convolutional network on the digits of scikit-learn, with batch normalization, and a
transformer on generated text, both with Adam: every word of their state changes in each step.
Each way trains a model of its own; all take their turns, round by round, and a turn ends when
what it saved is durable. A restored model is compared bit by bit.

*allowed* is what the machine lets a loop do at best that makes all of its state durable in each
iteration: an iteration is no shorter than its computing, than one write of the bytes with
fsync, and than the processor time of both over the cores. *floor* is a loop that does nothing
but that: a thread writes the bytes as they lie, without a copy, a digest or a name, and the
next write waits for the one before. A core is left for what is not training, unless
``--threads`` says otherwise.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflows"))
sys.path.insert(0, str(Path(__file__).parent))
import digits
import torch
from numpy.typing import NDArray
from report import Claim, Row, filesystem, finish, parser, ratio, require, write_section
from torch import nn
from updates import Timed, write_synced

from ckptflow.checkpointer import Checkpointer

EVERY = (50, 10, 1)
ITERATIONS, ROUNDS = 50, 6
QUICK_ROUNDS = 2
BATCH_IMAGES, CHANNELS, HIDDEN = 128, 64, 768
BATCH_TEXTS, LENGTH, SYMBOLS, WIDTH, LAYERS = 8, 64, 64, 192, 2
WRITES = 5
NONE, FLOOR = "none", "floor, every 1"
FAR_AWAY = 10**9  # A step that no training gets to.
GOAL_OF_NONE, GOAL_OF_ALLOWED = 0.965, 0.9

Batches: TypeAlias = Iterator[tuple[torch.Tensor, torch.Tensor]]


def main() -> None:
    args = command_line()
    torch.set_num_threads(args.threads)
    rounds, iterations = (QUICK_ROUNDS if args.quick else ROUNDS), ITERATIONS
    if args.tiny:
        rounds, iterations = 1, 2
    rows: list[Row] = []
    claims: list[Claim] = []
    limits: list[str] = []
    for name, make in TRAININGS.items():
        with tempfile.TemporaryDirectory(prefix="ckptflow-bench-", dir=args.folder) as folder:
            found = measure(Path(folder), make, rounds, iterations)
        rows += rows_of(name, found)
        claims += claims_of(name, found)
        limits.append(limit_of(name, found))
    print("\n".join(limits))
    title = f"training, {args.threads} of {os.cpu_count()} cores"
    finish(title, rows, claims, args.json)
    if args.markdown is not None:
        folder = args.folder or Path(tempfile.gettempdir())
        notes = [f"Files are on {filesystem(folder)}.", *limits]
        tables = {title: rows}
        heading = "What checkpoints cost a training"
        write_section(args.markdown, heading, __doc__, tables, claims, notes=notes)


def command_line() -> Namespace:
    given = parser(__doc__)
    given.add_argument("--tiny", action="store_true", help="only look whether everything works")
    given.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    given.add_argument("--folder", type=Path, help="where files go; TMPDIR if not given")
    given.add_argument("--markdown", type=Path, metavar="PATH", help="write the table there")
    return given.parse_args()


# --- what is trained --------------------------------------------------------------------


class Training:
    """A model, its optimizer, and batches without an end."""

    def __init__(self, model: nn.Module, batches: Batches) -> None:
        self.model, self._batches = model, batches
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(self) -> None:
        inputs, targets = next(self._batches)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor of the state, by name."""
        states = self.optimizer.state_dict()["state"]
        return dict(self.model.state_dict()) | {
            f"{number}.{name}": value
            for number, values in states.items()
            for name, value in values.items()
        }


def convolutional() -> Training:
    """Classify digits of 8 by 8 pixels."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * CHANNELS, HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(HIDDEN, digits.CLASSES),
    )
    data = digits.load()
    images = torch.from_numpy(data.train_images.astype(np.float32)).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(data.train_labels)

    def batches_of_images() -> Batches:
        rng = np.random.default_rng(0)
        while True:
            chosen = torch.from_numpy(rng.integers(0, len(labels), BATCH_IMAGES))
            yield images[chosen], labels[chosen]

    return Training(model, batches_of_images())


class NextSymbol(nn.Module):
    """A transformer that guesses each next symbol of a text."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=4 * WIDTH, batch_first=True, norm_first=True
        )
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.guess = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False
        )

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return a row of scores for every symbol of every text, one text after the other."""
        inner = self.blocks(self.symbols(text) + self.places, mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.guess(inner)
        return scores.reshape(-1, SYMBOLS)


def transformer() -> Training:
    """Learn texts in which each symbol depends on the one before."""
    torch.manual_seed(0)

    def batches_of_texts() -> Batches:
        rng = np.random.default_rng(0)
        successors = rng.integers(0, SYMBOLS, (SYMBOLS, 4))
        while True:
            text = np.empty((BATCH_TEXTS, LENGTH + 1), np.int64)
            text[:, 0] = rng.integers(0, SYMBOLS, BATCH_TEXTS)
            for place in range(LENGTH):
                text[:, place + 1] = successors[text[:, place], rng.integers(0, 4, BATCH_TEXTS)]
            whole = torch.from_numpy(text)
            yield whole[:, :-1], whole[:, 1:].reshape(-1)

    return Training(NextSymbol(), batches_of_texts())


TRAININGS: dict[str, Callable[[], Training]] = {
    "convnet": convolutional,
    "transformer": transformer,
}


# --- how its state is kept --------------------------------------------------------------


class Keeper:
    """Keeps nothing of a training."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def after(self, number: int) -> bool:  # noqa: ARG002 - the others need it.
        """Keep the state after a step, if it is time; tell whether it was."""
        return False

    def wait(self) -> None:
        """Wait until what was kept is durable."""

    def close(self) -> None:
        """Let go of everything, and check it."""


class Checkpoints(Keeper):
    """Checkpoints of ckptflow, as a program makes them that says no more than how often."""

    def __init__(self, folder: Path, make: Callable[[], Training], every: int) -> None:
        super().__init__(make())
        self._folder, self._make, self._every = folder, make, every
        self._checkpointer = self._open(self.training)
        self._checkpointer.resume()  # As every program begins; there is nothing yet.
        self.saves = 0

    def _open(self, training: Training) -> Checkpointer:
        return Checkpointer(
            self._folder, keep=2, model=training.model, optim=training.optimizer
        )

    def after(self, number: int) -> bool:
        if (number + 1) % self._every:
            return False
        self._checkpointer.save(number)
        self.saves += 1
        return True

    def wait(self) -> None:
        self._checkpointer.wait()

    @property
    def stored_bytes(self) -> float:
        """Bytes of a checkpoint, on average."""
        return self._checkpointer.written_bytes[1] / max(1, self.saves)

    def close(self) -> None:
        """Save once more, restore, and compare.

        Raises:
            WrongResult: something restored is not what was saved.
        """
        self._checkpointer.save(FAR_AWAY)
        self._checkpointer.close()
        restored = self._make()
        restored.step()  # Which makes the optimizer's tensors, and wrong ones.
        with self._open(restored) as checkpointer:
            checkpointer.resume()
        right, got = self.training.tensors(), restored.tensors()
        same = right.keys() == got.keys() and all(
            torch.equal(right[name], got[name]) for name in right
        )
        require(same, "the restored training is the saved one")


class Floor(Keeper):
    """Writes the bytes of the state as they lie, whatever happens to them meanwhile."""

    def __init__(self, folder: Path, training: Training) -> None:
        super().__init__(training)
        self._folder = folder
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def after(self, number: int) -> bool:
        self.wait()
        self._last = self._thread.submit(self._write, number)
        return True

    def _write(self, number: int) -> None:
        write_synced(self._folder / str(number), arrays_of(self.training))
        (self._folder / str(number - 1)).unlink(missing_ok=True)

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        self._thread.shutdown()


def arrays_of(training: Training) -> dict[str, NDArray[np.float32]]:
    """Return the memory of all tensors, as flat arrays."""
    return {name: one.detach().numpy().reshape(-1) for name, one in training.tensors().items()}


# --- measuring --------------------------------------------------------------------------


@dataclass(slots=True)
class Measured:
    """What was found of one training, by the way its state was kept.

    Attributes:
        turns_s: how long each turn took, until everything was durable.
        steps_s: how long each iteration took, with what was done for its checkpoint.
        calls_s: how long the calls that saved took.
        cpu_s: processor time of an iteration of a training that keeps nothing.
        write_s, write_cpu_s: of the bytes of the state as one file, with fsync.
    """

    iterations: int
    cores: int = os.cpu_count() or 1
    state_bytes: int = 0
    turns_s: dict[str, list[float]] = field(default_factory=dict)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    calls_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: list[float] = field(default_factory=list)
    write_s: list[float] = field(default_factory=list)
    write_cpu_s: list[float] = field(default_factory=list)
    stored_bytes: dict[str, float] = field(default_factory=dict)

    def share(self, way: str) -> float:
        """Return the throughput as a share of that without checkpoints."""
        return ratio(self.turns_s[NONE], self.turns_s[way])

    @property
    def shortest_s(self) -> float:
        """How short an iteration can be that makes the whole state durable."""
        both_s = statistics.median(self.cpu_s) + statistics.median(self.write_cpu_s)
        return max(self.step_s, statistics.median(self.write_s), both_s / self.cores)

    @property
    def step_s(self) -> float:
        """How long an iteration takes in a training that keeps nothing."""
        return statistics.median(self.turns_s[NONE]) / self.iterations


def measure(
    folder: Path, make: Callable[[], Training], rounds: int, iterations: int
) -> Measured:
    """Let all ways take turns; a first round warms up and is not counted."""
    (folder / "floor").mkdir()
    keepers: dict[str, Keeper] = {NONE: Keeper(make())}
    for every in EVERY:
        keepers[f"{every}"] = Checkpoints(folder / f"every-{every}", make, every)
    keepers[FLOOR] = Floor(folder / "floor", make())
    found = Measured(iterations)
    for number in range(rounds + 1):
        names = list(keepers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turn = Turn(keepers[name], first=number * iterations, iterations=iterations)
            if number:
                found.turns_s.setdefault(name, []).append(turn.seconds)
                found.steps_s.setdefault(name, []).extend(turn.steps_s)
                found.calls_s.setdefault(name, []).extend(turn.calls_s)
            if number and name == NONE:
                found.cpu_s.append(turn.cpu_s / iterations)
        for _ in range(WRITES):
            time_write(folder / "written", keepers[NONE].training, found)
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    for name, keeper in keepers.items():
        if isinstance(keeper, Checkpoints):
            found.stored_bytes[name] = keeper.stored_bytes
        keeper.close()
    return found


class Turn:
    """Some iterations, and the wait until what they kept is durable."""

    def __init__(self, keeper: Keeper, *, first: int, iterations: int) -> None:
        self.steps_s: list[float] = []
        self.calls_s: list[float] = []
        began, began_cpu_s = time.perf_counter(), time.process_time()
        for number in range(first, first + iterations):
            with Timed() as whole:
                keeper.training.step()
                with Timed() as call:
                    saved = keeper.after(number)
            self.steps_s.append(whole.seconds)
            if saved:
                self.calls_s.append(call.seconds)
        keeper.wait()
        self.seconds = time.perf_counter() - began
        self.cpu_s = time.process_time() - began_cpu_s


def time_write(path: Path, training: Training, found: Measured) -> None:
    arrays = arrays_of(training)
    found.state_bytes = sum(array.nbytes for array in arrays.values())
    began_cpu_s = time.process_time()
    with Timed() as wrote:
        write_synced(path, arrays)
    found.write_s.append(wrote.seconds)
    found.write_cpu_s.append(time.process_time() - began_cpu_s)
    path.unlink()


# --- telling ----------------------------------------------------------------------------


def rows_of(training: str, found: Measured) -> list[Row]:
    """Return a row for each way, and one for what the machine allows."""
    rows: list[Row] = []
    alone_s = sorted(found.steps_s[NONE])
    for way in (NONE, *map(str, EVERY), FLOOR):
        turns_s, calls_s = found.turns_s[way], found.calls_s[way]
        steps_s = sorted(found.steps_s[way])
        saves = len(calls_s) / len(turns_s)
        extra_s = statistics.median(turns_s) - statistics.median(found.turns_s[NONE])
        rows.append(
            {
                "training": training,
                "every": way,
                "iterations/s": found.iterations / statistics.median(turns_s),
                "% of none": 100 * found.share(way),
                "call, ms": 1e3 * statistics.median(calls_s) if calls_s else "-",
                "all a save costs, ms": 1e3 * extra_s / saves if saves else "-",
                "p50 × none": quantile(steps_s, 0.5) / quantile(alone_s, 0.5),
                "p95 × none": quantile(steps_s, 0.95) / quantile(alone_s, 0.95),
                "MB a save": found.stored_bytes.get(way, found.state_bytes) / 1e6
                if saves
                else "-",
            }
        )
    allowed = {
        "training": training,
        "every": "allowed, every 1",
        "iterations/s": 1 / found.shortest_s,
        "% of none": 100 * found.step_s / found.shortest_s,
    }
    empty = dict.fromkeys(list(rows[0])[len(allowed) :], "-")
    return [*rows, allowed | empty | {"MB a save": found.state_bytes / 1e6}]


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that a share of all does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def limit_of(training: str, found: Measured) -> str:
    """Say how the shortest iteration comes about."""
    return (
        f"{training}: an iteration takes {1e3 * found.step_s:.3g} ms, "
        f"{1e3 * statistics.median(found.cpu_s):.3g} ms of processor time; "
        f"its {found.state_bytes / 1e6:.3g} MB are written and synced in "
        f"{1e3 * statistics.median(found.write_s):.3g} ms, "
        f"{1e3 * statistics.median(found.write_cpu_s):.3g} ms of processor time; "
        f"there are {found.cores} cores. So an iteration that makes all of it durable takes "
        f"{1e3 * found.shortest_s:.3g} ms at least."
    )


def claims_of(training: str, found: Measured) -> list[Claim]:
    every_1 = found.share("1")
    return [
        Claim(f"{training}_every_50_over_none", found.share("50"), ">=", GOAL_OF_NONE),
        Claim(f"{training}_every_10_over_none", found.share("10"), ">=", GOAL_OF_NONE),
        Claim(
            f"{training}_every_1_over_allowed",
            every_1 * found.shortest_s / found.step_s,
            ">=",
            GOAL_OF_ALLOWED,
        ),
        Claim(
            f"{training}_every_1_over_floor",
            every_1 / found.share(FLOOR),
            ">=",
            GOAL_OF_ALLOWED,
        ),
    ]


if __name__ == "__main__":
    main()
