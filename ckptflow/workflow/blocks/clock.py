"""The leader's clock: when its block ends, kept true by questions that cannot hold it up.

``tests/unit/test_leader.py``, ``tests/unit/test_time_left.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from ckptflow.workflow.blocks.board import Board, End
from ckptflow.workflow.blocks.time_left import (
    QUERY_S,
    REFRESH_S,
    answer_of,
    asking_command,
    can_be_asked,
    end_in,
)

_AGAIN_S = 20.0  # After a question without an answer: the first node may not have asked yet.


class Clock:
    """Knows when the block ends, and posts it.

    Args:
        board: of this node.
        kill_wait_s: seconds from TERM to KILL, until the batch system says.
    """

    def __init__(self, board: Board, kill_wait_s: float) -> None:
        self.kill_wait_s = kill_wait_s
        self._board, self._asking = board, can_be_asked(os.environ)
        self._end: End | None = None
        self._question: subprocess.Popen[bytes] | None = None
        self._next_s, self._limit_s = time.monotonic(), 0.0
        self._set(end_in(os.environ))

    @property
    def pid(self) -> int | None:
        """The process that asks at this moment."""
        return self._question.pid if self._question else None

    def left_s(self) -> float:
        """Return the seconds until the block ends; infinity if that is not known."""
        return float("inf") if self._end is None else self._end.ends_at_s - time.time()

    def pause_s(self) -> float:
        """Return when to look again, at the latest."""
        return self._limit_s - time.monotonic() if self._question else float("inf")

    def look(self) -> None:
        """Ask if it is time to, and give up a question that nobody answers."""
        now_s = time.monotonic()
        if self._question is None and self._asking and now_s >= self._next_s:
            self._limit_s = now_s + QUERY_S
            self._question = subprocess.Popen(
                asking_command(), stdout=subprocess.PIPE, start_new_session=True
            )
        elif self._question is not None and now_s >= self._limit_s:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._question.pid, signal.SIGKILL)
            self._limit_s = float("inf")  # `ended` is called when it is gone.

    def ended(self, pid: int) -> None:
        """Take the answer, if it was the process that asked which has ended."""
        if self._question is None or pid != self._question.pid:
            return
        assert self._question.stdout is not None
        with self._question.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)  # What it started may hold the other end.
            text = (pipe.read() or b"").decode(errors="replace")
        self._question.returncode, self._question = 0, None
        end, kill_wait_s = answer_of(text)
        if kill_wait_s is not None:
            self.kill_wait_s = kill_wait_s
        self._set(end)
        self._next_s = time.monotonic() + (_AGAIN_S if end is None else REFRESH_S)

    def _set(self, end: End | None) -> None:
        if end is not None:
            self._end = end
            self._board.post_end(end)
