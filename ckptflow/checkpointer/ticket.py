"""What `save` returns: one promise that the state was captured, one that it is durable."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from ckptflow.checkpointer.capture import shown_name
from ckptflow.errors import CheckpointError, ConfigError, FlushError
from ckptflow.policy.capture import Choice, Choices
from ckptflow.policy.placement import Placement


class Ticket:
    """One save on its way.

    *Captured* means that the application may change its state again. *Durable at level L*
    means that a restart finds this checkpoint after any failure that level L survives.

    Attributes:
        step: of the checkpoint.
        why: it was made now.
        placements: for each tier whether it goes there, and why.
    """

    def __init__(self, step: int, levels: tuple[int, ...]) -> None:
        self.step = step
        self.choices: tuple[Choices | None, Sequence[str]] = None, ()  # By region; their names.
        self.why = ""
        self.placements: tuple[Placement, ...] = ()
        self._levels = levels  # Of the tiers that it goes to, inner ones first.
        self._left = Counter(levels)  # How many tiers of each it may still reach.
        self._reached: set[int] = set()
        self._captured = False
        self._error: CheckpointError | None = None  # The first of all.
        self._failed: list[tuple[int, CheckpointError]] = []  # Of copies, by level.
        self._seen = False
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        if self._error:
            state = f"failed: {self._error}"
        elif self._reached:
            state = f"durable at level {max(self._reached)}"
        else:
            state = "captured" if self._captured else "new"
        return f"<Ticket step {self.step}, {state}>"

    @property
    def modes(self) -> dict[str, Choice]:
        """How each region was captured, and why, by its name."""
        choices, names = self.choices
        if choices is None:
            return {}
        return {shown_name(name): choices[number] for number, name in enumerate(names)}

    @property
    def captured(self) -> bool:
        """Whether the application may change its state."""
        return self._captured

    @property
    def durable(self) -> bool:
        """Whether the checkpoint is committed on at least one tier."""
        return bool(self._reached)

    @property
    def settled(self) -> bool:
        """Whether nothing more will happen: wherever it goes it is durable, or has failed."""
        return not self._left

    @property
    def error(self) -> CheckpointError | None:
        """Why the save, or a copy of it outward, failed; ``None`` while nothing has."""
        error = self._error
        self._seen = self._seen or error is not None
        return error

    @property
    def unseen_error(self) -> CheckpointError | None:
        """The error, unless the caller has met it already by `wait` or `error`."""
        return None if self._seen else self._error

    def wait_captured(self) -> None:
        """Wait until the application may change its state."""
        with self._changed:
            self._changed.wait_for(lambda: self._captured or self._error is not None)

    def wait(self, level: int | None = None, *, timeout_s: float | None = None) -> None:
        """Wait until the checkpoint is durable: on any tier, or at ``level`` or above.

        Raises:
            ConfigError: this checkpoint does not go to a tier of that level.
            TimeoutError: ``timeout_s`` passed first.
            CheckpointError: the save, or each copy to that level or above, failed.
        """
        wanted = 0 if level is None else level
        if all(have < wanted for have in self._levels):
            raise ConfigError(
                f"The checkpoint of step {self.step} goes to level "
                f"{max(self._levels)} at most; it will never be durable at level {level}."
            )

        def reached() -> bool:
            return any(have >= wanted for have in self._reached)

        def may_be() -> bool:
            return any(level >= wanted for level in self._left)

        with self._changed:
            done = self._changed.wait_for(lambda: reached() or not may_be(), timeout_s)
            if reached():
                return
            if not done:
                raise TimeoutError(f"Step {self.step} was not durable after {timeout_s} s.")
            error = self._why_not(wanted)
            self._seen = self._seen or error is self._error
            raise error

    def _why_not(self, wanted: int) -> CheckpointError:
        """Return why no tier of ``wanted`` or above has it, or will."""
        for level, error in self._failed:
            if level >= wanted:
                return error
        return self._error or FlushError(f"Step {self.step} was saved below level {wanted}.")

    def wait_written(self) -> None:
        """Wait until the writer has finished with the state, whether it succeeded or not."""
        with self._changed:
            self._changed.wait_for(lambda: self.durable or self._error is not None)

    def mark_captured(self) -> None:
        """Tell waiters that the state was captured."""
        with self._changed:
            self._captured = True
            self._changed.notify_all()

    def mark_durable(self, level: int, *, outer: Sequence[int] | None = None) -> None:
        """Tell waiters that a tier of ``level`` holds the checkpoint.

        Args:
            level: of that tier.
            outer: the first time, the levels of the tiers that it is copied to from there;
                ``None``: all that it goes to but the innermost and this one.
        """
        with self._changed:
            if outer is not None:
                self._left = Counter(outer)
            else:
                if not self._reached:  # A full inner tier is not tried again.
                    self._left = Counter(self._levels[1:])
                self._left -= Counter([level])
            self._reached.add(level)
            self._changed.notify_all()

    def fail(self, error: CheckpointError, level: int | None = None) -> None:
        """Tell waiters that the save, or the copy to a tier of ``level``, failed."""
        with self._changed:
            self._error = self._error or error
            if level is None:
                self._left.clear()
            else:
                self._failed.append((level, error))
                self._left -= Counter([level])
            self._changed.notify_all()
