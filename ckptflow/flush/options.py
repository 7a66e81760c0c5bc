"""How checkpoints are flushed: the few choices that a site file, or a user, has.

``tests/unit/test_flush_options.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptflow.errors import ConfigError
from ckptflow.flush.limits import NICE_MAX
from ckptflow.units import MIB

STREAMS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushing:
    """How checkpoints are copied outward.

    Attributes:
        agent: whether a process of the node does it, which outlives the task; else the task's
            own process does, and its end waits for it.
        budget_bytes: memory for packs on their way, over all tiers; one pack always goes.
        bandwidth_bytes_per_s: how fast copies may be in all, on average; ``None``: no limit.
        streams: how many packs are on their way to one tier at once.
        retry_s: for how long a tier that does not answer is tried again. An agent, for which
            nobody waits, tries for longer: see `ckptflow.flush.agent.work.RETRY_S`.
        grace_s: what the agent takes at most to scavenge when it is asked to end.
        idle_s: how long the agent stays without anything to do.
        nice: how far the agent, or the threads of the task that copy, step back behind the
            computation: 0 (not at all) to 19.
        consolidate: whether the agent consolidates checkpoints that have arrived and stay, see
            `ckptflow.policy.consolidation`. Without an agent nobody does unless asked.

    Raises:
        ConfigError: a number is out of its range.
    """

    agent: bool = False
    budget_bytes: int = 512 * MIB
    bandwidth_bytes_per_s: int | None = None
    streams: int = 4
    retry_s: float = 10.0
    grace_s: float = 30.0
    idle_s: float = 60.0
    nice: int = 10
    consolidate: bool = True

    def __post_init__(self) -> None:
        ranges = {
            "budget_bytes": (self.budget_bytes, 0, None),
            "bandwidth_bytes_per_s": (self.bandwidth_bytes_per_s, 1, None),
            "streams": (self.streams, 1, STREAMS_MAX),
            "retry_s": (self.retry_s, 0, None),
            "grace_s": (self.grace_s, 0, None),
            "idle_s": (self.idle_s, 0, None),
            "nice": (self.nice, 0, NICE_MAX),
        }
        for name, (value, least, most) in ranges.items():
            if value is None and name == "bandwidth_bytes_per_s":
                continue
            numbers = (int, float) if name.endswith("_s") else int
            if not isinstance(value, numbers) or isinstance(value, bool):
                raise ConfigError(f"{name} of flushing is a number, not {value!r}.")
            if value < least or (most is not None and value > most):
                limits = f"{least} or more" if most is None else f"{least} to {most}"
                raise ConfigError(f"{name} of flushing is {limits}, not {value}.")


def parse_flushing(value: Flushing | str | None) -> Flushing:
    """Return what a short form means: ``"agent"``, or nothing.

    Raises:
        ConfigError: it is another word.
    """
    if value is None:
        return Flushing()
    if isinstance(value, Flushing):
        return value
    if value == "agent":
        return Flushing(agent=True)
    raise ConfigError(f"flushing is 'agent' or a Flushing(...), not {value!r}.")
