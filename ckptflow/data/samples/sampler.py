"""Batches of indices in an order that can be taken up again at any position.

``tests/unit/test_resumable_sampler.py``, ``tests/property/test_sampler_laws.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from ckptflow.data.samples.counting import Counting
from ckptflow.data.samples.cutting import TAILS, Cutting, Tail
from ckptflow.data.samples.permutation import SAMPLES_LIMIT
from ckptflow.data.samples.position import Identity, Position
from ckptflow.data.samples.progress import Draws, Indices, Progress
from ckptflow.data.samples.stateful import StatefulBatches
from ckptflow.errors import ConfigError


class ResumableSampler:
    """The order of a data set's samples, cut into this rank's batches, and a position in it.

    For torch give it as ``batch_sampler=`` to a ``DataLoader``, and loop over
    ``ResumableLoader(loader)``. Without torch loop over `batches`. All ranks are to be at the
    same step when a state is saved or loaded, and it is the same on all of them.

    Args:
        data: the data set, of which only ``len()`` is used, or its number of samples.
        batch: samples that a rank gets in a step.
        seed: of the order, 64 bits.
        shuffle: another order in each epoch; if false always that of the data set.
        tail: where an epoch ends, what becomes of fewer samples than all ranks take in a step:
            ``"short"`` (a smaller batch: each sample exactly once), ``"drop"`` (left out), or
            ``"pad"`` (filled up with the first samples of the epoch).
        rank: of this process; that of ``torch.distributed`` if it is in use, otherwise 0.
        world: how many ranks share the samples; likewise, otherwise 1.
        fingerprint: what tells the data set from others of the same length; see `fingerprint`.

    Raises:
        ConfigError: an argument is out of its range, or ``drop`` would leave nothing.
    """

    def __init__(
        self,
        data: int | Sized,
        *,
        batch: int,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "short",
        rank: int | None = None,
        world: int | None = None,
        fingerprint: str | None = None,
    ) -> None:
        samples = data if isinstance(data, int) else len(data)
        self.rank, self.world = _place(rank, world)
        _check(samples, batch, seed, tail, self.world)
        self.progress = Progress(
            Identity(samples=samples, seed=seed, shuffle=shuffle, fingerprint=fingerprint),
            Cutting(batch=batch, world=self.world, tail=tail),
            self.rank,
        )

    def __repr__(self) -> str:
        return f"<ResumableSampler: {self.progress}, rank {self.rank} of {self.world}>"

    # --- where it is ---

    @property
    def samples(self) -> int:
        """How many samples the data set has."""
        return self.progress.identity.samples

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self.progress.identity.seed

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0."""
        return self.progress.position.epoch

    @property
    def consumed(self) -> int:
        """Samples of this epoch that the loops of all ranks have got."""
        return self.progress.position.consumed

    @property
    def batches_per_epoch(self) -> int:
        """Batches that this rank gets in an epoch from its beginning."""
        return self.progress.cutting.batches(self.samples, self.rank)

    def __len__(self) -> int:
        """Return how many batches of this epoch are left for this rank."""
        return self.progress.left

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``; stay where it is if that is under way.

        Not needed where the loop runs over `batches` or a `ResumableLoader`, which go on to the
        next epoch when one ends. Frameworks call it; after a restart it does no harm.
        """
        if epoch < 0:
            raise ConfigError(f"Epochs are counted from 0; {epoch} is none.")
        if epoch != self.epoch:
            self.progress.go_to(Position(epoch, 0))

    # --- what comes next ---

    def __iter__(self) -> Draws:
        """Draw the rest of the epoch, each batch a list of `SampleIndex`; count nothing.

        Raises:
            ConfigError: all of this epoch was drawn before, and nobody counted it.
        """
        self.progress.check_counted()
        return Draws(self.progress)

    def batches(self) -> Iterator[Indices]:
        """Yield the rest of the epoch, each batch an array of indices, and count each.

        A batch counts from the moment that the loop gets it. When the loop asks for one more
        than there are, the epoch ends, and the next call is about the next one.
        """
        return Counting(self.progress, Draws(self.progress).arrays())

    def advance(self, batches: int = 1) -> None:
        """Count batches that the loops got, for loops that run over something else.

        After the last batch of an epoch the next epoch begins.

        Raises:
            ConfigError: so many batches are not left in this epoch.
        """
        left = self.progress.cutting.batches(self.progress.remaining)
        if not 1 <= batches <= left:
            raise ConfigError(
                f"Cannot advance by {batches} of {left} batches ({self.progress})."
            )
        self.progress.count(batches)
        if batches == left:
            self.progress.next_epoch(counted=True)

    def for_stateful_loader(self) -> StatefulBatches:
        """Return the ``batch_sampler=`` of a loader that saves the state of its sampler."""
        return StatefulBatches(self.progress)

    # --- what is saved ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as plain values that are the same on all ranks.

        Raises:
            ConfigError: batches were drawn, and nobody counts which of them the loop got.
        """
        return self.progress.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Batch, world and tail stay those of this sampler.

        Raises:
            StateError: it is of another data set, seed or order, or an iteration has begun,
            which
                would not notice. The position stays as it was.
        """
        self.progress.load(state)

    def state_mismatch(self, state: Mapping[str, Any]) -> str | None:
        """Return why ``state`` cannot be loaded, or None: asked before anything is restored."""
        return "; ".join(self.progress.mismatches(state)) or None


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1
    if rank is None or world is None or not 0 <= rank < world:
        raise ConfigError(f"Rank {rank} of {world} is none: give both, with 0 <= rank < world.")
    return rank, world


def _check(samples: int, batch: int, seed: int, tail: str, world: int) -> None:
    if not 1 <= samples < SAMPLES_LIMIT:
        raise ConfigError(f"A data set of {samples} samples has no order; 1 to 2^62 have one.")
    if batch < 1:
        raise ConfigError(f"A batch of {batch} samples is none; give batch=1 or more.")
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"Seed {seed} does not fit 64 bits; give 0 <= seed < 2^64.")
    if tail not in TAILS:
        raise ConfigError(f"tail={tail!r} is none of {', '.join(map(repr, TAILS))}.")
    if tail == "drop" and samples < batch * world:
        raise ConfigError(
            f'tail="drop" leaves nothing of {samples} samples: {world} ranks take '
            f"{batch * world} in a step."
        )
