"""What the store knows of the tasks of a run: their attempts and the checkpoints they left.

Tasks are read side by side. A tier that fails, or does not answer, is left out and named; the
threads are daemons, so that nothing waits for a file system whose server has gone.
``tests/unit/test_seeing_facts.py``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptflow.errors import CheckpointError
from ckptflow.model import LineageId, Manifest
from ckptflow.store.catalog import AttemptRecord, Lineage, lineages
from ckptflow.store.quarantine import FAILURES, failures, reasons
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.store.sharding.survey import survey_sets
from ckptflow.store.survey import survey_checkpoints
from ckptflow.tiers.tier import Tier
from ckptflow.tiers.watched import Watch, WatchedTier
from ckptflow.units import format_seconds
from ckptflow.workflow.seeing.events import number, seconds_of

STALL_S = 20.0
"""Silence of a tier after which a look goes on without it: somebody waits at a terminal."""

_THREADS = 8
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFact:
    """A checkpoint that is there.

    Attributes:
        step: its step.
        attempt: who saved it.
        tiers: names of those that hold it, inner ones first.
        status: as in `ckptflow.store.survey`, or ``incomplete``, for what ranks save together.
        created_s: when it was committed; ``None`` if nobody read its manifest.
        state_bytes: what a full copy takes.
        stored_bytes: what was written for it.
        total_steps: where its task will be done, if it says so.
        problem: why it cannot be read, or what was recorded of failed restores.
    """

    step: int
    attempt: int
    tiers: tuple[str, ...]
    status: str
    created_s: float | None = None
    state_bytes: int | None = None
    stored_bytes: int | None = None
    total_steps: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the store has of one task; checkpoints come newest first."""

    attempts: tuple[AttemptRecord, ...] = ()
    checkpoints: tuple[CheckpointFact, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the store has of a run.

    Attributes:
        tasks: facts of those that were looked at, by name.
        tiers: names and levels of the tiers that answered, inner ones first.
        notes: what could not be read, and why.
    """

    tasks: Mapping[str, TaskFacts] = field(default_factory=dict)
    tiers: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def read_facts(
    tiers: Sequence[Tier],
    run: str,
    *,
    is_wanted: Callable[[str], bool] = lambda _task: True,
    manifests: bool = True,
    stall_s: float = STALL_S,
) -> Facts:
    """Return what the store knows of a run. Nothing is written.

    Args:
        tiers: where to look, inner ones first.
        run: name of the run.
        is_wanted: tells whether a task has to be looked at.
        manifests: read all manifests, and not the newest of each task only.
        stall_s: silence after which a tier is taken for hanging.
    """
    notes: list[str] = []
    usable = list(tiers)
    while usable:
        reading = _Reading(usable, run, is_wanted, manifests=manifests)
        hanging = reading.wait(stall_s)
        if hanging is None:
            names = tuple((tier.name, tier.level) for tier in reading.answering)
            return Facts(reading.found, names, tuple(dict.fromkeys(notes + reading.notes)))
        notes.append(
            f"tier {hanging.name!r} has not answered for {format_seconds(stall_s)}: what it "
            f"holds is not shown"
        )
        usable = [tier for tier in usable if tier is not hanging]
    return Facts(notes=tuple(notes))


class _Reading:
    """One look at the store, in threads of its own."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        run: str,
        is_wanted: Callable[[str], bool],
        *,
        manifests: bool,
    ) -> None:
        self._run, self._is_wanted, self._manifests = run, is_wanted, manifests
        self._watch = Watch(time.monotonic)
        self._tiers: list[Tier] = [WatchedTier(tier, self._watch) for tier in tiers]
        self.answering: list[Tier] = []
        self.found: dict[str, TaskFacts] = {}
        self.notes: list[str] = []
        self._over = threading.Event()
        threading.Thread(target=self._work, name="ckptflow-look", daemon=True).start()

    def wait(self, stall_s: float) -> Tier | None:
        """Wait for the end; return the tier that hangs, if one does."""
        while not self._over.wait(_LOOK_EVERY_S):
            silence = self._watch.silence()
            if silence is not None and silence[0] > stall_s:
                return silence[1]
        return None

    def _work(self) -> None:
        try:
            tasks = self._tasks()
            left: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
            for task in tasks.items():
                left.put(task)
            helpers = [
                threading.Thread(target=self._read, args=(left,), daemon=True)
                for _ in range(min(_THREADS, len(tasks)))
            ]
            for one in helpers:
                one.start()
            for one in helpers:
                one.join()
        finally:
            self._over.set()

    def _tasks(self) -> dict[str, bool]:
        """Return the tasks to be read, and whether ranks save each of them together."""
        found: dict[str, bool] = {}
        for tier in self._tiers:
            try:
                known = lineages([tier], self._run)
            except CheckpointError as error:
                self.notes.append(f"tier {tier.name!r} was left out: {error}")
                continue
            self.answering.append(tier)
            for lineage in known:
                shard = lineage.shard
                task = lineage.task if shard is None else shard.set.task
                if self._is_wanted(task):
                    found[task] = found.get(task, False) or shard is not None
        return found

    def _read(self, left: queue.SimpleQueue[tuple[str, bool]]) -> None:
        while True:
            try:
                task, together = left.get_nowait()
            except queue.Empty:
                return
            try:
                self.found[task] = self._facts(task, together=together)
            except CheckpointError as error:
                self.notes.append(f"{task}: {error}")

    def _facts(self, task: str, *, together: bool) -> TaskFacts:
        lineage = Lineage(self.answering, LineageId(self._run, task), note=self.notes.append)
        if together:
            return _of_sets(ShardSets(self.answering, lineage.id, note=self.notes.append))
        attempts = tuple(lineage.attempts())
        read = _surveyed if self._manifests else _listed
        return TaskFacts(attempts, tuple(read(lineage)))


def _surveyed(lineage: Lineage) -> list[CheckpointFact]:
    """Return all checkpoints, with what their manifests say."""
    bad = _failed_restores(lineage)
    return [
        CheckpointFact(
            step=one.id.step,
            attempt=one.id.attempt,
            tiers=one.tiers,
            status=one.status,
            problem=one.problem or bad.get((one.id.step, one.id.attempt)),
            **_of_manifest(one.manifest),
        )
        for one in survey_checkpoints(lineage)
    ]


def _listed(lineage: Lineage) -> list[CheckpointFact]:
    """Return all checkpoints by their keys, and what the manifest of the newest says."""
    found = lineage.checkpoints()
    newest = next((one for one in found if not one.void), None)
    manifest: Manifest | None = None
    if newest is not None:
        try:
            manifest = lineage.manifest(newest)
        except CheckpointError:
            manifest = None  # Pruned meanwhile, or damaged: `verify` is for that.
    return [
        CheckpointFact(
            step=one.id.step,
            attempt=one.id.attempt,
            tiers=tuple(tier.name for tier in one.tiers),
            status="void" if one.void else "ok",
            **(_of_manifest(manifest) if one is newest else {}),
        )
        for one in found
    ]


def _of_manifest(manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return {}
    return {
        "created_s": seconds_of(manifest.created),
        "state_bytes": manifest.state_bytes,
        "stored_bytes": manifest.written_bytes,
        "total_steps": total_steps(manifest.pace.get("total_steps")),
    }


def _of_sets(sets: ShardSets) -> TaskFacts:
    facts = []
    for one in survey_sets(sets):
        complete = one.status == "complete"
        facts.append(
            CheckpointFact(
                step=one.found.id.step,
                attempt=one.found.id.attempt,
                tiers=one.complete_on,
                status="ok" if complete else one.status,
                created_s=seconds_of(one.created),
                state_bytes=one.state_bytes,
                stored_bytes=one.written_bytes,
                total_steps=next(
                    (
                        total_steps(manifest.pace.get("total_steps"))
                        for manifest in one.manifests.values()
                    ),
                    None,
                ),
            )
        )
    return TaskFacts(tuple(sets.lineage.attempts()), tuple(facts))


def _failed_restores(lineage: Lineage) -> dict[tuple[int, int], str]:
    """Return what was recorded of restores that failed, by step and attempt."""
    found: dict[tuple[int, int], str] = {}
    for checkpoint, by in failures(lineage).items():
        records = reasons(lineage, checkpoint)
        why = next((str(one["reason"]) for one in records if one.get("reason")), "unknown why")
        who = ", ".join(map(str, by))
        times = "attempt" if len(by) == 1 else "attempts"
        limit = f"; after {FAILURES} it is passed over" if len(by) < FAILURES else ""
        found[checkpoint.step, checkpoint.attempt] = (
            f"{times} {who} could not restore it: {why}{limit}"
        )
    return found


def total_steps(value: object) -> int | None:
    """Return a number of steps that was read somewhere; ``None`` for nonsense."""
    steps = number(value)
    return int(steps) if steps is not None and steps >= 0 else None


def newest_steps(facts: Facts) -> dict[str, int | None]:
    """Return the step of the newest checkpoint that counts, for every task that was read."""
    return {
        task: next((one.step for one in found.checkpoints if one.status == "ok"), None)
        for task, found in facts.tasks.items()
    }
