"""The sampler for loaders that keep their position themselves: torchdata's StatefulDataLoader.

Such a loader saves, with each batch that it hands on, what the state of its batch sampler and
of the iteration over it was when that batch was drawn. So here the state is that of the draws,
and nothing is counted. ``tests/unit/test_torchdata.py`` keeps it true with torchdata itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptflow.data.samples.position import Position
from ckptflow.data.samples.progress import Draws, Progress


class StatefulBatches:
    """Batches for a loader that saves the state of what it draws from.

    Each iteration is one epoch, and the next one is the next epoch, also if a loop was left
    before its end.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __len__(self) -> int:
        return self._progress.left

    def __iter__(self) -> StatefulDraws:
        progress = self._progress
        if progress.turn.drawn or progress.left == 0:
            progress.next_epoch()
        progress.turn.counted = True
        return StatefulDraws(progress)

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration under way began."""
        return self._progress.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there. What was begun before is void.

        Raises:
            StateError: it is of another data set or order.
        """
        self._progress.go_to(self._progress.position, counted=True)
        self._progress.load(state)


class StatefulDraws(Draws):
    """One iteration whose own state is that of the last batch drawn."""

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch that was drawn."""
        return self.position._asdict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""
        self._progress.go_to(Position(state["epoch"], state["consumed"]), counted=True)
