"""A loader whose position is that of the loop. ``tests/unit/test_resumable_loader.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from ckptflow.data.samples.counting import Counting
from ckptflow.data.samples.sampler import ResumableSampler
from ckptflow.errors import ConfigError

T = TypeVar("T")


class ResumableLoader(Generic[T]):
    """Loops over a loader, and counts the batches that the loop gets.

    Each ``for batch in ...`` runs over the rest of the epoch and, when it ends, moves on to the
    next one; a loop that is left early goes on in the same epoch. It is saved and restored
    with the other objects of a ``Checkpointer(store, model=model, data=loader)``.

    Args:
        loader: a torch ``DataLoader``, or anything that can be iterated over again and again,
            draws batches of indices from ``iter(sampler)`` each time, and gives one batch for
            each, in their order; from threads or processes of its own if it likes.
        sampler: the one it draws from; that of the ``DataLoader`` if left out.

    Raises:
        ConfigError: the loader does not draw from a `ResumableSampler`, or not in order.
    """

    def __init__(self, loader: Iterable[T], sampler: ResumableSampler | None = None) -> None:
        self.loader = loader
        self.sampler = _sampler_of(loader) if sampler is None else sampler
        if getattr(loader, "in_order", True) is False:
            raise ConfigError(
                "in_order=False lets a DataLoader give batches in another order than they "
                "were drawn in, so how many the loop got does not say which. Leave it out."
            )

    def __repr__(self) -> str:
        return f"<ResumableLoader: {self.sampler.progress}>"

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0."""
        return self.sampler.epoch

    def __len__(self) -> int:
        """Return how many batches of this epoch are left for this rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[T]:
        return Counting(self.sampler.progress, self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``; stay where it is if that is under way."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loop; see `ResumableSampler.state_dict`."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; see `ResumableSampler.load_state_dict`."""
        self.sampler.load_state_dict(state)

    def state_mismatch(self, state: Mapping[str, Any]) -> str | None:
        """Return why ``state`` cannot be loaded, or None."""
        return self.sampler.state_mismatch(state)


def _sampler_of(loader: object) -> ResumableSampler:
    batch_sampler = getattr(loader, "batch_sampler", None)
    if isinstance(batch_sampler, ResumableSampler):
        return batch_sampler
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, ResumableSampler) and batch_sampler is None:
        return sampler
    raise ConfigError(
        f"This {type(loader).__name__} does not draw its batches from a ResumableSampler. Give "
        "it one as DataLoader(dataset, batch_sampler=sampler), without batch_size=; or, for "
        "another kind of loader, say ResumableLoader(loader, sampler)."
    )
