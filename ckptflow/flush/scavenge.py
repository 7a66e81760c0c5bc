"""On the way out: copy what can still make it to a tier that outlives the node.

The newest checkpoint of every lineage first, then the second of each, and so on; within such a
round the smallest first, so that as many tasks as possible have something to go on from. What
cannot make it, as far as the rate of the copies so far tells, is passed over for something that
can. Checkpoints that nobody had asked to copy outward are found as well. Word and idea: SCR's
scavenge (Moody et al., SC'10). ``tests/unit/test_scavenge.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptflow.errors import CheckpointError, NotFoundError, TierError
from ckptflow.flush.copying import Transport, copy_checkpoint
from ckptflow.flush.limits import Bandwidth, ByteBudget
from ckptflow.flush.options import Flushing
from ckptflow.model import SHARED_LEVEL, LineageId, Manifest
from ckptflow.store.catalog import Found, Lineage, lineages
from ckptflow.tiers.tier import Tier

Outcome = Literal["copied", "late", "failed"]


@dataclass(frozen=True, slots=True)
class Rescue:
    """What became of one checkpoint.

    Attributes:
        lineage: run/task.
        step: of the checkpoint.
        attempt: of the checkpoint.
        target: name of the tier it was to go to.
        missing_bytes: what the target lacked of its packs.
        outcome: ``copied``; ``late``: it would not have made it, or did not; ``failed``.
        reason: why it was not copied.
    """

    lineage: str
    step: int
    attempt: int
    target: str
    missing_bytes: int
    outcome: Outcome
    reason: str = ""


@dataclass(slots=True)
class ScavengeReport:
    """What was saved, and what was not.

    Attributes:
        rescues: one for each checkpoint that was not safe already, in the order of trying.
        problems: tiers and lineages that could not be looked at.
        unseen: whether time was up before everything had been looked at.
    """

    rescues: list[Rescue] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unseen: bool = False

    @property
    def complete(self) -> bool:
        """Whether everything is safe now."""
        copied = all(one.outcome == "copied" for one in self.rescues)
        return copied and not self.problems and not self.unseen


def scavenge(
    tiers: Sequence[Tier],
    deadline_s: float,
    *,
    options: Flushing | None = None,
    rates: Mapping[str, float] | None = None,
) -> ScavengeReport:
    """Copy outward what can make it within ``deadline_s`` seconds; return then in any case.

    A put that hangs is left behind in its thread: the report calls its checkpoint late.

    Args:
        tiers: of the store, inner ones first.
        deadline_s: how much time there is.
        options: what copies may take.
        rates: bytes a second that copies to a tier, by its name, have reached before.
    """
    scavenger = Scavenger(tiers, deadline_s, options=options, rates=rates)
    thread = threading.Thread(target=scavenger.run, name="ckptflow-scavenge", daemon=True)
    thread.start()
    thread.join(deadline_s)
    return scavenger.stop()


class Scavenger:
    """One go at scavenging.

    Args:
        tiers: of the store, inner ones first.
        deadline_s: how much time there is, from now.
        options: what copies may take.
        rates: see `scavenge`.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        deadline_s: float,
        *,
        options: Flushing | None = None,
        rates: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or Flushing()
        self._tiers, self._clock = tuple(tiers), clock
        self._ends_s = clock() + deadline_s
        self._rates = dict(rates or {})
        self._targets = safe_tiers(self._tiers)
        self._cancelled = threading.Event()
        self._report = ScavengeReport(unseen=True)
        self._current: Rescue | None = None
        self._lock = threading.Lock()
        self._transport = Transport(
            streams=options.streams,
            budget=ByteBudget(options.budget_bytes),
            bandwidth=Bandwidth(options.bandwidth_bytes_per_s),
            name="scavenge",
        )

    def run(self) -> None:
        """Go through the rounds until all is safe or time is up."""
        try:
            left = self._unsafe()
            rank = 0
            while round_ := [(one, found[rank]) for one, found in left if rank < len(found)]:
                for lineage, found, manifest, missing in self._sized(round_):
                    if self._cancelled.is_set():
                        return
                    self._rescue(lineage, found, manifest, missing)
                rank += 1
            self._report.unseen = False
        finally:
            self._transport.close()

    def stop(self) -> ScavengeReport:
        """Begin nothing more, and return what became of everything so far."""
        self._cancelled.set()
        with self._lock:
            rescues = list(self._report.rescues)
            if self._current is not None:
                rescues.append(self._current)
            return ScavengeReport(rescues, list(self._report.problems), self._report.unseen)

    def _unsafe(self) -> list[tuple[Lineage, list[Found]]]:
        """Return, by lineage, the checkpoints that no safe tier has, the newest first."""
        found = []
        for lineage_id in self._lineages():
            lineage = Lineage(self._tiers, lineage_id)
            try:
                there = lineage.valid()
            except CheckpointError as error:
                self._report.problems.append(f"{lineage_id}: {error}")
                continue
            safe = {tier.name for tier in self._targets}
            inner = [one for one in there if not safe & {tier.name for tier in one.tiers}]
            if inner:
                found.append((lineage, inner))
        return found

    def _lineages(self) -> list[LineageId]:
        found: set[LineageId] = set()
        for tier in self._tiers:
            if tier in self._targets:
                continue
            try:
                found.update(lineages([tier]))
            except CheckpointError as error:
                self._report.problems.append(f"tier {tier.name!r}: {error}")
        return sorted(found)

    def _sized(
        self, of_round: Sequence[tuple[Lineage, Found]]
    ) -> list[tuple[Lineage, Found, Manifest, int]]:
        """Return checkpoints with what the first target lacks of them, the least first."""
        sized = []
        for lineage, found in of_round:
            if self._cancelled.is_set():
                break
            try:
                manifest = lineage.manifest(found)
            except CheckpointError as error:
                self._report.problems.append(f"{lineage.id} {found.id}: {error}")
                continue
            missing_bytes = missing_on(self._targets[0], lineage.id, manifest)
            sized.append((lineage, found, manifest, missing_bytes))
        return sorted(sized, key=lambda one: one[3])

    def _rescue(
        self, lineage: Lineage, found: Found, manifest: Manifest, missing_bytes: int
    ) -> None:
        """Copy one checkpoint to the first target that takes it, if there is time."""
        failure = ""
        for target in self._targets:
            rate, left_s = self._rates.get(target.name), self._ends_s - self._clock()
            if left_s <= 0 or (rate and missing_bytes / rate > left_s):
                failure = f"{missing_bytes} bytes do not fit into {max(0.0, left_s):.1f} s"
                if rate:
                    failure += f" at {rate:.3g} bytes/s"
                outcome: Outcome = "late"
                continue
            rescue = self._note(found, lineage.id, target, missing_bytes)
            try:
                self._copy(found, lineage.id, target, manifest)
            except CheckpointError as error:
                failure, outcome = str(error), "failed"
                if self._cancelled.is_set():
                    return  # `stop` has told of it, as late.
            else:
                self._settle(rescue, "copied", "")
                return
        self._settle(self._note(found, lineage.id, target, missing_bytes), outcome, failure)

    def _copy(self, found: Found, lineage: LineageId, target: Tier, manifest: Manifest) -> None:
        began_s = self._clock()
        copied_bytes = copy_checkpoint(
            found.tiers,
            target,
            lineage,
            manifest,
            transport=self._transport,
            cancelled=self._cancelled,
        )
        if (duration_s := self._clock() - began_s) > 0:
            self._rates[target.name] = copied_bytes / duration_s

    def _note(self, found: Found, lineage: LineageId, target: Tier, missing: int) -> Rescue:
        """Say what is tried; if it is never heard of again, time was up."""
        late = Rescue(
            str(lineage),
            found.id.step,
            found.id.attempt,
            target.name,
            missing,
            "late",
            "time was up while it was copied",
        )
        with self._lock:
            self._current = late
        return late

    def _settle(self, rescue: Rescue, outcome: Outcome, reason: str) -> None:
        settled = Rescue(
            rescue.lineage,
            rescue.step,
            rescue.attempt,
            rescue.target,
            rescue.missing_bytes,
            outcome,
            reason,
        )
        with self._lock:
            self._current = None
            self._report.rescues.append(settled)


def safe_tiers(tiers: Sequence[Tier]) -> list[Tier]:
    """Return the tiers that outlive this node, inner ones first; or else the outermost."""
    return [tier for tier in tiers if tier.level >= SHARED_LEVEL] or [tiers[-1]]


def missing_on(target: Tier, lineage: LineageId, manifest: Manifest) -> int:
    """Return the bytes of the packs that a tier lacks of a checkpoint."""
    missing_bytes = 0
    for pack in manifest.packs:
        try:
            there = target.size(f"{lineage.prefix}/{pack.key}") == pack.size_bytes
        except (NotFoundError, TierError):
            there = False
        missing_bytes += 0 if there else pack.size_bytes
    return missing_bytes
