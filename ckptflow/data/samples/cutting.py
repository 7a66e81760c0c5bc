"""How what remains of an epoch is cut into global batches, and what each rank gets of them.

A *global batch* is what all ranks get in one step: ``batch * world`` samples that follow each
other in the order of the epoch. Rank ``r`` gets every ``world``-th of them, beginning with
number ``r``. Where an epoch ends there are fewer left; ``tail`` says what becomes of them:

``short``  They are a smaller last global batch. No sample is left out and none comes twice.
           If they are too few for every rank to get one, the batch before keeps back as many
           as lack, so that all ranks have the same number of batches. That cannot be done with
           ``batch=1``, or when fewer samples than ranks remain in all: then the last ranks
           have one batch less.
``drop``   They are left out. All batches are whole.
``pad``    They are filled up with the first samples of the epoch. All batches are whole.

How the rest is cut follows from its length alone, so a loop that stops and goes on gets the
batches that it would have got. ``tests/unit/test_cutting.py``,
``tests/property/test_sampler_laws.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Tail = Literal["short", "drop", "pad"]
TAILS: tuple[Tail, ...] = get_args(Tail)
Positions = NDArray[np.int64]

LOOK_AHEAD = 4096  # Positions computed at once: NumPy's cost per call is lost among them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How many samples a rank gets in a step, and what happens at the end of an epoch."""

    batch: int
    world: int
    tail: Tail

    @property
    def whole(self) -> int:
        """Samples of a whole global batch."""
        return self.batch * self.world

    def cut(self, remaining: int) -> tuple[int, tuple[int, ...]]:
        """Return how many whole global batches come first, and the sizes of the others."""
        count, rest = divmod(remaining, self.whole)
        if rest == 0 or self.tail == "drop":
            return count, ()
        lacking = self.world - rest
        if self.tail == "short" and lacking > 0 and count and self.batch > 1:
            return count - 1, (self.whole - lacking, self.world)
        return count, (rest,)

    def batches(self, remaining: int, rank: int = 0) -> int:
        """Return how many batches a rank gets; rank 0 has as many as there are global ones."""
        count, sizes = self.cut(remaining)
        return count + sum(self._share(size, rank) > 0 for size in sizes)

    def consumed_by(self, batches: int, remaining: int) -> int:
        """Return how many of the samples the next global ``batches`` consume."""
        count, sizes = self.cut(remaining)
        whole = min(batches, count)
        return whole * self.whole + sum(sizes[: batches - whole])

    def positions(
        self, consumed: int, samples: int, rank: int
    ) -> Iterator[tuple[Positions, list[int]]]:
        """Yield positions that a rank gets, some batches at once, to the end of the epoch.

        Yields:
            The positions, batch after batch, below ``samples``; and for each of these batches
            how much of the epoch is consumed after it, by all ranks.
        """
        count, sizes = self.cut(samples - consumed)
        at_once = max(1, LOOK_AHEAD // self.batch)
        while count:
            now = min(count, at_once)
            ends = [consumed + self.whole * (i + 1) for i in range(now)]
            yield np.arange(consumed + rank, ends[-1], self.world), ends
            count, consumed = count - now, ends[-1]
        for size in sizes:
            share = self._share(size, rank)
            if share:
                positions = consumed + rank + self.world * np.arange(share)
                yield positions % samples, [consumed + size]
            consumed += size

    def _share(self, size: int, rank: int) -> int:
        """Return how many samples of a global batch a rank gets."""
        if self.tail == "pad":
            return self.batch
        return max(0, -(-(size - rank) // self.world))
