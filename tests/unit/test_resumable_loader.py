"""A DataLoader's position is that of the loop, with any number of workers, to the bit.

Lives of a training follow each other in one process here, with everything made anew;
``tests/process/test_resumable_data.py`` kills real ones.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.data import ResumableLoader, ResumableSampler, SampleIndex, SeededDataset
from ckptflow.errors import ConfigError, StateError
from ckptflow.testing.exactly_once import stop_everywhere

torch = pytest.importorskip("torch")
data = torch.utils.data

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # On two cores.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
slow = pytest.mark.slow


class Squares:
    """Ten samples: a number, and its square with noise from all three global generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        noise = random.random() + np.random.random() + torch.rand(3)  # noqa: NPY002
        return index, torch.tensor([index, index**2, 1.0]) + noise


def make(
    workers: int = 0, *, persistent: bool = False, samples: Any = None, **options: Any
) -> ResumableLoader[Any]:
    dataset = SeededDataset(samples or Squares())
    sampler = ResumableSampler(dataset, **{"batch": 4, "seed": 3} | options)
    loader = data.DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, persistent_workers=persistent
    )
    return ResumableLoader(loader)


# --- position -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [
        (0, False),
        (2, False),
        pytest.param(2, True, marks=slow),
        pytest.param(4, False, marks=slow),
        pytest.param(4, True, marks=slow),
    ],
)
def test_stopped_anywhere_each_sample_is_served_once(workers: int, persistent: bool) -> None:
    epochs = 2 if workers == 0 or (workers == 2 and persistent) else 1
    stop_everywhere(
        lambda: make(workers, persistent=persistent),
        lambda batch: batch[0],
        samples=10,
        epochs=epochs,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_drew_ahead_does_not_count(workers: int) -> None:
    loader = make(workers, batch=2)
    assert [loader.sampler.consumed for _ in loader] == [2, 4, 6, 8, 10]
    assert (loader.epoch, len(loader)) == (1, 5)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_is_left_goes_on_with_the_same_workers(persistent: bool) -> None:
    loader = make(2, persistent=persistent, batch=2)
    found = []
    for numbers, _ in loader:
        found += numbers.tolist()
        if len(found) == 4:
            break
    state = loader.state_dict()
    loader.load_state_dict(state)
    found += [number for numbers, _ in loader for number in numbers.tolist()]
    assert found == [number for numbers, _ in make(batch=2) for number in numbers.tolist()]


def test_ranks_share_an_epoch_and_another_world_goes_on() -> None:
    def lives(*worlds: int) -> list[int]:
        found, state = [], None
        for world in worlds:
            ranks = [make(rank=rank, world=world, batch=1) for rank in range(world)]
            loops = []
            for loader in ranks:
                if state:
                    loader.load_state_dict(state)
                loops.append(iter(loader))
            for _ in range(2):
                for loop in loops:
                    found += next(loop, ([], None))[0]
            state = ranks[0].state_dict()
        return found

    found = [int(number) for number in lives(1, 2, 3, 1)]
    assert sorted(found) == list(range(10))


def test_a_load_after_iter_is_refused() -> None:
    for workers in (0, 2):
        loader = make(workers)
        state = loader.state_dict()
        loop = iter(loader)
        with pytest.raises(StateError, match="an iteration has begun"):
            loader.load_state_dict(state)
        assert loader.state_mismatch(state)
        del loop
        loader.load_state_dict(state)


def test_a_load_after_iter_of_the_bare_loader_is_refused() -> None:
    """Its workers have drawn batches already, which would come from the old position."""
    loader = make(2)
    state = loader.state_dict()
    loop = iter(loader.loader)
    with pytest.raises(StateError, match=r"an iteration has begun .*batches drawn"):
        loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="nobody counts"):
        loader.state_dict()
    del loop


# --- what is refused ------------------------------------------------------------------------


def test_the_sampler_is_that_of_the_loader() -> None:
    sampler = ResumableSampler(10, batch=4)
    batches = data.DataLoader(range(10), batch_sampler=sampler)
    assert ResumableLoader(batches).sampler is sampler
    whole = data.DataLoader(np.arange(10), sampler=sampler, batch_size=None)
    assert ResumableLoader(whole).sampler is sampler
    assert sorted(torch.cat([*ResumableLoader(whole)]).tolist()) == list(range(10))


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 2, "shuffle": True}, {"sampler": ResumableSampler(10, batch=2)}],
    ids=["no sampler", "as single samples"],
)
def test_a_loader_that_does_not_draw_batches_from_it_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="does not draw its batches from a ResumableSampler"):
        ResumableLoader(data.DataLoader(range(10), **options))


def test_a_loader_of_another_order_than_it_draws_in_is_refused() -> None:
    loader = data.DataLoader(
        range(10), batch_sampler=ResumableSampler(10, batch=2), num_workers=2, in_order=False
    )
    with pytest.raises(ConfigError, match="in_order=False"):
        ResumableLoader(loader)


def test_ranks_are_those_of_torch_distributed() -> None:
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", rank=1, world_size=3, store=fake.FakeStore())
    try:
        sampler = ResumableSampler(10, batch=2)
        assert (sampler.rank, sampler.world) == (1, 3)
        alone = ResumableSampler(10, batch=2, rank=0, world=1)
        assert (alone.rank, alone.world) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


# --- bits -----------------------------------------------------------------------------------


class Training:
    """A model with dropout on samples with noise, in a process of its own, so to speak."""

    def __init__(self, store: Path, workers: int, *, persistent: bool = False) -> None:
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)  # noqa: NPY002
        self.loader = make(workers, persistent=persistent)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.3))
        self.ckpt = cf.Checkpointer(store, model=self.model, data=self.loader, every=1)
        self.step = self.ckpt.resume()

    def run(self, until: int) -> str:
        """Train until ``until`` steps are done in all; return the bits of the model."""
        with self.ckpt:
            while self.step < until:
                for _, samples in self.loader:
                    self.model.zero_grad()
                    self.model(samples).square().sum().backward()
                    with torch.no_grad():
                        for weight in self.model.parameters():
                            weight.sub_(1e-4 * weight.grad)
                    self.ckpt.step(self.step)
                    self.step += 1
                    if self.step == until:
                        break
        # Workers that stay end now. Those of garbage end when it is collected, 5 s for each.
        self.loader.loader._iterator = None
        weights = [
            tensor.detach().numpy().tobytes().hex() for tensor in self.model.parameters()
        ]
        return " ".join([*weights, str(random.random()), str(torch.rand(()).item())])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Training(tmp_path_factory.mktemp("undisturbed"), 0).run(7)


@pytest.mark.parametrize("stops", [(3,), (2, 5), (1, 3, 4, 6)], ids=str)
def test_a_training_that_was_stopped_has_the_same_bits(
    stops: tuple[int, ...], undisturbed: str, tmp_path: Path
) -> None:
    for stop in stops:
        Training(tmp_path, 0).run(stop)
    assert Training(tmp_path, 0).run(7) == undisturbed


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(2, False), pytest.param(2, True, marks=slow), pytest.param(4, False, marks=slow)],
)
def test_workers_change_no_bits(
    workers: int, persistent: bool, undisturbed: str, tmp_path: Path
) -> None:
    Training(tmp_path, workers, persistent=persistent).run(5)
    assert Training(tmp_path, 0).run(6) != undisturbed
    assert Training(tmp_path, workers, persistent=persistent).run(7) == undisturbed


def test_beginning_a_loop_draws_nothing_from_the_global_generators() -> None:
    before = torch.get_rng_state()
    for workers in (0, 2):
        for _ in make(workers):
            break
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_are_seeded_differently_in_each_epoch() -> None:
    """Whoever does without SeededDataset gets other numbers in each epoch, as in torch."""

    class Bare(Squares):
        def __getitem__(self, index: int) -> Any:
            return float(torch.rand(()))

    sampler = ResumableSampler(10, batch=10)
    loader = ResumableLoader(data.DataLoader(Bare(), batch_sampler=sampler, num_workers=1))
    assert len({tuple(batch.tolist()) for _ in range(2) for batch in loader}) == 2


# --- what passes through --------------------------------------------------------------------


def test_an_error_of_the_data_set_stays_what_it_is() -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError(f"cannot read {index}")

    loader = make(samples=Broken())
    with pytest.raises(RuntimeError, match="cannot read"):
        list(loader)
    loader.load_state_dict(loader.state_dict())


def test_indices_reach_workers_with_their_epoch() -> None:
    class Names(Squares):
        def __getitem__(self, index: SampleIndex) -> Any:
            return index.epoch

    sampler = ResumableSampler(10, batch=10)
    sampler.set_epoch(3)
    loader = data.DataLoader(Names(), batch_sampler=sampler, num_workers=1)
    assert set(next(iter(ResumableLoader(loader))).tolist()) == {3}
