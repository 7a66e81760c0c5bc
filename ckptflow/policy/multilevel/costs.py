"""From bytes to times: what saves and restores cost on each level.

A save blocks for its capture, and its copy is durable on the innermost level when it is encoded
and written. From there it goes to all other levels at once, in the background: each tier has a
lane of its own. What is written is the changed part of the state, as compression leaves it;
what is restored is all of it. ``tests/unit/test_multilevel_costs.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ckptflow.errors import ConfigError
from ckptflow.model import SHARED_LEVEL
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.system import Level, System
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.units import format_bytes

GB, MONTH_S = 10**9, 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is saved, and from where.

    Attributes:
        state_bytes: of all writers together.
        nodes: that they run on.
        writers_per_node: processes of a node that save at once.
        changed: part of the state that differs from save to save, above 0 to 1.
        stored: bytes stored for each byte that changed, after compression.
        capture_bytes_per_s: of one writer: for how long `save` blocks. Infinite: not at all.
        encode_bytes_per_s: of one writer: how fast changes are found and encoded.
        interference: part by which computing is slower while a copy is made, as measured.
        work_s: computing time of the whole task, if it is known.

    Raises:
        ConfigError: a number makes no sense.
    """

    state_bytes: float
    nodes: int = 1
    writers_per_node: int = 1
    changed: float = 1.0
    stored: float = 1.0
    capture_bytes_per_s: float = 5e9
    encode_bytes_per_s: float = 2e9
    interference: float = 0.02
    work_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.state_bytes < math.inf:
            raise ConfigError(f"A state of {self.state_bytes} bytes: it must have some.")
        if self.nodes < 1 or self.writers_per_node < 1:
            raise ConfigError(
                f"{self.nodes} nodes with {self.writers_per_node} writers each cannot save: "
                f"both must be 1 or more."
            )
        for name in ("changed", "stored"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(
                    f"{name} is a part, above 0 and at most 1, got {getattr(self, name)}."
                )
        for name in ("capture_bytes_per_s", "encode_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}.")
        if not 0 <= self.interference < math.inf:
            raise ConfigError(f"interference is 0 or more, got {self.interference}.")

    @property
    def writers(self) -> int:
        """Of all nodes."""
        return self.nodes * self.writers_per_node

    @property
    def written_bytes(self) -> float:
        """What one save stores, of all writers together, but for redundancy."""
        return self.state_bytes * self.changed * self.stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What a failure takes before anything is restored, in seconds.

    Attributes:
        detection_s: until somebody notices.
        restart_s: until a process runs again on nodes that are there.
        reallocation_s: until other nodes are there, for failures of level 2 and above.
        queue_s: until another allocation begins, for failures of level 3 and above.
    """

    detection_s: float = 15.0
    restart_s: float = 10.0
    reallocation_s: float = 60.0
    queue_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("detection_s", "restart_s", "reallocation_s", "queue_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is 0 s or more, got {getattr(self, name)}.")

    def before_restore_s(self, level: int) -> float:
        """Return the time until a restore begins, after a failure of a level."""
        seconds = self.detection_s + self.restart_s
        seconds += self.reallocation_s if level >= 2 else 0.0
        return seconds + (self.queue_s if level >= SHARED_LEVEL else 0.0)


def system_of(
    tiers: Sequence[TierCosts],
    rates: Rates,
    workload: Workload,
    *,
    reaction: Reaction | None = None,
    second_loss: float = 0.0,
) -> System:
    """Return the system of a workload on tiers. Of two tiers of one level the faster counts.

    Failures of a level that no tier is of need the next one. A tier with room for fewer than
    one checkpoint is an error, one with room for fewer than two is never used.

    Args:
        tiers: in any order.
        rates: of failures by class, for all nodes together.
        workload: what is saved.
        reaction: what failures take before a restore.
        second_loss: probability that a second loss of a node, during the recovery from one,
            is more than a redundancy set can rebuild.

    Raises:
        ConfigError: there is no tier, or one has no room for a single checkpoint.
    """
    reaction = reaction or Reaction()
    chosen = _one_a_level(tiers, workload)
    if not chosen:
        raise ConfigError("A policy needs at least one tier.")
    levels: list[Level] = []
    ready_s = latency_s = _each(workload) * workload.changed / workload.encode_bytes_per_s
    whole_gb = workload.state_bytes * workload.stored / GB
    # The newest, and the one before, which shares with it what has not changed.
    kept_gb = whole_gb + workload.written_bytes / GB
    pending = list(rates.per_s)
    for tier in chosen:
        rate = math.fsum(pending[: tier.level + 1])
        pending[: tier.level + 1] = [0.0] * (tier.level + 1)
        move_s = _write_s(tier, workload)
        if not levels:  # It is encoded and written at the same time.
            ready_s = max(ready_s, move_s)
        latency_s = max(latency_s, ready_s + (move_s if levels else 0.0))
        levels.append(
            Level(
                name=tier.name,
                number=tier.level,
                rate_per_s=rate,
                latency_s=latency_s,
                interference=workload.interference,
                recovery_s=reaction.before_restore_s(tier.level) + _read_s(tier, workload),
                second_loss=second_loss if tier.level == 2 else 0.0,
                capacity=_capacity(tier, workload),
                size_bytes=workload.written_bytes * tier.storage_factor,
                price=tier.price_per_gb * workload.written_bytes * tier.storage_factor / GB,
                restore_price=tier.egress_price_per_gb * whole_gb,
                keep_price_per_s=tier.price_per_gb_month
                * kept_gb
                * tier.storage_factor
                / MONTH_S,
            )
        )
    return System(
        tuple(levels),
        blocked_s=_each(workload) / workload.capture_bytes_per_s,
        work_s=workload.work_s,
        lost_rate_per_s=math.fsum(pending),
    )


def _each(workload: Workload) -> float:
    return workload.state_bytes / workload.writers


def _sharing(tier: TierCosts, workload: Workload) -> int:
    """Return how many writers share a tier: those of a node, or all."""
    return workload.writers if tier.level >= SHARED_LEVEL else workload.writers_per_node


def _write_s(tier: TierCosts, workload: Workload) -> float:
    each = workload.written_bytes / workload.writers
    return tier.write_s(each, writers=_sharing(tier, workload))


def _read_s(tier: TierCosts, workload: Workload) -> float:
    # All of the state, as stored.
    each = _each(workload) * workload.stored
    return tier.read_s(each, readers=_sharing(tier, workload))


def _one_a_level(tiers: Sequence[TierCosts], workload: Workload) -> list[TierCosts]:
    by_level: dict[int, TierCosts] = {}
    for tier in sorted(tiers, key=lambda one: _write_s(one, workload)):
        by_level.setdefault(tier.level, tier)
    return [by_level[level] for level in sorted(by_level)]


def _capacity(tier: TierCosts, workload: Workload) -> int | None:
    """Return how many checkpoints fit.

    The first stays whole, as long as others are deltas to it; so what counts is the state.

    Raises:
        ConfigError: not one does.
    """
    if tier.capacity_bytes is None:
        return None
    share = 1 if tier.level >= SHARED_LEVEL else workload.nodes
    needs = workload.state_bytes * workload.stored * tier.storage_factor / share
    fits = int(tier.capacity_bytes // needs)
    if fits < 1:
        where = "" if share == 1 else " on each node"
        raise ConfigError(
            f"Tier {tier.name!r} has room for {format_bytes(int(tier.capacity_bytes))}{where}, "
            f"one checkpoint takes {format_bytes(int(needs))}: leave the tier out, use more "
            f"nodes, or give it more room."
        )
    return fits
