"""CKH-128 and Merkle roots in NumPy, written from docs/reference/format-v1.md alone.

Digests are the rows of an array (n, 2): the two halves u and v. `test_independent_reader.py`
compares them with the vectors in tests/golden/ckh128.json.
"""

from __future__ import annotations

import numpy as np

U8, BATCH_BYTES = np.uint64, 1 << 20


def key_words(start: int, count: int) -> np.ndarray:
    z = U8(start) + U8(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=U8)
    z = (z ^ (z >> 30)) * U8(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27)) * U8(0x94D049BB133111EB)
    return (z ^ (z >> 31)).astype("<u8").view("<u4")


LEVEL_0 = key_words(0x243F6A8885A308D3, 134)


def sums(words: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return S, or T, of words (…, 2 n): (…, 4). One formula serves both levels."""
    keyed = [words + keys[4 * p : 4 * p + words.shape[-1]] for p in range(4)]
    products = (k[..., ::2].astype(U8) * k[..., 1::2] for k in keyed)
    return np.stack([product.sum(axis=-1, dtype=U8) for product in products], axis=-1)


def final(w: np.ndarray, n: int, tag: int) -> np.ndarray:
    """Return the digests of the rows of w, (rows, 4)."""
    e = U8((n * 0x9E3779B97F4A7C15 + tag) % 2**64)
    w = np.stack([w[:, 0] + e, w[:, 1], w[:, 2] ^ e, w[:, 3]], axis=1)
    factors = [0x9FB21C651E98DF25, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F]
    w = (w ^ (w >> 32)) * np.array(factors, U8)
    w ^= w >> 29
    uv = w[:, ::2] + (w[:, 1::2] << 32 | w[:, 1::2] >> 32)
    uv = (uv ^ (uv >> 32)) * np.array([0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3], U8)
    uv[:, 0] += uv[:, 1] << 32 | uv[:, 1] >> 32
    uv[:, 1] += uv[:, 0] << 32 | uv[:, 0] >> 32
    uv = (uv ^ (uv >> 29)) * np.array([0x589965CC75374CC3, 0x1D8E4E27C47D124F], U8)
    return uv ^ (uv >> 32)


def digest_rows(rows: np.ndarray) -> np.ndarray:
    """Return the digests of rows of bytes, all of one length n."""
    count, n = rows.shape
    words = np.pad(rows, ((0, 0), (0, -n % 8))).view("<u4")
    whole = n // 1024
    s = sums(words[:, : 256 * whole].reshape(count, whole, 256), LEVEL_0)
    if n % 1024 or n == 0:
        s = np.concatenate([s, sums(words[:, None, 256 * whole :], LEVEL_0)], axis=1)
    if n <= 1024:
        return final(s[:, 0], n, 0x6C656166)
    words = s.reshape(count, -1).astype("<u8").view("<u4")
    level_1 = key_words(0x13198A2E03707344, words.shape[1] // 2 + 6)
    return final(sums(words, level_1), n, 0x6C656166)


def digests(data: bytes | bytearray, chunk: int) -> np.ndarray:
    """Return the digests of the chunks; equal ones in batches, to bound the memory."""
    array = np.frombuffer(data, np.uint8)
    whole, batch = len(data) // chunk * chunk, max(1, BATCH_BYTES // chunk) * chunk
    found = [np.zeros((0, 2), U8)]
    for start in range(0, whole, batch):
        found.append(digest_rows(array[start : min(start + batch, whole)].reshape(-1, chunk)))
    if whole < len(data):
        found.append(digest_rows(array[None, whole:]))
    return np.concatenate(found)


def digest(data: bytes) -> np.ndarray:
    return digest_rows(np.frombuffer(data, np.uint8)[None])


def merkle(rows: np.ndarray) -> np.ndarray:
    while len(rows) > 1:
        even = len(rows) // 2 * 2
        joined = final(np.hstack([rows[:even:2], rows[1:even:2]]), 0, 0x6E6F6465)
        rows = np.concatenate([joined, rows[even:]])
    return rows if len(rows) else digest(b"")


def text(row: np.ndarray) -> str:
    return row.astype("<u8").tobytes().hex()
