"""What a tier can do, measured or given: bandwidths, latency, capacity, prices.

``tests/unit/test_multilevel_costs.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ckptflow.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCosts:
    """One tier as the policy sees it.

    Attributes:
        name: of the tier.
        level: lowest class of failures that its copies survive, 0 to 4.
        write_bytes_per_s: of one writer that is alone.
        read_bytes_per_s: of one reader that is alone.
        write_shared_bytes_per_s: of all writers that share it: those of a node for a tier that
            each node has (level 0 to 2), else those of the whole run. ``None``: no such limit.
        read_shared_bytes_per_s: likewise of all readers.
        write_latency_s: time of a checkpoint there that has no bytes: calls, syncs, the commit.
        read_latency_s: likewise of a restore.
        capacity_bytes: room for checkpoints, of a node or shared as above; ``None``: unlimited.
        storage_factor: bytes stored for each byte of a checkpoint, 2 for a partner copy.
        price_per_gb: of a GB (10**9 bytes) written there, in any currency: requests, transfer.
        price_per_gb_month: of a GB kept there for a month (30 days).
        egress_price_per_gb: of a GB read back from there.
        spread: standard deviation of the bandwidths over their mean, as measured; 0 if given.

    Raises:
        ConfigError: a number makes no sense.
    """

    name: str
    level: int
    write_bytes_per_s: float
    read_bytes_per_s: float
    write_shared_bytes_per_s: float | None = None
    read_shared_bytes_per_s: float | None = None
    write_latency_s: float = 0.0
    read_latency_s: float = 0.0
    capacity_bytes: float | None = None
    storage_factor: float = 1.0
    price_per_gb: float = 0.0
    price_per_gb_month: float = 0.0
    egress_price_per_gb: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.level <= 4:
            raise ConfigError(f"Tier {self.name!r}: a level is 0 to 4, got {self.level}.")
        for name in (
            "write_bytes_per_s", "read_bytes_per_s",
            "write_shared_bytes_per_s", "read_shared_bytes_per_s", "capacity_bytes",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"Tier {self.name!r}: {name} must be above 0, got {value}.")
        for name in (
            "write_latency_s", "read_latency_s", "price_per_gb", "price_per_gb_month",
            "egress_price_per_gb", "spread",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(
                    f"Tier {self.name!r}: {name} must not be negative, got {value}."
                )
        if not 1 <= self.storage_factor < math.inf:
            raise ConfigError(
                f"Tier {self.name!r}: storage_factor is 1 or more, got {self.storage_factor}."
            )

    def write_s(self, size_bytes: float, *, writers: int = 1) -> float:
        """Return how long ``writers`` that share the tier take for ``size_bytes`` each."""
        return self.write_latency_s + size_bytes * self.storage_factor / _rate(
            self.write_bytes_per_s, self.write_shared_bytes_per_s, writers
        )

    def read_s(self, size_bytes: float, *, readers: int = 1) -> float:
        """Return how long ``readers`` that share the tier take to read ``size_bytes`` each."""
        return self.read_latency_s + size_bytes / _rate(
            self.read_bytes_per_s, self.read_shared_bytes_per_s, readers
        )


def _rate(alone: float, shared: float | None, count: int) -> float:
    return alone if shared is None else min(alone, shared / count)
