"""Choose redundancy sets, and who holds which piece, so that what fails together is kept apart.

A node belongs to *failure groups* of several kinds: ``{"power": "p1", "rack": "r17"}``. Kinds
are given widest first, and narrower ones lie within wider ones on most machines; then nodes are
sorted by their groups and dealt out like cards, so that no set has more nodes of any group than
it must. Where kinds cross, the first one is served best.

Everything is a pure function of its arguments. ``tests/property/test_group_laws.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckptflow.errors import ConfigError

SET_SIZE_MAX = 64


@dataclass(frozen=True, slots=True)
class Node:
    """A node by its stable id, and the failure group of each kind that it belongs to.

    A node without a group of some kind fails, as far as that kind goes, alone.
    """

    id: str
    groups: Mapping[str, str] = field(default_factory=dict)

    def group(self, kind: str) -> tuple[str, str]:
        """Return the group of that kind; of its own if it was given none."""
        return ("given", self.groups[kind]) if kind in self.groups else ("alone", self.id)


@dataclass(frozen=True, slots=True)
class Sets:
    """Redundancy sets: the ids of each one's members, and what is to be said about them."""

    sets: tuple[tuple[str, ...], ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Who holds the parity pieces of a stripe, in order, and what is to be said about it."""

    holders: tuple[str, ...]
    reasons: tuple[str, ...]


def kinds_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the kinds of failure groups that nodes name, in the order in which they do."""
    return tuple(dict.fromkeys(kind for node in nodes for kind in node.groups))


def choose_sets(
    nodes: Sequence[Node], *, size: int, losses: int = 1, kinds: Sequence[str] | None = None
) -> Sets:
    """Divide nodes into redundancy sets of ``size`` or more members, apart in their groups.

    Args:
        nodes: all nodes; their order does not matter.
        size: wanted members of a set. With fewer than twice as many nodes there is one set.
        losses: how many members of a set may be lost; only for the reasons.
        kinds: kinds of failure groups, the widest first; as the nodes name them if ``None``.

    Raises:
        ConfigError: there can be no such sets, or two nodes have one id.
    """
    check_set_size(size, losses)
    if len({node.id for node in nodes}) < len(nodes):
        raise ConfigError("Two nodes have the same id: a copied store needs an id of its own.")
    kinds = kinds_of(sorted(nodes, key=lambda node: node.id)) if kinds is None else kinds
    if len(nodes) < 2:
        return Sets((), (f"{len(nodes)} node: redundancy needs at least 2.",))
    ranked = sorted(nodes, key=lambda node: (*map(node.group, kinds), node.id))
    count = max(1, len(nodes) // size)
    dealt = [ranked[first::count] for first in range(count)]
    reasons = [f"{len(nodes)} nodes make {count} sets of {size} members or more."]
    if len(nodes) < size:
        reasons = [f"{len(nodes)} nodes make one set, smaller than the {size} wanted."]
    for number, members in enumerate(dealt):
        reasons += _crowded(f"Set {number}", members, losses, kinds)
    return Sets(tuple(tuple(sorted(node.id for node in one)) for one in dealt), tuple(reasons))


def check_set_size(size: int, losses: int) -> None:
    """Raise unless a set of that many members can lose that many.

    Raises:
        ConfigError: it cannot.
    """
    if not 2 <= size <= SET_SIZE_MAX:
        raise ConfigError(f"A redundancy set has 2 to {SET_SIZE_MAX} members, not {size}.")
    if not 1 <= losses < size:
        raise ConfigError(f"A set of {size} members can rebuild 1 to {size - 1}, not {losses}.")


def choose_data(
    nodes: Sequence[Node],
    wishes: Mapping[str, int],
    count: int,
    *,
    kinds: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Choose up to ``count`` members whose objects come into a stripe together.

    Args:
        nodes: the members of the set.
        wishes: bytes of the object that each member with one brings; similar sizes should
            come together, so the largest go first.
        count: how many at most.
        kinds: see `choose_sets`.
    """
    kinds = kinds_of(nodes) if kinds is None else kinds
    left = sorted(
        (node for node in nodes if node.id in wishes),
        key=lambda node: (-wishes[node.id], node.id),
    )
    chosen: list[Node] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda node: _shared(node, chosen, kinds))  # Stable: largest.
        chosen.append(best)
        left.remove(best)
    return tuple(node.id for node in chosen)


def place_parity(
    nodes: Sequence[Node],
    data: Collection[str],
    count: int,
    *,
    load_bytes: Mapping[str, int] | None = None,
    kinds: Sequence[str] | None = None,
) -> Placement:
    """Choose members for the parity pieces: none twice, and none that gives data.

    Those come first that share the fewest failure groups, the widest kind counting most, with
    pieces placed before; among equals those that hold the fewest bytes for others.

    Args:
        nodes: the members of the set that can be reached.
        data: ids of the members that give data.
        count: how many parity pieces.
        load_bytes: what each member holds for others already.
        kinds: see `choose_sets`.

    Raises:
        ConfigError: there are not enough members.
    """
    load = load_bytes or {}
    kinds = kinds_of(nodes) if kinds is None else kinds
    taken = [node for node in nodes if node.id in data]
    left = sorted(node.id for node in nodes if node.id not in data)
    if len(left) < count:
        raise ConfigError(
            f"{count} parity pieces need {count} members besides the {len(taken)} with data; "
            f"there are {len(left)}."
        )
    by_id = {node.id: node for node in nodes}
    holders: list[str] = []
    for _ in range(count):
        best = min(
            left, key=lambda one: (_shared(by_id[one], taken, kinds), load.get(one, 0), one)
        )
        holders.append(best)
        taken.append(by_id[best])
        left.remove(best)
    return Placement(tuple(holders), tuple(_crowded("The stripe", taken, count, kinds)))


def _shared(node: Node, others: Sequence[Node], kinds: Sequence[str]) -> tuple[int, ...]:
    """Return with how many of ``others`` a node shares its group, for each kind."""
    return tuple(
        sum(other.group(kind) == node.group(kind) for other in others) for kind in kinds
    )


def _crowded(
    what: str, members: Sequence[Node], losses: int, kinds: Sequence[str]
) -> Iterable[str]:
    """Say which failure groups take more members with them than may be lost."""
    for kind in kinds:
        counts = Counter(node.group(kind) for node in members)
        for (sort, name), count in sorted(counts.items()):
            if sort == "given" and count > losses:
                yield (
                    f"{what} has {count} members of {kind} {name!r} and can rebuild {losses}: "
                    f"it does not survive the loss of that {kind}."
                )
