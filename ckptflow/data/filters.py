"""Filters: put the bytes of a frame into an order that a codec can do more with.

Numbers that are near each other agree in their high bytes; laid out plane by plane these make
long runs. `Filter` lists the orders, ``docs/reference/format-v1.md`` defines their bytes. The
compiled core does the work at about the speed of a copy, NumPy where the core is missing;
``tests/property/test_filter_laws.py`` keeps both to one result, and to errors for damage.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ckptflow.data import backend, filters_numpy
from ckptflow.data.buffers import BufferLike, Bytes, byte_view, writable_byte_view
from ckptflow.errors import CorruptionError

WORD_MAX = 16  # Bytes of a word at the most: a complex number of two doubles.


class Filter(IntEnum):
    """What was done to the plain bytes before the codec. Words are of 1 to `WORD_MAX` bytes."""

    NONE = 0
    SHUFFLE = 1  # First bytes of all words, second bytes, ...
    BITSHUFFLE = 2  # First bits of all words, second bits, ...
    WORDS = 3  # Which words are not zero, then these, shuffled.


_APPLY = {
    Filter.SHUFFLE: filters_numpy.shuffle,
    Filter.BITSHUFFLE: filters_numpy.bitshuffle,
    Filter.WORDS: filters_numpy.keep_words,
}
_UNDO = {
    Filter.SHUFFLE: filters_numpy.unshuffle,
    Filter.BITSHUFFLE: filters_numpy.unbitshuffle,
    Filter.WORDS: filters_numpy.spread_words,
}


def is_known(filter: int, word: int) -> bool:  # noqa: A002 - the format's word.
    """Return whether there is such a filter for words of ``word`` bytes, 0 for none."""
    if filter == Filter.NONE:
        return word == 0
    return filter in _UNDO and 1 <= word <= WORD_MAX


def unknown(filter: int, word: int, where: str) -> CorruptionError:  # noqa: A002
    """Return the error for a frame with a filter that is none."""
    return CorruptionError(
        f"A frame of {where} names the unknown filter {filter} with words of {word} bytes."
    )


def max_bytes(filter: int, word: int, plain_bytes: int) -> int:  # noqa: A002
    """Return the most bytes that ``plain_bytes`` become. Only `Filter.WORDS` may add some."""
    if filter == Filter.WORDS:
        return plain_bytes + -(-(plain_bytes // word) // 8)
    return plain_bytes


def apply(
    filter: int,  # noqa: A002
    word: int,
    plain: BufferLike,
    out: BufferLike | None = None,
) -> memoryview:
    """Return the filtered bytes: ``plain`` itself for `Filter.NONE`, else the start of ``out``.

    Args:
        filter: one of `Filter`.
        word: bytes of a word, 1 to `WORD_MAX`; 0 for `Filter.NONE`.
        plain: contiguous memory of any length and alignment.
        out: where to write, at least `max_bytes` long and apart from ``plain``; fresh memory if
            absent.

    Raises:
        ValueError: there is no such filter or word, or ``out`` is too short.
    """
    source = byte_view(plain)
    if not is_known(filter, word):
        raise ValueError(f"There is no filter {filter} with words of {word} bytes.")
    if filter == Filter.NONE:
        return source.data
    needed = max_bytes(filter, word, len(source))
    target = np.empty(needed, np.uint8) if out is None else writable_byte_view(out)
    if len(target) < needed:
        raise ValueError(f"A filter of {len(source)} bytes needs {needed}, not {len(target)}.")
    variant = _variant()
    if variant is None:
        written = _APPLY[Filter(filter)](word, source, target)
    else:
        from ckptflow.native import _core

        written = _core.apply_filter(filter, word, source, target, variant)
    return target.data[:written]


def undo(
    filter: int,  # noqa: A002
    word: int,
    stored: BufferLike,
    *,
    plain_bytes: int,
    out: BufferLike | None = None,
    where: str = "memory",
) -> memoryview:
    """Return the plain bytes: ``stored`` itself for `Filter.NONE` without ``out``.

    Never reads or writes outside of the buffers, whatever ``stored`` holds; whether the bytes
    are the right ones is for their digest to tell.

    Args:
        filter: as it was stored; anything that is no filter is damage.
        word: likewise.
        stored: what `apply` returned.
        plain_bytes: how many bytes must come out.
        out: where to write them, exactly that long and apart from ``stored``; fresh memory if
            absent.
        where: tier and key, for messages.

    Raises:
        CorruptionError: ``stored`` does not give ``plain_bytes`` bytes.
        ValueError: ``out`` has another length.
    """
    source = byte_view(stored)
    if not is_known(filter, word):
        raise unknown(filter, word, where)
    if filter != Filter.WORDS and len(source) != plain_bytes:  # Before memory is taken for it.
        raise _damaged(source, plain_bytes, where)
    if filter == Filter.NONE and out is None:
        return source.data
    target = np.empty(plain_bytes, np.uint8) if out is None else writable_byte_view(out)
    if len(target) != plain_bytes:
        raise ValueError(f"A frame of {plain_bytes} bytes does not go into {len(target)}.")
    if not _undo_into(filter, word, source, target):
        raise _damaged(source, plain_bytes, where)
    return target.data


def _undo_into(filter_: int, word: int, source: Bytes, target: Bytes) -> bool:
    if filter_ == Filter.NONE:
        np.copyto(target, source)
        return True
    variant = _variant()
    if variant is None:
        return _UNDO[Filter(filter_)](word, source, target)
    from ckptflow.native import _core

    return _core.undo_filter(filter_, word, source, target, variant)


def _damaged(source: Bytes, plain_bytes: int, where: str) -> CorruptionError:
    return CorruptionError(
        f"A frame of {where} has a wrong length: {len(source)} filtered bytes cannot give "
        f"{plain_bytes}. It is damaged."
    )


def _variant() -> int | None:
    """Return the number of the instruction set in use, or None without the compiled core."""
    active = backend.active()
    if active.name != "native":
        return None
    from ckptflow.data.kernels_native import variants

    return variants().index(active.detail)
