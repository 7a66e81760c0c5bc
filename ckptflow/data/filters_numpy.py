"""The filters in NumPy: for where the compiled core is missing, and its check.

The byte layouts are those of ``docs/reference/format-v1.md``;
``tests/property/test_filter_laws.py`` holds both versions against each other. Temporaries are
as large as the frame.
"""

from __future__ import annotations

import numpy as np

from ckptflow.data.buffers import Bytes

_TRANSPOSITION = [
    (np.uint64(7), np.uint64(0x00AA00AA00AA00AA)),
    (np.uint64(14), np.uint64(0x0000CCCC0000CCCC)),
    (np.uint64(28), np.uint64(0x00000000F0F0F0F0)),
]


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
    planes = np.empty(whole, np.uint8)
    shuffle(word, plain[:whole], planes)
    _transpose_bits(planes)
    for plane, bits in zip(_rows(planes, word), _rows(out[:whole], word), strict=True):
        shuffle(8, plane, bits)
    out[whole : len(plain)] = plain[whole:]
    return len(plain)


def unbitshuffle(word: int, stored: Bytes, out: Bytes) -> bool:
    """Undo `bitshuffle`; return false if the lengths do not agree."""
    if len(stored) != len(out):
        return False
    words = len(out) // word // 8 * 8
    whole = words * word
    planes = np.empty(whole, np.uint8)
    for plane, bits in zip(_rows(planes, word), _rows(stored[:whole], word), strict=True):
        unshuffle(8, bits, plane)
    _transpose_bits(planes)
    unshuffle(word, planes, out[:whole])
    out[whole:] = stored[whole:]
    return True


def keep_words(word: int, plain: Bytes, out: Bytes) -> int:
    """Write the bitmap, the words that are not zero and the rest; return the bytes written."""
    words = len(plain) // word
    whole = words * word
    table = plain[:whole].reshape(words, word)
    kept = table.view(f"<u{word}").ravel() != 0 if word in {1, 2, 4, 8} else table.any(axis=1)
    bitmap = np.packbits(kept, bitorder="little")
    parts = (bitmap, table[np.flatnonzero(kept)].T.ravel(), plain[whole:])
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


def _rows(planes: Bytes, word: int) -> Bytes:
    return planes.reshape(word, len(planes) // word)


def _transpose_bits(eights: Bytes) -> None:
    """Transpose the 8 x 8 bits of each eight bytes: bit i of byte j becomes bit j of byte i.

    Warren, Hacker's Delight, section 7-3.
    """
    x = eights.view("<u8")
    for shift, mask in _TRANSPOSITION:
        swapped = x >> shift
        swapped ^= x
        swapped &= mask
        x ^= swapped
        swapped <<= shift
        x ^= swapped
