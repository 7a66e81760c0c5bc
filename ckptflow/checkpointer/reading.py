"""What a checkpointer says of its task, and a look into checkpoints without restoring them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckptflow.checkpointer.history import History
from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.placing import Placing
from ckptflow.data.runs import Index
from ckptflow.errors import ConfigError
from ckptflow.model import STEP_MAX
from ckptflow.policy.multilevel.replanning import Plan
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.find import find_checkpoint


class Reading:
    """What a checkpointer can tell of its task and of the checkpoints of its lineage."""

    _lineage: Lineage
    _history: History
    _pace: Pace
    _placing: Placing
    _note: Callable[[str], None]

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._lineage.id.run

    @property
    def task(self) -> str:
        """Name of the task."""
        return self._lineage.id.task

    @property
    def lineage(self) -> Lineage:
        """The catalog of this task's checkpoints."""
        return self._lineage

    @property
    def restored_step(self) -> int | None:
        """Step that was restored, or ``None``."""
        restored = self._history.restored
        return restored.id.step if restored else None

    @property
    def last_step(self) -> int | None:
        """Step of the newest save of this attempt, or else the restored one."""
        return self._pace.last_step

    @property
    def plan(self) -> Plan | None:
        """How often it saves, and to which tiers, by ``every="multilevel"``; else ``None``.

        Also ``None`` before the first save, which measures, if no pattern was given.
        """
        return self._placing.plan

    @property
    def save_time_s(self) -> float:
        """Expected time from a save to its being durable; 0 before the first."""
        return self._pace.durable_s or 0.0

    @property
    def total_steps(self) -> int | None:
        """The step at which the task will be done; set it, and ``status`` knows how far it is.

        It is for people only: what is saved carries it along, and nothing is decided by it.
        """
        return self._pace.total_steps

    @total_steps.setter
    def total_steps(self, steps: int | None) -> None:
        if steps is not None and (isinstance(steps, bool) or not 0 <= steps < STEP_MAX):
            raise ConfigError(f"total_steps is a number of steps from 0 on, not {steps!r}.")
        self._pace.total_steps = None if steps is None else int(steps)

    def read(self, name: str, index: Index = ..., *, step: int | None = None) -> Any:
        """Return one array of a checkpoint, or a part of it, without restoring the rest.

        About as many bytes are read as are asked for, and each frame of them is checked.

        Args:
            name: of the array within the state, as ``show`` has it: ``"model/layer.0.weight"``.
            index: integers, slices and ``...``, as in ``np.s_[10:20, :]``; all by default.
            step: of which checkpoint; the newest if ``None``.

        Returns:
            A NumPy array; of a type that NumPy lacks here, as unsigned integers of its size.

        Raises:
            NotFoundError: there is no such checkpoint, or no such array in it.
            ConfigError: ``index`` does not fit the array.
            CorruptionError: something that was asked for has no sound copy.
        """
        found = find_checkpoint(self._lineage, step=step)
        stored = StoredArrays(self._lineage, self._lineage.manifest(found), note=self._note)
        return stored.read_part(name, index)
