"""The optimizers of a task: they wait before they change what is being captured.

A parameter, and what an optimizer keeps for it, changes in the optimizer's step and nowhere
else, in the ordinary training loop; so it can be captured while the next batch goes forward and
backward. A hook before the step waits until that is done. ``tests/unit/test_lazy_torch.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptflow.data.torch_arrays import optimizers_in, updated_by


class Steps:
    """The hooks on the optimizers among some objects.

    Args:
        objects: the state.
        wait: returns when the state may change.
    """

    def __init__(self, objects: Mapping[str, Any], wait: Callable[[], object]) -> None:
        self._optimizers = optimizers_in(dict(objects))

        def before_step(*_: Any) -> None:
            wait()

        self._hooks = [one.register_step_pre_hook(before_step) for one in self._optimizers]

    def addresses(self) -> set[int]:
        """Return the addresses of all tensors that change in the steps only."""
        found: set[int] = set()
        for optimizer in self._optimizers:
            found |= updated_by(optimizer)
        return found

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._optimizers.clear()
