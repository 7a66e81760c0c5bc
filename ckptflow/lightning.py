"""A callback for Lightning: `CheckpointCallback`.

Works with the packages ``lightning`` and ``pytorch_lightning``; where both are installed, with
the one that was imported first. ``tests/process/test_torch_resume.py``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ckptflow.bridges.late import Late, StepEnds, refuse_several
from ckptflow.checkpointer import Checkpointer
from ckptflow.data.rng import capture_rng, restore_rng
from ckptflow.tiers.tier import Tier

__all__ = ["CheckpointCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    names = sorted(_PACKAGES, key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "Neither lightning nor pytorch_lightning is there: pip install 'ckptflow[lightning]'."
    )


_Callback: Any = _lightning().Callback


class CheckpointCallback(_Callback):  # type: ignore[misc]
    """Saves a training of Lightning, and goes on where it was when ``fit`` is called again.

    Saved after an optimizer's step: the module, optimizers, schedulers, the precision plugin
    (which has the scaler), the counters of the loops, the other callbacks, the data module,
    and the random states of Python, NumPy and torch. ``fit`` needs no ``ckpt_path``.

    The position in the data is saved by Lightning's loops if the loader has ``state_dict`` and
    ``load_state_dict``, or by ``data`` here. Else an epoch that was cut short begins anew with
    as many batches as were left.

    Saves that fall on the last step of an epoch, or on one after which Lightning validates,
    are made one step later.

    Args:
        store: a folder, an address or a tier, or several.
        run: name of the workflow run.
        task: name of the task within the run.
        every: when to save, counted in optimizer steps; as for `Checkpointer`.
        data: an object with ``state_dict`` and ``load_state_dict`` that knows which samples
            come next, for example the sampler.
        options: further arguments of `Checkpointer`, such as ``keep``.
    """

    def __init__(
        self,
        store: str | Path | Tier,
        *,
        run: str = "default",
        task: str = "main",
        every: str | int | None = None,
        data: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._make = {"run": run, "task": task, "every": every, "rng": False, **options}
        self._store, self._data = store, data
        self._steps: StepEnds | None = None
        self._late: list[Late] = []
        self._random: Any = None  # To be restored when all is ready for the next batch.
        self._last_step = 0

    @property
    def checkpointer(self) -> Checkpointer | None:
        """What saves, while ``fit`` runs."""
        return self._steps.ckpt if self._steps else None

    # --- hooks of Lightning, in their order ---

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore, now that the optimizers are there."""
        refuse_several(trainer.world_size, "Lightning")
        objects = self._objects(trainer, pl_module)
        ckpt = Checkpointer(self._store, **self._make, **objects)
        self._steps = StepEnds(ckpt)
        ckpt.resume()
        self._last_step = ckpt.restored_step or 0
        for late in self._late:
            late.begun = True

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Restore the random states: only now is the iterator over the data made."""
        if self._random is not None:
            restore_rng(self._random)
            self._random = None

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Save if that is due; not where Lightning validates before the next step."""
        step = trainer.global_step
        if self._steps is None or step == self._last_step:
            return  # Gradients of several batches are being summed up.
        self._last_step = step
        period = trainer.val_check_batch or float("inf")
        validates = (batch_idx + 1) % period == 0
        self._steps.end(step, may_save=not (trainer.is_last_batch or validates))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save the end."""
        if self._steps is not None:
            self._steps.finish(trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Finish what is being written; what went wrong there is noted on the exception."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.ckpt.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Finish what is being written; raise what went wrong."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.ckpt.close()

    # --- inside ---

    def _objects(self, trainer: Any, module: Any) -> dict[str, Any]:
        others = [one for one in trainer.callbacks if one is not self]
        loops = Late(trainer.fit_loop.state_dict, trainer.fit_loop.load_state_dict)
        callbacks = Late(
            lambda: {one.state_key: one.state_dict() for one in others},
            lambda state: [
                one.load_state_dict(state[one.state_key])
                for one in others
                if state.get(one.state_key)
            ],
        )
        randoms = Late(capture_rng, self._keep_random)
        self._late = [loops, callbacks, randoms]
        objects = {
            "module": module,
            "optimizers": trainer.optimizers,
            "schedulers": [config.scheduler for config in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin,
            "loops": loops,
            "callbacks": callbacks,
            "random": randoms,
        }
        if trainer.datamodule is not None:
            objects["datamodule"] = trainer.datamodule
        return objects if self._data is None else {**objects, "data": self._data}

    def _keep_random(self, state: Any) -> None:
        self._random = state
