"""Each sample is served once an epoch, whoever asks, however often, and wherever they die.

Method: a run of several lives. In each, some ranks with some batch size go on from what the
life before had saved, in lockstep, save after every step, and die after some more, of which
nothing is left. What was served before the saves is held against the samples that there are.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import ResumableSampler
from ckptflow.data.samples.cutting import Tail

Log = list[tuple[int, int]]  # Epoch and sample, in the order in which they were served.


@dataclass(frozen=True)
class Life:
    """Ranks, the batch of each, the steps that are saved, and those that are lost."""

    world: int
    batch: int
    saved: int
    lost: int


lives = st.builds(
    Life,
    world=st.integers(1, 5),
    batch=st.integers(1, 6),
    saved=st.integers(0, 9),
    lost=st.integers(0, 4),
)


def ranks_of(life: Life, samples: int, tail: Tail, state: Any) -> list[ResumableSampler]:
    ranks = [
        ResumableSampler(
            samples, batch=life.batch, seed=3, tail=tail, rank=rank, world=life.world
        )
        for rank in range(life.world)
    ]
    for sampler in ranks:
        if state is not None:
            sampler.load_state_dict(state)
    return ranks


def run_epoch(ranks: list[ResumableSampler], steps: int, log: Log) -> tuple[int, Any]:
    """Go on for at most so many steps; return how many it were, and what was saved last."""
    epoch, loops = ranks[0].epoch, [sampler.batches() for sampler in ranks]
    saved = agreed(ranks)
    for step in range(steps):
        batches = [next(loop, None) for loop in loops]
        if batches[0] is None:  # Rank 0 has as many as any: the epoch is over for all.
            assert {sampler.epoch for sampler in ranks} == {epoch + 1}
            return step, agreed(ranks)
        log += [(epoch, int(i)) for batch in batches if batch is not None for i in batch]
        saved = agreed([s for s, b in zip(ranks, batches, strict=True) if b is not None])
    return steps, saved


def agreed(ranks: list[ResumableSampler]) -> Any:
    """Return the state of the ranks, which is the same for all."""
    states = [sampler.state_dict() for sampler in ranks]
    assert all(state == states[0] for state in states)
    return states[0]


def run(life: Life, samples: int, tail: Tail, state: Any, epochs: int, log: Log) -> Any:
    ranks, left = ranks_of(life, samples, tail, state), life.saved
    while left and ranks[0].epoch < epochs:
        steps, state = run_epoch(ranks, left, log)
        left -= max(steps, 1)
    if life.lost and ranks[0].epoch < epochs:
        run_epoch(ranks_of(life, samples, tail, state), life.lost, [])
    return json.loads(json.dumps(state))


def served(samples: int, tail: Tail, all_lives: list[Life], epochs: int) -> Log:
    log: Log = []
    state = None
    for life in all_lives:
        state = run(life, samples, tail, state, epochs, log)
    last = Life(world=1, batch=3, saved=10_000, lost=0)
    run(last, samples, tail, state, epochs, log)
    return log


@given(samples=st.integers(1, 40), all_lives=st.lists(lives, max_size=5))
def test_each_sample_is_served_exactly_once_an_epoch(
    samples: int, all_lives: list[Life]
) -> None:
    log = served(samples, "short", all_lives, epochs=2)
    assert Counter(log) == Counter((e, i) for e in range(2) for i in range(samples))


@given(samples=st.integers(30, 60), all_lives=st.lists(lives, max_size=5))
def test_dropping_leaves_out_but_never_repeats(samples: int, all_lives: list[Life]) -> None:
    log = served(samples, "drop", all_lives, epochs=2)
    most = max(life.world * life.batch for life in [*all_lives, Life(1, 3, 0, 0)])
    for epoch in range(2):
        seen = Counter(index for e, index in log if e == epoch)
        assert set(seen.values()) == {1}
        assert samples - most < len(seen) <= samples


@given(samples=st.integers(1, 40), all_lives=st.lists(lives, max_size=5))
def test_padding_leaves_nothing_out(samples: int, all_lives: list[Life]) -> None:
    log = served(samples, "pad", all_lives, epochs=2)
    assert set(log) == {(e, i) for e in range(2) for i in range(samples)}


@given(samples=st.integers(1, 40), all_lives=st.lists(lives, max_size=4))
def test_the_order_is_that_of_a_run_without_a_stop(samples: int, all_lives: list[Life]) -> None:
    """For one rank: what is served is, in its order, what would have been served."""
    alone = [Life(1, life.batch, life.saved, life.lost) for life in all_lives]
    assert served(samples, "short", alone, epochs=2) == served(samples, "short", [], epochs=2)


@given(
    samples=st.integers(1, 2**61),
    batch=st.integers(1, 100),
    world=st.integers(1, 100),
    part=st.floats(0, 1),
)
def test_a_position_anywhere_is_reached_at_once(
    samples: int, batch: int, world: int, part: float
) -> None:
    rank = world - 1
    sampler = ResumableSampler(samples, batch=batch, rank=rank, world=world)
    state = sampler.state_dict() | {"consumed": min(int(part * samples), samples - 1)}
    sampler.load_state_dict(state)
    for indices in sampler.batches():
        assert ((indices >= 0) & (indices < samples)).all()
        assert state["consumed"] < sampler.consumed <= samples
        break
    else:  # Fewer samples than ranks are left, and this is the last rank.
        assert samples - state["consumed"] < world
