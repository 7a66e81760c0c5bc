"""One thread for each tier that is written to, which may get stuck and takes nobody along.

A thread inside a call that does not come back cannot be ended, only left. `Runner.run` leaves
it when a call has been silent for too long, and raises `Hanging`; what it was doing may go on
when the call comes back, but may not commit any more. Until then the runner is *stuck*, and
takes nothing. So there is one such thread for each tier at most.
``tests/unit/test_runners.py``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ckptflow.errors import TierUnavailable
from ckptflow.tiers.tier import Tier
from ckptflow.tiers.watched import Watch, WatchedTier

T = TypeVar("T")

LOOK_EVERY_S = 0.5
STALL_S = 600.0  # Of silence; a pack of 256 MiB is then slower than 0.5 MB/s.


class Hanging(TierUnavailable):
    """A call to ``at`` has not come back."""

    def __init__(self, at: Tier, silent_s: float) -> None:
        self.at = at
        super().__init__(
            f"Tier {at.name!r} (level {at.level}) has not answered for {silent_s:.0f} s. It is "
            f"taken for hanging and left alone until it does."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (TierUnavailable, (str(self),))


class Abandoned(Exception):
    """Raised in a runner that had been left: it may not commit."""


class Turn(Generic[T]):
    """One thing to do in a runner."""

    def __init__(self, act: Callable[[Turn[T]], T], after: Callable[[], None]) -> None:
        self._act, self._after = act, after
        self._value: T | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self.done, self.left = threading.Event(), False

    def go(self) -> None:
        """Do it; called in the runner."""
        try:
            self._value = self._act(self)
        except BaseException as error:  # noqa: BLE001  Carried to who waits.
            self._error = error
        finally:
            self._after()
            with self._lock:
                self.done.set()

    def leave(self) -> bool:
        """Wait no longer; return whether that is so, or it has come to its end just now."""
        with self._lock:
            self.left = not self.done.is_set()
            return self.left

    def check(self) -> None:
        """Stop what is done here, if nobody waits for it any more.

        Raises:
            Abandoned: so it is.
        """
        with self._lock:
            if self.left:
                raise Abandoned

    def result(self) -> T:
        """Return what came out of it, or raise it."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Runner:
    """A thread that does one thing after another with one tier.

    Args:
        tier: which.
        clock_s: seconds that only grow.
        on_return: called when a call that had been given up has come back.
    """

    def __init__(
        self, tier: Tier, clock_s: Callable[[], float], *, on_return: Callable[[], None]
    ) -> None:
        self.watch = Watch(clock_s)
        self.tier = WatchedTier(tier, self.watch)
        self._on_return = on_return
        self._turn: Turn[Any] | None = None
        self._turns: queue.SimpleQueue[Turn[Any] | None] = queue.SimpleQueue()
        name = f"ckptflow-runner-{tier.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """Whether a call that was given up has not come back yet."""
        turn = self._turn
        return turn is not None and turn.left and not turn.done.is_set()

    def run(
        self,
        act: Callable[[Turn[T]], T],
        *,
        stall_s: float,
        after: Callable[[], None] = lambda: None,
    ) -> T:
        """Do something in this runner and return what comes out of it.

        Args:
            act: what to do, with `tier`; asks the turn before it commits.
            stall_s: how long a call may be silent.
            after: called in the runner at its end, also if nobody waits for it any more.

        Raises:
            Hanging: a call was silent for longer; also at once, while the runner is stuck.
            And what ``act`` raises.
        """
        if self.is_stuck:
            after()
            raise self._hanging()
        turn = Turn(act, after)
        self._turn = turn
        self._turns.put(turn)
        while not turn.done.wait(min(LOOK_EVERY_S, stall_s)):
            silence = self.watch.silence()
            if silence is not None and silence[0] > stall_s and turn.leave():
                raise self._hanging()
        return turn.result()

    def close(self) -> None:
        """Stop, unless it is stuck: then it stops when the call comes back."""
        self._turns.put(None)
        if not self.is_stuck:
            self._thread.join()

    def _hanging(self) -> Hanging:
        silent_s, at = self.watch.silence() or (0.0, self.tier.inner)
        return Hanging(at, silent_s)

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            turn.go()
            if turn.left:
                self._on_return()
