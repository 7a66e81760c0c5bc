"""Which losses of nodes redundancy does not survive.

A redundancy set rebuilds what so many of its members held. It breaks when more are lost before
it is whole again: because one event takes several of them, or because further losses come
within the time that rebuilding takes.

Each set is followed as a renewal process. It is whole until a member is lost; with *j* lost,
it is whole again after a window without another loss in it, and breaks with more losses than
it can rebuild. For one loss that is rebuilt and independent losses at a rate λ of each node
the rate of breaking is about m λ · (m − 1) λ · window: the mean time to data loss of RAID
(Patterson, Gibson, Katz, "A case for redundant arrays of inexpensive disks", SIGMOD 1988).
Here windows have a fixed length and any number of losses is allowed.

`ckptflow.policy.groups` deals the nodes of a failure group out to the sets in turn, so of g
nodes lost together a set has at most g over the number of sets, rounded up.

``tests/unit/test_failure_survival.py`` compares with a simulation of nodes, groups and sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ckptflow.errors import ConfigError
from ckptflow.policy.groups import check_set_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundancy:
    """What a tier of level 2 survives.

    Attributes:
        set_size: members of a redundancy set, as `ckptflow.policy.groups.choose_sets` takes it.
        losses: how many members of a set may be lost.
        window_s: from a loss until redundancy is whole again: detection, reallocation, restart
            and rebuilding, or the next checkpoint there, whichever comes first.
        taking_others: part of the losses of nodes, 0 to 1, that take the whole failure group
            of the node with them.
        group_nodes: nodes of a failure group: what shares a chassis, a rack or a power supply.

    Raises:
        ConfigError: there can be no such set, or a number makes no sense.
    """

    set_size: int
    losses: int = 1
    window_s: float
    taking_others: float = 0.0
    group_nodes: int = 1

    def __post_init__(self) -> None:
        check_set_size(self.set_size, self.losses)
        if not 0 <= self.window_s < math.inf:
            raise ConfigError(
                f"window_s, until redundancy is whole again, is 0 s or more and finite, "
                f"got {self.window_s} s."
            )
        if not 0 <= self.taking_others <= 1:
            raise ConfigError(
                f"taking_others is a part of all losses of nodes, 0 to 1, "
                f"got {self.taking_others}."
            )
        if self.group_nodes < 1:
            raise ConfigError(f"A failure group has 1 node or more, not {self.group_nodes}.")


@dataclass(frozen=True, slots=True)
class _Hits:
    """What happens to one set: members, and losses per second alone and by groups."""

    members: int
    losses: int
    node_per_s: float  # Of each node, alone.
    group_per_s: float  # Of groups with members in this set.
    taken: int  # Members that such a group takes, at most.


def beyond_redundancy_per_s(
    redundancy: Redundancy, nodes: int, node_losses_per_s: float
) -> float:
    """Return how many losses of nodes per second are of class 3: redundancy does not survive.

    A loss that takes a group counts once. The members that replace lost ones hold nothing
    that could be lost with them, so losing one again in the window is not counted. Sets are
    independent of each other, except for the groups that hit several at once. Compared with
    simulations, single losses agree; with groups it was 5 % too low at the most, mostly a
    little too high, and up to four times where groups take one member more of some sets.

    Args:
        redundancy: of the sets.
        nodes: that run together.
        node_losses_per_s: of all nodes together, those that take others counted once.

    Returns:
        At most ``node_losses_per_s``, and all of it with one node, which nothing rebuilds.
    """
    if nodes < 2 or node_losses_per_s == 0:
        return node_losses_per_s
    group_nodes = min(redundancy.group_nodes, nodes)
    together_per_s = node_losses_per_s * (redundancy.taking_others if group_nodes > 1 else 0.0)
    node_per_s = (node_losses_per_s - together_per_s) / nodes
    count = max(1, nodes // redundancy.set_size)  # As `choose_sets` does.
    taken = -(-group_nodes // count)
    hit_part = min(1.0, group_nodes / count)  # Of the groups, those that hit a given set.
    size, larger = divmod(nodes, count)
    # A group hits a run of sets. If runs may overlap in part, one meets about two others.
    runs = 1 if group_nodes >= count or count % group_nodes == 0 else 2
    alone_per_s = by_both = by_groups = 0.0
    untouched = 1.0
    for members, sets in ((size, count - larger), (size + 1, larger)):
        losses = min(redundancy.losses, members - 1)
        hits = _Hits(members, losses, node_per_s, together_per_s * hit_part, taken)
        full = _stays(hits, redundancy.window_s)[losses]
        alone_per_s += sets * full * (members - losses) * node_per_s
        singles = _breakable(replace(hits, group_per_s=0.0), redundancy.window_s)
        groups = _breakable(replace(hits, node_per_s=0.0), redundancy.window_s)
        both = _breakable(hits, redundancy.window_s) - singles - groups
        # Single nodes hit sets one by one, and groups hit them together.
        untouched *= (1 - singles) ** (sets * hit_part)
        by_groups = max(by_groups, groups if sets else 0.0)
        by_both += sets * hit_part * max(0.0, both)
    breaks = 1 - untouched + runs * by_groups + by_both
    if by_groups < 1:  # Else every group breaks a set.
        # What a group took is elsewhere by now: the same one takes nothing more with it.
        breaks *= 1 - group_nodes / nodes
    return min(node_losses_per_s, alone_per_s + together_per_s * min(1.0, breaks))


def _breakable(hits: _Hits, window_s: float) -> float:
    """Return for which part of the time a group breaks a set that it hits."""
    if hits.taken > hits.losses:
        return 1.0
    return math.fsum(_stays(hits, window_s)[hits.losses + 1 - hits.taken :])


def _stays(hits: _Hits, window_s: float) -> list[float]:
    """Return for which part of the time a set has 0, 1, ... and all that it may lose lost.

    Each visit of a state lasts until the next loss, or until the window has passed.
    """
    visits = [1.0] + [0.0] * hits.losses
    stays_s = []
    for lost in range(hits.losses + 1):
        alone_per_s = (hits.members - lost) * hits.node_per_s
        per_s = alone_per_s + hits.group_per_s
        if per_s == 0:
            return [1.0] + [0.0] * hits.losses
        hit = -math.expm1(-per_s * window_s) if lost else 1.0  # Before the window has passed.
        stays_s.append(visits[lost] * hit / per_s)
        for further, rate_per_s in ((1, alone_per_s), (hits.taken, hits.group_per_s)):
            if lost + further <= hits.losses:
                visits[lost + further] += visits[lost] * hit * rate_per_s / per_s
    cycle_s = math.fsum(stays_s)
    return [stay_s / cycle_s for stay_s in stays_s]
