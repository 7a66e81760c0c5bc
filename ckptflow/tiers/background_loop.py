"""One event loop in a thread of its own, for libraries that only know asyncio.

A tier is called from plain threads, and connections of asyncio live in one loop; so there is
one loop in the process, started when first needed. A forked child starts its own. Nobody stops
it: whoever writes a last checkpoint when the interpreter ends still needs it.

``tests/unit/test_background_loop.py``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []  # The last one is ours; others were our parent's.
_owner_pid = 0


def run_async(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run ``coroutine`` in the loop and return its result; not to be called from the loop.

    Whoever stops waiting, by Ctrl-C say, cancels it.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def call_soon(function: Callable[[], object]) -> None:
    """Call ``function`` in the loop, soon; nothing happens where there is no loop."""
    if _loops and _owner_pid == os.getpid() and not _loops[-1].is_closed():
        _loops[-1].call_soon_threadsafe(function)


def _loop() -> asyncio.AbstractEventLoop:
    global _owner_pid  # noqa: PLW0603 (one per process is the point)
    with _lock:
        if _owner_pid != os.getpid():
            _loops.append(asyncio.new_event_loop())
            _owner_pid = os.getpid()
            threading.Thread(
                target=_loops[-1].run_forever, name="ckptflow-asyncio", daemon=True
            ).start()
        return _loops[-1]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 (a thread that is not in the child may have held it)
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
