"""Room for checkpoints that share packs: whom to drop first, and how lineages share a store.

To drop a checkpoint frees only the packs that no other one needs. So the bytes of a set of
checkpoints are those of its packs, each counted once, and the gain of dropping one depends on
what else is kept. ``tests/unit/test_quota.py``, ``tests/property/test_policy_laws.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from ckptflow.units import format_bytes

Name = TypeVar("Name", bound=Hashable)


def dropped_for_room(
    kept: Mapping[Name, Mapping[str, int]],
    order: Sequence[Name],
    *,
    count: int | None = None,
    size_bytes: int | None = None,
) -> dict[Name, str]:
    """Return whom to drop until two limits are met, and why, in the order in which they go.

    In what order does not depend on the limits, so that more room never keeps fewer. For the
    sake of bytes the first goes whose packs nobody else needs; where there is none, the first.

    Args:
        kept: those who stay by other rules, with their packs and the bytes of each.
        order: those of them who may go, the least valuable first.
        count: how many may stay.
        size_bytes: how many bytes their packs may have.
    """
    surplus = len(kept) - count if count is not None else 0
    dropped = dict.fromkeys(order[: max(0, surplus)], f"more than {count} (count)")
    if size_bytes is None:
        return dropped
    room = _Room({name: packs for name, packs in kept.items() if name not in dropped})
    left = [name for name in order if name not in dropped]
    limit = format_bytes(size_bytes)
    while left and room.size_bytes > size_bytes:
        before = room.size_bytes
        going = next((name for name in left if room.gain_bytes[name]), left[0])
        left.remove(going)
        room.drop(going)
        freed = format_bytes(before - room.size_bytes)
        dropped[going] = f"{format_bytes(before)} are more than {limit} (bytes); frees {freed}"
    return dropped


def fair_shares(
    wanted: Mapping[Name, int], floors: Mapping[Name, int], size_bytes: int
) -> dict[Name, int]:
    """Share room among lineages: none gets more than it wants, nor less than its floor.

    What small ones do not want goes to the large ones, which get the same each (max-min
    fairness; Bertsekas and Gallager, Data Networks, 1992, section 6.5.2). If the floors
    alone take more than there is, each gets its floor.

    Args:
        wanted: bytes that each would use.
        floors: bytes that each cannot go below.
        size_bytes: what there is.
    """
    low, high = 0, max(wanted.values(), default=0)
    while low < high:  # The greatest level at which all still fits.
        level = (low + high + 1) // 2
        if sum(_share(wanted[name], floors[name], level) for name in wanted) <= size_bytes:
            low = level
        else:
            high = level - 1
    return {name: _share(wanted[name], floors[name], low) for name in wanted}


def _share(wanted: int, floor: int, level: int) -> int:
    return max(floor, min(wanted, level))


class _Room(Generic[Name]):
    """The packs of some checkpoints, and what each alone needs."""

    def __init__(self, kept: Mapping[Name, Mapping[str, int]]) -> None:
        self._kept = kept
        self._users: defaultdict[str, set[Name]] = defaultdict(set)
        self._sizes: dict[str, int] = {}
        for name, packs in kept.items():
            for key, size in packs.items():
                self._users[key].add(name)
                self._sizes[key] = size
        self.size_bytes = sum(self._sizes.values())
        self.gain_bytes = dict.fromkeys(kept, 0)
        for key, users in self._users.items():
            self._note_last(key, users)

    def drop(self, name: Name) -> None:
        """Take one away."""
        self.size_bytes -= self.gain_bytes[name]
        for key in self._kept[name]:
            self._users[key].discard(name)
            self._note_last(key, self._users[key])

    def _note_last(self, key: str, users: set[Name]) -> None:
        if len(users) == 1:
            self.gain_bytes[next(iter(users))] += self._sizes[key]
