"""What a task holds: restore, due, save, step, wait.

The road of a save: `Checkpointer.save` takes a snapshot of the regions of the state and
returns; `writer` turns it into packs and a manifest with `store.save.write_checkpoint`; and
the tier makes them durable.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ckptflow.checkpointer.arguments import (
    check_budget,
    check_grows,
    checked_objects,
    is_state,
    kept_on,
    metrics_of,
    notes_of,
    state_of,
    step_of,
    tiers_of,
)
from ckptflow.checkpointer.capturing import Capturing, Whole, whole_of
from ckptflow.checkpointer.endings import export_of, preempted
from ckptflow.checkpointer.health import CheckpointWarning as CheckpointWarning
from ckptflow.checkpointer.health import TierHealth
from ckptflow.checkpointer.history import History
from ckptflow.checkpointer.hooks import Hooks
from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.placing import Placing, chosen
from ckptflow.checkpointer.reading import Reading
from ckptflow.checkpointer.requests import SaveRequest, Written
from ckptflow.checkpointer.steering import PlanChange
from ckptflow.checkpointer.surroundings import surroundings
from ckptflow.checkpointer.ticket import Ticket
from ckptflow.checkpointer.writer import Writer
from ckptflow.data.fit import ABSENT
from ckptflow.data.rng import restore_rng
from ckptflow.errors import CheckpointError, ConfigError, FencedError, NotFoundError
from ckptflow.flush import Flushing, parse_flushing
from ckptflow.model import Export, LineageId
from ckptflow.policy.capture import Capture
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.progress import Decision, Interval
from ckptflow.policy.retention import Keep
from ckptflow.store.catalog import Lineage
from ckptflow.store.packing import Packing, parse_packing
from ckptflow.tiers.tier import Tier

S = TypeVar("S")

ASKED = "the task asked for it"
_log = logging.getLogger("ckptflow")


class Checkpointer(Reading):
    """The checkpoints of one task.

    Use it as a context manager: leaving it waits for what is being written, and raises what
    went wrong in the background, if nothing else is being raised.

    Args:
        store: a folder, an address or a tier, or several; the innermost has the lowest level.
        run: name of the workflow run.
        task: name of the task within the run.
        every: when `step` saves: ``"auto"`` (the default), steps (100), ``"120s"``,
            ``"overhead<=3.5%"``, ``"mtbf=6h"``, ``"multilevel"``, ``"never"``, an `Interval`.
        keep: how many of the newest, or ``"newest=3,bytes=9GB"``, or a `Retention`; or by tier.
        flush_every: per tier name, which checkpoints are copied to an outer tier (1: each).
        flushing: how: ``"agent"`` by a process of the node that outlives this, or a `Flushing`.
        budget_bytes: memory for snapshots; a quarter of what is available if not given.
        packing: how states are compared and stored: ``"auto"``, ``"small"``, or a `Packing`.
        capture: what `save` copies: ``"auto"``, ``"copy"``, ``"diff-first"``, ``"lazy"``, or a
            table of these by patterns of names, as ``{"model/*": "lazy"}``.
        rng: save and restore the global random states of Python, NumPy, and torch.
        stop: asked at every `step`; a text is a reason to save and raise `Preempted`.
        attempt: go on in the name of an attempt that was claimed already.
        objects: the state, by name (``model=m, optim=o``), when `save` gets none.
    """

    def __init__(
        self,
        store: str | Path | Tier | Sequence[str | Path | Tier],
        *,
        run: str = "default",
        task: str = "main",
        every: str | int | Interval | None = None,
        keep: Keep = None,
        flush_every: Mapping[str, int] | None = None,
        flushing: str | Flushing | None = None,
        budget_bytes: int | None = None,
        packing: str | Packing | None = None,
        capture: Capture = None,
        rng: bool = True,
        stop: Callable[[], str | None] | None = None,
        attempt: int | None = None,
        **objects: Any,
    ) -> None:
        check_budget(budget_bytes)
        self.notes: list[str] = []
        self._lineage = Lineage(tiers_of(store), LineageId(run, task), note=self._note)
        self._interval, self._retention = parse_interval(every), kept_on(self._lineage, keep)
        self._packing, self._rng, self._stop = parse_packing(packing), rng, stop
        self._flushing, self._objects = parse_flushing(flushing), checked_objects(objects)
        self._history = History(self._lineage, attempt, note=self._note)
        self._pace = Pace(measured_on=surroundings(self._lineage.tiers))
        self._placing = Placing(
            self._interval, self._lineage.tiers, flush_every or {}, self._retention,
            pace=self._pace, told=self._planned,
        )  # fmt: skip
        self._capturing = Capturing(
            self._objects, capture, self._packing, whole=self._whole(),
            budget_bytes=budget_bytes, on_waited=self._pace.blocked, note=self._note,
        )  # fmt: skip
        self._why = ""  # What the save that is being made is for.
        self.health = TierHealth(tell=self._note)
        self._writer: Writer | None = None
        self._past_writers: list[Writer] = []  # Of attempts before the task went back.
        self._tickets: list[Ticket] = []
        self._reported, self._closed = 0, False
        for text in notes_of(self._lineage.tiers):
            self._warn(text)

    def __repr__(self) -> str:
        return f"<Checkpointer {self._lineage.id}, attempt {self._history.attempt}>"

    # --- what it is ---

    @property
    def attempt(self) -> int:
        """Number of this attempt; claims it on first use."""
        return self._history.claim()

    @property
    def claimed(self) -> bool:
        """Whether this attempt has been claimed, that is, whether the task used it at all."""
        return self._history.attempt is not None

    @property
    def failures(self) -> list[CheckpointError]:
        """What went wrong in the background so far."""
        return [failure for writer in self._writers for failure in writer.failures]

    @property
    def written_bytes(self) -> tuple[int, int]:
        """Bytes of state saved and bytes stored for it, by this checkpointer so far."""
        written = self._all_written()
        return sum(one.state_bytes for one in written), sum(one.stored_bytes for one in written)

    # --- restore ---

    def restore(self, initial: S | None = None, *, step: int | None = None) -> S:
        """Return the state of the newest sound checkpoint, or else ``initial``.

        After a save it goes back: what was saved is finished, and the task goes on from what
        is restored as a new attempt.

        Args:
            initial: the state to start from when there is no checkpoint. When there is one
                it is filled in place, its arrays keep their memory, and it is returned. Without
                it a new state is built. May be a callable that makes the initial state.
            step: restore exactly this step; later ones become void when the next is saved.

        Raises:
            NotFoundError: ``step`` does not exist, or nothing does and ``initial`` is missing.
            StateError: the checkpoint does not fit ``initial``; nothing was written to it.
            RestoreError: checkpoints exist, but none could be restored.
            FencedError: a newer attempt of this task has taken over.
        """
        self._history.claim()
        self._capturing.wait()
        if self._writer and not self._closed:
            self._writer.settle()
        self._report()
        state: Any = initial
        if callable(state) and not is_state(state):
            state = state()
        if state is None and self._objects:
            state = self._objects
        target = None if state is None else {"state": state, "rng": ABSENT}
        began = time.monotonic()
        restored = self._history.find(target, step=step)
        if self._writer is not None:
            self._start_over()
        self._history.go_on_from(restored)
        self._pace.start(self.restored_step, self._history.pace())
        self._placing.start(self._history, restore_s=time.monotonic() - began)
        if restored is None:
            if state is None:
                raise NotFoundError(
                    f"{self._lineage.id} has no checkpoint; give restore() an initial state."
                )
            self._capturing.prepare(state)
            return state  # type: ignore[no-any-return]
        for found, reason in restored.skipped:
            self._warn(f"{self._lineage.id} {found} was skipped: {reason}")
        if self._rng and restored.state.get("rng") is not None:
            for problem in restore_rng(restored.state["rng"]):
                self._warn(f"{self._lineage.id} {restored.id}: {problem}")
        _log.info("%s: resumed at %s", self._lineage.id, restored.id)
        self._capturing.prepare(restored.state["state"])
        return restored.state["state"]  # type: ignore[no-any-return]

    def resume(self) -> int:
        """Restore the objects given at construction; return the step to go on with.

        For ``for step in range(ckpt.resume(), total)`` with ``ckpt.step(step)`` at the end of
        each step: that is the step after the one that was saved, or 0 when nothing was.
        """
        if not self._objects:
            raise ConfigError(
                "resume() restores the objects given to Checkpointer(...); it was given none. "
                "Use restore(state)."
            )
        self.restore()
        return 0 if self.restored_step is None else self.restored_step + 1

    # --- save ---

    def due(self, step: int) -> bool:
        """Tell whether the interval asks for a save at the end of ``step``."""
        return self.decide(step).due

    def decide(self, step: int) -> Decision:
        """Like `due`, with the reason."""
        in_flight = int(not self._capturing.is_idle)
        in_flight += self._writer.in_flight if self._writer else 0
        self._pace.step_done(step, in_flight=in_flight)
        progress = self._pace.progress(step, in_flight=in_flight)
        return self._interval.decide(self._placing.with_plan(progress))

    def save(
        self, step: int, state: Any = None, *, metrics: Mapping[str, float] | None = None
    ) -> Ticket:
        """Capture the state now; it becomes durable in the background.

        On return the state may be changed: what is written is a snapshot. The call blocks for
        what `Ticket.modes` says was copied, and longer only while the memory budget is used up.
        What was captured ``lazy`` may be changed when `Ticket.wait_captured` returns.

        Args:
            step: the application's counter; must grow from save to save.
            state: what to save; the objects given at construction if it is left out.
            metrics: finite or non-finite numbers to keep with it, for retention and ``show``.

        Raises:
            StateError: the state cannot be saved; the message lists every problem.
            TornCapture: something writes to it at this very moment, and not for the first time.
            ConfigError: ``step`` does not grow, or older checkpoints were not looked at.
            FencedError: a newer attempt of this task has taken over.
            TierError: the attempt could not be claimed. What goes wrong later fails the ticket.
        """
        return self._save(step, state, metrics, last=False)

    def step(
        self, step: int, state: Any = None, *, metrics: Mapping[str, float] | None = None
    ) -> Ticket | None:
        """Tell that ``step`` is complete; save if that is due, or if the task has to stop.

        Call it after the step's last update, outside any `try` that would swallow `Preempted`.

        Raises:
            Preempted: a stop was asked for; the state is saved and durable.
            And what `save` raises.
        """
        self._report()
        if self._stop and (reason := self._stop()):
            self._preempt(step, state, metrics, reason)
        decided = self.decide(step)
        if not decided.due:
            return None
        self._why = decided.reason
        return self._save(step, state, metrics, last=False)

    def wait(self, level: int | None = None) -> None:
        """Wait until all saves so far are durable, at ``level`` or above if given.

        Raises:
            CheckpointError: the first of them that failed.
        """
        for ticket in self._tickets:
            ticket.wait(level)
        self._report()

    def wait_captured(self) -> None:
        """Wait until the application may change its state; see `Ticket.wait_captured`."""
        self._capturing.wait()
        self._report()

    def close(self) -> None:
        """Finish what is written and copied here (not by an agent); raise what went wrong.

        Raises:
            CheckpointError: the first background failure that nobody has met yet; the
                others are its notes.
        """
        self.shut()
        unseen: list[CheckpointError] = [
            error for ticket in self._tickets if (error := ticket.unseen_error) is not None
        ]
        if self._writer and self._writer.fenced and self._writer.fenced not in unseen:
            unseen.insert(0, self._writer.fenced)
        others = [error for error in self.failures if error not in unseen]
        self._tickets.clear()
        if unseen:
            for error in (*unseen[1:], *others):
                unseen[0].add_note(f"also: {error}")
            raise unseen[0]

    def shut(self) -> None:
        """Finish what is being written and copied; failures stay in `failures`."""
        self._closed = True
        self._capturing.close()
        if self._writer:
            self._writer.close()
        self._warn_of_failures()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self.shut()
        for failure in self.failures:
            error.add_note(f"checkpointing: {failure}")

    # --- export ---

    def export(self, state: Any = None, *, step: int | None = None) -> Export:
        """Make ``state`` durable and return a small reference to it, for other tasks.

        Args:
            state: what to export; the objects given at construction if it is left out.
            step: its step, the last saved one by default; what is saved is not written again.

        Raises:
            NotFoundError: the step lies before the last one, and is not (or no longer) saved.
            And what `save` and `Ticket.wait` raise.
        """
        last_step = -1 if self.last_step is None else self.last_step
        chosen = max(last_step, 0) if step is None else step
        if chosen > last_step:
            self._save(chosen, state, None, last=True)
        for ticket in self._tickets:
            if ticket.step == chosen:
                ticket.wait()
        self._report()
        return export_of(self._lineage, chosen)

    # --- inside ---

    @property
    def _writers(self) -> list[Writer]:
        return [*self._past_writers, *([self._writer] if self._writer else [])]

    def _start_over(self) -> None:
        """Go on as a new attempt: only so are the later checkpoints of this one void."""
        assert self._writer is not None
        self._writer.close()
        self._report()
        self._past_writers.append(self._writer)
        self._writer = None
        self._history.claim_again()

    def _save(
        self, step: int, state: Any, metrics: Mapping[str, float] | None, *, last: bool
    ) -> Ticket:
        self._capturing.wait()  # Blocks on behalf of the save before.
        began = time.monotonic()
        step, metrics = self._checked_step(step), metrics_of(metrics)
        whole = self._capturing.whole(state_of(state, self._objects))
        writer = self._open_writer()
        captured = self._capturing.capturer.capture(
            whole, sparse=writer.has_parent, in_flight_max=self._pace.in_flight
        )
        verdicts = self._placing.place(self._pace.saves, step, last=last, stop=self._stop)
        first, *outer = chosen(verdicts, self._lineage.tiers)
        ticket = Ticket(step, tuple(tier.level for tier in (first, *outer)))
        ticket.why, ticket.placements, self._why = self._why or ASKED, tuple(verdicts), ""
        ticket.choices = captured.choices, captured.snapshot.names
        self._tickets = [one for one in self._tickets if not one.settled or one.unseen_error]
        self._tickets.append(ticket)
        request = SaveRequest(
            ticket=ticket, captured=captured, metrics=metrics,
            first=first, outer=outer, hooks=self._hooks(step),
        )  # fmt: skip
        self._capturing.submit(writer, request)
        self._pace.saved(step, blocked_s=time.monotonic() - began)
        return ticket

    def _whole(self) -> Whole:
        """Return the function that makes of a state what a checkpoint of it consists of."""
        return partial(whole_of, rng=self._rng)

    def _planned(self, change: PlanChange) -> None:
        """Take note of a new plan; called in the thread that made it."""
        _log.info("%s: %s", self._lineage.id, change)

    def _hooks(self, step: int) -> Hooks:
        """Return what is to be done around the commit of a save, besides."""
        return self._placing.hooks(step, self._written)

    def _all_written(self) -> list[Written]:
        return [one for writer in self._writers for one in writer.written]

    def _written(self, step: int) -> Written | None:
        return next((one for one in reversed(self._all_written()) if one.step == step), None)

    def _checked_step(self, step: int) -> int:
        """Return the step as an int, if a save of it may happen now."""
        step = step_of(step)
        if self._closed:
            raise ConfigError(f"{self._lineage.id}: save of step {step} after close().")
        self._report()
        check_grows(self._lineage.id, step, self.last_step)
        if self._writer is None:
            self._history.refuse_to_ignore()
        return step

    def _open_writer(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(
                self._lineage,
                self._history.claim(),
                capturer=self._capturing.capturer,
                record_resume=self._history.recorder(),
                bases=self._history.bases(),
                packing=self._packing,
                retention=self._retention,
                proven=self._history.proven(),
                on_durable=self._pace.durable,
                pace=lambda: {**self._pace.kept(), **self._placing.kept()},
                flushing=self._flushing,
                health=self.health,
            )
            self._capturing.capturer.begin(self._history.digests(), self._writer.make_room)
        return self._writer

    def _preempt(
        self, step: int, state: Any, metrics: Mapping[str, float] | None, reason: str
    ) -> None:
        failure: CheckpointError | None = None
        if self.last_step is None or step > self.last_step:
            self._why = f"the task has to stop: {reason}"
            self._save(step, state, metrics, last=True)
        try:
            self.wait()
        except FencedError:
            raise
        except CheckpointError as error:
            failure = error
        durable = [one.step for one in self._writer.written] if self._writer else []
        raise preempted(
            self._lineage.id,
            step,
            reason,
            saved=[*durable, *([] if self.restored_step is None else [self.restored_step])],
            resumed_step=self.restored_step,
            failure=failure,
        )

    def _note(self, text: str) -> None:
        self.notes.append(text)
        _log.warning("%s", text)

    def _warn(self, text: str) -> None:
        warnings.warn(text, CheckpointWarning, stacklevel=3)

    def _report(self) -> None:
        """Tell, in the application's thread, what has gone wrong since the last call."""
        self._warn_of_failures()
        if self._writer and self._writer.fenced:
            raise self._writer.fenced

    def _warn_of_failures(self) -> None:
        new = self.failures[self._reported :]
        self._reported += len(new)
        for failure in new:
            if not isinstance(failure, FencedError):  # That one is raised, and ends the task.
                self._warn(f"{failure} The task goes on.")
