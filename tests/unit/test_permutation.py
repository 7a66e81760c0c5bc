"""The order of an epoch is the documented one, a bijection, and uniform as far as can be told.

Method: a second implementation, one position at a time and with an inverse, written from the
docstring of `permutation.py`; golden values computed by it; all of small n, samples of large n;
and chi-square statistics over many seeds, as distances from their mean in standard deviations.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ckptflow.data.samples.permutation import Order, fold, sample_seed

# --- the second implementation --------------------------------------------------------------

WORD = 1 << 64


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def folded(*words: int) -> int:
    h = 0
    for w in words:
        h = mix(((h ^ w) + 0x9E3779B97F4A7C15) % WORD)
    return h


def network(x: int, key: int, bits: int, rounds: list[int]) -> int:
    """Apply the rounds in the given order; each is its own inverse."""
    small = bits // 2
    left, right = x >> small, x & (1 << small) - 1
    for r in rounds:
        k = folded(key, r)
        if r % 2 == 0:
            left ^= mix(right ^ k) & (1 << bits - small) - 1
        else:
            right ^= mix(left ^ k) & (1 << small) - 1
    return left << small | right


def index_at(p: int, n: int, seed: int, epoch: int) -> int:
    key, bits = folded(1, seed, epoch, n), (n - 1).bit_length()
    x = network(p, key, bits, list(range(12)))
    while x >= n:
        x = network(x, key, bits, list(range(12)))
    return (x + folded(key, 12)) % n


def position_of(index: int, n: int, seed: int, epoch: int) -> int:
    key, bits = folded(1, seed, epoch, n), (n - 1).bit_length()
    x = network((index - folded(key, 12)) % n, key, bits, list(range(11, -1, -1)))
    while x >= n:
        x = network(x, key, bits, list(range(11, -1, -1)))
    return x


# --- it is the documented order -------------------------------------------------------------

GOLDEN = {  # (n, seed, epoch): the first indices
    (10, 0, 0): [8, 6, 2, 4, 7, 5, 0, 1, 9, 3],
    (10, 0, 1): [6, 3, 0, 5, 7, 8, 2, 4, 9, 1],
    (10, 1, 0): [8, 4, 1, 6, 2, 5, 9, 3, 0, 7],
    (37, 2**63, 5): [21, 24, 11, 0, 29, 3, 30, 18, 31, 2],
    (2**20, 12345, 0): [698388, 890600, 40654, 206442, 1046648],
    (2**40 - 87, 2**64 - 1, 1000): [241930840509, 251896181269, 214394408462],
}
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1000]
LARGE = [2**20, 2**31 - 1, 2**32 + 1, 10**12, 2**40, 2**62 - 1]


def order(n: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return Order(n, seed=seed, epoch=epoch).indices(np.arange(n))


def test_the_golden_values_are_those_of_the_second_implementation() -> None:
    for (n, seed, epoch), expected in GOLDEN.items():
        assert [index_at(p, n, seed, epoch) for p in range(len(expected))] == expected


def test_the_order_has_the_golden_values() -> None:
    for (n, seed, epoch), expected in GOLDEN.items():
        positions = np.arange(len(expected))
        found = Order(n, seed=seed, epoch=epoch).indices(positions)
        assert found.tolist() == expected


def test_folding_begins_as_splitmix64_does() -> None:
    assert fold(0) == 0xE220A8397B1DCDAF  # Its published first output for seed 0.


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (2**64 - 1, 3)])
def test_every_small_order_is_a_bijection_and_the_documented_one(
    n: int, seed: int, epoch: int
) -> None:
    found = order(n, seed, epoch)
    assert sorted(found) == list(range(n))
    some = range(0, n, max(1, n // 40))
    assert [found[p] for p in some] == [index_at(p, n, seed, epoch) for p in some]


def test_all_orders_of_up_to_300_samples_are_bijections() -> None:
    for n in range(1, 301):
        assert np.array_equal(np.sort(order(n, seed=n)), np.arange(n))


@pytest.mark.parametrize("n", LARGE)
def test_large_orders_are_undone_by_the_inverse(n: int, rng: np.random.Generator) -> None:
    positions = np.concatenate([[0, 1, n - 2, n - 1], rng.integers(0, n, 30)])
    found = Order(n, seed=5, epoch=2).indices(positions)
    assert ((found >= 0) & (found < n)).all()
    assert [position_of(int(index), n, 5, 2) for index in found] == positions.tolist()


def test_positions_may_be_asked_for_in_any_portions() -> None:
    whole = order(1000, seed=9)
    parts = Order(1000, seed=9, epoch=0)
    assert np.array_equal(
        np.concatenate([parts.indices(np.arange(a, a + 125)) for a in range(0, 1000, 125)]),
        whole,
    )
    assert parts.indices(np.array([], np.int64)).size == 0


def test_without_shuffling_the_order_is_that_of_the_data_set() -> None:
    plain = Order(10, seed=1, epoch=1, shuffle=False)
    assert plain.indices(np.arange(10)).tolist() == list(range(10))


def test_seed_epoch_and_length_each_give_another_order() -> None:
    orders = [order(50, s, e).tolist() for s, e in itertools.product(range(3), range(3))]
    assert len({tuple(found) for found in orders}) == 9
    assert order(51).tolist()[:50] != order(50).tolist()


# --- it is uniform --------------------------------------------------------------------------


def deviation(counts: np.ndarray, expected: float, degrees: int) -> float:
    """Return how far the chi-square statistic lies from its mean, in standard deviations."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "n", [2, 3, 4, pytest.param(5, marks=pytest.mark.slow)], ids=lambda n: f"n={n}"
)
def test_each_permutation_of_a_few_samples_is_as_likely(n: int) -> None:
    numbers = {p: i for i, p in enumerate(itertools.permutations(range(n)))}
    counts = np.zeros(len(numbers))
    trials = 40 * len(numbers)
    for seed in range(trials):
        counts[numbers[tuple(order(n, seed).tolist())]] += 1
    assert abs(deviation(counts, trials / len(numbers), len(numbers) - 1)) < 4


@pytest.mark.parametrize("n", [8, 33])
@pytest.mark.parametrize("along", ["seeds", "epochs"])
def test_each_sample_is_as_likely_at_each_position(n: int, along: str) -> None:
    trials, counts = 300, np.zeros((n, n))
    neighbours = np.zeros(n)
    for i in range(trials):
        found = order(n, seed=i) if along == "seeds" else order(n, epoch=i)
        counts[np.arange(n), found] += 1
        neighbours += np.bincount(np.diff(found) % n, minlength=n)
    assert abs(deviation(counts, trials / n, (n - 1) ** 2)) < 4
    assert neighbours[0] == 0  # Of their n - 1 possible differences, each is as likely.
    assert abs(deviation(neighbours[1:], trials, n - 2)) < 5


# --- seeds of samples -----------------------------------------------------------------------


def test_a_sample_s_seed_is_the_documented_one() -> None:
    assert sample_seed(7, 3, 12) == folded(2, 7, 3, 12)


def test_seeds_of_samples_differ() -> None:
    seeds = {sample_seed(*key) for key in itertools.product(range(5), range(5), range(200))}
    assert len(seeds) == 5000
    ones = np.array([[seed >> bit & 1 for bit in range(64)] for seed in seeds]).mean(axis=0)
    assert (abs(ones - 0.5) < 5 * 0.5 / math.sqrt(5000)).all()
