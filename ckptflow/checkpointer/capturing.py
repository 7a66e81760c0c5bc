"""What happens between the call of a save and the writer: now, or on a thread of its own.

The thread and the memory are there before the first save; the optimizers among the objects of
the task wait for the thread before they step. ``tests/unit/test_lazy.py``.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ckptflow.checkpointer.arguments import may_be_walked
from ckptflow.checkpointer.capture import Capturer
from ckptflow.checkpointer.requests import SaveRequest
from ckptflow.checkpointer.steps import Steps
from ckptflow.checkpointer.writer import Writer
from ckptflow.data.rng import capture_rng
from ckptflow.errors import CheckpointError
from ckptflow.policy.capture import Capture, parse_capture
from ckptflow.store.packing import Packing

Act = Callable[[], None]
Whole = Callable[[object], dict[str, Any]]


def whole_of(state: object, *, rng: bool) -> dict[str, Any]:
    """Return what a checkpoint of ``state`` consists of."""
    return {"state": state, "rng": capture_rng() if rng else None}


class Capturing:
    """The captures of one task.

    Args:
        objects: its state, as far as that is known.
        capture: which modes are asked for.
        packing: how checkpoints are compared and stored.
        whole: makes of a state what a checkpoint of it consists of.
        budget_bytes: for snapshots; ``None``: a part of what is available.
        on_waited: told for how long the application had to wait for a capture, in seconds.
        note: told why nothing can be captured on a device.

    Attributes:
        capturer: takes the snapshots.
        wait: returns when the application may change its state.
        whole: see above.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        capture: Capture,
        packing: Packing,
        *,
        whole: Whole,
        budget_bytes: int | None,
        on_waited: Callable[[float], None],
        note: Callable[[str], None],
    ) -> None:
        rules = parse_capture(capture)
        self.capturer = Capturer(
            budget_bytes,
            rules=rules,
            chunk_bytes=packing.chunk_bytes,
            note=note,
            keeps_parent=packing.keeps_parent,
        )
        self.whole = whole
        self._acts: queue.SimpleQueue[Act | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        thread = threading.Thread(
            target=_work, args=(self._acts,), name="ckptflow-capture", daemon=True
        )
        thread.start()
        self._end = weakref.finalize(self, self._acts.put, None)
        self.wait = partial(_wait, self._idle, on_waited)  # Optimizers keep it, but not us.
        self._steps = Steps(objects if rules.may_be_lazy else {}, self.wait)
        self.capturer.lazy_addresses = self._steps.addresses
        if objects:
            self.prepare(objects)

    @property
    def is_idle(self) -> bool:
        """Whether no capture is under way."""
        return self._idle.is_set()

    def prepare(self, state: object) -> None:
        """Make memory for the first snapshot while the application computes."""
        if may_be_walked(state):
            act = self.capturer.preparation(self.whole(state))
            if act is not None:
                self._acts.put(act)

    def submit(self, writer: Writer, request: SaveRequest) -> None:
        """Hand a save to the writer; what it left for later is captured first, on the thread.

        One at a time: `wait` comes before the next.
        """
        assert self.is_idle, "the capture before was waited for"
        if request.captured.unfinished is None:
            _submit(writer, request)
            return

        def act() -> None:
            try:
                _finish(writer, request)
            finally:
                self._idle.set()

        self._idle.clear()
        self._acts.put(act)

    def close(self) -> None:
        """Finish, leave the optimizers alone, and let the thread end."""
        self.wait()
        self._steps.remove()
        self._end()


def _wait(idle: threading.Event, on_waited: Callable[[float], None]) -> None:
    if not idle.is_set():
        began_s = time.monotonic()
        idle.wait()
        on_waited(time.monotonic() - began_s)


def _work(acts: queue.SimpleQueue[Act | None]) -> None:
    while (act := acts.get()) is not None:
        act()
        del act  # Nothing of its state is kept alive until the next.


def _finish(writer: Writer, request: SaveRequest) -> None:
    unfinished, request.captured.unfinished = request.captured.unfinished, None
    assert unfinished is not None, "something was left for later"
    try:
        unfinished()
    except CheckpointError as error:
        writer.reject(request, error)
    except Exception as error:  # noqa: BLE001 - the boundary of this thread
        step = request.ticket.step
        broken = CheckpointError(f"The capture of step {step} broke: {error!r}")
        broken.__cause__ = error
        writer.reject(request, broken)
    else:
        _submit(writer, request)


def _submit(writer: Writer, request: SaveRequest) -> None:
    writer.submit(request)
    if request.captured.live:  # No room for a snapshot: it holds still until it is written.
        request.ticket.wait_written()
        request.captured.guard.lift()
    request.ticket.mark_captured()
