"""What runs on the worker: one attempt of one task, from claim to result.

`TaskSpec` travels with the call, as plain data. On the worker it becomes a `Checkpointer` for
the task's lineage, and the user's function gets that. Whatever a retry, a rerun or a requeue
means, the road is the same: the attempt asks the store where to go on.

A task that never touches its checkpointer costs next to nothing, and leaves nothing in the
store: all is made, and the attempt claimed, on first use. How an attempt ended is put beside
its claim, where the summary of the run, and anybody later, finds it. So it does not depend on
the main process being alive, and futures carry the user's results and nothing else.

``tests/process/test_parsl_htex.py``, ``tests/process/test_parsl_threads.py``.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dill  # type: ignore[import-untyped]

from ckptflow.checkpointer import CheckpointWarning
from ckptflow.errors import CheckpointError, ConfigError, Preempted
from ckptflow.flush import Flushing
from ckptflow.policy.capture import Capture
from ckptflow.policy.progress import Interval
from ckptflow.policy.retention import Keep
from ckptflow.store.packing import Packing
from ckptflow.workflow.blocks.board import RUNS, presence
from ckptflow.workflow.deadline import (
    Deadline,
    StopSignals,
    StopWatch,
    allocation_in,
    earliest,
)
from ckptflow.workflow.external.options import Code
from ckptflow.workflow.identity import CKPT, Binder, Identity
from ckptflow.workflow.outcomes import (
    finish,
    opened_tiers,
    outcome,
    outcome_of,
    tiers_as_text,
)
from ckptflow.workflow.portable import portable_result, raise_portable
from ckptflow.workflow.ranks.options import Ranks
from ckptflow.workflow.trail import TellingCheckpointer, Trail

__all__ = [
    "WALLTIME_MARGIN",
    "Attempt",
    "TaskCheckpointer",
    "TaskFunction",
    "TaskSpec",
    "begin_attempt",
    "block_of_worker",
    "finish",
    "merged",
    "opened_tiers",
    "outcome",
    "outcome_of",
    "own_end",
    "record_end",
    "tiers_as_text",
]

WALLTIME_MARGIN = 0.1  # Part of a task's own walltime that is kept for stopping.

_RESOURCES = "parsl_resource_specification"
_SPEC_MAGIC = b"ckptflow-task-1\n"
_log = logging.getLogger("ckptflow")


@dataclass(frozen=True)
class TaskSpec:
    """What a worker has to know of a run and an app; the same for all calls of the app.

    Attributes:
        run: name of the run.
        app: name of the app.
        session: random name of this life of the run.
        tiers: the site's tiers, as JSON.
        every: when to save.
        keep: what to keep.
        packing: how to store it.
        capture: what a save copies.
        flush_every: per tier, every how many checkpoints one is copied there.
        flushing: how they are copied.
        ends_at_s: when the run's time is over, if it is known on the submitting side.
        margin_s: how long before an end the state has to be safe.
        home: host and process that submitted the task.
        alone: whether tasks have the process, and so its random states, to themselves.
        trail: the folder in which attempts tell what they do, if they see it.
        ranks: how many processes a task runs on, and where; ``None``: on one.
        code: what the app says of restart files that its command writes by itself.
    """

    run: str
    app: str
    session: str
    tiers: str
    every: str | int | Interval | None
    keep: Keep
    packing: str | Packing | None
    capture: Capture
    flush_every: Mapping[str, int]
    flushing: Flushing
    ends_at_s: float | None
    margin_s: float
    home: tuple[str, int]
    alone: bool
    trail: str | None = None
    ranks: Ranks | None = None
    code: Code | None = None

    @property
    def is_home(self) -> bool:
        """Whether this is the submitting process, as on a ThreadPoolExecutor."""
        return self.home == (_hostname(), os.getpid())

    def packed(self) -> bytes:
        """Return it as bytes, which Parsl pickles with every task in no time."""
        return _SPEC_MAGIC + bytes(dill.dumps(self))

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def unpacked(packed: bytes) -> TaskSpec:
        """Return what `packed` made bytes of.

        Raises:
            ConfigError: the bytes are something else.
        """
        if not isinstance(packed, bytes) or not packed.startswith(_SPEC_MAGIC):
            raise ConfigError(f"{CKPT}= is set by ckptflow, not by the caller.")
        spec: TaskSpec = dill.loads(packed[len(_SPEC_MAGIC) :])  # noqa: S301  From home.
        return spec


_hostname = functools.cache(socket.gethostname)


class TaskFunction:
    """The user's function as the worker calls it.

    It is an importable class, and the function travels inside it by value. A function of the
    user's script brings along what it uses of the script: Parsl alone would lose that.
    """

    # Slots stay out of ``__dict__``, which functools.wraps copies into Parsl's own wrapper.
    __slots__ = (
        "__dict__",
        "_bind",
        "_function",
        "_identity",
        "_packed",
        "wants_checkpointer",  # Whether the function has a parameter ``ckpt``.
    )

    def __init__(self, function: Callable[..., Any], identity: Identity) -> None:
        functools.update_wrapper(self, function)
        self._function, self._identity = function, identity
        signature = inspect.signature(function)
        self._bind, self.wants_checkpointer = Binder(signature), CKPT in signature.parameters
        self._packed: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpacked, (type(self), self.packed(), self._identity))

    def packed(self) -> bytes:
        """Return the user's function as bytes, by value if it is the script's."""
        if self._packed is None:
            self._packed = _pack_function(self._function)
        return self._packed

    @property
    def name(self) -> str:
        """Name of the app."""
        return self._identity.app

    @property
    def place(self) -> tuple[str, str]:
        """Where the function is defined: module and qualified name."""
        return self._function.__module__, self._function.__qualname__

    @property
    def source(self) -> Callable[..., Any]:
        """The user's function itself."""
        return self._function

    @property
    def identity(self) -> Identity:
        """How its calls are told apart."""
        return self._identity

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by the names of parameters, defaults filled in.

        Raises:
            TypeError: the call does not fit the function.
        """
        return self._bind(args, kwargs)

    def task_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the task that a call is; the arguments have to be resolved.

        Raises:
            ConfigError: an argument has no canonical bytes.
            TypeError: the call does not fit the function.
        """
        return self._identity.task_name(self._bind(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one attempt; called by Parsl on the worker."""
        spec = TaskSpec.unpacked(kwargs.pop(CKPT, b""))
        kwargs.pop(_RESOURCES, None)  # Parsl passes them on to the function, too.
        try:
            with _at_work(self.name):
                value = self._attempted(spec, args, kwargs)
                return value if spec.is_home else portable_result(value, task=self.name)
        except BaseException as error:  # noqa: BLE001  Everything has to reach who waits.
            raise_portable(error, task=self.name, crosses=not spec.is_home)

    def _attempted(self, spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run within an attempt, if the function wants one."""
        if not self.wants_checkpointer:
            return self._run(spec, None, args, kwargs)
        name = functools.partial(self.task_name, args, kwargs)
        with begin_attempt(spec, name, walltime_s=kwargs.get("walltime")) as attempt:
            return self._run(spec, attempt, args, kwargs)

    def _run(
        self,
        spec: TaskSpec,  # noqa: ARG002  Bash apps need it.
        attempt: Attempt | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if attempt is not None:
            kwargs = {**kwargs, CKPT: attempt.checkpointer}
        return self._function(*args, **kwargs)


def _at_work(app: str) -> AbstractContextManager[object]:
    """Return what tells the leader of this node that a task runs here, while entered.

    Raises:
        Preempted: the block takes no more tasks; this one is for another.
    """
    here = presence()
    if here is None:
        return nullcontext()
    closed = here.board.closed()
    if closed is not None:
        raise Preempted(
            f"{app}() was not started: {closed}.", block=block_of_worker(), started=False
        )
    stack = ExitStack()
    stack.enter_context(here.as_one_that(RUNS))
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    ):
        # As the leader has it for the pool. What the task starts has to be ended by a TERM.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stack.callback(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    return stack


def block_of_worker() -> str | None:
    """Return the block that this worker is part of, by Parsl's number."""
    return os.environ.get("PARSL_WORKER_BLOCK_ID")


def _pack_function(function: Callable[..., Any]) -> bytes:
    # cloudpickle takes along what the function uses of the script, and modules by name. So
    # does dill with recurse=True, but not in two threads at once: to find globals it
    # disassembles into sys.stdout, which it replaces for that time.
    if function.__module__ == "__main__":
        try:
            return bytes(cloudpickle.dumps(function))
        except Exception as error:  # noqa: BLE001  Pickling runs code of whatever it meets.
            _log.warning(
                "%s() uses something of the script that cannot be sent to workers (%s: %s); "
                "import or make it inside the function.",
                function.__name__,
                type(error).__name__,
                error,
            )
    return bytes(dill.dumps(function))


def _unpacked(kind: type[TaskFunction], packed: bytes, identity: Identity) -> TaskFunction:
    return kind(dill.loads(packed), identity)  # noqa: S301  From the submitting process.


class TaskCheckpointer(TellingCheckpointer):
    """A checkpointer that is made when it is first used: many tasks never do.

    Args:
        options: returns the arguments of `Checkpointer`.
        trail: where it tells what it does.
    """

    _making = threading.RLock()

    def __init__(
        self, options: Callable[[], dict[str, Any]], trail: Trail | None = None
    ) -> None:
        self.trail = trail or Trail(None)
        # Not the base's: that runs when the first of its attributes is missed.
        self._options: Callable[[], dict[str, Any]] | None = options

    def __getattr__(self, name: str) -> Any:
        with self._making:
            options = self.__dict__.get("_options")
            if options is not None:
                arguments = options()
                self._options = None
                super().__init__(**arguments)
        return self.__getattribute__(name)

    @property
    def used(self) -> bool:
        """Whether the task has used it."""
        return self._options is None


@dataclass(slots=True)
class Attempt:
    """One attempt while it runs.

    Attributes:
        checkpointer: what the user's function gets.
        watch: says whether to stop.
        reports: outcomes of programs that attached themselves to the attempt.
    """

    checkpointer: TaskCheckpointer
    watch: StopWatch
    reports: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def begin_attempt(
    spec: TaskSpec, name: Callable[[], str], *, walltime_s: float | None = None
) -> Iterator[Attempt]:
    """Hold one attempt; afterwards say in the store how it ended, if the task used it.

    On leaving, what is being saved is finished first. A save that failed does not fail the
    task: it is warned of and recorded. Having been overtaken by a newer attempt does.

    Args:
        spec: the run and the app.
        name: returns the name of the task.
        walltime_s: time limit of this call, if it has one.

    Raises:
        FencedError: a newer attempt has taken over.
    """
    began_s, signals, here = time.time(), StopSignals(), presence()
    trail = Trail(spec.trail)
    watch = StopWatch(signals, Deadline(), board=here.board if here else None)

    def options() -> dict[str, Any]:
        # Until there is something to save, a stop signal does what it did before.
        signals.__enter__()
        allocation = allocation_in(os.environ, spec.margin_s)
        watch.set_ends(own_end(spec, began_s, walltime_s), allocation, spec.margin_s)
        main = threading.current_thread() is threading.main_thread()
        return {
            "store": opened_tiers(spec.tiers),
            "run": spec.run,
            "task": name(),
            "every": spec.every,
            "keep": spec.keep,
            "packing": spec.packing,
            "capture": spec.capture,
            "flush_every": spec.flush_every,
            "flushing": spec.flushing,
            # A code has no random states here, and its files are read once, not copied.
            "rng": (spec.alone or main) and spec.code is None,
            "budget_bytes": None if spec.code is None else 0,
            "stop": watch,
        }

    checkpointer = TaskCheckpointer(options, trail)
    watch.save_time_s = lambda: checkpointer.save_time_s
    attempt = Attempt(checkpointer, watch)
    try:
        yield attempt
        fenced = finish(checkpointer) if checkpointer.used else None
        if fenced is not None:
            raise fenced
    except BaseException as error:
        if checkpointer.used:
            finish(checkpointer)
            record_end(spec, attempt, error)
        if isinstance(error, Preempted) and watch.block_ends():
            error.block = block_of_worker()
        raise
    else:
        if checkpointer.used:
            record_end(spec, attempt, None)
    finally:
        signals.__exit__()


def own_end(spec: TaskSpec, began_s: float, walltime_s: float | None) -> Deadline:
    """Return the first end that a task meets but that of its allocation: run or walltime."""
    ends = []
    if spec.ends_at_s is not None:
        ends.append(Deadline(spec.ends_at_s, spec.margin_s, "time of the run"))
    if walltime_s is not None:
        margin_s = WALLTIME_MARGIN * walltime_s
        ends.append(Deadline(began_s + walltime_s, margin_s, "walltime of the task"))
    return earliest(ends)


def record_end(spec: TaskSpec, attempt: Attempt, error: BaseException | None) -> None:
    """Put how an attempt ended beside its claim, if it ever claimed one."""
    checkpointer = attempt.checkpointer
    if not checkpointer.claimed:
        return
    record = {"session": spec.session, **outcome(checkpointer, error)}
    for report in attempt.reports:
        record = merged(record, report)
    checkpointer.tell_end(record)
    try:
        checkpointer.lineage.record_end(checkpointer.attempt, record)
    except CheckpointError as failure:
        # The summary takes a finished task without a record for one that could not write.
        text = (
            f"How attempt {checkpointer.attempt} of {checkpointer.task} ended is not recorded"
        )
        warnings.warn(f"{text}: {failure}", CheckpointWarning, stacklevel=2)


def merged(record: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of an attempt together with that of a program it ran."""
    steps = [step for one in (record, report) if (step := one.get("step")) is not None]
    resumed = [record.get("resumed_step"), report.get("resumed_step")]
    return {
        **record,
        "step": max(steps, default=None),
        "resumed_step": next((step for step in resumed if step is not None), None),
        "failures": [*record.get("failures", []), *report.get("failures", [])],
        "tiers": [*record.get("tiers", []), *report.get("tiers", [])],
        "state_bytes": record.get("state_bytes", 0) + report.get("state_bytes", 0),
        "stored_bytes": record.get("stored_bytes", 0) + report.get("stored_bytes", 0),
    }
