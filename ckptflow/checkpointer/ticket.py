"""What `save` returns: one promise that the state was captured, one that it is durable."""

from __future__ import annotations

import threading

from ckptflow.errors import CheckpointError, ConfigError


class Ticket:
    """One save on its way.

    *Captured* means that the application may change its state again. *Durable at level L*
    means that a restart finds this checkpoint after any failure that level L survives.
    """

    def __init__(self, step: int, levels: tuple[int, ...]) -> None:
        self.step = step
        self._levels = levels  # Of the tiers that it goes to, inner ones first.
        self._reached: set[int] = set()
        self._captured = False
        self._error: CheckpointError | None = None
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
    def captured(self) -> bool:
        """Whether the application may change its state."""
        return self._captured

    @property
    def durable(self) -> bool:
        """Whether the checkpoint is committed on at least one tier."""
        return bool(self._reached)

    @property
    def settled(self) -> bool:
        """Whether nothing more will happen: durable wherever it goes, or failed."""
        # An inner tier that was full is not tried again once an outer one has it.
        return self._error is not None or max(self._reached, default=-1) >= max(self._levels)

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
            CheckpointError: the save, or the copy to that level, failed.
        """
        wanted = 0 if level is None else level
        if all(have < wanted for have in self._levels):
            raise ConfigError(
                f"The checkpoint of step {self.step} goes to level "
                f"{max(self._levels)} at most; it will never be durable at level {level}."
            )

        def reached() -> bool:
            return any(have >= wanted for have in self._reached)

        with self._changed:
            done = self._changed.wait_for(
                lambda: reached() or self._error is not None, timeout_s
            )
            if reached():
                return
            if not done:
                raise TimeoutError(f"Step {self.step} was not durable after {timeout_s} s.")
            self._seen = True
            assert self._error is not None
            raise self._error

    def wait_written(self) -> None:
        """Wait until the writer has finished with the state, whether it succeeded or not."""
        with self._changed:
            self._changed.wait_for(lambda: self.durable or self._error is not None)

    def mark_captured(self) -> None:
        """Tell waiters that the state was captured."""
        with self._changed:
            self._captured = True
            self._changed.notify_all()

    def mark_durable(self, level: int) -> None:
        """Tell waiters that a tier of ``level`` holds the checkpoint."""
        with self._changed:
            self._reached.add(level)
            self._changed.notify_all()

    def fail(self, error: CheckpointError) -> None:
        """Tell waiters that the save, or a copy outward, failed."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
