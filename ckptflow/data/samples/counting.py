"""A loop over what a loader gives, which counts each batch that the loop gets.

Batches come in the order in which they were drawn, so to count them is enough: how many samples
each has over all ranks follows from the position. ``tests/unit/test_resumable_loader.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from ckptflow.data.samples.permutation import iteration_seed
from ckptflow.data.samples.progress import Progress, stale
from ckptflow.data.samples.randomness import seeded
from ckptflow.data.samples.workers import end_workers, loss
from ckptflow.errors import ConfigError, LoaderFailed

T = TypeVar("T")


class Counting(Generic[T]):
    """One loop over the rest of an epoch. When it ends, the next epoch begins.

    ``iter(loader)`` draws a seed for the workers from torch's global generator. While it does,
    that is seeded for this position, and afterwards it is as before: to begin a loop once more
    in the middle of an epoch, after a restart, changes nothing for what else draws from it.
    """

    def __init__(self, progress: Progress, loader: Iterable[T]) -> None:
        self._progress, self._given, self._planned = progress, 0, progress.left
        self._turn = progress.go_to(progress.position, counted=True)
        self._open = True
        self._inner: Iterator[T] = iter(())
        self._inner = self._start(loader)
        if progress.turn is not self._turn:
            raise ConfigError(
                "The loader has loaded a state of its own, which set the position once more "
                f"({progress}). Restore the ResumableLoader or its loader, not both."
            )
        self._turn.running.add(self)

    def __iter__(self) -> Counting[T]:
        return self

    def __next__(self) -> T:
        """Return the next batch; from now on it is consumed.

        Raises:
            ConfigError: the loader does not draw from this sampler, or ends too early; or the
                position was set after this loop began.
            LoaderFailed: a worker of the loader has died, or did not answer within its timeout.
            And what the loader raises.
        """
        if not self._open:
            raise StopIteration
        if self._progress.turn is not self._turn:
            raise stale(self._progress)
        try:
            batch = next(self._inner)
        except StopIteration:
            self._finish()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._given += 1
        if self._given > self._turn.drawn:
            raise self._differs("gave more batches than were drawn from this sampler")
        self._progress.count(1)
        return batch

    def close(self) -> None:
        """Leave the loop; the position stays."""
        self._open = False
        self._turn.running.discard(self)
        if self._progress.turn is self._turn:
            self._progress.go_to(self._progress.position)

    def __del__(self) -> None:
        if self._open:
            self.close()

    def _start(self, loader: Iterable[T]) -> Iterator[T]:
        progress = self._progress
        try:
            with seeded(iteration_seed(progress.identity.seed, *progress.position)):
                return iter(loader)
        except BaseException as error:
            self._fail(error)
            raise

    def _finish(self) -> None:
        if self._given < self._planned:
            raise self._differs("ended too early")
        self._open = False
        self._progress.next_epoch()

    def _differs(self, what: str) -> ConfigError:
        text = (
            f"The loader {what}: {self._given} batches given, {self._turn.drawn} drawn, "
            f"{self._planned} planned ({self._progress}). It has to get the sampler as "
            "batch_sampler=, and to give one batch for each that it draws, in the same order."
        )
        self.close()
        return ConfigError(text)

    def _fail(self, error: BaseException) -> None:
        """Leave the loop, and give the loss of a worker its name."""
        how = loss(self._inner, error)
        if how is not None:
            end_workers(self._inner)
        self.close()
        if how is not None:
            raise LoaderFailed(
                f"What loads the data is gone, or too slow: {how}. The position is that of the "
                f"last batch that the loop got ({self._progress}), so a new loop over a new "
                "loader goes on there. Workers are often killed because memory runs out: try "
                "fewer of them, and look into the kernel's log."
            ) from error
