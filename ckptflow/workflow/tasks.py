"""What becomes of the tasks of a run: who they are, what their workers are told, how they end.

Parsl calls from several threads: before each launch (`launched`), after each failed try
(`try_failed`), and when a future is done. All of it goes to the journal and is counted for the
summary; what attempts did is read from the store when somebody asks.

``tests/unit/test_summary.py``, ``tests/process/test_parsl_threads.py``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from parsl.app.futures import DataFuture
from parsl.dataflow.futures import AppFuture
from parsl.dataflow.taskrecord import TaskRecord

from ckptflow.errors import CheckpointError, ConfigError, Preempted, RunLocked
from ckptflow.model import LineageId
from ckptflow.plan.informing import informed
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.progress import Interval
from ckptflow.site import PolicyModel, Site
from ckptflow.store.catalog import AttemptRecord, Lineage
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.workflow.attempt import TaskFunction, TaskSpec, tiers_as_text
from ckptflow.workflow.changes import DEFAULT, Changes, Earlier, OnChange, Verdict, earlier
from ckptflow.workflow.describing import Describing
from ckptflow.workflow.external import Code
from ckptflow.workflow.identity import CKPT
from ckptflow.workflow.memo import DurableMemoizer, Facts
from ckptflow.workflow.memo_file import Remembered
from ckptflow.workflow.ranks.launch import RankedCommand, RankedFunction
from ckptflow.workflow.ranks.options import Ranks, on_site, resources
from ckptflow.workflow.retry import LOST, Price
from ckptflow.workflow.summary import (
    FAILED,
    FINISHED,
    REUSED,
    STOPPED,
    RunSummary,
    TaskReport,
    summarise,
)

if TYPE_CHECKING:
    from ckptflow.workflow.apps import App

_log = logging.getLogger("ckptflow")


class Note(Protocol):
    """Adds an event to the journal."""

    def __call__(self, event: str, *, sync: bool = False, **fields: object) -> None:
        """Add it; with ``sync`` it is on the disk afterwards."""


class Tasks:
    """The tasks of one life of a run.

    Args:
        run: name of the run.
        site: the machine.
        session: random name of this life.
        home: host and process that submit.
        alone: whether each task has a process to itself.
        note: adds an event to the journal.
        trail: the folder in which attempts tell what they do.
        has_own_config: whether the workflow brings its own Parsl Config.
    """

    def __init__(
        self,
        run: str,
        site: Site,
        *,
        session: str,
        home: tuple[str, int],
        alone: bool,
        note: Note,
        trail: Path,
        has_own_config: bool = False,
    ) -> None:
        self._has_own_config = has_own_config
        self._run, self._site, self._session, self._trail = run, site, session, trail
        self._home, self._alone, self._note = home, alone, note
        self._reports: dict[str, TaskReport] = {}
        self._names: dict[int, str] = {}
        self._functions: dict[bytes, TaskFunction] = {}  # By what their tasks get as ``ckpt``.
        self._specs: dict[str, tuple[App, bytes]] = {}
        self._guard = threading.RLock()
        self.ends_at_s: float | None = None
        self.memoizer: DurableMemoizer | None = None
        self._stopped: CheckpointError | None = None
        self.still_ours: Callable[[], bool] = lambda: True
        self.begin(earlier(()), DEFAULT)

    def begin(self, before: Earlier, on_change: OnChange) -> None:
        """Say what earlier starts of the run have left, and what to do with changed tasks."""
        self._describing = Describing(before, self._note)
        self._changes = Changes(
            self._run,
            on_change=on_change,
            before=before,
            lineage=lambda lineage: self._lineage(lineage.task),
            say=self._changed,
        )

    def stop(self, error: CheckpointError) -> None:
        """Launch nothing any more: what is submitted or tried again fails with ``error``."""
        self._stopped = error

    def _refuse_if_over(self) -> None:
        if self._stopped is None and not self.still_ours():
            self._stopped = RunLocked(
                f"Run {self._run!r} was taken over by another process, which took this one for "
                f"dead. Nothing is started here any more."
            )
        if self._stopped is not None:
            raise self._stopped

    # --- what their workers are told ---

    def spec_for(self, app: App) -> bytes:
        """Return what the workers have to know for the tasks of ``app``, packed.

        Raises:
            ConfigError: another app of that name is part of this run, or the app names a policy
                that the site lacks.
            RunLocked: another process has taken the run over.
        """
        self._refuse_if_over()
        known = self._specs.get(app.function.name)
        if known is not None and known[0] is app:
            return known[1]
        # The same function defined twice is one app: a cell of a notebook that ran again.
        if known is not None and known[0].function.place != app.function.place:
            raise ConfigError(
                f"Two apps of run {self._run!r} have the name {app.function.name!r}: tasks are "
                f"known by it, so their checkpoints would mix. Rename one."
            )
        packed = self._spec(app, self._policy_of(app)).packed()
        self._describing.add(app)
        with self._guard:
            self._specs[app.function.name] = (app, packed)
            self._functions[packed] = app.function
        return packed

    def _policy_of(self, app: App) -> PolicyModel:
        if app.policy is None:
            return self._site.policy
        if app.policy not in self._site.policies:
            names = ", ".join(self._site.policies) or "none"
            raise ConfigError(
                f"{app.function.name}() asks for policy {app.policy!r}; site "
                f"{self._site.name!r} has: {names}."
            )
        return self._site.policies[app.policy]

    def _spec(self, app: App, policy: PolicyModel) -> TaskSpec:
        return TaskSpec(
            run=self._run,
            app=app.function.name,
            session=self._session,
            tiers=tiers_as_text(self._site.sealed_tiers),
            every=self._every(app, policy),
            keep=app.keep if app.keep is not None else policy.keep,
            packing=app.packing if app.packing is not None else policy.packing,
            capture=app.capture if app.capture is not None else policy.capture,
            flush_every=dict(policy.flush_every),
            flushing=self._site.flush.options,
            ends_at_s=self.ends_at_s,
            margin_s=self._site.executor.margin_s,
            home=self._home,
            alone=self._alone,
            trail=str(self._trail),
            ranks=self._ranks_of(app),
            code=self._code(app),
        )

    def _every(self, app: App, policy: PolicyModel) -> str | int | Interval | None:
        """Return when tasks of an app save, told what the site knows of failures and tiers.

        Raises:
            ConfigError: ranks are to save by a plan that each of them would make for itself.
        """
        every = app.every if app.every is not None else policy.every
        rule, nodes = parse_interval(every), app.ranks.nodes if app.ranks else 1
        processes = app.ranks.ranks if app.ranks else None
        if not isinstance(rule, MultiLevel):
            return self._site.failures.inform(every, nodes=nodes, processes=processes)
        made = policy.multilevel(rule)
        if app.ranks is not None and made.interval_s is None:
            raise ConfigError(
                f"{app.function.name}() saves on {app.ranks.ranks} ranks, which need a pattern "
                f"that is the same for all: let `ckptflow tune` find one, and put it as "
                f"pattern = {{ ... }} beside every = 'multilevel' into the policy."
            )
        return informed(made, self._site, nodes=nodes, processes=processes or 1)

    def _ranks_of(self, app: App) -> Ranks | None:
        if app.ranks is None:
            return None
        return on_site(app.function.name, app.ranks, self._site.executor)

    def _code(self, app: App) -> Code | None:
        """Return what an app says of its code, and where the tasks of this run work."""
        if app.code is None:
            return None
        return replace(app.code, work=str(self._site.runs_folder / self._run / "work"))

    def resources_for(self, app: App) -> dict[str, Any]:
        """Return what Parsl is told of the nodes that a task of ``app`` needs."""
        if self._site.executor.kind != "mpi" or self._has_own_config:
            return {}
        return {"parsl_resource_specification": resources(app.ranks)}

    # --- how they end ---

    def follow(self, future: AppFuture, app: App) -> None:
        """Note what becomes of a task that was submitted."""
        future.add_done_callback(lambda done: self._done(done, app.function.name))

    def describe(self, record: TaskRecord) -> Facts:
        """Return what is known of a task whose arguments are resolved.

        Raises:
            ConfigError: an input file is missing.
        """
        if not self._is_ours(record):
            return self._describing.foreign(record)
        app = self._functions[record["kwargs"][CKPT]].name
        return self._describing.facts(record, app, self._name_of(record))

    def launched(self, record: TaskRecord, facts: Facts, remembered: Remembered | None) -> bool:
        """Note that Parsl is about to launch a task, or has its result already.

        Returns:
            Whether the remembered result is used.

        Raises:
            TaskChanged: it has changed, and the run is not to go on with it.
            RunLocked: another process has taken the run over.
        """
        self._refuse_if_over()
        if not self._is_ours(record):
            return remembered is not None
        name = facts.task
        with self._guard:
            is_first = name not in self._reports
        reuse = remembered is not None
        if is_first and facts.definition is not None:
            function = self._functions[record["kwargs"][CKPT]]
            reuse = self._changes.settle(
                name, facts.definition, remembered, checkpoints=function.wants_checkpointer
            )
        with self._guard:
            report = self._report(name)
            report.tries += 0 if reuse else 1
        known: dict[str, Any] = {
            "task": name,
            "id": record["id"],
            "hash": record.get("hashsum"),
        }
        if report.tries <= 1 and (needs := self._needs(record)):
            known["needs"] = needs
        if reuse:
            self._note("task-reused", **known)
            return True
        known |= {"tries": report.tries, **_streams(record)}
        if report.tries == 1 and (made_of := facts.definition) is not None:
            known |= {"code": made_of.code, "version": made_of.version}
            known["arguments"] = made_of.arguments
        self._note("task-launched", **known)
        return False

    def _changed(self, task: str, verdict: Verdict) -> None:
        """Note that a task has changed, and what happens to it."""
        _log.warning(verdict.text)
        with self._guard:
            self._report(task).changed = verdict.text
        self._note("task-changed", task=task, action=verdict.action, text=verdict.text)

    def _needs(self, record: TaskRecord) -> list[str]:
        """Return the names of our tasks whose results a task takes, through others' too."""
        found: dict[str, None] = {}
        waiting, seen = list(record["depends"]), set[int]()
        while waiting:
            future = waiting.pop()
            # No other attribute may be asked for: an AppFuture makes a task of the question.
            future = future.parent if isinstance(future, DataFuture) else future
            needed = future.task_record if isinstance(future, AppFuture) else None
            if needed is None or needed["id"] in seen:
                continue
            seen.add(needed["id"])
            if needed["id"] in self._names:
                found[self._names[needed["id"]]] = None
            else:
                waiting += needed["depends"]
        return sorted(found)

    def try_failed(self, record: TaskRecord, error: Exception, price: Price) -> None:
        """Note that a try failed, and what another one costs."""
        if not self._is_ours(record):
            return
        name = self._name_of(record)
        with self._guard:
            report = self._report(name)
            report.lost += isinstance(error, LOST)
            report.preempted += price.cost == 0.0 and not isinstance(error, LOST)
        self._note(
            "task-try-failed",
            task=name,
            id=record["id"],
            error=_one_line(error),
            cost=min(price.cost, 1e9),  # JSON has no infinity.
            reason=price.reason,
        )

    def _done(self, future: AppFuture, app: str) -> None:
        record = future.task_record
        name = self._names.get(record["id"], app)
        error = future.exception()
        with self._guard:
            report = self._report(name)
            if error is not None:
                report.status = STOPPED if isinstance(error, Preempted) else FAILED
                report.error = _one_line(error)
            elif record["from_memo"]:
                report.status = REUSED if report.tries == 0 else FINISHED
            else:
                report.status = FINISHED
        if error is not None:
            self._note("task-failed", task=name, id=record["id"], error=_one_line(error))
        elif not record["from_memo"]:
            remembered = self.memoizer is not None and self.memoizer.remembers(record)
            self._note("task-finished", task=name, id=record["id"], remembered=remembered)

    # --- who they are ---

    def _is_ours(self, record: TaskRecord) -> bool:
        """Tell whether a task is of a ckptflow app; Parsl's own apps work in a run, too."""
        packed = record["kwargs"].get(CKPT)
        return isinstance(packed, bytes) and packed in self._functions

    def _name_of(self, record: TaskRecord) -> str:
        """Return the name of a task whose arguments are resolved."""
        number = record["id"]
        if number not in self._names:
            function = self._functions[record["kwargs"][CKPT]]
            name = function.name
            # The worker will say what is wrong; here it must not stop the launch.
            try:
                name = function.task_name(tuple(record["args"]), record["kwargs"])
            except (ConfigError, TypeError) as error:
                _log.debug("%s() has no name: %s", name, error)
            self._names[number] = name
        return self._names[number]

    def _report(self, name: str) -> TaskReport:
        return self._reports.setdefault(name, TaskReport(name))

    # --- what is known of them ---

    def newest_step(self, record: TaskRecord) -> int | None:
        """Return the newest step that a task has committed; this asks the store."""
        if not self._is_ours(record):
            return None
        lineage = self._lineage(self._name_of(record))
        function = self._functions[record["kwargs"][CKPT]]
        if isinstance(function, RankedFunction | RankedCommand):
            newest_set = next(ShardSets(lineage.tiers, lineage.id).newest_first(), None)
            return newest_set.id.step if newest_set else None
        newest = lineage.newest()
        return newest.id.step if newest else None

    def summary(self, problems: Sequence[str] = ()) -> RunSummary:
        """Return what became of the tasks so far, and what went wrong beside them."""
        with self._guard:
            reports = list(self._reports.values())
        attempts: dict[str, list[AttemptRecord]] = {}
        found = list(problems)
        for report in reports:
            try:
                attempts[report.task] = self._lineage(report.task).attempts()
            except CheckpointError as error:
                found.append(f"{report.task}: its attempts cannot be read: {error}")
        return summarise(self._run, reports, attempts, self._session, found)

    def _lineage(self, task: str) -> Lineage:
        return Lineage(self._site.open_tiers(), LineageId(self._run, task))


def _streams(record: TaskRecord) -> dict[str, str]:
    """Return where the output of a task goes, if it was told to go into files."""
    found = {}
    for name in ("stdout", "stderr"):
        stream = record["kwargs"].get(name)
        path = stream[0] if isinstance(stream, tuple) else stream
        if isinstance(path, str | os.PathLike):
            found[name] = os.path.abspath(path)  # noqa: PTH100  Of a str or a Parsl file.
    return found


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
