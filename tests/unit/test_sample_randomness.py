"""What is drawn for a sample follows from (seed, epoch, index), and disturbs nothing else."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

from ckptflow.data import SampleIndex, SeededDataset, sample_seed
from ckptflow.errors import ConfigError


class Noisy:
    """A data set that draws from the global generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        assert type(index) is int
        return index, random.random(), float(np.random.standard_normal())  # noqa: NPY002


def test_an_index_is_an_int_that_knows_its_epoch() -> None:
    index = SampleIndex(4, seed=7, epoch=2)
    assert index == 4
    assert ["a", "b", "c", "d", "e"][index] == "e"
    for again in (pickle.loads(pickle.dumps(index)), copy.deepcopy(index)):
        assert type(again) is SampleIndex
        assert (again, again.seed, again.epoch) == (4, 7, 2)


def test_a_generator_of_a_sample_is_that_of_its_seed() -> None:
    index = SampleIndex(4, seed=7, epoch=2)
    assert index.sample_seed == sample_seed(7, 2, 4)
    expected = np.random.default_rng(sample_seed(7, 2, 4)).random(3)
    assert np.array_equal(index.rng().random(3), expected)


def test_a_seeded_data_set_draws_the_same_in_any_order() -> None:
    data = SeededDataset(Noisy())
    forward = [data[SampleIndex(i, 7, 0)] for i in range(10)]
    backward = [data[SampleIndex(i, 7, 0)] for i in reversed(range(10))][::-1]
    assert forward == backward
    assert len({drawn for _, drawn, _ in forward}) == 10
    assert len(data) == 10


def test_another_epoch_or_seed_draws_something_else() -> None:
    data = SeededDataset(Noisy())
    assert len({data[SampleIndex(3, seed, epoch)] for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_the_global_generators_are_left_as_they_were() -> None:
    data = SeededDataset(Noisy())
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    np.random.standard_normal()  # noqa: NPY002 -- It keeps a second number for the next call.
    before = random.getstate(), repr(np.random.get_state(legacy=False))  # noqa: NPY002
    data[SampleIndex(0, 7, 0)]
    assert (random.getstate(), repr(np.random.get_state(legacy=False))) == before  # noqa: NPY002


def test_they_are_as_well_when_loading_fails() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Any:
            random.random()
            raise OSError("no such file")

    before = random.getstate()
    with pytest.raises(OSError, match="no such file"):
        SeededDataset(Broken())[SampleIndex(0, 7, 0)]
    assert random.getstate() == before


def test_an_index_without_an_epoch_is_refused() -> None:
    with pytest.raises(ConfigError, match="asked for 3, which belongs to no epoch"):
        SeededDataset(Noisy())[3]
