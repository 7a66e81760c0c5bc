"""The order of an epoch: a keyed bijection of ``range(n)``, computed wherever it is asked for.

All arithmetic is on unsigned words of 64 bits, modulo 2^64. ``mix`` is the finaliser of
splitmix64 (D. Stafford's variant 13)::

    mix(x):    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9
               x ^= x >> 27;  x *= 0x94D049BB133111EB
               x ^= x >> 31
    fold(w1, w2, ...):  h = 0;  for each w:  h = mix((h ^ w) + 0x9E3779B97F4A7C15)

With ``key = fold(1, seed, epoch, n)`` and ``b`` the number of bits of ``n - 1``, position ``p``
becomes index ``(walk(p) + fold(key, 12)) mod n``. ``walk`` applies the network until the result
is below ``n`` (it permutes ``range(2^b)``, and ``2^b < 2n``, so that takes less than two turns
on average). The network is an alternating Feistel network of 12 rounds: ``R`` are the lowest
``b // 2`` bits, ``L`` the others; round ``r`` has the key ``k = fold(key, r)``::

    r even:  L ^= mix(R ^ k), cut to the width of L        r odd:  R ^= mix(L ^ k), likewise

The seed of a sample's own randomness is ``fold(2, seed, epoch, index)``.

What it is good for: orders of training. Single positions and pairs are uniform as far as a
chi-square test tells; for ``n <= 5`` so are whole permutations. It is no cipher, and a key of
64 bits reaches at most 2^64 of the n! permutations (as does every shuffle from a seed of 64
bits).

``tests/unit/test_permutation.py`` has a second implementation, written from this text.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

SAMPLES_LIMIT: Final = 1 << 62  # Positions are int64, and a padded one may lie beyond the end.
ROUNDS: Final = 12
_ORDER, _RANDOMNESS, _ITERATION = 1, 2, 3  # What a folded word is for.
_WORD = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def _mix_all(x: Words) -> Words:
    """Do the same to each word, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(_FIRST)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_SECOND)
    x ^= x >> np.uint64(31)
    return x


def fold(*words: int) -> int:
    """Return one word of 64 bits that depends on all of ``words`` and on their order."""
    folded = 0
    for word in words:
        folded = _mix(((folded ^ word) + _STEP) & _WORD)
    return folded


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return the seed, 64 bits, of all randomness that belongs to one sample in one epoch.

    It knows nothing of positions, batches, workers and ranks. Give it to
    ``numpy.random.default_rng`` or ``torch.Generator().manual_seed``.

    Args:
        seed: of the sampler.
        epoch: of the sampler.
        index: of the sample within the data set.
    """
    return fold(_RANDOMNESS, seed, epoch, index)


def iteration_seed(seed: int, epoch: int, consumed: int) -> int:
    """Return the seed, 64 bits, from which a loader may draw seeds for its workers."""
    return fold(_ITERATION, seed, epoch, consumed)


class Order:
    """The order of one epoch: without ``shuffle``, that of the data set."""

    def __init__(self, samples: int, *, seed: int, epoch: int, shuffle: bool = True) -> None:
        key = fold(_ORDER, seed, epoch, samples)
        bits = (samples - 1).bit_length()
        low_bits = bits // 2
        self._keys = [np.uint64(fold(key, r)) for r in range(ROUNDS)]
        self._rotation = np.uint64(fold(key, ROUNDS) % samples)
        self._samples, self._shuffle = np.uint64(samples), shuffle and samples > 1
        self._low_bits, self._low_mask = np.uint64(low_bits), np.uint64((1 << low_bits) - 1)
        self._high_mask = np.uint64((1 << (bits - low_bits)) - 1)

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which samples stand at ``positions``, each below the number of samples.

        Costs about 200 calls of NumPy however many positions there are, so ask for many.
        """
        if not self._shuffle:
            return positions.copy()
        x = self._network(positions.astype(np.uint64))
        beyond = np.flatnonzero(x >= self._samples)
        while beyond.size:
            x[beyond] = self._network(x[beyond])
            beyond = beyond[x[beyond] >= self._samples]
        return ((x + self._rotation) % self._samples).astype(np.int64)

    def _network(self, x: Words) -> Words:
        """Permute words of as many bits as the last position has, into new memory."""
        high, low = x >> self._low_bits, x & self._low_mask
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            high ^= _mix_all(low ^ even) & self._high_mask
            low ^= _mix_all(high ^ odd) & self._low_mask
        return (high << self._low_bits) | low
