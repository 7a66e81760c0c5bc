"""Look into checkpoints without restoring them: one array, or a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckptflow.data.runs import Index
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.find import find_checkpoint


class Reading:
    """What a checkpointer can tell of the checkpoints of its lineage."""

    _lineage: Lineage
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
