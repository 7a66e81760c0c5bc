"""How far an epoch has come, and who draws from it.

The position counts what the training loop got, not what a loader drew ahead of it, so drawing
(:class:`Draws`, what a loader does) and counting (the loop) are two things. States are refused
while nobody counts what is drawn.

Whenever the position is set (by a load, another epoch, a new loop) a new *turn* begins. An
iteration of an earlier turn would go on from a position that is no more; it raises when asked
for more.

``tests/unit/test_resumable_sampler.py``, ``tests/property/test_sampler_laws.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.samples.cutting import Cutting
from ckptflow.data.samples.permutation import Order
from ckptflow.data.samples.position import Identity, Position
from ckptflow.data.samples.randomness import SampleIndex
from ckptflow.errors import ConfigError, StateError

Indices = NDArray[np.int64]


class Turn:
    """What happens between two settings of the position."""

    def __init__(self, *, counted: bool) -> None:
        self.counted = counted  # Whether somebody counts what the loop gets.
        self.drawn = 0  # Batches.
        self.exhausted = False  # Whether the last batch of the epoch was drawn.
        self.running: WeakSet[Any] = WeakSet()  # Iterations that may still give batches.


class Progress:
    """The position in an epoch, and all that decides which samples come next."""

    def __init__(self, identity: Identity, cutting: Cutting, rank: int) -> None:
        self.identity, self.cutting, self.rank = identity, cutting, rank
        self.position, self.turn = Position(0, 0), Turn(counted=False)

    @property
    def remaining(self) -> int:
        """Samples of this epoch that no loop has got yet."""
        return self.identity.samples - self.position.consumed

    @property
    def left(self) -> int:
        """Batches of this epoch that this rank has not got yet."""
        return self.cutting.batches(self.remaining, self.rank)

    def __str__(self) -> str:
        epoch, consumed = self.position
        return f"epoch {epoch}, {consumed} of {self.identity.samples} samples consumed"

    def go_to(self, position: Position, *, counted: bool = False) -> Turn:
        """Set the position and begin a new turn."""
        self.position, self.turn = position, Turn(counted=counted)
        return self.turn

    def next_epoch(self, *, counted: bool = False) -> None:
        """Go to the first sample of the next epoch."""
        self.go_to(Position(self.position.epoch + 1, 0), counted=counted)

    def count(self, batches: int) -> None:
        """Note that the loops of all ranks got their next ``batches``."""
        epoch, consumed = self.position
        self.position = Position(
            epoch, consumed + self.cutting.consumed_by(batches, self.remaining)
        )
        self.turn.counted = True

    def state(self) -> dict[str, Any]:
        """Return the state of a sampler here.

        Raises:
            ConfigError: batches were drawn, and nobody counts which of them the loop got.
        """
        if self.turn.drawn and not self.turn.counted:
            raise ConfigError(_nobody_counts(f"{self.turn.drawn} batches", self))
        cutting = self.cutting
        return self.identity.state(
            self.position, world=cutting.world, batch=cutting.batch, tail=cutting.tail
        )

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return a sentence for everything that keeps ``state`` from being loaded now."""
        found = self.identity.mismatches(state)
        if self.turn.running:
            found.append(
                f"an iteration has begun ({self}, {self.turn.drawn} batches drawn) and would "
                "go on from where it is; load before iter(), or leave the loop first"
            )
        return found

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to the position of ``state``.

        Raises:
            StateError: it is of another data set or order, or an iteration has begun.
        """
        if found := self.mismatches(state):
            raise StateError(
                f"The position of the data cannot be loaded; it stays as it was "
                f"({self}). {'. '.join(found)}.",
                tuple(found),
            )
        self.go_to(Position(state["epoch"], state["consumed"]))

    def check_counted(self) -> None:
        """Refuse to draw again what nobody counted.

        Raises:
            ConfigError: the whole epoch was drawn, and it would be the same one again.
        """
        if self.turn.exhausted and not self.turn.counted:
            raise ConfigError(_nobody_counts("All batches", self))

    def batches_from(self, start: Position) -> Iterator[tuple[Indices, Position]]:
        """Yield this rank's batches from ``start`` on, and the position after each."""
        samples, seed = self.identity.samples, self.identity.seed
        order = Order(samples, seed=seed, epoch=start.epoch, shuffle=self.identity.shuffle)
        for positions, ends in self.cutting.positions(start.consumed, samples, self.rank):
            indices = order.indices(positions)
            for batch, end in zip(indices.reshape(len(ends), -1), ends, strict=True):
                yield batch, Position(start.epoch, end)


def _nobody_counts(what: str, progress: Progress) -> str:
    return (
        f"{what} were drawn ({progress}), but nobody counts what the loop gets, which is less "
        "than what a loader draws ahead. Iterate over ResumableLoader(loader) instead of the "
        "loader, or over sampler.batches(); or call sampler.advance() after each batch. For "
        "torchdata's own state give its loader batch_sampler=sampler.for_stateful_loader()."
    )


class Draws:
    """One iteration over the rest of an epoch, as a loader draws it; it counts nothing.

    It begins when it is first asked for a batch, at the position of that moment.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._left = progress, 0
        self._turn: Turn | None = None
        self._batches: Iterator[tuple[Indices, Position]] = iter(())

    def __iter__(self) -> Self:
        return self

    @property
    def position(self) -> Position:
        """Position after the last batch drawn; before the first, where it would begin."""
        return self._progress.position if self._turn is None else self._drawn_to

    def __next__(self) -> list[SampleIndex]:
        """Return the next batch as a loader wants it, each index with its epoch.

        Raises:
            ConfigError: the position was set meanwhile.
        """
        indices = self._draw()
        if indices is None:
            raise StopIteration
        epoch, seed = self.position.epoch, self._progress.identity.seed
        return [SampleIndex(index, seed, epoch) for index in indices.tolist()]

    def arrays(self) -> Iterator[Indices]:
        """Yield the batches as arrays of indices."""
        while (indices := self._draw()) is not None:
            yield indices

    def _draw(self) -> Indices | None:
        turn = self._turn or self._begin()
        if self._left == 0:
            return None
        if turn is not self._progress.turn:
            raise stale(self._progress)
        indices, self._drawn_to = next(self._batches)
        turn.drawn += 1
        self._left -= 1
        turn.exhausted = self._left == 0  # Known now: a loader may not ask once more.
        return indices

    def _begin(self) -> Turn:
        progress = self._progress
        self._turn, self._drawn_to, self._left = progress.turn, progress.position, progress.left
        self._batches = progress.batches_from(self._drawn_to)
        self._turn.running.add(self)  # Also when all is drawn: the loop has not got it yet.
        return self._turn


def stale(progress: Progress) -> ConfigError:
    """Return the error of an iteration whose turn is over."""
    return ConfigError(
        f"This iteration began before the position was set to {progress}, and would give other "
        "samples. Begin a new one: leave the loop and enter it again."
    )
