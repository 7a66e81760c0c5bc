"""Any k of k + m pieces give the others back, whichever are lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import galois


def encoded(data: np.ndarray, parity_count: int) -> list[np.ndarray]:
    parity = np.zeros((parity_count, data.shape[1]), np.uint8)
    for row, factors in zip(parity, galois.coding_matrix(len(data), parity_count), strict=True):
        for factor, piece in zip(factors, data, strict=True):
            galois.add_product(int(factor), piece, row)
    return [*data, *parity]


def recovered(pieces: list[np.ndarray], k: int, have: list[int], wanted: int) -> bytes:
    result = np.zeros(pieces[0].shape, np.uint8)
    row = galois.recovery_row(k, len(pieces) - k, have, wanted)
    for factor, number in zip(row, have, strict=True):
        galois.add_product(factor, pieces[number], result)
    return result.tobytes()


@pytest.mark.parametrize(("k", "m"), [(k, m) for k in range(1, 7) for m in range(1, 4)])
def test_every_pattern_of_losses_is_mended(k: int, m: int, rng: np.random.Generator) -> None:
    data = rng.integers(0, 256, (k, 9), dtype=np.uint8)
    pieces = encoded(data, m)
    for have in itertools.combinations(range(k + m), k):
        for wanted in set(range(k)) - set(have):
            assert recovered(pieces, k, list(have), wanted) == data[wanted].tobytes()


@given(st.integers(1, 24), st.integers(1, 8), st.randoms(use_true_random=False))
def test_wide_codes(k: int, m: int, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))
    data = rng.integers(0, 256, (k, 5), dtype=np.uint8)
    have = rng.permutation(k + m)[:k].tolist()
    wanted = int(rng.integers(0, k))
    assert recovered(encoded(data, m), k, have, wanted) == data[wanted].tobytes()


def test_the_widest_code(rng: np.random.Generator) -> None:
    data = rng.integers(0, 256, (250, 3), dtype=np.uint8)
    pieces = encoded(data, 6)
    have = list(range(6, 256))
    assert recovered(pieces, 250, have, 3) == data[3].tobytes()
