"""The keys of CKH-128, for the implementations in Python.

``native/ckh128.h`` holds the definition of the digest. The keys are two splitmix64 streams
that start at the first 128 bits of the fraction of pi, so that nobody chose them;
``tests/unit/test_digest.py`` derives pi and both streams anew.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ckptflow.data.buffers import U64s

BLOCK_BYTES = 1024
TAG_LEAF, TAG_NODE = 0x6C656166, 0x6E6F6465
LEVEL0_START, LEVEL1_START = 0x243F6A8885A308D3, 0x13198A2E03707344
STREAM_STEP = 0x9E3779B97F4A7C15
FINAL_FACTORS = (
    0x9FB21C651E98DF25, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F,
    0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3, 0x1D8E4E27C47D124F,
)  # fmt: skip

_LEVEL0_PAIRS = 128 + 3 * 2  # Each of the three further passes is shifted by two pairs.


@cache
def level0_keys() -> U64s:
    """Return the keys of the four passes over one block, shape ``(4, 128)``, read-only.

    Each holds the keys of one pair of words: low half for the first word.
    """
    stream = _splitmix64(LEVEL0_START, _LEVEL0_PAIRS)
    keys = np.stack([stream[2 * shift : 2 * shift + 128] for shift in range(4)])
    keys.flags.writeable = False
    return keys


def level1_keys(block_count: int) -> U64s:
    """Return the keys for the sums of so many blocks, shape ``(4 * block_count + 6,)``."""
    return _splitmix64(LEVEL1_START, 4 * block_count + 6)


def _splitmix64(start: int, count: int) -> U64s:
    with np.errstate(over="ignore"):
        z = np.uint64(start) + np.uint64(STREAM_STEP) * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)
