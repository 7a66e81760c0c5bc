"""What the callbacks of training frameworks share.

A framework decides when its parts exist, and some of them only while it trains, so a callback
cannot hand them all over at once. `Late` stands for a part whose state is taken as it comes.
`StepEnds` puts a save off where the framework would do something else before the next step,
such as validate: a process that resumes there would leave it out.

``tests/process/test_torch_resume.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError


class Late:
    """An object with a state that it has, and takes, only at certain times.

    Args:
        get: returns its state, a tree of containers, arrays and plain values.
        put: takes such a state.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._get, self._put = get, put
        self.begun = False  # Whether there is a state to get.

    def state_dict(self) -> Any:
        """Return its state; before it has begun that is empty, and fits any."""
        return self._get() if self.begun else {}

    def load_state_dict(self, state: Any) -> None:
        """Take a state."""
        self._put(state)


class StepEnds:
    """Saves at the ends of steps.

    Args:
        ckpt: what saves; its objects are the state.
    """

    def __init__(self, ckpt: Checkpointer) -> None:
        self.ckpt, self._owed = ckpt, False

    def end(self, step: int, *, may_save: bool) -> None:
        """Tell that a step is complete.

        Args:
            step: which.
            may_save: whether a process that resumes here does what this one does next. If
                not, a save that is due is made at the next step.

        Raises:
            CheckpointError: whatever `Checkpointer.step` raises.
        """
        if not may_save:
            self._owed = self.ckpt.due(step) or self._owed
        elif self._owed:
            self._owed = False
            self.ckpt.save(step)
        else:
            self.ckpt.step(step)

    def finish(self, step: int) -> None:
        """Save the end of a training, so that it ends again at once."""
        last = self.ckpt.last_step
        if step > (0 if last is None else last):
            self.ckpt.save(step)


def refuse_several(world: int, framework: str) -> None:
    """Raise a `ConfigError` if more than one process trains."""
    if world > 1:
        raise ConfigError(
            f"This callback of {framework} saves the training of one process, and {world} take "
            f"part. Save with torch.distributed.checkpoint and ckptflow.torch.writer instead."
        )
