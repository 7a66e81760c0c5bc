"""Write many pieces by few calls: copy the small ones together, name the others where they lie.

A gather list (``writev``) spares the copy of each piece, and costs the kernel, and Python, some
work for each. From which size on it is the cheaper way depends on the machine: between 64 bytes
and 2 KiB where it was looked at. So it is measured, once for a process, when a list first has
enough small pieces for it to matter. Which size that makes is a pure function of what was
measured.
``tests/unit/test_gathering.py``, ``bench/gather.py``.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

COPY_BYTES_DEFAULT = 512  # Pieces below this are copied, where it cannot be measured,
COPY_BYTES_MIN, COPY_BYTES_MAX = 64, 4096  # and within these bounds in any case.
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)  # That are measured.
TOGETHER_BYTES_MAX = 1 << 20  # Of small pieces that are copied into one.
MATTERS = 256  # So many small pieces take longer than a measurement is worth saving.

_PIECES, _ROUNDS = 256, 5  # For each size: about a millisecond in all.


def threshold(measured: Iterable[tuple[int, float, float]]) -> int:
    """Return from which size on pieces are better named than copied, in bytes.

    That is the smallest size from which on naming is never slower; pieces of that size and more
    are named.

    Args:
        measured: sizes in bytes, rising; how long so many pieces take copied; and named, both
            in any one unit.
    """
    best = COPY_BYTES_MAX
    for size_bytes, copied, named in sorted(measured, reverse=True):
        if named > copied:
            break
        best = size_bytes
    return max(COPY_BYTES_MIN, min(best, COPY_BYTES_MAX))


@functools.cache
def measured_threshold() -> int:
    """Return `threshold` for this machine, measured in memory, or the default."""
    try:
        descriptor = os.memfd_create("ckptflow-gather", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # Not Linux, or not allowed here.
        return COPY_BYTES_DEFAULT
    try:
        return threshold(_measure(descriptor, size_bytes) for size_bytes in SIZES)
    except OSError:
        return COPY_BYTES_DEFAULT
    finally:
        os.close(descriptor)


def _measure(descriptor: int, size_bytes: int) -> tuple[int, float, float]:
    # Apart from each other, as the pieces of a state are.
    whole = memoryview(bytes(2 * _PIECES * size_bytes))
    pieces = [whole[i : i + size_bytes] for i in range(0, len(whole), 2 * size_bytes)]

    def seconds(write: Callable[[], object]) -> float:
        taken = []
        for _ in range(_ROUNDS):
            os.lseek(descriptor, 0, os.SEEK_SET)
            began = time.perf_counter()
            write()
            taken.append(time.perf_counter() - began)
        return min(taken)

    copied = seconds(lambda: os.write(descriptor, b"".join(pieces)))
    named = seconds(lambda: os.writev(descriptor, pieces))
    return size_bytes, copied, named


def gather_list(parts: Sequence[memoryview], copy_bytes: int | None = None) -> list[memoryview]:
    """Return what to hand to ``writev``: the same bytes, with small pieces copied together.

    Args:
        parts: contiguous bytes, in order. None is copied that has ``copy_bytes`` or more.
        copy_bytes: below this pieces are copied; ``None``: as measured, where it matters.
    """
    if copy_bytes is None:
        small = sum(len(part) < COPY_BYTES_MAX for part in parts)
        copy_bytes = measured_threshold() if small >= MATTERS else COPY_BYTES_DEFAULT
    return list(_copied_together(parts, copy_bytes))


def _copied_together(parts: Sequence[memoryview], copy_bytes: int) -> Iterator[memoryview]:
    for is_small, group in itertools.groupby(parts, lambda part: len(part) < copy_bytes):
        if not is_small:
            yield from group
            continue
        together: list[memoryview] = []
        size_bytes = 0
        for part in group:
            together.append(part)
            size_bytes += len(part)
            if size_bytes >= TOGETHER_BYTES_MAX:
                yield memoryview(b"".join(together))
                together, size_bytes = [], 0
        if size_bytes:
            yield together[0] if len(together) == 1 else memoryview(b"".join(together))
