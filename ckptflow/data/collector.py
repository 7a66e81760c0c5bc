"""Hold Python's cycle collector back while very many objects are made that all stay.

It looks at all young objects each time so many more were made than went away: for a state of
twenty thousand arrays a third of the time that a walk or the plan of a restore takes.
``tests/unit/test_recorded.py``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let no collection begin in the block; afterwards it is as it was before.

    The switch is the process's. If another thread's block ends first, collections begin again
    within this one, which costs time and nothing else.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
