"""Make tasks of a run run again: forget results, and set lineages back. Nothing is deleted.

A task that is forgotten begins anew: its result in the Parsl memo counts no more, and its
checkpoints are void. A task can be set back to one of its checkpoints instead, or keep them all
and go on from the newest. All this takes the run's lock, so it is refused while the run goes
on. Each task is set back first and forgotten then; cut anywhere, it can be done again.

``tests/unit/test_forgetting.py``, ``tests/process/test_changes.py``.
"""

from __future__ import annotations

import contextlib
import fnmatch
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError, NotFoundError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.site import Site
from ckptflow.store.catalog import Lineage
from ckptflow.store.newest import Newest, newest_of_run
from ckptflow.store.setback import checkpoint_of_step, set_back
from ckptflow.tiers.tier import Tier
from ckptflow.workflow import journal
from ckptflow.workflow.lock import RunLock
from ckptflow.workflow.memo_file import MemoFile, read_results
from ckptflow.workflow.planning import no_journal
from ckptflow.workflow.run import JOURNAL, LOCK, MEMO
from ckptflow.workflow.script import AS_IT_IS, UserLayer, site_of

BEGINNING = "beginning"

_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was, or would be, done to one task.

    Attributes:
        task: its name.
        had_result: whether a result of it was remembered under its name.
        newest_step: step of its newest checkpoint before; ``None`` if it has none.
        goes_on_from: step from which it goes on when it runs again; ``None`` is the beginning.
        reason: why this task.
    """

    task: str
    had_result: bool
    newest_step: int | None
    goes_on_from: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Chosen:
    task: str
    reason: str


def forget(
    run: str,
    patterns: Sequence[str],
    *,
    site: str | None = None,
    store: str | Path | None = None,
    layer: UserLayer = AS_IT_IS,
    dependents: bool = False,
    keep_checkpoints: bool = False,
    dry_run: bool = False,
) -> list[Forgotten]:
    """Forget the results of tasks, so that they run again from the beginning.

    Args:
        run: name of the run.
        patterns: names of tasks, with ``*``, ``?`` and ``[...]`` as in the shell.
        site: name or file of its site.
        store: folder or address of its checkpoints, if it was given one.
        layer: what is laid on top of its site.
        dependents: the tasks that took their results, too, and so on.
        keep_checkpoints: let them go on from their newest checkpoints.
        dry_run: change nothing.

    Raises:
        NotFoundError: there is no such run, or a pattern fits no task.
        RunLocked: the run goes on.
        TierError: the store failed; some tasks may be done, and it can be repeated.
    """
    work = _Work(run, site_of(site, store, layer), dry_run=dry_run)
    chosen = work.choose(patterns, dependents=dependents)
    with work.alone():
        return [work.forget(one, keep_checkpoints=keep_checkpoints) for one in chosen]


def go_back(
    run: str,
    patterns: Sequence[str],
    *,
    step: int | None,
    site: str | None = None,
    store: str | Path | None = None,
    layer: UserLayer = AS_IT_IS,
    dry_run: bool = False,
) -> list[Forgotten]:
    """Set tasks back to their checkpoints of a step, and forget their results.

    Args:
        run: name of the run.
        patterns: names of tasks, with ``*``, ``?`` and ``[...]`` as in the shell.
        step: which checkpoint; ``None`` is the beginning.
        site: name or file of its site.
        store: folder or address of its checkpoints, if it was given one.
        layer: what is laid on top of its site.
        dry_run: change nothing.

    Raises:
        NotFoundError: there is no such run, task, or checkpoint. Then nothing was changed.
        RunLocked: the run goes on.
        TierError: the store failed; some tasks may be done, and it can be repeated.
    """
    work = _Work(run, site_of(site, store, layer), dry_run=dry_run)
    chosen = work.choose(patterns, dependents=False)
    with work.alone():
        starts = [work.start_of(one.task, step) for one in chosen]
        return [work.back(one, start) for one, start in zip(chosen, starts, strict=True)]


def parse_step(text: str) -> int | None:
    """Read ``beginning`` or a step; step 0 is the beginning.

    Raises:
        ConfigError: it is neither.
    """
    if text == BEGINNING:
        return None
    if not text.isdecimal():
        raise ConfigError(f"A step is a number from 0 on, or {BEGINNING!r}, not {text!r}.")
    return int(text) or None


class _Work:
    """A run whose tasks are to run again."""

    def __init__(self, run: str, place: Site, *, dry_run: bool) -> None:
        self._run, self._place, self._dry_run = run, place, dry_run
        self._folder = place.runs_folder / run
        self._tiers: list[Tier] = place.open_tiers()
        self._newest: dict[str, Newest | None] = newest_of_run(self._tiers, run)
        events = list(journal.read(self._folder / JOURNAL))
        if not events:
            raise no_journal(run, place, list(self._newest))
        self._needs = needs_in(events)
        self._memo: MemoFile | None = None
        self._journal: journal.Journal | None = None
        self._remembered: set[str | None] = set()

    def choose(self, patterns: Sequence[str], *, dependents: bool) -> list[_Chosen]:
        """Return the tasks that are meant, in their order, and then those that need them."""
        known = [*self._needs, *sorted(set(self._newest) - set(self._needs))]
        chosen: dict[str, str] = {}
        for pattern in patterns:
            fitting = fnmatch.filter(known, pattern)
            if not fitting:
                shown = ", ".join(known[:_SHOWN_MAX]) or "none"
                more = f" and {len(known) - _SHOWN_MAX} more" if len(known) > _SHOWN_MAX else ""
                raise NotFoundError(
                    f"Run {self._run!r} has no task {pattern!r}; it has {shown}{more}."
                )
            for task in fitting:
                chosen.setdefault(task, "was named")
        if dependents:
            for task, needed in dependents_of(chosen, self._needs):
                chosen.setdefault(task, f"takes the result of {needed}")
        return [_Chosen(task, reason) for task, reason in chosen.items()]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the run's lock, with its memo and its journal open; not for a dry run."""
        if self._dry_run:
            results = read_results(self._folder / MEMO)
            self._remembered = {one.task for one in results.values()}
            yield
            return
        lock = RunLock(
            self._folder / LOCK,
            run=self._run,
            session=secrets.token_hex(8),
            stale_after_s=self._place.lock_stale_s,
        )
        lock.acquire()
        failures: list[str] = []
        try:
            self._memo = MemoFile(self._folder / MEMO, failed=failures.append)
            self._remembered = {one.task for one in self._memo.results()[0].values()}
            self._journal = journal.Journal(self._folder / JOURNAL)
            yield
        finally:
            for file in (self._memo, self._journal):
                if file is not None:
                    file.close()
            lock.release()
        if failures:
            raise ConfigError(f"Results were not forgotten: {failures[0]}")

    def forget(self, one: _Chosen, *, keep_checkpoints: bool) -> Forgotten:
        """Forget the result of a task; make its checkpoints void unless they are kept."""
        newest = self._newest.get(one.task)
        goes_on = newest.step if newest and keep_checkpoints else None
        if newest and not keep_checkpoints:
            self._set_back(one.task, None)
        return self._forget(one, goes_on)

    def start_of(self, task: str, step: int | None) -> CheckpointId | None:
        """Return the checkpoint of a step; the beginning has none."""
        return None if step is None else checkpoint_of_step(self._lineage(task), step)

    def back(self, one: _Chosen, start: CheckpointId | None) -> Forgotten:
        """Set a task back to a checkpoint, and forget its result."""
        if self._newest.get(one.task):
            self._set_back(one.task, start)
        return self._forget(one, start.step if start else None)

    def _set_back(self, task: str, start: CheckpointId | None) -> None:
        if self._dry_run:
            return
        where = f"step {start.step}" if start else "the beginning"
        set_back(self._lineage(task), start, reason=f"set back to {where} on demand")
        assert self._journal is not None, "it is open while the lock is held"
        self._journal.add("task-set-back", task=task, step=start.step if start else None)

    def _forget(self, one: _Chosen, goes_on_from: int | None) -> Forgotten:
        if self._memo is not None and self._journal is not None:
            self._memo.forget(one.task)
            self._journal.add("task-forgotten", task=one.task, reason=one.reason)
        newest = self._newest.get(one.task)
        had = one.task in self._remembered
        step = newest.step if newest else None
        return Forgotten(one.task, had, step, goes_on_from, one.reason)

    def _lineage(self, task: str) -> Lineage:
        return Lineage(self._tiers, LineageId(self._run, task))


def needs_in(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return, for each task in a journal, the tasks whose results it took the last time."""
    needs: dict[str, tuple[str, ...]] = {}
    for event in events:
        match event:
            case {"event": "task-launched" | "task-reused" as kind, "task": str(task)}:
                if kind == "task-reused" or event.get("tries") == 1:
                    found = event.get("needs")
                    needs[task] = tuple(map(str, found)) if isinstance(found, list) else ()
                needs.setdefault(task, ())
            case {"event": str(kind), "task": str(task)} if kind.startswith("task-"):
                needs.setdefault(task, ())
    return needs


def dependents_of(
    tasks: Iterable[str], needs: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """Yield the tasks that took results of ``tasks``, directly or not, and whose first."""
    takers: dict[str, list[str]] = {}
    for task, needed in needs.items():
        for one in needed:
            takers.setdefault(one, []).append(task)
    waiting = list(tasks)
    seen = set(waiting)
    while waiting:
        needed_one = waiting.pop(0)
        for task in takers.get(needed_one, ()):
            if task not in seen:
                seen.add(task)
                waiting.append(task)
                yield task, needed_one
