"""What attempts tell while they run: JSON lines, a file for each process, in the run's folder.

The journal of a run is written where tasks are submitted, and the store keeps the newest
checkpoints only. In between lies what happened on the workers: where an attempt went on from
and what it passed over, each save with its cost, when each tier had it, how far the steps got.
A worker that sees the folder of the run adds that there, line by line, so that what a killed
one has told is still there afterwards. Where the folder is not seen nothing is told, and
nobody is hindered: all of it is for people (`ckptflow.workflow.seeing`).

The file of a process is a `Journal`, so nothing here waits for a file system.
``tests/unit/test_trail.py``.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ckptflow.checkpointer import Checkpointer
from ckptflow.checkpointer.hooks import Hooks
from ckptflow.checkpointer.steering import PlanChange
from ckptflow.checkpointer.ticket import Ticket
from ckptflow.store.origin import origin
from ckptflow.tiers.tier import Tier
from ckptflow.workflow.journal import Journal

TRAIL = "trail"
STEP_EVERY_S = 5.0
"""How often a step is told: after a kill, no more than this is unknown of how far it was."""

TOLD_AT_END = ("outcome", "step", "resumed_step", "error", "failures", "tiers")
"""What of the record of an attempt is told when it ends."""

_TOLD_OF_LEVELS = ("rate_per_s", "latency_s", "interference", "recovery_s")
_SETTLE_S = 2.0
_REASON_MAX = 500
_SKIPPED_MAX = 20
_log = logging.getLogger("ckptflow")
_lock = threading.Lock()
_files: dict[
    tuple[int, str], Journal | None
] = {}  # By process (a fork has no thread) and folder.

S = TypeVar("S")


class Trail:
    """What one attempt tells. Without a folder it tells nobody.

    Args:
        folder: the trail's folder; made if the run's folder, which it lies in, exists.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder, self._began_s = folder, time.time()

    def tell(self, event: str, *, task: str, attempt: int, **fields: Any) -> None:
        """Add an event of an attempt."""
        file = _file(self._folder)
        if file is not None:
            file.add(event, task=task, attempt=attempt, **fields)
            file.settle(0.0)  # Written soon, but nobody waits: whoever is killed has told it.

    def tell_began(self, *, task: str, attempt: int) -> None:
        """Add that an attempt has begun: where, and when its try began there."""
        self.tell(
            "attempt-began", task=task, attempt=attempt, try_began_s=self._began_s, **origin()
        )

    def settle(self) -> None:
        """Wait, but not for long, until all that was told is handed to the system."""
        file = _file(self._folder)
        if file is not None and not file.settle(_SETTLE_S):
            _log.warning("%s takes long to write.", file.path)


def close_trail(folder: Path) -> None:
    """Close the file of this process in a folder, if it has one: no attempt is left here."""
    with _lock:
        file = _files.pop((os.getpid(), str(folder)), None)
    if file is not None:
        file.close()


def _shortened(value: float) -> float:
    return float(f"{value:.4g}")


def _file(folder: str | None) -> Journal | None:
    """Return the file of this process in a folder; ``None`` where there can be none."""
    if folder is None:
        return None
    key = (os.getpid(), folder)
    with _lock:
        if key not in _files:
            _files[key] = _opened(Path(folder))
        return _files[key]


def _opened(folder: Path) -> Journal | None:
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
    try:
        if not folder.parent.is_dir():
            return None  # Another machine, that does not see the run's folder.
        folder.mkdir(mode=0o700, exist_ok=True)
        return Journal(folder / name, failed=lambda error: _log.info("%s: %s", name, error))
    except OSError as error:
        _log.info("What attempts tell is not written to %s: %s", folder, error)
        return None


class TellingCheckpointer(Checkpointer):
    """A checkpointer that leaves a trail of what it does.

    Attributes:
        trail: where; to nowhere by default.
    """

    trail = Trail(None)
    _told_attempt: int | None = None
    _told_step_s = float("-inf")
    _step: int | None = None  # The last that the task has told of.

    def restore(self, initial: S | None = None, *, step: int | None = None) -> S:
        """See `Checkpointer.restore`."""
        state = super().restore(initial, step=step)
        restored = self._history.restored
        skipped = restored.skipped[:_SKIPPED_MAX] if restored else ()
        self._tell(
            "attempt-resumed",
            step=self.restored_step,
            of_attempt=restored.id.attempt if restored else None,
            skipped=[
                {"step": one.step, "attempt": one.attempt, "reason": reason[:_REASON_MAX]}
                for one, reason in skipped
            ],
        )
        return state

    def step(
        self, step: int, state: Any = None, *, metrics: Mapping[str, float] | None = None
    ) -> Ticket | None:
        """See `Checkpointer.step`."""
        now_s, self._step = time.monotonic(), step
        if now_s - self._told_step_s >= STEP_EVERY_S:
            self._told_step_s = now_s
            self._tell_step()
        return super().step(step, state, metrics=metrics)

    def _save(
        self, step: int, state: Any, metrics: Mapping[str, float] | None, *, last: bool
    ) -> Ticket:
        began_s = time.monotonic()
        ticket = super()._save(step, state, metrics, last=last)
        blocked_s = round(time.monotonic() - began_s, 6)
        self._tell(
            "checkpoint-taken",
            step=ticket.step,
            blocked_s=blocked_s,
            total_steps=self.total_steps,
            why=ticket.why,
            placements=[
                {"tier": one.tier, "level": one.level, "goes": one.goes, "reason": one.reason}
                for one in ticket.placements
            ],
        )
        return ticket

    def _planned(self, change: PlanChange) -> None:
        super()._planned(change)
        made, before = change.plan, change.before
        self._tell(
            "policy-planned",
            step=change.step,
            interval_s=float(f"{made.interval_s:.6g}"),
            counts=dict(made.counts),
            before_interval_s=float(f"{before.interval_s:.6g}") if before else None,
            before_counts=dict(before.counts) if before else None,
            efficiency=round(made.efficiency, 6),
            rates_per_s=[_shortened(one) for one in made.rates.per_s],
            blocked_s=_shortened(made.system.blocked_s),
            levels=[
                {
                    "tier": level.name,
                    "level": level.number,
                    **{name: _shortened(getattr(level, name)) for name in _TOLD_OF_LEVELS},
                }
                for level in made.system.levels
            ],
            reasons=list(made.reasons),
        )

    def _hooks(self, step: int) -> Hooks:
        hooks, attempt = super()._hooks(step), self.attempt
        told = False

        def committed(tier: Tier) -> None:
            nonlocal told
            hooks.committed(tier)
            fields = {} if told else self._written_fields(step)
            told = True
            self.trail.tell(
                "checkpoint-stored",
                task=self.task,
                attempt=attempt,
                step=step,
                tier=tier.name,
                level=tier.level,
                **fields,
            )

        return replace(hooks, committed=committed)

    def _written_fields(self, step: int) -> dict[str, Any]:
        """Return what a save came to; the writer notes it before it tells of the commit."""
        one = self._written(step)
        if one is None:
            return {}
        return {
            "state_bytes": one.state_bytes,
            "stored_bytes": one.stored_bytes,
            "duration_s": round(one.duration_s, 6),
        }

    def tell_last_step(self) -> None:
        """Tell how far the task has got, and wait, but not for long, until that is written."""
        self._tell_step()
        self.trail.settle()

    def tell_end(self, record: Mapping[str, Any]) -> None:
        """Tell how the attempt ended, as its record in the store says it."""
        self._tell_step()
        fields = {name: record.get(name) for name in TOLD_AT_END}
        self._tell("attempt-ended", **fields)
        self.trail.settle()

    def _tell_step(self) -> None:
        if self._step is not None and self.claimed:
            self._tell("step-reached", step=int(self._step), total_steps=self.total_steps)

    def _tell(self, event: str, **fields: Any) -> None:
        attempt = self.attempt
        if attempt != self._told_attempt:
            self._told_attempt = attempt
            self.trail.tell_began(task=self.task, attempt=attempt)
        self.trail.tell(event, task=self.task, attempt=attempt, **fields)
