"""One life of a workflow: from taking its lock to saying what became of it.

    with ckptflow.run("exp-12", site="local", store="/scratch/me/exp", retries=3) as run:
        print([future.result() for future in [train(seed) for seed in range(4)]])
    print(run.summary())

Starting the same script again is the restart: finished tasks come from the memo, others ask
the store where to go on. What a run keeps lies in one folder, named after it: the lock, the
journal, the memo, Parsl's logs.

Entering takes the lock, ends what a dead predecessor left on this host or in the batch system,
and starts Parsl. Leaving waits for the tasks, and for copies that they have left to the agent
of this node, or gives them up if an error is on its way, and ends Parsl and all blocks.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import parsl
from parsl.config import Config
from parsl.dataflow.dflow import DataFlowKernel
from parsl.dataflow.futures import AppFuture

from ckptflow.checkpointer import CheckpointWarning
from ckptflow.errors import CheckpointError, ConfigError, RunLocked
from ckptflow.flush.agent.asking import wait_for_run
from ckptflow.model import LineageId
from ckptflow.site import Site, load_site
from ckptflow.site.layers import settings_in
from ckptflow.workflow import active, journal
from ckptflow.workflow.apps import App
from ckptflow.workflow.blocks.abandoned import CLEARED, cancel_blocks, find_blocks
from ckptflow.workflow.blocks.config import build_config
from ckptflow.workflow.blocks.following import Blocks
from ckptflow.workflow.changes import DEFAULT, EVENTS, OnChange, earlier, parse_on_change
from ckptflow.workflow.deadline import Deadline, stop_tasks_here
from ckptflow.workflow.identity import CKPT
from ckptflow.workflow.journal import Journal
from ckptflow.workflow.leftovers import GRACE_S, STOP_GRACE_S, end_leftovers, mark
from ckptflow.workflow.lock import RunLock
from ckptflow.workflow.memo import DurableMemoizer
from ckptflow.workflow.retry import RetryHandler, UserHandler
from ckptflow.workflow.stopping import STOPPED_STATUS, StopInOrder
from ckptflow.workflow.summary import (
    RunSummary,
)
from ckptflow.workflow.tasks import Tasks
from ckptflow.workflow.trail import TRAIL, close_trail
from ckptflow.workflow.watch import Watch

__all__ = ["Run", "build_config", "last_run", "run"]

JOURNAL, MEMO, LOCK, PARSL = "journal.jsonl", "memo", "lock", "parsl"

_COPIES_S = 3600.0  # How long the end of a run waits for the agent.
_LOOK_AT_LOCK_S = 0.5
_CLOSE_PARSL_S = 60.0  # Parsl's own limits inside add up to less.
_log = logging.getLogger("ckptflow")
_parsl_log = logging.getLogger("parsl")
_last: Run | None = None


def run(
    name: str,
    *,
    site: str | Path | Site = "local",
    store: str | Path | None = None,
    user: str | Path | None = None,
    retries: int = 3,
    retry_handler: UserHandler | None = None,
    config: Config | None = None,
    overrides: Mapping[str, object] | None = None,
    on_change: OnChange = DEFAULT,
) -> Run:
    """Return a run; its tasks are submitted while it is entered.

    ``ckptflow run`` sets ``CKPTFLOW_RUN``, ``CKPTFLOW_SITE``, ``CKPTFLOW_STORE``,
    ``CKPTFLOW_USER``, ``CKPTFLOW_SET`` and ``CKPTFLOW_ON_CHANGE`` from its options; they come
    before what the script says.

    Args:
        name: tells runs in one store apart. The same name again is a restart.
        site: name or file of a site.
        store: a folder or an address for checkpoints; the site's tiers if not given.
        user: a file with what you lay on top of sites; the usual one if not given.
        retries: what the failed tries of a task may cost in all, see `workflow.retry`.
        retry_handler: prices errors that ckptflow has no rule for.
        config: one's own Parsl Config, used as it is. What it lacks (memo, retry handler,
            heartbeats) is then lacking.
        overrides: values that replace the site file's, by dotted key.
        on_change: what to do with a task of which the code, an argument or an input file has
            changed since its result or checkpoint was made: ``"resume"`` uses it all the
            same and says so, ``"redo"`` begins anew, ``"fail"`` lets the task fail.

    Raises:
        ConfigError: a name or a value is wrong. Nothing was started.
    """
    names = ("RUN", "SITE", "STORE", "USER", "ON_CHANGE")
    given = {key: os.environ.get(f"CKPTFLOW_{key}") for key in names}
    settings = {**(overrides or {}), **settings_in(os.environ)}
    place = given["STORE"] or store
    chosen = load_site(
        given["SITE"] or site,
        user=given["USER"] or user,
        overrides=settings,
        purpose="store" if place else "run",
    )
    chosen = chosen.with_store(place) if place else chosen.at(Path.cwd())
    made = Run(
        given["RUN"] or name,
        chosen,
        retries=retries,
        retry_handler=retry_handler,
        config=config,
        on_change=parse_on_change(on_change),
    )
    made.on_change = parse_on_change(given["ON_CHANGE"] or on_change)
    return made


def last_run() -> Run | None:
    """Return the run that this process left last; the command line asks for its exit code."""
    return _last


class Run:
    """One life of a workflow. Made by `run`; use it as a context manager.

    Attributes:
        name: name of the run.
        site: the machine.
        folder: where the run's own files are.
        session: random name of this life.
        tasks: what becomes of its tasks.
        on_change: what to do with changed tasks; settled when it is entered.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        *,
        retries: int = 3,
        retry_handler: UserHandler | None = None,
        config: Config | None = None,
        on_change: OnChange = DEFAULT,
    ) -> None:
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ConfigError(f"retries is a number from 0 on, not {retries!r}.")
        LineageId(name, "task")  # Refuses a name that cannot be part of a key.
        self.name, self.site = name, site
        self.folder = site.runs_folder / name
        self.session = secrets.token_hex(8)
        self._retries, self._user_handler, self._own_config = retries, retry_handler, config
        self.on_change, self._script_says = on_change, on_change
        self._lock = RunLock(
            self.folder / LOCK,
            run=name,
            session=self.session,
            stale_after_s=site.lock_stale_s,
        )
        self._problems: list[str] = []
        self._guard = threading.Lock()
        self._journal: Journal | None = None
        self._memoizer: DurableMemoizer | None = None
        self._dfk: DataFlowKernel | None = None
        self._watch: Watch | None = None
        self._log_handlers: list[logging.Handler] = []
        self._summary: RunSummary | None = None
        self._stopping = StopInOrder(name)
        self._blocks = Blocks(
            self.session,
            self._note,
            walltime_s=site.executor.walltime_s,
            margin_s=2 * site.executor.margin_s + site.executor.heartbeat_threshold_s,
        )
        self._home = (socket.gethostname(), os.getpid())
        self._looked_s = 0.0
        self.tasks = Tasks(
            name,
            site,
            session=self.session,
            home=self._home,
            alone=config is None and site.executor.tasks_are_alone,
            note=self._note,
            trail=self.folder / TRAIL,
            has_own_config=config is not None,
        )
        self.tasks.still_ours = self._still_ours

    def __repr__(self) -> str:
        return f"<Run {self.name!r} in {self.folder}>"

    # --- its life ---

    def __enter__(self) -> Self:
        active.enter(self)
        try:
            self._stopping.begin()
            self._start()
        except BaseException:
            self._stop(in_peace=False)
            self._let_go()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _last  # noqa: PLW0603  Read by the command line.
        try:
            if error is None and self._dfk is not None:
                self._dfk.wait_for_current_tasks()
                self._wait_for_copies()
        finally:
            self._stop(in_peace=error is None)
            self._summary = self._count_up()
            _last = self
            received = self._stopping.received
            self._note(
                "run-ended",
                sync=True,
                exit_code=self.exit_code if received is None else STOPPED_STATUS,
                error=repr(error) if error else None,
                signal=received.name if received else None,
            )
            self._let_go()
        for text in self._summary.failures:
            warnings.warn(f"run {self.name}: {text}", CheckpointWarning, stacklevel=2)

    def submit(self, app: App, *args: Any, **kwargs: Any) -> AppFuture:
        """Submit a task of an app; calling the app does the same."""
        spec = self.tasks.spec_for(app)
        needs = self.tasks.resources_for(app)
        future = app.parsl(*args, **{**needs, **kwargs, CKPT: spec})
        self.tasks.follow(future, app)
        return future

    def summary(self) -> RunSummary:
        """Return what became of the tasks so far; complete once the run is over."""
        return self._summary or self._count_up()

    @property
    def exit_code(self) -> int:
        """The exit code, see `RunSummary.exit_code`."""
        return self.summary().exit_code

    def _start(self) -> None:
        self._lock.acquire()
        path = self.folder / JOURNAL
        self.tasks.begin(earlier(journal.read(path, only=EVENTS)), self.on_change)
        self._journal = Journal(path, failed=self._journal_failed)
        self._note(
            "run-started",
            sync=True,
            session=self.session,
            host=self._home[0],
            pid=self._home[1],
            argv=sys.argv,
            folder=Path.cwd(),
            site=self.site.name,
            tiers=[tier.spec for tier in self.site.sealed_tiers],
            workers=self.site.executor.workers,
            nodes=getattr(self.site.executor.allocation, "nodes", None),
            on_change=self._script_says,
        )
        for holder in self._lock.dead_holders:
            self._note("holder-died", host=holder.host, pid=holder.pid, session=holder.session)
        self._end_abandoned_blocks()
        # After them: they may run on this host, and tasks may take a moment to save.
        for left in end_leftovers(
            self.folder, lambda session: session != self.session, grace_s=STOP_GRACE_S
        ):
            self._note("leftover-ended", pid=left.pid, name=left.name, session=left.session)
        executor = self.site.executor
        if executor.kind == "threads" and executor.walltime_s is not None:
            self.tasks.ends_at_s = time.time() + executor.walltime_s
        before = list(_parsl_log.handlers)
        self._dfk = self._load()
        self._log_handlers = [one for one in _parsl_log.handlers if one not in before]
        self._blocks.follow(self._dfk.executors)
        self._watch = Watch(
            self._dfk.executors,
            renew=self._renew,
            renew_every_s=self._lock.renew_every_s,
            lost=self._interchange_lost,
            look=self._look_at_blocks,
        )

    def _end_abandoned_blocks(self) -> None:
        """Cancel what dead sessions have left in a batch system; their tasks save first."""
        events = journal.read(self.folder / JOURNAL)
        found = find_blocks(events, lambda session: session != self.session)
        for block in found.blocks:
            self._note("block-abandoned", **block.as_event())
        problems = [*found.problems, *cancel_blocks(found.blocks)]
        for text in problems:  # They are not this life's; its tasks fence theirs.
            self._note("blocks-not-cleared", text=text)
            warnings.warn(f"run {self.name}: {text}", CheckpointWarning, stacklevel=4)
        if found.asked and not problems:
            self._note(CLEARED)

    def _look_at_blocks(self) -> None:
        self._blocks.look()
        self._blocks.look_at_managers()

    def _load(self) -> DataFlowKernel:
        """Start what runs the tasks."""
        config = self._own_config or self._make_config()
        self._blocks.record(config.executors)
        dfk = parsl.load(config)
        self._note("parsl-started", folder=dfk.run_dir, run_id=dfk.run_id)
        return dfk

    def _make_config(self) -> Config:
        return build_config(
            self.site,
            run_dir=self.folder / PARSL,
            retries=self._retries,
            retry_handler=self._make_retry_handler(),
            memoizer=self._make_memoizer(),
            environment={**mark(self.folder, self.session), **_script_modules()},
            notice=lambda text: self._note("scheduler", text=text),
        )

    def _make_memoizer(self) -> DurableMemoizer:
        self._memoizer = self.tasks.memoizer = DurableMemoizer(
            self.folder / MEMO,
            runs_folder=self.site.runs_folder,
            describe=self.tasks.describe,
            notice=self.tasks.launched,
            is_ours=lambda: self._lock.is_mine,
        )
        return self._memoizer

    def _make_retry_handler(self) -> RetryHandler:
        return RetryHandler(
            self._user_handler,
            progress=self.tasks.newest_step,
            notice=self.tasks.try_failed,
            is_over=self._is_over,
            hold=lambda task, block, why: self._blocks.hold(task["executor"], block, why),
            was_ending=self._blocks.was_ending,
        )

    def _stop(self, *, in_peace: bool) -> None:
        """End Parsl and what it started, in whatever state that is; tasks may save."""
        self._stopping.leave_in_peace()
        if self._watch:
            self._watch.stop()
        if self._dfk is not None:
            if not in_peace:
                stop_tasks_here("the run is given up")
            self._close_parsl(self._dfk)
            for handler in self._log_handlers:
                handler.close()  # Parsl only takes it out, and leaves its file open.
            for text in self._blocks.cancel():
                self._problem(text)
        if self._journal is not None:  # Parsl may have been interrupted while it started.
            grace_s = GRACE_S if in_peace else STOP_GRACE_S
            end_leftovers(self.folder, lambda session: session == self.session, grace_s=grace_s)
            self._blocks.look()
        active.leave(self)
        self._stopping.end()
        stop_tasks_here(None)

    def _wait_for_copies(self) -> None:
        """Wait for what tasks have left to the agent of this node, and hear what failed."""
        if not self.site.flush.agent:
            return
        timeout_s = _COPIES_S
        if self.tasks.ends_at_s is not None:
            timeout_s = max(0.0, min(timeout_s, self.tasks.ends_at_s - time.time()))
        options = self.site.flush.options
        try:
            tiers = self.site.open_tiers()
            problems = wait_for_run(tiers, self.name, timeout_s, options=options)
        except CheckpointError as error:
            problems = [f"what the agent has not copied is unknown: {error}"]
        for text in problems:
            self._problem(text)

    def _let_go(self) -> None:
        close_trail(self.folder / TRAIL)  # Of tasks that were threads of this process.
        if self._journal:
            self._journal.close()
        self._lock.release()

    def _close_parsl(self, dfk: DataFlowKernel) -> None:
        """Close Parsl, but not for ever: parts of it wait for processes that may be dead."""
        failures: list[BaseException] = []

        def close() -> None:
            try:
                dfk.cleanup()
            except Exception as error:  # noqa: BLE001  The thread ends here; it is told below.
                failures.append(error)

        closer = threading.Thread(target=close, name="ckptflow-close", daemon=True)
        closer.start()
        closer.join(_CLOSE_PARSL_S)
        if closer.is_alive():
            self._problem(
                f"Parsl did not end within {_CLOSE_PARSL_S:.0f} s and was left behind"
            )
        for error in failures:
            self._problem(f"Parsl did not end well: {type(error).__name__}: {error}")
        if closer.is_alive() or failures:
            parsl.clear()

    def _is_over(self) -> bool:
        ends = Deadline(self.tasks.ends_at_s, self.site.executor.margin_s)
        return ends.left_s(time.time()) <= 0

    def _count_up(self) -> RunSummary:
        remembering = self._memoizer.failures if self._memoizer else []
        return self.tasks.summary([*self._problems, *remembering])

    def _still_ours(self) -> bool:
        """Tell whether this process has the lock; a task that is launched asks, not each."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_AT_LOCK_S or self._journal is None:
            return True
        self._looked_s = now_s
        return self._lock.is_mine

    def _renew(self) -> None:
        """Show that this process lives; if the lock is another's by now, stop everything."""
        try:
            self._lock.renew()
        except RunLocked as error:
            _log.error("%s", error)
            self.tasks.stop(error)
            self._problem(str(error))
            self._note("run-taken-over", text=str(error))
            for executor in list(self._dfk.executors.values()) if self._dfk else ():
                if hasattr(executor, "set_bad_state_and_fail_all"):
                    executor.set_bad_state_and_fail_all(error)

    def _interchange_lost(self, text: str) -> None:
        self._problem(text)
        self._note("interchange-lost", text=text)

    def _problem(self, text: str) -> None:
        with self._guard:
            self._problems.append(text)

    def _note(self, event: str, *, sync: bool = False, **fields: object) -> None:
        if self._journal is not None:
            self._journal.add(event, sync=sync, **fields)

    def _journal_failed(self, error: OSError) -> None:
        self._problem(f"the journal {self.folder / JOURNAL} cannot be written: {error}")


def _script_modules() -> dict[str, str]:
    """Return a PYTHONPATH with which workers find the modules that lie beside the script."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        return {}
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(Path(script).resolve().parent), *([inherited] if inherited else [])]
    return {"PYTHONPATH": os.pathsep.join(folders)}
