"""What can go wrong, grouped by what the caller should do about it.

CheckpointError
├── ConfigError             fix the site file or the arguments          (also ValueError)
│   ├── StateError              the state cannot be saved, or does not fit the checkpoint
│   │   └── ReplicasDiffer          what is called replicated is not alike on all ranks
│   ├── NoProgress              no pattern of checkpoints gets anywhere with such failures
│   ├── TooLarge                a call or a result is more than the service carries
│   └── TaskChanged             what is stored of a task was made by another code or arguments
├── NotFoundError           nothing of that name: start from step 0 (also KeyError)
├── TierError               the place failed: use another copy or another tier
│   ├── TierUnavailable         may pass when tried again
│   ├── TierFull                permanent until something is pruned
│   ├── TierDenied              permanent until rights or credentials are mended
│   │   └── StoreDamaged            permanent until the store's descriptor is mended
│   └── AlreadyExists           a write-once key is taken
├── CorruptionError         bytes do not match their digest: use another copy
│   └── ForgedError             not sealed with the store's key: somebody else wrote them
├── FormatError             written by a version this one cannot read
├── RestoreError            no copy of any checkpoint could be restored
├── FencedError             a newer attempt owns this lineage: stop this one
├── CaptureError            this save is lost, the one before it is not: save again
│   ├── TornCapture             the state was written to while it was captured
│   └── IncompleteSnapshot      bytes that a save left to an earlier one are not to be had
├── FlushError              a copy outward failed; the inner copy is intact
└── WorkflowError           a task or a run, not a checkpoint, has failed
    ├── Preempted               state is saved; run the task again to go on
    ├── TaskExited              the task called sys.exit or was interrupted
    ├── RemoteTaskError         the task raised something this side cannot import
    ├── TaskLost                what ran the task was lost, and no fault of the task's
    ├── RankLost                a rank of the task died: the others were ended, run it again
    ├── LoaderFailed            what loads its data has died, or does not answer
    └── RunLocked               another process is running this workflow

Each class has a ``kind``, stable across versions, used in logs, in JSON and in the exit
text of the command line. ``tests/unit/test_errors.py`` keeps this tree true.
"""

from __future__ import annotations

from typing import ClassVar


class CheckpointError(Exception):
    """Base of every error that ckptflow raises on purpose."""

    kind: ClassVar[str] = "error"


class ConfigError(CheckpointError, ValueError):
    """The site file, the policy or an argument is wrong. Nothing was touched."""

    kind = "config"


class StateError(ConfigError):
    """The state cannot be saved as it is, or does not fit the checkpoint.

    ``mismatches`` has one sentence per problem, so that all can be mended at once.
    """

    kind = "state"

    def __init__(self, message: str, mismatches: tuple[str, ...] = ()) -> None:
        self.mismatches = mismatches
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), vars(self))


class ReplicasDiffer(StateError):
    """What the application calls replicated is not alike on all ranks; nothing was committed.

    ``mismatches`` names arrays and values that differ, as far as that is known.
    """

    kind = "replicas-differ"


class NoProgress(ConfigError):
    """Failures come so often, or recoveries take so long, that no pattern gets anywhere."""

    kind = "no-progress"


class TooLarge(ConfigError):
    """A call or a result is more than the service between workflow and worker carries.

    Pass a reference instead: ``ckpt.export(state)``. Another try would be as large.
    """

    kind = "too-large"


class TaskChanged(ConfigError):
    """A task is not what it was when its result or checkpoint was made. It was not started.

    Raised if the run asks for it (``on_change="fail"``). ``changes`` has one text per change.
    """

    kind = "task-changed"

    def __init__(self, message: str, *, task: str = "", changes: tuple[str, ...] = ()) -> None:
        self.task, self.changes = task, changes
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), vars(self))


class NotFoundError(CheckpointError, KeyError):
    """Nothing of that name exists on the tiers that were asked."""

    kind = "not-found"

    def __str__(self) -> str:  # KeyError would print the repr, with quotes.
        return str(self.args[0]) if self.args else ""


class TierError(CheckpointError):
    """A tier could not do what it was asked."""

    kind = "tier"


class TierUnavailable(TierError):
    """The tier did not answer, or refused; it may work when tried again."""

    kind = "tier-unavailable"


class TierFull(TierError):
    """No space or no quota is left on the tier."""

    kind = "tier-full"


class TierDenied(TierError):
    """The tier may not be used so: credentials are missing, wrong or expired, or read-only."""

    kind = "tier-denied"


class StoreDamaged(TierDenied):
    """What says which store a tier is cannot be understood, so nothing there is used."""

    kind = "store-damaged"


class AlreadyExists(TierError):
    """The key is taken. Keys are write-once; somebody else was first."""

    kind = "already-exists"


class CorruptionError(CheckpointError):
    """Stored bytes do not match the digest recorded for them.

    ``may_pass`` says that no sound copy was found, but not all that there may be were seen: a
    tier did not answer.
    """

    kind = "corruption"
    may_pass: bool = False


class ForgedError(CorruptionError):
    """Stored bytes do not carry the seal that only the store's key can make.

    They were changed, cut, moved, or written by somebody without the key.
    """

    kind = "forged"


class FormatError(CheckpointError):
    """The object was written in a format this version cannot read."""

    kind = "format"


class RestoreError(CheckpointError):
    """No copy of any checkpoint could be restored; the notes list each attempt."""

    kind = "restore"


class FencedError(CheckpointError):
    """A newer attempt has claimed this lineage, so this one may not commit any more."""

    kind = "fenced"


class CaptureError(CheckpointError):
    """A snapshot of the state cannot be stored. Earlier checkpoints are untouched."""

    kind = "capture"


class TornCapture(CaptureError):
    """Something wrote to the state while it was captured; nothing of that was committed.

    ``regions`` has the names of the regions that are known to be torn.
    """

    kind = "torn-capture"

    def __init__(self, message: str, regions: tuple[str, ...] = ()) -> None:
        self.regions = regions
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), vars(self))


class IncompleteSnapshot(CaptureError):
    """A snapshot has only what changed, and the rest is to be had nowhere any more."""

    kind = "incomplete-snapshot"


class FlushError(CheckpointError):
    """A checkpoint did not reach an outer tier. The inner copy is intact."""

    kind = "flush"


class WorkflowError(CheckpointError):
    """A task or a run failed."""

    kind = "workflow"


class Preempted(WorkflowError):
    """The task saved its state and stopped before its time ran out.

    Run it again and it goes on from ``step``. ``resumed_step`` tells where this attempt
    began, so that a retry handler can see whether it made progress. ``block`` is the block
    on which it ran, if that takes no more tasks; ``started`` is false for a task that came to
    such a block and was turned away.
    """

    kind = "preempted"

    def __init__(
        self,
        message: str,
        *,
        task: str = "",
        step: int = -1,
        resumed_step: int | None = None,
        block: str | None = None,
        started: bool = True,
    ) -> None:
        self.task, self.step, self.resumed_step = task, step, resumed_step
        self.block, self.started = block, started
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), vars(self))


class TaskExited(WorkflowError):
    """The task left by ``sys.exit`` or an interrupt instead of returning."""

    kind = "task-exited"


class RemoteTaskError(WorkflowError):
    """The task raised an exception that does not survive the way back.

    ``type_name`` and ``remote_traceback`` are text, so nothing has to be imported.
    """

    kind = "remote-task"

    def __init__(
        self, message: str, *, type_name: str = "", remote_traceback: str = ""
    ) -> None:
        self.type_name, self.remote_traceback = type_name, remote_traceback
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), vars(self))


class TaskLost(WorkflowError):
    """A worker, a node or an allocation was lost with the task on it. It may run again."""

    kind = "task-lost"


class RankLost(WorkflowError):
    """A process of a task that runs on several has died, or never came; the others were ended.

    ``rank`` is its number, or -1 where it is not one of them but what started them.
    """

    kind = "rank-lost"

    def __init__(self, message: str, *, rank: int = -1) -> None:
        self.rank = rank
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), vars(self))


class LoaderFailed(WorkflowError):
    """A process that loads the task's data has died, or gave no batch within its timeout."""

    kind = "loader"


class RunLocked(WorkflowError):
    """Another live process holds the run."""

    kind = "run-locked"
