"""A sampler counts what the loop gets, goes on at the end of an epoch, and refuses traps.

Nothing here needs torch.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from sample_loading import load

from ckptflow.data import ResumableLoader, ResumableSampler, SampleIndex, sample_seed
from ckptflow.errors import ConfigError, StateError
from ckptflow.testing.exactly_once import stop_everywhere


def make(samples: int = 10, **options: Any) -> ResumableSampler:
    return ResumableSampler(samples, **{"batch": 3, "seed": 1} | options)


def flat(batches: Any) -> list[int]:
    return [int(index) for indices in batches for index in indices]


# --- epochs ---------------------------------------------------------------------------------


def test_each_loop_is_an_epoch_in_another_order() -> None:
    sampler = make()
    epochs = [flat(sampler.batches()) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert sampler.epoch == 3


def test_a_batch_counts_as_soon_as_the_loop_has_it() -> None:
    sampler = make()
    assert [sampler.consumed for _ in sampler.batches()] == [3, 6, 9, 10]


def test_the_epoch_ends_when_the_loop_asks_for_more() -> None:
    """So what a program does after the last batch is not skipped by a restart after it."""
    sampler, loop = make(), None
    loop = sampler.batches()
    for _ in range(4):
        next(loop)
    assert (sampler.epoch, sampler.consumed, len(sampler)) == (0, 10, 0)
    state = sampler.state_dict()
    assert next(loop, None) is None
    assert (sampler.epoch, sampler.consumed, len(sampler)) == (1, 0, 4)

    again = make()
    again.load_state_dict(state)
    assert flat(again.batches()) == []
    assert again.epoch == 1
    assert flat(again.batches()) == flat(sampler.batches())


def test_a_loop_that_is_left_goes_on_where_it_was() -> None:
    sampler, expected = make(), flat(make().batches())
    found = []
    for indices in sampler.batches():
        found += indices.tolist()
        if len(found) == 6:
            break
    assert len(sampler) == 2
    assert found + flat(sampler.batches()) == expected


def test_an_epoch_can_be_set_and_setting_the_same_one_keeps_the_position() -> None:
    sampler = make()
    next(sampler.batches())
    sampler.set_epoch(0)
    assert sampler.consumed == 3
    sampler.set_epoch(7)
    assert (sampler.epoch, sampler.consumed) == (7, 0)
    with pytest.raises(ConfigError, match="counted from 0"):
        sampler.set_epoch(-1)


def test_lengths() -> None:
    sampler = make(world=2, rank=1, batch=2, samples=9)
    assert (len(sampler), sampler.batches_per_epoch) == (3, 3)
    next(sampler.batches())
    assert (len(sampler), sampler.batches_per_epoch) == (2, 3)
    assert repr(sampler) == (
        "<ResumableSampler: epoch 0, 4 of 9 samples consumed, rank 1 of 2>"
    )


# --- stopping -------------------------------------------------------------------------------


class Plain:
    """Batches of a sampler, as a loader that `stop_everywhere` can stop."""

    def __init__(self, sampler: ResumableSampler) -> None:
        self.state_dict = sampler.state_dict
        self.load_state_dict = sampler.load_state_dict
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return self._sampler.batches()


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (7, 2), (8, 2), (8, 3), (5, 9)])
def test_stopped_anywhere_each_sample_is_served_once(samples: int, batch: int) -> None:
    def loader() -> Plain:
        return Plain(make(samples, batch=batch))

    stops = stop_everywhere(loader, lambda indices: indices, samples=samples, epochs=3)
    assert stops == 3 * (-(-samples // batch) + 1) + 1


def test_stopped_anywhere_dropping_leaves_out_the_same() -> None:
    def loader() -> Plain:
        return Plain(make(11, batch=3, tail="drop"))

    stop_everywhere(loader, lambda indices: indices, samples=11, left_out=2)


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "0 samples has no order"),
        ({"samples": 2**62}, "has no order"),
        ({"batch": 0}, "A batch of 0 samples"),
        ({"seed": -1}, "does not fit 64 bits"),
        ({"seed": 2**64}, "does not fit 64 bits"),
        ({"tail": "cut"}, "tail='cut' is none of 'short', 'drop', 'pad'"),
        ({"rank": 2, "world": 2}, "Rank 2 of 2 is none"),
        ({"rank": 0}, "Rank 0 of None is none"),
        ({"world": 0, "rank": 0}, "Rank 0 of 0 is none"),
        ({"batch": 6, "rank": 0, "world": 2, "tail": "drop"}, "leaves nothing of 10 samples"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_a_load_in_the_middle_of_a_loop_is_refused() -> None:
    sampler, state = make(), make().state_dict()
    for _ in sampler.batches():
        with pytest.raises(StateError, match=r"an iteration has begun.*load before iter"):
            sampler.load_state_dict(state)
        assert sampler.state_mismatch(state)
    assert sampler.state_mismatch(state) is None
    sampler.load_state_dict(state)


def test_a_load_after_iter_is_refused() -> None:
    sampler, state = make(), make().state_dict()
    loop = sampler.batches()
    with pytest.raises(StateError, match="an iteration has begun"):
        sampler.load_state_dict(state)
    del loop
    sampler.load_state_dict(state)


def test_a_loop_does_not_go_on_after_the_position_was_set() -> None:
    sampler = make()
    loop = sampler.batches()
    next(loop)
    sampler.set_epoch(4)
    with pytest.raises(ConfigError, match="before the position was set to epoch 4"):
        next(loop)
    assert sampler.consumed == 0


def test_of_two_loops_the_newer_one_counts() -> None:
    sampler = make()
    old = sampler.batches()
    next(old)
    new = sampler.batches()
    next(new)
    with pytest.raises(ConfigError, match="Begin a new one"):
        next(old)
    del old
    assert sampler.consumed == 6
    assert len(flat(new)) == 4


# --- drawing and counting -------------------------------------------------------------------


def test_drawing_counts_nothing_and_indices_know_their_epoch() -> None:
    sampler = make()
    sampler.set_epoch(2)
    drawn = list(sampler)
    assert sampler.consumed == 0
    assert sorted(flat(drawn)) == list(range(10))
    index = drawn[0][0]
    assert isinstance(index, SampleIndex)
    assert (index.epoch, index.seed) == (2, 1)
    assert index.sample_seed == sample_seed(1, 2, int(index))


def test_a_state_is_refused_while_nobody_counts_what_is_drawn() -> None:
    sampler = make()
    loop = iter(sampler)
    assert sampler.state_dict()["consumed"] == 0
    next(loop)
    with pytest.raises(ConfigError, match=r"1 batches were drawn .* but nobody counts"):
        sampler.state_dict()


def test_the_same_epoch_is_not_drawn_again_if_nobody_counts() -> None:
    sampler = make()
    list(sampler)
    with pytest.raises(ConfigError, match=r"All batches were drawn .* but nobody counts"):
        iter(sampler)
    sampler.set_epoch(1)
    assert sorted(flat(sampler)) == list(range(10))


def test_a_loop_over_something_else_can_count_by_itself() -> None:
    sampler, found = make(), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in sampler:
            found += flat([batch])
            sampler.advance()
            assert sampler.state_dict()["consumed"] == len(found) % 10
    assert sampler.epoch == 2
    assert found == flat([*make().batches()]) + flat(epoch_1())
    with pytest.raises(ConfigError, match="Cannot advance by 5 of 4 batches"):
        sampler.advance(5)
    sampler.advance(3)
    assert sampler.consumed == 9


def epoch_1() -> list[Any]:
    sampler = make()
    sampler.set_epoch(1)
    return list(sampler.batches())


def test_a_loader_that_draws_elsewhere_is_found_out() -> None:
    sampler = make()
    loader = ResumableLoader([[1, 2, 3], [4, 5, 6]], sampler)
    with pytest.raises(ConfigError, match="gave more batches than were drawn"):
        list(loader)
    with pytest.raises(ConfigError, match="does not draw its batches from a ResumableSampler"):
        ResumableLoader([[1, 2, 3]])


class Reader:
    """Something that reads batches; ``read`` takes a function and the sampler."""

    def __init__(self, sampler: ResumableSampler, read: Any) -> None:
        self.sampler, self.read = sampler, read

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read(self.sampler))


def test_a_loader_that_ends_too_early_is_found_out() -> None:
    sampler = make()
    loader = ResumableLoader(Reader(sampler, lambda s: [next(iter(s))]), sampler)
    with pytest.raises(ConfigError, match="ended too early: 1 batches given, 1 drawn, 4 plan"):
        list(loader)
    assert (sampler.epoch, sampler.consumed) == (0, 3)


def ahead(pool: ThreadPoolExecutor, sampler: ResumableSampler, batches: int) -> Iterator[Any]:
    pending: deque[Any] = deque()
    for indices in sampler:
        pending.append(pool.submit(load, indices))
        if len(pending) > batches:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


@pytest.mark.parametrize("depth", [0, 2, 50])
def test_threads_of_one_s_own_read_ahead_and_nothing_is_lost(depth: int) -> None:
    expected = [load(indices) for indices in make(samples=9)]
    with ThreadPoolExecutor(2) as pool:

        def loader() -> ResumableLoader[Any]:
            sampler = make(samples=9)
            return ResumableLoader(Reader(sampler, lambda s: ahead(pool, s, depth)), sampler)

        assert list(loader()) == expected
        stop_everywhere(loader, lambda batch: [index for index, _ in batch], samples=9)


def test_processes_of_one_s_own_load_the_same_bits() -> None:
    expected = [load(indices) for indices in make()]
    with get_context("spawn").Pool(1) as pool:
        sampler = make()
        loader = ResumableLoader(Reader(sampler, lambda s: pool.imap(load, s)), sampler)
        loop = iter(loader)
        found = [next(loop), next(loop)]
        state = sampler.state_dict()
        sampler = make()
        sampler.load_state_dict(state)
        loader = ResumableLoader(Reader(sampler, lambda s: pool.imap(load, s)), sampler)
        found += list(loader)
    assert found == expected


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from ckptflow.data import ResumableSampler as S\n"
        "s = S(5, batch=2); print(sorted(int(i) for b in s.batches() for i in b))\n"
        "assert 'torch' not in sys.modules"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said == "[0, 1, 2, 3, 4]\n"


def test_ranks_are_those_of_arguments_without_torch_distributed() -> None:
    sampler = make(rank=1, world=3)
    assert (sampler.rank, sampler.world, make().rank, make().world) == (1, 3, 0, 1)
    alone = next(make(9, batch=9).batches())
    assert np.array_equal(next(make(9, rank=1, world=3).batches()), alone[1::3])
