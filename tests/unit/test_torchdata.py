"""torchdata's StatefulDataLoader and the sampler: one of the two keeps the position, not both.

Method: each way to combine them is stopped after every batch and gone on with.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckptflow.data import ResumableLoader, ResumableSampler
from ckptflow.errors import ConfigError, StateError
from ckptflow.testing.exactly_once import exactly_once, stop_everywhere

pytest.importorskip("torchdata")
StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # By torch; they call it.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
SAMPLES = 8


def sampler_of(**options: Any) -> ResumableSampler:
    return ResumableSampler(SAMPLES, **{"batch": 3, "seed": 4} | options)


def stateful(batch_sampler: Any, workers: int = 0) -> Any:
    return StatefulDataLoader(range(SAMPLES), batch_sampler=batch_sampler, num_workers=workers)


workers_too = pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids=lambda n: f"{n} workers"
)


@workers_too
def test_our_state_with_their_loader(workers: int) -> None:
    stop_everywhere(
        lambda: ResumableLoader(stateful(sampler_of(), workers)),
        lambda batch: batch,
        samples=SAMPLES,
    )


@workers_too
def test_their_state_with_our_sampler(workers: int) -> None:
    stop_everywhere(
        lambda: stateful(sampler_of().for_stateful_loader(), workers),
        lambda batch: batch,
        samples=SAMPLES,
    )


def test_what_their_workers_drew_ahead_is_not_lost() -> None:
    def make() -> Any:
        return stateful(sampler_of(batch=1).for_stateful_loader(), 2)

    with exactly_once(SAMPLES) as served:
        loader = make()
        for step, batch in enumerate(loader):
            served.add(batch)
            if step == 2:
                state = loader.state_dict()
                break
        again = make()
        again.load_state_dict(state)
        for batch in again:
            served.add(batch)


def test_both_serve_the_same_order_epoch_by_epoch() -> None:
    theirs, ours = stateful(sampler_of().for_stateful_loader()), sampler_of()
    for _ in range(3):
        assert [batch.tolist() for batch in theirs] == [b.tolist() for b in ours.batches()]


def test_an_epoch_left_early_is_followed_by_the_next() -> None:
    loader = stateful(sampler_of().for_stateful_loader())
    next(iter(loader))
    expected = sampler_of()
    expected.set_epoch(1)
    assert [b.tolist() for b in loader] == [b.tolist() for b in expected.batches()]


def test_their_state_goes_on_with_another_world() -> None:
    loader = stateful(sampler_of(batch=2).for_stateful_loader())
    first = next(iter(loader)).tolist()
    state, rest = loader.state_dict(), []
    for rank in range(2):
        mine = stateful(sampler_of(batch=2, rank=rank, world=2).for_stateful_loader())
        mine.load_state_dict(state)
        rest += [index for batch in mine for index in batch.tolist()]
    assert sorted(first + rest) == list(range(SAMPLES))


def test_their_state_of_another_data_set_is_refused() -> None:
    state = stateful(sampler_of().for_stateful_loader()).state_dict()
    other = stateful(sampler_of(seed=5).for_stateful_loader())
    other.load_state_dict(state)
    with pytest.raises(StateError, match="give the saved seed"):
        iter(other)


def test_their_state_with_a_sampler_that_they_do_not_keep_is_refused() -> None:
    """Else it would say that nothing was served."""
    loader = stateful(sampler_of())
    next(iter(loader))
    with pytest.raises(ConfigError, match="for_stateful_loader"):
        loader.state_dict()


def test_both_states_at_once_are_refused() -> None:
    loader = stateful(sampler_of())
    counting = ResumableLoader(loader)
    next(iter(counting))
    states = counting.state_dict(), loader.state_dict()
    again = ResumableLoader(stateful(sampler_of()))
    again.load_state_dict(states[0])
    again.loader.load_state_dict(states[1])
    with pytest.raises(
        ConfigError, match="Restore the ResumableLoader or its loader, not both"
    ):
        iter(again)
