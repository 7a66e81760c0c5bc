"""Randomness that belongs to a sample, and not to the worker or the moment that loads it.

A loader's workers have generators of their own, so what an augmentation draws depends on which
worker loads a sample and what it loaded before; after a restart that is another one. Here each
sample has a seed of its own in each epoch,
:func:`~ckptflow.data.samples.permutation.sample_seed`. Indices that a sampler gives to a loader
carry it, also into other processes.

torch is taken from ``sys.modules``. ``tests/unit/test_sample_randomness.py`` and, in loaders
with workers, ``tests/unit/test_resumable_loader.py``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np

from ckptflow.data.samples.permutation import sample_seed
from ckptflow.errors import ConfigError


class SampleIndex(int):
    """Index of a sample, as a sampler gives it to a loader: an ``int`` that knows its epoch."""

    seed: int
    epoch: int

    def __new__(cls, index: int, seed: int, epoch: int) -> Self:
        """Return ``index`` with the seed of the sampler and the epoch."""
        made = super().__new__(cls, index)
        made.seed, made.epoch = seed, epoch
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return SampleIndex, (int(self), self.seed, self.epoch)

    @property
    def sample_seed(self) -> int:
        """Seed, 64 bits, of the randomness of this sample in this epoch."""
        return sample_seed(self.seed, self.epoch, int(self))

    def rng(self) -> np.random.Generator:
        """Return a new generator for this sample in this epoch."""
        return np.random.default_rng(self.sample_seed)


class Samples(Protocol):
    """A data set whose samples can be asked for one by one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class SeededDataset:
    """A data set whose random transforms depend on (seed, epoch, index) alone.

    While a sample is loaded, the global generators that transforms use (Python's ``random``,
    NumPy's legacy one, torch's on the CPU) are seeded for it; afterwards they are as before, so
    that loading does not disturb what else draws from them. Put it outermost, around whatever
    combines data sets, because it needs the index that comes from the sampler.

    Args:
        dataset: has ``len()`` and takes an index.
    """

    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if not isinstance(index, SampleIndex):
            raise ConfigError(
                f"SeededDataset was asked for {index!r}, which belongs to no epoch. Indices "
                "have to come from a ResumableSampler, as batch_sampler= of the loader."
            )
        with seeded(index.sample_seed):
            return self.dataset[int(index)]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators on the CPU; on leaving they are as before.

    In a worker of a ``DataLoader`` they stay as they are then: nothing else draws there, and
    putting them back takes longer than many samples.
    """
    torch: Any = sys.modules.get("torch")
    saved = None if _in_worker() else _states(torch)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
    if torch is not None:
        torch.default_generator.manual_seed(seed)  # manual_seed would reach for devices, too.
    try:
        yield
    finally:
        if saved is not None:
            _set_states(torch, *saved)


def _in_worker() -> bool:
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _states(torch: Any) -> tuple[Any, Any, Any]:
    of_torch = None if torch is None else torch.get_rng_state()
    return random.getstate(), np.random.get_state(legacy=False), of_torch  # noqa: NPY002


def _set_states(torch: Any, of_python: Any, of_numpy: Any, of_torch: Any) -> None:
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002
    if torch is not None:
        torch.set_rng_state(of_torch)
