"""The lives of a training that `test_resumable_data.py` looks at: each is a process, killed.

One program forks them all, so that torch is imported once. A life goes on from the newest
checkpoint, and writes down, in the order in which things happen: where it resumed, and each
batch that its loop got, with the position after it. ``served_lives.py FOLDER WORKERS MOMENTS``;
without workers ("none") there is no torch. MOMENTS is "every", or a number of random ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ckptflow.checkpointer import Checkpointer  # Now, and not in each life.
from ckptflow.data import ResumableLoader, ResumableSampler, SeededDataset

SAMPLES, BATCH, EPOCHS = 5, 3, 2
MOMENTS = ("drawn", "saved")  # Of a step: before its checkpoint, and when that is durable.


class Noisy:
    """Samples that draw from a global generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()


class Plain:
    """The same samples, loaded by the loop itself."""

    def __init__(self, dataset: SeededDataset, sampler: ResumableSampler) -> None:
        self.dataset, self.sampler = dataset, sampler

    def __iter__(self) -> Any:
        for indices in self.sampler:
            samples = [self.dataset[index] for index in indices]
            yield [index for index, _ in samples], [noise for _, noise in samples]


def loader_of(workers: str) -> ResumableLoader[Any]:
    dataset = SeededDataset(Noisy())
    sampler = ResumableSampler(dataset, batch=BATCH, seed=3)
    loader: Iterable[Any] = Plain(dataset, sampler)
    if workers != "none":
        from torch.utils.data import DataLoader

        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=int(workers))
    return ResumableLoader(loader, sampler)


def live(folder: Path, workers: str, at: Callable[[int, str], None]) -> None:
    """Go on to the end, unless ``at``, which is told each moment, ends it before."""
    random.seed(1)
    loader, sums = loader_of(workers), np.zeros(2)
    with (
        (folder / "log").open("a", buffering=1) as log,
        Checkpointer(folder / "store", sums={"sums": sums}, data=loader) as ckpt,
    ):
        step = ckpt.resume()
        log.write(json.dumps({"resumed": [loader.epoch, loader.sampler.consumed]}) + "\n")
        while loader.epoch < EPOCHS:
            epoch = loader.epoch
            for numbers, noise in loader:
                samples = [int(number) for number in numbers]
                at_position = [epoch, loader.sampler.consumed]
                log.write(json.dumps({"samples": samples, "position": at_position}) + "\n")
                sums += [sum(samples), float(sum(noise)) + random.random()]
                at(step, "drawn")
                ckpt.save(step).wait(0)
                at(step, "saved")
                step += 1
        log.write(json.dumps({"end": sums.tobytes().hex()}) + "\n")


def in_a_process(body: Callable[[], None]) -> int:
    """Run in a child; return its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return pid


def undisturbed(folder: Path, workers: str) -> None:
    own = folder / "undisturbed"
    own.mkdir()
    pid = in_a_process(lambda: live(own, workers, lambda *_: None))
    assert os.waitpid(pid, 0)[1] == 0


def kill_at_every_moment(folder: Path, workers: str) -> None:
    """Kill each life at the moment after that at which the one before was killed."""
    own = folder / "killed"
    own.mkdir()
    for step in range(EPOCHS * -(-SAMPLES // BATCH)):
        for moment in MOMENTS:

            def die(now: int, what: str, then: tuple[int, str] = (step, moment)) -> None:
                if (now, what) == then:
                    os.kill(os.getpid(), signal.SIGKILL)

            pid = in_a_process(lambda die=die: live(own, workers, die))
            assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    pid = in_a_process(lambda: live(own, workers, lambda *_: None))
    assert os.waitpid(pid, 0)[1] == 0


def kill_at_random(folder: Path, workers: str, kills: int, whole_s: float) -> None:
    """Kill, again and again, after a time drawn from what an undisturbed life takes."""
    rng, killed, runs = random.Random(5), 0, 0
    while killed < kills:
        own = folder / str(runs)
        own.mkdir()
        while not (own / "log").exists() or '"end"' not in (own / "log").read_text():
            pid = in_a_process(lambda own=own: live(own, workers, lambda *_: None))
            if killed < kills:
                time.sleep(whole_s * rng.random())
                os.kill(pid, signal.SIGKILL)  # If it has ended, it waits to be asked how.
                killed += 1
            os.waitpid(pid, 0)
        runs += 1


def main(folder: Path, workers: str, moments: str) -> None:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if workers != "none":
        import torch

        torch.set_num_threads(1)
    began_s = time.monotonic()
    undisturbed(folder, workers)
    if moments == "every":
        kill_at_every_moment(folder, workers)
    else:
        kill_at_random(folder, workers, int(moments), time.monotonic() - began_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
