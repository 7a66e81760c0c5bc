"""One rank of a launch: its connection to the steward, and its checkpointer.

A thread hears what the steward says. When it says that the launch is over, or is gone itself,
the process ends by SIGKILL, whatever its main thread is waiting for: nobody waits for this rank
any more. Saves in flight get a moment before, since a set may lack just this shard.
``tests/process/test_ranked_tasks.py``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ckptflow.checkpointer.ranks import Place, place_of
from ckptflow.checkpointer.sharded import Check, Replicated, ShardedCheckpointer
from ckptflow.errors import CheckpointError, ConfigError, FormatError, Preempted
from ckptflow.flush import Flushing
from ckptflow.policy.interval import EverySteps, Never, parse_interval
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.progress import Decision, Interval, Progress
from ckptflow.store.sharding.search import PerRank
from ckptflow.workflow.deadline import StopSignals
from ckptflow.workflow.outcomes import PREEMPTED_STATUS, finish, opened_tiers, outcome
from ckptflow.workflow.ranks.events import Kind
from ckptflow.workflow.ranks.lease import Lease
from ckptflow.workflow.ranks.wire import (
    STEWARD,
    Message,
    Whereabouts,
    connect,
    receive,
    send,
)
from ckptflow.workflow.trail import TellingCheckpointer, Trail

_BYE_S = 3600.0  # Others may still be saving; who has died is noticed much sooner.
_LAST_SAVES_S = 20.0

# How launchers call the number of a rank on its node; frameworks choose a device by it.
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


class Member:
    """This process as a rank that a steward knows.

    Args:
        where: where the steward is.
        place: which rank this is.

    Attributes:
        welcome: what the steward has told all ranks.
        data: the bytes that came with it.
    """

    def __init__(self, where: Whereabouts, place: Place) -> None:
        self.place = place
        with socket.socket() as probe:  # For the application; free until it takes it.
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        hello = {
            "rank": place.rank,
            "world": place.world,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "port": port,
        }
        self._connection, self.welcome, self.data = connect(where, hello)
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._answers: list[Message] = []
        self._go: Message | None = None
        self._bye = self._leaving = False
        self.last_saves: Callable[[float], None] = lambda _limit_s: None
        threading.Thread(target=self._listen, name="ckptflow-rank", daemon=True).start()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._at_exit)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return this process as the rank that its launcher says it is.

        Raises:
            ConfigError: no steward has started it, or refuses it; or no launcher says which
                rank it is.
            RankLost: the steward is not to be found.
        """
        text = environ.get(STEWARD)
        if not text:
            raise ConfigError(f"{STEWARD} is not set: no ckptflow app has started this rank.")
        where = Whereabouts.of(text)
        return cls(where, place_of(None, None, "", environ))

    def muster(self) -> None:
        """Wait until all ranks are here; say in the environment what torch asks for."""
        with self._changed:
            self._changed.wait_for(lambda: self._go is not None)
            assert self._go is not None, "it was waited for"
            go = self._go
        local = next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), None)
        told = {
            "RANK": str(self.place.rank),
            "WORLD_SIZE": str(self.place.world),
            "MASTER_ADDR": str(go["address"]),
            "MASTER_PORT": str(go["port"]),
            **({"LOCAL_RANK": local} if local is not None else {}),
        }
        for name, value in told.items():
            os.environ.setdefault(name, value)  # torchrun has its own.

    def tell(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        """Say something; when nobody is there any more, the other thread ends all this."""
        with contextlib.suppress(OSError):
            send(self._connection, message, data)

    def answer(self) -> Message:
        """Wait for the answer to a question."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._answers))
            return self._answers.pop(0)

    def end(self, kind: Kind, record: Mapping[str, Any], data: bytes = b"") -> None:
        """Say how this rank ends, and wait until it may leave. Only the first counts."""
        with self._changed:
            if self._leaving:
                return
            self._leaving = True
        self.tell({"is": "end", "kind": kind, "record": dict(record)}, data)
        with self._changed:
            self._changed.wait_for(lambda: self._bye, _BYE_S)
        self._connection.close()

    def _listen(self) -> None:
        while True:
            try:
                got = receive(self._connection)
            except FormatError as error:
                return self._die(str(error))
            with self._changed:
                if got is None and self._leaving:
                    self._bye = True
                elif got is not None and got[0].get("is") == "answer":
                    self._answers.append(got[0])
                elif got is not None and got[0].get("is") == "go":
                    self._go = got[0]
                elif got is not None and got[0].get("is") == "bye":
                    self._bye = True
                self._changed.notify_all()
                if self._bye:
                    return None
            if got is None:
                return self._die("the worker that has started this rank is gone")
            if got[0].get("is") == "over":
                return self._die(str(got[0].get("reason")))

    def _die(self, reason: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"ckptflow: rank {self.place.rank} ends: {reason}\n")
            sys.stderr.flush()
        with contextlib.suppress(CheckpointError, TimeoutError):
            self.last_saves(_LAST_SAVES_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _forget(self) -> None:
        """In a forked child, let go of the connection: it must end with the rank."""
        self._leaving = True
        self._connection.close()

    def _at_exit(self) -> None:
        if os.getpid() == self._owner:
            self.end("ended", {})


class _Agreed:
    """Saves when all ranks do; one of them decides when that is."""

    def __init__(self, lease: Lease, own: Interval | None) -> None:
        self._lease, self._own = lease, own

    def decide(self, progress: Progress) -> Decision:
        """See `Interval.decide`."""
        if self._lease.is_save(progress.last_saved_step):
            return Decision(due=True, reason="all ranks save at this step")
        if self._own is None:
            return Decision(due=False, reason="rank 0 has asked for no save")
        decided = self._own.decide(progress)
        if decided.due:
            self._lease.want_save()
            return Decision(due=False, reason=f"all ranks save soon: {decided.reason}")
        return decided


class _TrailOfAll(Trail):
    """What rank 0 tells, in the name of the task and not of its shard."""

    def __init__(self, folder: str | None, task: str) -> None:
        super().__init__(folder)
        self._task = task

    def tell(self, event: str, *, task: str, attempt: int, **fields: Any) -> None:  # noqa: ARG002
        """See `Trail.tell`."""
        super().tell(event, task=self._task, attempt=attempt, **fields)


class RankCheckpointer(TellingCheckpointer, ShardedCheckpointer):
    """The checkpoints of one rank of a task; what an app with ``ranks=`` has as ``ckpt``.

    A `ShardedCheckpointer` whose launch is the attempt of the task. Besides, ``every=`` may be
    any interval (rank 0 decides, and all save at the same step), and when the task has to stop
    all ranks do, at the same step.
    """

    _claimed = True

    def __init__(
        self,
        member: Member,
        objects: Mapping[str, Any],
        *,
        replicated: Replicated = None,
        per_rank: PerRank = "same",
        check: Check = "every",
    ) -> None:
        self._member, self._signals = member, StopSignals()
        fields: Any = member.welcome["attempt"]
        if member.place.rank == 0:
            self.trail = _TrailOfAll(fields["trail"], fields["task"])
            self._told_attempt = fields["attempt"]  # The worker has told that it began.
        when = parse_interval(fields["every"])
        counts_steps = isinstance(when, EverySteps | Never)
        self._lease = Lease(
            lambda asked: member.tell({"is": "ask", **asked}),
            member.answer,
            save_s=lambda: self.save_time_s,
            told=self._told_here,
        )
        self._signals.__enter__()
        super().__init__(
            opened_tiers(fields["tiers"]),
            run=fields["run"],
            task=fields["task"],
            rank=member.place.rank,
            world=member.place.world,
            launch=fields["launch"],
            replicated=replicated,
            per_rank=per_rank,
            check=check,
            every=when if counts_steps else Never(),
            keep=fields["keep"],
            packing=fields["packing"],
            capture=fields["capture"],
            flush_every=fields["flush_every"],
            flushing=Flushing(**fields["flushing"]),
            stop=lambda: self._lease.stop,
            **objects,
        )
        if isinstance(when, MultiLevel):  # All ranks have the same pattern, and keep it.
            self._placing.steer(replace(when, replan=False))
        if not counts_steps:
            self._interval = _Agreed(self._lease, when if member.place.rank == 0 else None)
        member.last_saves = self._finish_saves

    def restore(self, initial: Any = None, *, step: int | None = None) -> Any:
        """See `ShardedCheckpointer.restore`."""
        state = super().restore(initial, step=step)
        self._member.tell({"is": "joined", "attempt": self.attempt})
        return state

    def step(
        self, step: int, state: Any = None, *, metrics: Mapping[str, float] | None = None
    ) -> Any:
        """See `Checkpointer.step`."""
        self._lease.reach(step)
        return super().step(step, state, metrics=metrics)

    def decide(self, step: int) -> Decision:
        """See `Checkpointer.decide`."""
        self._lease.reach(step)
        return super().decide(step)

    def leave(self, error: BaseException | None) -> dict[str, Any]:
        """Finish what is written; return how this rank ended, for the steward.

        Raises:
            FencedError: a newer attempt has taken over, and nothing else went wrong.
        """
        fenced = finish(self)
        self.tell_last_step()
        self._signals.__exit__()
        record = outcome(self, error or fenced)
        if isinstance(error, Preempted):
            record["preempted"] = {
                "reason": self._lease.stop or "it stopped by itself",
                "step": error.step,
                "resumed_step": error.resumed_step,
            }
        if fenced is not None and error is None:
            raise fenced
        return record

    def _told_here(self) -> str | None:
        received = self._signals.received
        if received is None:
            return None
        return f"signal {received.name} was received by rank {self.rank}"

    def _finish_saves(self, limit_s: float) -> None:
        ends_s = time.monotonic() + limit_s
        for ticket in list(self._tickets):
            ticket.wait(timeout_s=max(0.0, ends_s - time.monotonic()))


class AttachedRank(RankCheckpointer):
    """A rank of a bash app, as `ckptflow.attach` returns it; use it as a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tell_how(error)
        if isinstance(error, Preempted):
            sys.stderr.write(f"{error}\n")
            raise SystemExit(PREEMPTED_STATUS) from error

    def close(self) -> None:
        """Finish what is being written, and tell the app what came of it."""
        self._tell_how(None)

    def _tell_how(self, error: BaseException | None) -> None:
        if isinstance(error, SystemExit) and not error.code:
            error = None
        kinds: dict[type[BaseException], Kind] = {Preempted: "preempted"}
        try:
            record = self.leave(error)
        except CheckpointError as fenced:
            self._member.end("raised", outcome(self, fenced))
            raise
        kind: Kind = "finished" if error is None else kinds.get(type(error), "raised")
        self._member.end(kind, record)


def attach_rank(objects: Mapping[str, Any], **options: Any) -> AttachedRank:
    """Return the checkpointer of this rank of a bash app; all ranks of it are here then.

    Raises:
        ConfigError: the app has no such rank.
        RankLost: the worker is not to be found.
    """
    member = Member.from_environment(os.environ)
    if "attempt" not in member.welcome:
        raise ConfigError("The app that has started this rank takes no checkpoints.")
    member.muster()
    return AttachedRank(member, objects, **options)
