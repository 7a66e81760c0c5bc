"""What another try costs: Parsl adds it up and gives a task up when it exceeds ``retries``.

    a task that stopped in time and had got further     nothing
    a task that came to a block about to end            nothing; it goes to another one
    a worker, manager, rank or node that was lost       little, while the task gets further;
                                                        nothing, if its block was about to end
    no progress since the last try                      the full price, 1
    a mistake in the program or the set-up              more than any budget: give up at once
    stopped because the time of the whole run is over   the same
    anything else                                       what the user's own handler says, or 1

How far a task got is known from `Preempted`. After a loss nothing came back, so the store is
asked, in the background: the handler runs in the thread that serves all results and must not
wait for storage. The price of a loss is therefore based on the progress up to the loss before.

A block that is about to end is held before the task goes on: Parsl would send it back there,
where a worker has just become free.

Parsl wipes its own history at each retry, so the counters are kept here.
``tests/unit/test_retry.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parsl.app.errors import AppBadFormatting, BashAppNoReturn
from parsl.dataflow.errors import DependencyError
from parsl.dataflow.taskrecord import TaskRecord
from parsl.executors.errors import BadStateException, InvalidResourceSpecification
from parsl.executors.high_throughput.errors import ManagerLost, VersionMismatch, WorkerLost
from parsl.serialize.errors import SerializationError

from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    FencedError,
    FormatError,
    Preempted,
    RankLost,
    RemoteTaskError,
    TaskLost,
)

FREE, LITTLE, FULL, GIVE_UP = 0.0, 0.1, 1.0, float("inf")

# So many losses in a row are taken for bad luck, even if no progress is known.
LOSSES_FOR_LITTLE = 3

# So often in a row a task may be turned away by blocks that end; then they could not be held.
TURNS_FOR_NOTHING = 20

LOST = (WorkerLost, ManagerLost, RankLost, TaskLost)
MISTAKES = (
    TypeError,
    NameError,
    AttributeError,
    ImportError,
    SyntaxError,
    ConfigError,
    FormatError,
    SerializationError,
    AppBadFormatting,
    BashAppNoReturn,
    InvalidResourceSpecification,
)
_MISTAKE_NAMES = frozenset(
    {"TypeError", "NameError", "UnboundLocalError", "AttributeError", "ImportError",
     "ModuleNotFoundError", "SyntaxError", "IndentationError", "_pickle.PicklingError"}
)  # fmt: skip

_log = logging.getLogger("ckptflow")

UserHandler = Callable[[Exception, TaskRecord], float]
FindProgress = Callable[[TaskRecord], int | None]
Hold = Callable[[TaskRecord, str, str], None]


@dataclass(frozen=True, slots=True)
class Price:
    """What another try costs, and why."""

    cost: float
    reason: str


@dataclass(slots=True)
class _History:
    """What is known about one task from its failed tries."""

    known_step: int = -1
    losses: int = 0  # In a row, without known progress; not those with a block that ended.
    ended: int = 0  # Losses with blocks that ended, in a row, without known progress.
    turned_away: int = 0  # In a row.
    lookup: _Lookup | None = None


class RetryHandler:
    """A ``retry_handler`` for Parsl's Config. One for each DataFlowKernel.

    Args:
        user: asked about errors that are none of the above; 1 each if not given.
        progress: returns the newest step that a task has committed; called in a thread.
        notice: told of every price.
        is_over: tells whether the time of the whole run is over, so that a task that stopped
            for it would only stop again.
        hold: has a block get no more tasks; given a task that ran there, the block, and why.
        was_ending: tells whether what was lost belonged to a block that was about to end.
    """

    def __init__(
        self,
        user: UserHandler | None = None,
        *,
        progress: FindProgress | None = None,
        notice: Callable[[TaskRecord, Exception, Price], None] | None = None,
        is_over: Callable[[], bool] = lambda: False,
        hold: Hold = lambda _task, _block, _why: None,
        was_ending: Callable[[Exception], bool] = lambda _error: False,
    ) -> None:
        self._user, self._progress, self._notice = user, progress, notice
        self._is_over, self._hold, self._was_ending = is_over, hold, was_ending
        self._histories: dict[int, _History] = {}

    def __call__(self, error: Exception, task: TaskRecord) -> float:
        """Return what another try of ``task`` costs after it failed with ``error``."""
        history = self._histories.setdefault(task["id"], _History())
        price = self._price(error, task, history)
        if isinstance(error, Preempted) and error.block is not None:
            self._hold(task, error.block, str(error))
        if self._notice:
            self._notice(task, error, price)
        return price.cost

    def _price(self, error: Exception, task: TaskRecord, history: _History) -> Price:
        turned_away = isinstance(error, Preempted) and not error.started
        history.turned_away = history.turned_away + 1 if turned_away else 0
        if isinstance(error, Preempted):
            if self._is_over():
                return Price(GIVE_UP, "the time of the run is over; start it again to go on")
            return _preempted(error, history)
        if isinstance(error, LOST):
            return self._lost(error, task, history)
        hopeless = _hopeless(error)
        if hopeless is not None:
            return hopeless
        if self._user is not None:
            return Price(float(self._user(error, task)), "as the workflow's own handler says")
        return Price(FULL, f"it failed with {type(error).__name__}")

    def _lost(self, error: Exception, task: TaskRecord, history: _History) -> Price:
        step = history.lookup.step if history.lookup else None
        if step is not None and step > history.known_step:
            history.known_step, history.losses, history.ended = step, 0, 0
        ended = self._was_ending(error)
        history.ended += ended
        history.losses += not ended
        if self._progress is not None:
            history.lookup = _Lookup(self._progress, task)
            history.lookup.start()
        what = type(error).__name__
        if ended:  # It may not even have begun: a task that waits is lost with the block, too.
            if history.ended <= TURNS_FOR_NOTHING:
                return Price(FREE, f"{what}: its block has ended, or was about to")
            times = f"{history.ended} times in a row without known progress"
            return Price(FULL, f"{what}: lost with a block that ended, {times}")
        if history.losses <= LOSSES_FOR_LITTLE:
            return Price(LITTLE, f"{what}: the machine failed, not the task")
        return Price(FULL, f"{what}: {history.losses} losses in a row without known progress")


class _Lookup(threading.Thread):
    """Asks the store how far a task got. A daemon: nothing waits for a storage that hangs."""

    def __init__(self, progress: FindProgress, task: TaskRecord) -> None:
        super().__init__(name="ckptflow-progress", daemon=True)
        self._find, self._record = progress, task
        self.step: int | None = None

    def run(self) -> None:
        """Ask."""
        try:
            self.step = self._find(self._record)
        except CheckpointError as error:
            _log.warning("How far a lost task got is not known: %s", error)


def _preempted(error: Preempted, history: _History) -> Price:
    if not error.started:
        if history.turned_away <= TURNS_FOR_NOTHING:
            return Price(FREE, "its block takes no more tasks")
        return Price(FULL, f"turned away {history.turned_away} times in a row")
    resumed = -1 if error.resumed_step is None else error.resumed_step
    if error.step > max(history.known_step, resumed):
        history.known_step, history.losses, history.ended = error.step, 0, 0
        return Price(FREE, f"stopped in time, saved at step {error.step}")
    return Price(FULL, f"stopped in time, but got no further than step {error.step}")


def _hopeless(error: Exception) -> Price | None:
    """Return the price of an error that another try cannot mend; ``None`` for others."""
    if isinstance(error, DependencyError):
        return Price(GIVE_UP, "a task that it needs has failed")
    if isinstance(error, BadStateException | VersionMismatch):
        return Price(GIVE_UP, "the executor has failed for good")
    if isinstance(error, FencedError):
        error.add_note(
            "If no other process runs this workflow, two of its tasks have the same key at the "
            "same time: give them different ones."
        )
        return Price(GIVE_UP, "a newer attempt of the same task is running")
    remote: Any = error.type_name if isinstance(error, RemoteTaskError) else None
    if isinstance(error, MISTAKES) or remote in _MISTAKE_NAMES:
        return Price(GIVE_UP, f"{remote or type(error).__name__} is a mistake, not bad luck")
    return None


def retry_handler(
    user: UserHandler | None = None, *, progress: FindProgress | None = None
) -> RetryHandler:
    """Return a ``retry_handler`` for one's own Parsl Config; `ckptflow.run` makes its own.

    Args:
        user: asked about errors that ckptflow has no rule for.
        progress: returns the newest step that a task has committed; called in a thread.
    """
    return RetryHandler(user, progress=progress)
