"""How often each class of failures happens to what runs together.

Rates of independent failures add up, so those of an allocation follow from the mean times of
its processes, its nodes and of what they share. ``tests/unit/test_failure_rates.py``,
``tests/property/test_failure_laws.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.survival import Redundancy, beyond_redundancy_per_s

PROCESS, REBOOT, NODE, ALLOCATION, FILESYSTEM = CLASSES = range(5)
CLASS_NAMES: Final = (
    "a process dies",
    "a node loses its memory",
    "a node is lost",
    "more is lost than redundancy rebuilds",
    "the file system is lost",
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Failures per second of what runs together, by class.

    Attributes:
        per_s: one for each class, 0 to 4; 0 if it never happens, or nobody knows.

    Raises:
        ConfigError: there are not five, or one is negative or not finite.
    """

    per_s: tuple[float, float, float, float, float]

    def __post_init__(self) -> None:
        if len(self.per_s) != len(CLASSES):
            raise ConfigError(
                f"Rates are one for each of {len(CLASSES)} classes, got {len(self.per_s)}."
            )
        for name, rate_per_s in zip(CLASS_NAMES, self.per_s, strict=True):
            if not 0 <= rate_per_s < math.inf:
                raise ConfigError(
                    f"The rate at which {name} is 0 per s or more, got {rate_per_s} per s."
                )

    def of_class(self, failure_class: int) -> float:
        """Return failures of that class per second.

        Raises:
            ConfigError: there is no such class.
        """
        if failure_class not in CLASSES:
            raise ConfigError(
                f"A class of failures is 0 to {len(CLASSES) - 1}, got {failure_class}."
            )
        return self.per_s[failure_class]

    @property
    def total_per_s(self) -> float:
        """Failures of any class per second."""
        return math.fsum(self.per_s)

    def mtbf_s(self, failure_class: int | None = None) -> float | None:
        """Return the mean time between failures of a class, or of all together, in seconds.

        ``None``: there are none.
        """
        rate_per_s = self.total_per_s if failure_class is None else self.of_class(failure_class)
        return 1 / rate_per_s if rate_per_s else None

    def scaled(self, factor: float) -> Rates:
        """Return all rates times a factor, 0 or more."""
        a, b, c, d, e = (factor * rate_per_s for rate_per_s in self.per_s)
        return Rates((a, b, c, d, e))

    def __add__(self, other: Rates) -> Rates:
        """Return the rates of both together."""
        a, b, c, d, e = (one + two for one, two in zip(self.per_s, other.per_s, strict=True))
        return Rates((a, b, c, d, e))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTimes:
    """Mean times between failures of single things, in seconds; ``None``: not known.

    Attributes:
        process_mtbf_s: of one process, whose node goes on (class 0).
        reboot_mtbf_s: of one node losing its memory; it comes back with its disk (class 1).
        node_mtbf_s: of one node being lost (class 2, or 3 if it takes too many with it).
        system_mtbf_s: of what all share: everybody stops, and what the file system holds stays
            (class 3).
        filesystem_mtbf_s: of the file system losing what it holds, or being away for longer
            than one waits (class 4).

    Raises:
        ConfigError: a time is not positive and finite.
    """

    process_mtbf_s: float | None = None
    reboot_mtbf_s: float | None = None
    node_mtbf_s: float | None = None
    system_mtbf_s: float | None = None
    filesystem_mtbf_s: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            mtbf_s = getattr(self, field.name)
            if mtbf_s is not None and not 0 < mtbf_s < math.inf:
                raise ConfigError(f"{field.name} must be above 0 s and finite, got {mtbf_s} s.")

    def or_else(self, other: MeanTimes) -> MeanTimes:
        """Return these, and those of ``other`` where nothing is known here."""
        return MeanTimes(
            **{
                field.name: getattr(other, field.name) if own is None else own
                for field in fields(self)
                for own in (getattr(self, field.name),)
            }
        )


def rates_of(
    times: MeanTimes,
    *,
    nodes: int,
    processes: int | None = None,
    redundancy: Redundancy | None = None,
) -> Rates:
    """Return the rates of what runs on so many nodes.

    Every rate is a count over a mean time. The total does not depend on the redundancy, which
    moves losses of nodes from class 2 to class 3 where it does not survive them.

    Args:
        times: of one process, one node, and what they share.
        nodes: that run together.
        processes: that run together; one on each node if ``None``.
        redundancy: of the tier of level 2. ``None``: there is none, and a lost node stays in
            class 2, which a tier of level 3 then serves.

    Raises:
        ConfigError: there is no node, or there are fewer processes than nodes.
    """
    processes = nodes if processes is None else processes
    if nodes < 1 or processes < nodes:
        raise ConfigError(
            f"Rates are those of at least 1 node with 1 process each, got {nodes} nodes "
            f"and {processes} processes."
        )
    lost_per_s = _per_s(nodes, times.node_mtbf_s)
    beyond_per_s = (
        0.0 if redundancy is None else beyond_redundancy_per_s(redundancy, nodes, lost_per_s)
    )
    return Rates(
        (
            _per_s(processes, times.process_mtbf_s),
            _per_s(nodes, times.reboot_mtbf_s),
            lost_per_s - beyond_per_s,
            _per_s(1, times.system_mtbf_s) + beyond_per_s,
            _per_s(1, times.filesystem_mtbf_s),
        )
    )


def _per_s(count: int, mtbf_s: float | None) -> float:
    return 0.0 if mtbf_s is None else count / mtbf_s
