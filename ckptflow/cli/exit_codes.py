"""What the exit status means. The one table; ``docs/reference/exit-codes.md`` prints it.

``tests/unit/test_exit_codes.py`` holds every error class and the page against it.
"""

from __future__ import annotations

from enum import IntEnum

from ckptflow import errors


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DAMAGED = 4
    STORAGE = 5
    FORMAT = 6
    UNFINISHED = 7
    TAKEN = 8
    INTERRUPTED = 130


MEANING = {
    ExitCode.OK: "done; what was checked is as it should be",
    ExitCode.FAILED: "the run or the task failed; or `diff` found a difference",
    ExitCode.USAGE: "the arguments, the site file or the state are wrong; nothing was touched",
    ExitCode.NOT_FOUND: "nothing of that name",
    ExitCode.DAMAGED: "stored bytes do not match their digests, and no sound copy is left",
    ExitCode.STORAGE: "a tier failed, or is full",
    ExitCode.FORMAT: "written by a newer ckptflow than this one",
    ExitCode.UNFINISHED: "stopped before the end with its state saved; start it again",
    ExitCode.TAKEN: "another live process owns the run or the task",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}

# The most specific class counts, so a subclass without a line goes with its parent.
OF_ERROR: dict[type[errors.CheckpointError], ExitCode] = {
    errors.CheckpointError: ExitCode.FAILED,
    errors.ConfigError: ExitCode.USAGE,
    errors.NoProgress: ExitCode.FAILED,
    errors.NotFoundError: ExitCode.NOT_FOUND,
    errors.CorruptionError: ExitCode.DAMAGED,
    errors.RestoreError: ExitCode.DAMAGED,
    errors.TierError: ExitCode.STORAGE,
    errors.FlushError: ExitCode.STORAGE,
    errors.FormatError: ExitCode.FORMAT,
    errors.WorkflowError: ExitCode.FAILED,
    errors.Preempted: ExitCode.UNFINISHED,
    errors.RunLocked: ExitCode.TAKEN,
    errors.FencedError: ExitCode.TAKEN,
}


def exit_code(error: errors.CheckpointError) -> ExitCode:
    """Return the exit status for an error."""
    return next(OF_ERROR[kind] for kind in type(error).__mro__ if kind in OF_ERROR)
