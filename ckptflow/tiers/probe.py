"""Try a tier out: write, read back, delete; and say how long each took or what went wrong.

The key lies outside of everything the format names, so a probe may run on a store in use.
``tests/unit/test_probe.py``.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ckptflow.errors import CorruptionError, NotFoundError, TierError
from ckptflow.tiers.tier import Placed, Tier
from ckptflow.units import MIB

PROBE_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True)
class Probe:
    """How a tier did.

    Attributes:
        tier: its name.
        level: its level.
        size_bytes: how much was written and read.
        write_s: time until it was durable.
        read_s: time to read it back.
        problem: what went wrong; ``None`` if nothing did.
        placement: where its bytes really are, if it can tell.
        notes: what is not as it was asked for.
    """

    tier: str
    level: int
    size_bytes: int
    write_s: float
    read_s: float
    problem: str | None
    placement: str = ""
    notes: tuple[str, ...] = ()


def probe(
    tier: Tier,
    *,
    size_bytes: int = PROBE_BYTES,
    clock_s: Callable[[], float] = time.monotonic,
) -> Probe:
    """Write ``size_bytes`` random bytes to ``tier``, compare what comes back, delete them."""
    key = f"probes/{uuid.uuid4().hex}"
    data = os.urandom(size_bytes)
    write_s = read_s = 0.0
    problem = None
    try:
        began_s = clock_s()
        tier.put(key, [data])
        write_s = clock_s() - began_s
        began_s = clock_s()
        back = tier.get(key)
        read_s = clock_s() - began_s
        if back != data:
            problem = f"Tier {tier.name!r} returned other bytes than were written to {key!r}."
        tier.delete(key)
    except (TierError, NotFoundError, CorruptionError) as error:
        problem = str(error)
    measured = Probe(tier.name, tier.level, size_bytes, write_s, read_s, problem)
    if isinstance(tier, Placed) and problem is None:
        measured = replace(measured, placement=tier.placement, notes=tier.notes)
        tier.unmake()  # Nobody wants it to take memory because it was looked at.
    return measured
