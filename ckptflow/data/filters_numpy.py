"""The filters in NumPy: for where the compiled core is missing, and its check.

The byte layouts are those of ``docs/reference/format-v1.md``;
``tests/property/test_filter_laws.py`` holds both versions against each other. Temporaries are
as large as the frame, for the bits of one byte plane eight times as large as the plane.
"""

from __future__ import annotations

import numpy as np

from ckptflow.data.buffers import Bytes


def shuffle(word: int, plain: Bytes, out: Bytes) -> int:
    """Write the planes of bytes, then the rest; return the bytes written."""
    words = len(plain) // word
    whole = words * word
    out[:whole].reshape(word, words)[:] = plain[:whole].reshape(words, word).T
    out[whole : len(plain)] = plain[whole:]
    return len(plain)


def unshuffle(word: int, stored: Bytes, out: Bytes) -> bool:
    """Undo `shuffle`; return false if the lengths do not agree."""
    if len(stored) != len(out):
        return False
    words = len(out) // word
    whole = words * word
    out[:whole].reshape(words, word)[:] = stored[:whole].reshape(word, words).T
    out[whole:] = stored[whole:]
    return True


def bitshuffle(word: int, plain: Bytes, out: Bytes) -> int:
    """Write the planes of bits, then the rest; return the bytes written."""
    words = len(plain) // word // 8 * 8
    whole = words * word
    bytes_of_words = plain[:whole].reshape(words, word)
    planes = out[:whole].reshape(word, 8, words // 8)
    for j in range(word):
        bits = np.unpackbits(bytes_of_words[:, j], bitorder="little").reshape(words, 8)
        planes[j] = np.packbits(bits.T, axis=1, bitorder="little")
    out[whole : len(plain)] = plain[whole:]
    return len(plain)


def unbitshuffle(word: int, stored: Bytes, out: Bytes) -> bool:
    """Undo `bitshuffle`; return false if the lengths do not agree."""
    if len(stored) != len(out):
        return False
    words = len(out) // word // 8 * 8
    whole = words * word
    planes = stored[:whole].reshape(word, 8, words // 8)
    bytes_of_words = out[:whole].reshape(words, word)
    for j in range(word):
        bits = np.unpackbits(planes[j], axis=1, bitorder="little")
        bytes_of_words[:, j] = np.packbits(bits.T, axis=1, bitorder="little")[:, 0]
    out[whole:] = stored[whole:]
    return True


def keep_words(word: int, plain: Bytes, out: Bytes) -> int:
    """Write the bitmap, the words that are not zero and the rest; return the bytes written."""
    words = len(plain) // word
    whole = words * word
    table = plain[:whole].reshape(words, word)
    kept = table.any(axis=1)
    bitmap = np.packbits(kept, bitorder="little")
    parts = (bitmap, table[kept].T.ravel(), plain[whole:])
    end = 0
    for part in parts:
        out[end : end + len(part)] = part
        end += len(part)
    return end


def spread_words(word: int, stored: Bytes, out: Bytes) -> bool:
    """Undo `keep_words`; return false if the stored bytes are damaged."""
    words = len(out) // word
    whole = words * word
    bitmap_bytes = -(-words // 8)
    if len(stored) < bitmap_bytes + len(out) - whole:
        return False
    kept = np.unpackbits(stored[:bitmap_bytes], bitorder="little").astype(np.bool_)
    if kept[words:].any():
        return False
    rows = np.flatnonzero(kept)
    end = bitmap_bytes + len(rows) * word
    if len(stored) != end + len(out) - whole:
        return False
    out[:whole] = 0
    out[:whole].reshape(words, word)[rows] = stored[bitmap_bytes:end].reshape(word, -1).T
    out[whole:] = stored[end:]
    return True
