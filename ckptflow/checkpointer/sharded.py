"""What a rank holds of a program whose ranks save together: a checkpointer of its shard.

Each rank captures, writes and commits its own share, by the same road as any checkpoint; no
rank talks to another, and none waits for one. What they have to agree on, which launch
they are and what it goes on from, they agree on through the store.
``docs/design/007-shards.md``; ``tests/unit/test_sharded.py``,
``tests/process/test_ranks.py``.
"""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from ckptflow.checkpointer import Checkpointer
from ckptflow.checkpointer.arguments import is_state
from ckptflow.checkpointer.capturing import Whole, whole_of
from ckptflow.checkpointer.history import History
from ckptflow.checkpointer.hooks import Hooks
from ckptflow.checkpointer.ranks import Place, place_of
from ckptflow.checkpointer.ticket import Ticket
from ckptflow.data.leaves import join, segment
from ckptflow.data.rng import restore_rng
from ckptflow.data.runs import Index
from ckptflow.data.torch_arrays import buffer_names, is_data_parallel
from ckptflow.errors import CheckpointError, ConfigError, NotFoundError, TierError
from ckptflow.model import CheckpointId, Export, LineageId, Shard
from ckptflow.policy.interval import EverySteps, Never, parse_interval
from ckptflow.policy.progress import Decision, Interval
from ckptflow.store.catalog import Lineage
from ckptflow.store.prune import prune
from ckptflow.store.sharding.divide import Divider
from ckptflow.store.sharding.launch import join as join_launch
from ckptflow.store.sharding.mapping import Classify, Kind
from ckptflow.store.sharding.partial import read_from_set
from ckptflow.store.sharding.replicas import ReplicaCheck, Seen
from ckptflow.store.sharding.search import PerRank, SetSearch
from ckptflow.store.sharding.sets import ShardSets, tiers_for_all
from ckptflow.tiers.tier import Tier

S = TypeVar("S")
Replicated: TypeAlias = "str | Sequence[str] | Callable[[str], bool] | None"
Check = Literal["every", "first"]

_log = logging.getLogger("ckptflow")


class ShardedCheckpointer(Checkpointer):
    """The checkpoints of one rank of a program whose ranks save together.

    Every rank makes one, with the same arguments, and calls the same members at the same steps.
    A checkpoint is complete when the last rank has committed its shard; `restore` goes on from
    the newest complete one, on any number of ranks. No call waits for another rank.

    Args:
        store: a folder, an address or a tier, or several, as for `Checkpointer`. The tier with
            the claims (the innermost that all nodes see) must be seen by all ranks.
        rank: number of this process; with ``world``, what the launcher says if not given.
        world: number of processes.
        launch: the same text for all ranks of one start, and another one for each
            start; what the launcher's variables give, if not given.
        run: name of the workflow run.
        task: name of the task within the run; all ranks have the same.
        replicated: which leaves are alike on all ranks: patterns of names (``"model/*"``), or a
            function of a name; if not given, what lies in `DistributedDataParallel` modules.
            Of the buffers of those, which are rank 0's before each forward pass, that one's
            are everybody's.
        per_rank: whose own leaves a rank gets when the number of ranks has changed: with
            ``"same"`` there must be none; or a function of (rank, world, saved world) that
            returns a rank of the checkpoint.
        check: compare replicated leaves at ``"every"`` save, or at the ``"first"`` only; it
            costs a read of all of them.
        every: when `step` saves: a number of steps, the same for all ranks.
        options: all else that `Checkpointer` takes, and the objects.
    """

    _claimed = False  # Whether the launch was claimed before its ranks were started.

    def __init__(
        self,
        store: str | Path | Tier | Sequence[str | Path | Tier],
        *,
        rank: int | None = None,
        world: int | None = None,
        launch: str | None = None,
        run: str = "default",
        task: str = "main",
        replicated: Replicated = None,
        per_rank: PerRank = "same",
        check: Check = "every",
        every: str | int | Interval | None = None,
        **options: Any,
    ) -> None:
        if check not in {"every", "first"}:
            raise ConfigError(f"check is 'every' or 'first', not {check!r}.")
        if per_rank != "same" and not callable(per_rank):
            raise ConfigError(f"per_rank is 'same' or a function, not {per_rank!r}.")
        if "attempt" in options:
            raise ConfigError("A launch numbers its attempts by itself; leave attempt= out.")
        self._is_told_when = every is not None
        when = parse_interval("never" if every is None else every)
        if not isinstance(when, EverySteps | Never):
            raise ConfigError(
                f"{every!r} is decided by what each rank measures, and ranks that save at "
                f"different steps have no checkpoint together. Give every= a number of steps."
            )
        self._patterns = _patterns(replicated)
        place = place_of(rank, world, launch, os.environ)
        self._shard = Shard(LineageId(run, task), place.rank, place.world)
        self._divider = Divider(place.rank, place.world)
        self._classified: tuple[Any, Classify] | None = None  # For what modules it was made.
        self._looks = self._looked = False  # Whether a save compares; whether one has.
        self._seen: Seen | None = None  # By the save that is under way.
        super().__init__(store, run=run, task=self._shard.lineage.task, every=when, **options)
        tiers = self._lineage.tiers
        self._sets = ShardSets(tiers, self._shard.set, note=self._note)
        self._seen_by_all = tiers_for_all(tiers, one_node=place.one_node)
        self._history = _LaunchHistory(
            self._lineage, self._sets, place, claimed=self._claimed, note=self._note
        )
        self._per_rank, self._check = per_rank, check
        self._compare = ReplicaCheck(
            self._lineage.fence_tier, self._shard.set, self._shard.rank
        )
        capturer = self._capturing.capturer
        capturer.lazy_addresses = partial(self._lazy_addresses, capturer.lazy_addresses)
        self._elsewhere: list[Lineage] | None = None  # Shards of other worlds, ours to prune.

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.world}, launch {self._history.attempt}"
        return f"<ShardedCheckpointer {self._shard.set}, {place}>"

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._shard.rank

    @property
    def world(self) -> int:
        """How many processes save together."""
        return self._shard.world

    @property
    def sets(self) -> ShardSets:
        """The checkpoints of all ranks together."""
        return self._sets

    # --- restore ---

    def restore(self, initial: S | None = None, *, step: int | None = None) -> S:
        """Return this rank's state of the newest complete checkpoint, or else ``initial``.

        The ranks of a launch go on from the same one: the first that has restored it says so in
        the store, and the others follow. A rank that cannot see what was chosen looks again for
        `FOLLOW_S` seconds.

        Args:
            initial: as for `Checkpointer.restore`. DTensors and boxes in it get their parts.
            step: restore exactly this step; all ranks ask for the same.

        Raises:
            NotFoundError: ``step`` is not complete, or nothing is and ``initial`` is missing.
            StateError: the checkpoint does not fit ``initial``, or holds own leaves of ranks
                that have no successor (``per_rank``); nothing was written to it.
            RestoreError: checkpoints exist, but none could be restored; or this rank could not
                restore the one that the launch goes on from.
            ConfigError: something was saved already. To go back, start all ranks again.
            FencedError: a newer launch has taken over.
        """
        if self._writer is not None:
            raise ConfigError(
                f"{self._shard.set}: rank {self.rank} has saved already. The ranks go back "
                f"together, and only as a new launch: start all ranks again."
            )
        number = self._history.claim()
        self._capturing.wait()
        state: Any = initial
        if callable(state) and not is_state(state):
            state = state()
        if state is None and self._objects:
            state = self._objects
        search = SetSearch(
            self._sets,
            self._shard,
            number,
            seen_by_all=self._seen_by_all,
            per_rank=self._per_rank,
            note=self._note,
        )
        restored = search.restore(state, step=step)
        self._history.go_on_from(restored)
        self._pace.start(self.restored_step, self._history.pace())
        if restored is None:
            if state is None:
                raise NotFoundError(
                    f"{self._shard.set} has no complete checkpoint; give restore() an initial "
                    f"state."
                )
            self._capturing.prepare(state)
            return state  # type: ignore[no-any-return]
        for found, reason in restored.skipped:
            self._warn(f"{self._shard.set} {found} was skipped: {reason}")
        if self._rng and search.rng is not None:
            for problem in restore_rng(search.rng):
                self._warn(f"{self._lineage.id} {restored.id}: {problem}")
        elif self._rng and search.left_rng:
            self._warn(
                f"{self._shard.set} {restored.id}: random states belong to ranks, and their "
                f"number has changed; those of this process stay as they are."
            )
        _log.info("%s: resumed at %s", self._lineage.id, restored.id)
        self._capturing.prepare(restored.state)
        return restored.state  # type: ignore[no-any-return]

    def export(self, state: Any = None, *, step: int | None = None) -> Export:  # noqa: ARG002
        """Not for shards: what other tasks get is the state of one task.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self._shard.set} is saved by {self.world} ranks, which an export cannot stand "
            f"for. Name the run and the task to other tasks, and read there with a "
            f"ShardedCheckpointer of one rank."
        )

    def read(self, name: str, index: Index = ..., *, step: int | None = None) -> Any:
        """Return an array of a complete checkpoint, or a part of it; see `Checkpointer.read`.

        Of what belongs to ranks, that of this rank; or of rank 0 if there were fewer ranks.
        """
        return read_from_set(self._sets, name, index, step=step, rank=self.rank)

    # --- save ---

    def decide(self, step: int) -> Decision:
        """Tell whether the interval asks for a save at the end of ``step``, and why.

        Raises:
            ConfigError: nothing was said about when ranks save.
        """
        if not self._is_told_when:
            raise ConfigError(
                "step() needs every=, a number of steps: all ranks have to save the same ones."
            )
        return super().decide(step)

    def _save(
        self, step: int, state: Any, metrics: Mapping[str, float] | None, *, last: bool
    ) -> Ticket:
        self._looks = self._check == "every" or not self._looked
        try:
            ticket = super()._save(step, state, metrics, last=last)
        finally:
            self._looks, self._seen = False, None
            self._divider.let_go()
        self._looked = True
        return ticket

    def _whole(self) -> Whole:
        return self._share

    def _share(self, state: Any) -> dict[str, Any]:
        """Return what this rank stores of a state."""
        divided = self._divider.divide(state, self._classify(state), check=self._looks)
        self._seen = divided.seen
        own = whole_of(divided.state, rng=self._rng)
        return {**own, "shard": divided.shard}

    def _hooks(self, step: int) -> Hooks:
        checkpoint = CheckpointId(step, self._history.claim())
        return Hooks(
            before_commit=partial(self._before_commit, checkpoint, self._seen),
            committed=partial(self._committed, checkpoint),
        )

    def _lazy_addresses(self, known: Callable[[], Collection[int]]) -> set[int]:
        """Return where the parts lie of tensors of which it is known who writes next."""
        return self._divider.parts_of(set(known()))

    def _classify(self, state: Any) -> Classify:
        """Return what tells who holds a leaf."""
        modules = list(_data_parallel(state, None))
        buffers = {name for prefix, module in modules for name in buffer_names(prefix, module)}
        prefixes = tuple(prefix for prefix, _ in modules)
        if self._classified is not None and self._classified[0] == (prefixes, buffers):
            return self._classified[1]
        is_replica = self._patterns or (lambda name: name.startswith(prefixes))

        def kind(name: str) -> Kind:
            if name in buffers:
                return "first"
            return "replicated" if is_replica(name) else "own"

        self._classified = (prefixes, buffers), kind
        return kind

    def _before_commit(self, checkpoint: CheckpointId, seen: Seen | None) -> None:
        """Compare what should be alike; called when all packs are durable."""
        if seen is None:
            return
        try:
            self._compare.compare(checkpoint, seen)
        except TierError as error:
            raise CheckpointError(
                f"{self._shard.set} {checkpoint}: rank {self.rank} could not find out whether "
                f"what is replicated is alike on all ranks, so it did not commit: {error}"
            ) from error

    def _committed(self, checkpoint: CheckpointId, tier: Tier) -> None:
        """Tell others of a commit that they cannot see, and tidy up what is done with."""
        try:
            if tier not in self._seen_by_all and self.world > 1:
                self._sets.mark(checkpoint, self._shard, tier)
            self._compare.forget()
            self._sets.tidy(self._shard)
            self._prune_elsewhere(tier)
        except CheckpointError as error:  # All of it is done again after the next save.
            self._note(f"{self._lineage.id} {checkpoint}: {error}")

    def _prune_elsewhere(self, tier: Tier) -> None:
        """Prune shards by other numbers of ranks; each rank takes some of them."""
        if self._retention[tier.name].keeps_all:
            return
        if self._elsewhere is None:
            self._elsewhere = [
                self._sets.shard(rank, world)
                for world in self._sets.worlds()
                if world != self.world
                for rank in range(self.rank, world, self.world)
            ]
        for lineage in self._elsewhere:
            prune(lineage, tier, self._retention[tier.name])


class _LaunchHistory(History):
    """The set as one rank sees it: its launch, and where that went on from."""

    def __init__(
        self,
        lineage: Lineage,
        sets: ShardSets,
        place: Place,
        *,
        claimed: bool,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(lineage, None, note=note)
        self._sets, self._place, self._claimed = sets, place, claimed
        self._shard = lineage.id.shard

    def claim(self) -> int:
        """Return the number of the launch; joins it on first use."""
        if self.attempt is None:
            assert self._shard is not None, "it was made from a shard"
            self.attempt = join_launch(
                self._sets.lineage, self._shard, self._place.launch, claimed=self._claimed
            )
        return self.attempt

    def refuse_to_ignore(self) -> None:
        """Raise if there are checkpoints that nobody looked at: saving would make them void.

        Raises:
            ConfigError: there are.
        """
        if self._looked:
            return
        if newest := next(self._sets.newest_first(), None):
            raise ConfigError(
                f"{self._sets.id} has checkpoints up to {newest}, which this launch did not "
                f"restore. Call restore() on every rank before the first save, or use another "
                f"run or task name to begin anew."
            )

    def recorder(self) -> Callable[[], None] | None:
        """Return what records where this launch began; every rank says the same."""
        start = self.restored.id if self.restored else None
        return partial(self._sets.lineage.record_resume, self.claim(), start)

    def proven(self) -> list[CheckpointId]:
        """Return the checkpoint that was restored, if this rank has a shard of it."""
        is_own = self.restored is not None and self.restored.base is not None
        return super().proven() if is_own else []


def _patterns(replicated: Replicated) -> Callable[[str], bool] | None:
    if replicated is None or callable(replicated):
        return replicated
    patterns = [replicated] if isinstance(replicated, str) else list(replicated)
    if not all(isinstance(one, str) for one in patterns):
        raise ConfigError(
            f"replicated= takes patterns of names or a function, not {replicated!r}."
        )
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _data_parallel(value: Any, path: str | None) -> Iterator[tuple[str, Any]]:
    """Yield data-parallel modules, and how the names of what lies in them begin."""
    if is_data_parallel(value):
        yield "" if path is None else f"{path}/", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str):
                yield from _data_parallel(item, join(path, segment(key)))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _data_parallel(item, join(path, str(number)))
