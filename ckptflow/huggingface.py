"""A callback for the ``Trainer`` of Hugging Face: `CheckpointCallback`.

``tests/process/test_torch_resume.py``.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ckptflow.bridges.late import Late, StepEnds, refuse_several
from ckptflow.checkpointer import Checkpointer
from ckptflow.data import torch_objects
from ckptflow.data.rng import capture_rng, restore_rng
from ckptflow.errors import ConfigError
from ckptflow.tiers.tier import Tier

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "transformers is not installed: pip install 'ckptflow[huggingface]'."
    ) from error

__all__ = ["CheckpointCallback"]

_STATE_FILE = "trainer_state.json"  # What the Trainer takes its counters from.


class CheckpointCallback(TrainerCallback):  # type: ignore[misc]
    """Saves a training of a ``Trainer``, and lets it go on where it was.

        saves = CheckpointCallback("store", every=50)
        trainer.train(resume_from_checkpoint=saves.attach(trainer))

    Saved at the end of a step: model, optimizer, scheduler, scaler, the trainer's own state and
    those of its callbacks, and the random states of Python, NumPy and torch.

    The position in the data is the Trainer's affair: it draws the order of the epoch anew from
    its seed and skips what was seen. Its batches come one ahead of the steps, so what the data
    set or the collator draws at random for the next batch is not repeated exactly.

    Saves that fall on the last step of an epoch, or on one after which the Trainer evaluates,
    are made one step later.

    Args:
        store: a folder, an address or a tier, or several.
        run: name of the workflow run.
        task: name of the task within the run.
        every: when to save, counted in the Trainer's steps; as for `Checkpointer`.
        options: further arguments of `Checkpointer`, such as ``keep``.
    """

    def __init__(
        self,
        store: str | Path | Tier,
        *,
        run: str = "default",
        task: str = "main",
        every: str | int | None = None,
        **options: Any,
    ) -> None:
        self._store = store
        self._make = {"run": run, "task": task, "every": every, "rng": False, **options}
        self._trainer: Any = None
        self._steps: StepEnds | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._restored: dict[str, Any] = {}

    @property
    def checkpointer(self) -> Checkpointer | None:
        """What saves, from `attach` to the end of the training."""
        return self._steps.ckpt if self._steps else None

    def attach(self, trainer: Any) -> str | None:
        """Add this callback to a trainer, and restore the model.

        Returns:
            What to give to ``train(resume_from_checkpoint=...)``: a temporary folder with the
            model's weights and the trainer's counters, as it wants them; ``None`` if nothing
            was saved before.

        Raises:
            ConfigError: several processes train, or this callback is in use.
            CheckpointError: whatever `Checkpointer.resume` raises.
        """
        refuse_several(trainer.args.world_size, "the Trainer")
        if self._trainer is not None:
            raise ConfigError("attach() was called before; make a callback for each training.")
        self._trainer = trainer
        getters: dict[str, Callable[[], Any]] = {
            "optimizer": lambda: torch_objects.state_of(trainer.optimizer),
            "lr_scheduler": lambda: torch_objects.state_of(trainer.lr_scheduler),
            "scaler": lambda: scaler.state_dict() if (scaler := self._scaler()) else {},
            "trainer": lambda: {"json": self._counters()},
            "random": capture_rng,
        }
        late: dict[str, Any] = {
            name: Late(get, partial(self._restored.__setitem__, name))
            for name, get in getters.items()
        }
        ckpt = Checkpointer(self._store, **self._make, model=trainer.model, **late)
        ckpt.resume()
        for one in late.values():
            one.begun = True
        self._steps = StepEnds(ckpt)
        trainer.add_callback(self)
        if ckpt.restored_step is None:
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="ckptflow-")
        trainer.save_model(self._folder.name)
        counters = Path(self._folder.name, _STATE_FILE)
        counters.write_text(self._restored["trainer"]["json"], encoding="utf-8")
        return self._folder.name

    # --- calls of the Trainer, in their order ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Restore what the Trainer has made by now."""
        if not self._restored:
            return
        torch_objects.load_state(kwargs["optimizer"], self._restored["optimizer"])
        kwargs["lr_scheduler"].load_state_dict(self._restored["lr_scheduler"])
        if (scaler := self._scaler()) is not None:
            scaler.load_state_dict(self._restored["scaler"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Restore the random states: only now has the Trainer skipped what was seen."""
        if self._folder is not None:
            restore_rng(self._restored["random"])
            self._restored.clear()
            self._folder.cleanup()
            self._folder = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Save if that is due; not where the Trainer evaluates before the next step."""
        if self._steps is not None:
            ends = float(state.epoch).is_integer()
            self._steps.end(state.global_step, may_save=not (control.should_evaluate or ends))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Save the end, finish what is being written, and raise what went wrong."""
        steps, self._steps = self._steps, None
        if self._folder is not None:  # There was nothing left to do.
            self._folder.cleanup()
        if steps is not None:
            steps.finish(state.global_step)
            steps.ckpt.close()

    # --- inside ---

    def _scaler(self) -> Any:
        return getattr(self._trainer.accelerator, "scaler", None)

    def _counters(self) -> str:
        """Return the trainer's state as it stands in its own checkpoints."""
        trainer, callbacks = self._trainer, dict[str, list[Any]]()
        for one in (*trainer.callback_handler.callbacks, trainer.control):
            if isinstance(one, ExportableState):
                callbacks.setdefault(type(one).__name__, []).append(one.state())
        state = dataclasses.asdict(trainer.state)
        return json.dumps({**state, "stateful_callbacks": callbacks})
