"""Ask for blocks without making a storm when the scheduler has trouble.

Parsl asks again every few seconds, and takes each refusal for a block that has failed. So a
scheduler that does not answer for a minute would be asked a dozen times, and end the run. Here
each refusal is followed by a pause that doubles, none of them counts as a block, and the run
ends when the scheduler's trouble outlasts the site's patience, or at once after some refusals
that no waiting can mend, such as an account that does not exist.
``tests/unit/test_submissions.py``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from ckptflow.errors import WorkflowError
from ckptflow.units import format_seconds

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0

_log = logging.getLogger("ckptflow")

# What schedulers say when asking again cannot help. "Invalid job id" is another matter, and
# limits on numbers of jobs are none of these: they pass.
_LASTING = re.compile(
    r"invalid (account|qos|partition|feature|generic resource|wckey|reservation|time|gres|"
    r"option|constraint|node count)|unrecognized option|invalid option|unknown option|"
    r"requested (node configuration|partition configuration|reservation|time limit)|"
    r"access/permission denied|user not allowed|not allowed to|unknown queue|unauthorized|"
    r"illegal (attribute|option|-|resource)|unknown resource|command not found|no such file",
    re.IGNORECASE,
)


class Submissions:
    """When to ask a scheduler again that has just refused.

    Args:
        patience_s: for how long it may have trouble.
        refusals_max: how often it may refuse what no waiting can mend.
        notice: told of trouble, and of its end.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        patience_s: float,
        refusals_max: int,
        notice: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_s, self._refusals_max = patience_s, refusals_max
        self._notice, self._clock = notice, clock
        self._since_s: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._not_before_s = 0.0
        self._lasting = 0

    def may_ask(self) -> bool:
        """Whether the pause after the last refusal is over."""
        return self._since_s is None or self._clock() >= self._not_before_s

    def worked(self) -> None:
        """Note that a block was accepted."""
        if self._since_s is not None:
            self._tell(f"blocks are accepted again, after {self._troubled()}")
        self._since_s, self._pause_s, self._lasting = None, FIRST_PAUSE_S, 0

    def refused(self, text: str) -> str | None:
        """Note a refusal, and return why to give up, or ``None`` to go on."""
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        self._lasting = self._lasting + 1 if _LASTING.search(text) else 0
        if self._lasting >= self._refusals_max:
            return (
                f"A block was refused {self._lasting} times, and waiting does not help: {text}"
            )
        if now_s - self._since_s >= self._patience_s:
            return f"No block was accepted for {self._troubled()}: {text}"
        self._not_before_s = now_s + self._pause_s
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._tell(f"a block was refused ({text}); the next is asked for in {pause:.0f} s")
        return None

    def _troubled(self) -> str:
        return format_seconds(self._clock() - (self._since_s or 0.0))

    def _tell(self, text: str) -> None:
        _log.warning("%s", text)
        self._notice(text)


class Patient:
    """Makes a Parsl executor with blocks ask for them as `Submissions` says.

    Attributes:
        submissions: set when the executor was made.
    """

    submissions: Submissions

    # Parsl's, of blocks: what it notes of those that were refused, and the state of all.
    _simulated_status: dict[str, Any]
    _status: dict[str, Any]

    def scale_out_facade(self, n: int) -> list[str]:
        """Ask for ``n`` more blocks, and return the numbers of those that were accepted."""
        executor: Any = self
        started: list[str] = []
        for _ in range(n):
            if executor.bad_state_is_set or not self.submissions.may_ask():
                break
            before = set(self._simulated_status)
            accepted = super().scale_out_facade(1)  # type: ignore[misc]
            if accepted:
                self.submissions.worked()
                started += accepted
                continue
            if why := self.submissions.refused(self._forget_refused(before)):
                executor.set_bad_state_and_fail_all(WorkflowError(why))
        return started

    def _forget_refused(self, before: set[str]) -> str:
        """Take out what Parsl noted of a block that never was; return why it was refused."""
        text = "no reason was given"
        for block in set(self._simulated_status) - before:
            status = self._simulated_status.pop(block)
            self._status.pop(block, None)
            text = str(status.message).removeprefix(f"Failed to start block {block}: ")
        return text
