"""What remains of an epoch is cut as `cutting.py` says: small cases by hand, and laws."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data.samples.cutting import LOOK_AHEAD, Cutting, Tail


def shares(batch: int, world: int, tail: Tail, samples: int, consumed: int = 0) -> list[list]:
    """Return, for each rank, its batches as lists of positions."""
    cutting = Cutting(batch=batch, world=world, tail=tail)
    found = []
    for rank in range(world):
        mine = []
        for positions, ends in cutting.positions(consumed, samples, rank):
            mine += np.split(positions, len(ends))
        found.append([positions.tolist() for positions in mine])
        assert len(mine) == cutting.batches(samples - consumed, rank)
    return found


def test_ranks_take_turns_in_a_global_batch() -> None:
    assert shares(2, 3, "short", 12) == [
        [[0, 3], [6, 9]],
        [[1, 4], [7, 10]],
        [[2, 5], [8, 11]],
    ]


def test_short_makes_the_last_batch_smaller() -> None:
    assert shares(3, 1, "short", 7) == [[[0, 1, 2], [3, 4, 5], [6]]]
    assert shares(2, 2, "short", 7) == [[[0, 2], [4, 6]], [[1, 3], [5]]]


def test_short_keeps_samples_back_so_that_every_rank_gets_one() -> None:
    assert shares(2, 3, "short", 7) == [[[0, 3], [4]], [[1], [5]], [[2], [6]]]


def test_short_gives_some_ranks_a_batch_less_where_nothing_else_is_exact() -> None:
    assert shares(1, 2, "short", 3) == [[[0], [2]], [[1]]]
    assert shares(4, 3, "short", 2) == [[[0]], [[1]], []]


def test_drop_leaves_the_last_samples_out() -> None:
    assert shares(2, 2, "drop", 7) == [[[0, 2]], [[1, 3]]]
    assert shares(2, 2, "drop", 7, consumed=4) == [[], []]


def test_pad_fills_the_last_batch_with_the_first_samples() -> None:
    assert shares(2, 2, "pad", 5) == [[[0, 2], [4, 1]], [[1, 3], [0, 2]]]
    assert shares(3, 2, "pad", 2) == [[[0, 0, 0]], [[1, 1, 1]]]


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_the_rest_is_cut_as_if_there_had_been_no_stop(tail: Tail) -> None:
    for samples in range(6, 40):
        cutting = Cutting(batch=2, world=3, tail=tail)
        whole, consumed, step = shares(2, 3, tail, samples), 0, 0
        while cutting.batches(samples - consumed):
            rest = shares(2, 3, tail, samples, consumed)
            if tail != "pad":
                assert rest == [batches[step:] for batches in whole]
            assert [len(b) for b in rest] == [len(b) - step for b in whole]
            consumed += cutting.consumed_by(1, samples - consumed)
            step += 1
        assert consumed == (samples - samples % 6 if tail == "drop" else samples)


def test_all_ranks_get_as_many_batches_of_two_or_more() -> None:
    for world in range(1, 6):
        for samples in range(world, 60):
            counts = {len(batches) for batches in shares(2, world, "short", samples)}
            assert len(counts) == 1


def test_long_epochs_are_computed_in_portions() -> None:
    cutting = Cutting(batch=100, world=2, tail="short")
    portions = list(cutting.positions(0, 1_000_050, 1))
    assert max(len(positions) for positions, _ in portions) <= LOOK_AHEAD
    assert np.array_equal(
        np.concatenate([positions for positions, _ in portions]), np.arange(1, 1_000_050, 2)
    )


def test_several_batches_consume_as_much_as_one_after_the_other() -> None:
    cutting = Cutting(batch=2, world=3, tail="short")
    for remaining in range(30):
        consumed = 0
        for batches in range(cutting.batches(remaining) + 1):
            assert cutting.consumed_by(batches, remaining) == consumed
            consumed += cutting.consumed_by(1, remaining - consumed)
