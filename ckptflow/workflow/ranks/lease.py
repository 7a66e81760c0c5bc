"""How ranks come to save and to stop at the same step, although none waits for another.

No rank goes beyond a step that its steward has not let it reach: it holds a *lease* up to a
step, the same one for all, and asks for a longer one before it gets there. What all are to do
together, the steward sets on the end of the longest lease that it has given, and no rank can
have passed that without hearing of it. An answer needs nothing from other ranks, so a rank that
waits for one holds nobody up, whatever the ranks of the application wait for.

All ranks call the same steps; the first of them at or after the end of a lease counts.
Leases are about `LEASE_S` long. Pure: the clock and the wire are arguments.
``tests/unit/test_lease.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ckptflow.errors import FormatError

LEASE_S = 0.5  # How much later a stop or a save may be than it could.
STEPS_MAX = 1_000_000  # Of one lease.
_SAVES_KEPT = 4096  # Saves that a slow rank may not have heard of yet.


@dataclass(frozen=True, slots=True)
class Question:
    """What a rank says when it asks for a longer lease.

    Attributes:
        step: which it has reached.
        step_s: how long its last steps took, each; 0 if that is not known.
        save_s: how long a save takes until it is durable.
        save: whether it is time for a save.
        stop: why to stop, if this rank has been told to.
    """

    step: int
    step_s: float = 0.0
    save_s: float = 0.0
    save: bool = False
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a steward answers.

    Attributes:
        until: the lease: ask again at this step, or stop there.
        saves: steps at which to save, as far as the rank may not have passed them.
        stop: why to stop at ``until``; ``None`` to go on.
    """

    until: int
    saves: tuple[int, ...] = ()
    stop: str | None = None


def question(fields: Mapping[str, Any]) -> Question:
    """Return what a message says.

    Raises:
        FormatError: it is no question.
    """
    match fields:
        case {
            "step": int(step),
            "step_s": int() | float() as step_s,
            "save_s": int() | float() as save_s,
            "save": bool(save),
            "stop": (None | str()) as stop,
        }:
            return Question(step, float(step_s), float(save_s), save, stop)
    raise FormatError(f"A rank asks for a lease in other words than this version: {fields!r}.")


def answer(fields: Mapping[str, Any]) -> Answer:
    """Return what a message says.

    Raises:
        FormatError: it is no answer.
    """
    match fields:
        case {"until": int(until), "saves": [*saves], "stop": (None | str()) as stop}:
            return Answer(until, tuple(int(step) for step in saves), stop)
    raise FormatError(f"A lease is given in other words than this version: {fields!r}.")


@dataclass(slots=True)
class Leases:
    """What the steward of a launch has let its ranks do.

    Attributes:
        until: the end of the longest lease; ``None``: there is none.
        stop: why all stop there.
        save_s: how long a save takes, of the slowest rank.
        steps: how far each rank is known to have come.
    """

    until: int | None = None
    stop: str | None = None
    save_s: float = 0.0
    steps: dict[int, int] = field(default_factory=dict)
    _saves: list[int] = field(default_factory=list)

    def ask(self, rank: int, asked: Question, stop: str | None = None) -> Answer:
        """Answer a rank.

        Args:
            rank: who asks.
            asked: what it says.
            stop: why to stop, if the steward has been told to.
        """
        known, self.steps[rank] = self.steps.get(rank, -1), asked.step
        self.save_s = max(self.save_s, asked.save_s)
        # Nobody has passed this step: nobody could without a lease that ends beyond it.
        end = self.until = asked.step if self.until is None else self.until
        self.stop = self.stop or asked.stop or stop
        if asked.save and (not self._saves or self._saves[-1] < asked.step):
            self._saves = [*self._saves, max(end, asked.step)][-_SAVES_KEPT:]
        if self.stop is None:
            # A rank that has come to the end may be far beyond it, if it counts in hundreds.
            self.until = max(end, asked.step + _steps(asked.step_s))
        # What was set since this rank asked last lies beyond the lease that it got then.
        new = tuple(step for step in self._saves if step > known)
        return Answer(self.until, new, self.stop)


def _steps(step_s: float) -> int:
    return 1 if step_s <= 0 else max(1, min(STEPS_MAX, int(LEASE_S / step_s)))


class Lease:
    """The lease of one rank.

    Args:
        send: sends a question, as a message.
        receive: waits for the answer.
        save_s: returns how long a save takes.
        told: returns why this rank has been told to stop, by itself.
        clock: returns seconds.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        receive: Callable[[], Mapping[str, Any]],
        *,
        save_s: Callable[[], float] = lambda: 0.0,
        told: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._receive = send, receive
        self._save_s, self._told, self._clock = save_s, told, clock
        self._answer: Answer | None = None
        self._asked: int | None = None  # The step of a question that waits for its answer.
        self._early: int | None = None  # From which step on to ask in advance.
        self._before: tuple[int, float] | None = None  # Step and time of the last question.
        self._wants_save = False
        self.step = -1

    def reach(self, step: int) -> None:
        """Say that ``step`` is done; waits for an answer if the lease ends here.

        Raises:
            FormatError: the answer is none.
        """
        if step <= self.step:
            return
        self.step = step
        known = self._answer
        if known is None or (step >= known.until and known.stop is None):
            self._ask_if_not_asked()
            self._take()
            known = self._answer
            assert known is not None, "it has just been taken"
            if step >= known.until and known.stop is None:
                self._ask_if_not_asked()  # It was asked in advance, some steps ago.
                self._take()
        elif known.stop is None and (self._is_early(step) or self._told()):
            self._ask_if_not_asked()

    def want_save(self) -> None:
        """Say that it is time for a save; all ranks save soon, at one step."""
        self._wants_save = True

    def is_save(self, last_saved_step: int | None) -> bool:
        """Tell whether all save at this step, given when this rank did last."""
        last = -1 if last_saved_step is None else last_saved_step
        known = self._answer
        return known is not None and any(last < one <= self.step for one in known.saves)

    @property
    def stop(self) -> str | None:
        """Why all stop at this step; ``None`` to go on."""
        known = self._answer
        return known.stop if known is not None and self.step >= known.until else None

    def _is_early(self, step: int) -> bool:
        return self._early is not None and step >= self._early

    def _ask_if_not_asked(self) -> None:
        if self._asked is not None:
            return
        now, step_s = self._clock(), 0.0
        if self._before is not None and self.step > self._before[0]:
            step_s = (now - self._before[1]) / (self.step - self._before[0])
        self._before = self.step, now
        asked = Question(self.step, step_s, self._save_s(), self._wants_save, self._told())
        self._wants_save = False
        self._send(asdict(asked))
        self._asked = self.step

    def _take(self) -> None:
        self._answer = answer(self._receive())
        assert self._asked is not None, "answers are waited for when something was asked"
        # In the second half of a lease that is longer than a step.
        self._early = (self._asked + self._answer.until + 1) // 2
        self._asked = None
