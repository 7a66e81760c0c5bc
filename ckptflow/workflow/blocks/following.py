"""What becomes of the blocks of a run: who was asked for them, when they end, how they ended.

Every block that is asked for is noted in the journal before anything else happens, with the
number that the batch system gave it, and bears the session of the run in its name; so it is
found again when the process that asked is dead (`workflow.blocks.abandoned`).

A thread looks at them once a second. From it we know which managers were part of which block,
and whether a block was about to end when one was lost. ``tests/unit/test_blocks.py``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    CommandClientTimeoutError,
    ManagerLost,
)
from parsl.jobs.states import TERMINAL_STATES, JobState

from ckptflow.workflow.tasks import Note

NAME_PREFIX = "cf"
SESSION_LETTERS = 12  # PBS cuts names after 15.

_MANAGERS_EVERY_S = 10.0
_COMMAND_ERRORS = (CommandClientBadError, CommandClientTimeoutError)
_log = logging.getLogger("ckptflow")


def block_name(session: str) -> str:
    """Return how the names of a session's blocks begin, for the batch system."""
    return f"{NAME_PREFIX}{session[:SESSION_LETTERS]}"


@dataclass(slots=True)
class _Block:
    """One block, as far as it is known here."""

    running_since_s: float | None = None
    over: bool = False
    held: bool = False


class Blocks:
    """The blocks of a run.

    Args:
        session: of the run.
        note: adds an event to the journal.
        walltime_s: for how long a block runs, if that is limited.
        margin_s: how long before its end a block counts as one that is about to end.
        clock: returns seconds.
    """

    def __init__(
        self,
        session: str,
        note: Note,
        *,
        walltime_s: float | None = None,
        margin_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._note, self._clock = session, note, clock
        self._walltime_s, self._margin_s = walltime_s, margin_s
        self._executors: Mapping[str, Any] = {}
        self._blocks: dict[tuple[str, str], _Block] = {}
        self._of_manager: dict[str, tuple[str, str]] = {}
        self._managers_s = float("-inf")
        self._guard = threading.Lock()

    def record(self, executors: Iterable[Any]) -> None:
        """Note every block that is asked for from now on; call it before Parsl starts."""
        for executor in executors:
            provider = getattr(executor, "provider", None)
            if provider is not None:
                self._note(
                    "blocks-come-from",
                    sync=True,
                    executor=executor.label,
                    batch_system=provider.label,
                    clusters=getattr(provider, "clusters", None),
                )
                provider.submit = self._recorded(executor, provider)

    def _recorded(self, executor: Any, provider: Any) -> Callable[..., Any]:
        submit, batch_system = provider.submit, provider.label

        def submit_and_note(command: str, tasks_per_node: int, job_name: str = "block") -> Any:
            name = f"{block_name(self._session)}.{job_name}"
            number = submit(command, tasks_per_node, name)
            if number:
                block = job_name.rpartition("block-")[2]
                self._note(
                    "block-submitted",
                    sync=True,
                    executor=executor.label,
                    block=block,
                    job=str(number),
                    batch_system=batch_system,
                    session=self._session,
                )
            return number

        return submit_and_note

    def follow(self, executors: Mapping[str, Any]) -> None:
        """Say which executors' blocks are meant."""
        self._executors = {
            label: one
            for label, one in executors.items()
            if getattr(one, "provider", None) is not None
        }

    def look(self) -> None:
        """See which blocks run, and which have ended, and note it."""
        now_s = self._clock()
        for label, executor in self._executors.items():
            for number, status in list(executor.status_facade.items()):
                self._changed(label, str(number), executor, status, now_s)

    def look_at_managers(self) -> None:
        """See which managers are part of which block, now and then; it asks the interchange."""
        if self._clock() - self._managers_s < _MANAGERS_EVERY_S:
            return
        self._managers_s = self._clock()
        self._ask_for_managers()

    def _changed(
        self, label: str, number: str, executor: Any, status: Any, now_s: float
    ) -> None:
        with self._guard:
            block = self._blocks.setdefault((label, number), _Block())
            if status.state is JobState.RUNNING and block.running_since_s is None:
                block.running_since_s = now_s
            if block.over or status.state not in TERMINAL_STATES:
                return
            block.over = True
        self._note(
            "block-ended",
            executor=label,
            block=number,
            job=str(executor.blocks_to_job_id.get(number, "")),
            state=status.state.name,
            message=status.message,
        )

    def _ask_for_managers(self) -> None:
        for label, executor in self._executors.items():
            if not hasattr(executor, "connected_managers") or executor.bad_state_is_set:
                continue
            try:
                managers = executor.connected_managers()
            except _COMMAND_ERRORS:
                continue  # Its interchange is dead; the watch says so.
            with self._guard:
                for manager in managers:
                    place = (label, str(manager["block_id"]))
                    self._of_manager[manager["manager"]] = place

    def hold(self, executor: str, number: str, why: str) -> None:
        """Have a block get no more tasks. It takes a millisecond; whoever calls may wait."""
        with self._guard:
            block = self._blocks.setdefault((executor, number), _Block())
            if block.held:
                return
            block.held = True
        holder = getattr(self._executors.get(executor), "_hold_block", None)
        if holder is None:
            return
        try:
            holder(number)
        except _COMMAND_ERRORS as error:
            _log.warning("Block %s could not be held: %s", number, error)
            return
        self._note("block-held", executor=executor, block=number, reason=why)

    def was_ending(self, error: Exception) -> bool:
        """Tell whether a manager was lost since its block was about to end, or has ended."""
        if not isinstance(error, ManagerLost):
            return False
        name = error.manager_id
        with self._guard:
            place = self._of_manager.get(name.decode() if isinstance(name, bytes) else name)
            block = self._blocks.get(place) if place else None
            if block is None:
                return False
            if block.over or block.held:
                return True
            if self._walltime_s is None or block.running_since_s is None:
                return False
            left_s = block.running_since_s + self._walltime_s - self._clock()
            return left_s <= self._margin_s

    def cancel(self) -> list[str]:
        """Cancel every block that is not over; return a sentence for each that could not be.

        Parsl cancels blocks when it ends, but not those of an executor that has failed: those
        would wait in the queue and run for nobody.
        """
        problems = []
        for label, executor in self._executors.items():
            if not executor.bad_state_is_set:
                continue
            left = {
                number: executor.blocks_to_job_id[number]
                for number, status in executor.status_facade.items()
                if number in executor.blocks_to_job_id and status.state not in TERMINAL_STATES
            }
            if not left:
                continue
            try:
                cancelled = executor.provider.cancel(list(left.values()))
            except Exception as error:  # noqa: BLE001  Whatever a provider's commands raise.
                problems.append(
                    f"blocks {_listed(left)} of {label} were not cancelled: {error}"
                )
                continue
            for (number, job), done in zip(left.items(), cancelled, strict=False):
                if not done:
                    problems.append(f"block {number} of {label} ({job}) was not cancelled")
                else:
                    self._note(
                        "block-ended", executor=label, block=number, job=str(job),
                        state=JobState.CANCELLED.name, message="its executor has failed",
                    )  # fmt: skip
        return problems


def _listed(blocks: Mapping[str, object]) -> str:
    return ", ".join(f"{number} ({job})" for number, job in blocks.items())
