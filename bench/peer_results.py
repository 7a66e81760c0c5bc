"""What the visits of `peers.py` found, as medians and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from peer_process import Visited
from report import Row, Value
from updates import UPDATES, Kind

Event = dict[str, Any]

SAVES = ("first", *UPDATES)
FEW: tuple[str, ...] = ("unchanged", "1 % contiguous", "5 % of rows")
MANY: tuple[str, ...] = ("1 % of words", "all words")
FLOOR = "floor: what changed, as one file"
RIGHT = 1.0
NONE = "-"


class Results:
    """All events, by state and way."""

    def __init__(self, visits: Sequence[Visited]) -> None:
        self.visits = visits
        self.ways = list(dict.fromkeys(visited.order.way for visited in visits))

    def events(self, kind: Kind, way: str | None, event: str) -> Iterator[Event]:
        """Yield the events of a way, or of all."""
        for visited in self.visits:
            if visited.order.kind == kind and way in {visited.order.way, None}:
                yield from (one for one in visited.events if one["event"] == event)

    def reason(self, kind: Kind, way: str) -> str:
        """Return why something is missing, if so."""
        found = [
            visited.reason
            for visited in self.visits
            if visited.order.kind == kind and visited.order.way == way and visited.reason
        ]
        return found[0] if found else ""

    def state_bytes(self, kind: Kind) -> int:
        """Return the size of the state."""
        return max((one["bytes"] for one in self.events(kind, None, "state")), default=0)

    def saves(self, kind: Kind, way: str | None, update: str) -> list[Event]:
        """Return the saves of an update that count."""
        return [
            one
            for one in self.events(kind, way, "save")
            if one["update"] == update and one["counts"]
        ]

    def blocked(self, kind: Kind, way: str, update: str) -> list[float]:
        """Return how long the program could not go on, in copies of the state."""
        saves = self.saves(kind, way, update)
        beside = [one for one in saves if one["beside_step"]] or saves
        return [one["blocked_s"] / one["memcpy_s"] for one in beside]

    def undisturbed(self, kind: Kind, way: str, update: str) -> list[Event]:
        """Return the saves that no step ran beside, where there are any."""
        saves = self.saves(kind, way, update)
        return [one for one in saves if not one["beside_step"]] or saves

    def durable(self, kind: Kind, way: str, update: str) -> list[float]:
        """Return the time until a save was durable, in copies of the state."""
        return [
            one["durable_s"] / one["memcpy_s"] for one in self.undisturbed(kind, way, update)
        ]

    def over_floor(self, kind: Kind, way: str, update: str) -> list[float]:
        """Return durable times as multiples of two copies and the write of what changed."""
        return [
            one["durable_s"] / (2 * one["memcpy_s"] + one["write_s"])
            for one in self.undisturbed(kind, way, update)
        ]

    def written(self, kind: Kind, update: str) -> list[float]:
        """Return how long the bytes that changed took as one file, in copies of the state."""
        return [one["write_s"] / one["memcpy_s"] for one in self.saves(kind, None, update)]

    def stored(self, kind: Kind, way: str, update: str) -> list[float]:
        """Return the bytes of new and changed files."""
        return [one["stored_bytes"] for one in self.saves(kind, way, update)]

    def over_changed(self, kind: Kind, way: str, update: str) -> list[float]:
        """Return the bytes written for each byte that changed."""
        return [
            one["stored_bytes"] / one["changed_bytes"] for one in self.saves(kind, way, update)
        ]

    def extra(self, kind: Kind, way: str, updates: Sequence[str]) -> list[float]:
        """Return peaks of memory beyond what the program had, in sizes of the state."""
        state_bytes = self.state_bytes(kind)
        return [
            (one["extra_bytes"] + one["child_bytes"]) / state_bytes
            for update in updates
            for one in self.saves(kind, way, update)
        ]

    def step_ratios(self, kind: Kind, way: str) -> list[float]:
        """Return steps with a save on its way, as multiples of one without."""
        return [
            step_s / statistics.median(one["idle_s"])
            for one in self.events(kind, way, "loop")
            for step_s in one["in_flight_s"]
        ]

    def loop_ratios(self, kind: Kind, way: str, update: str) -> list[float]:
        """Return how much longer steps with a save before every other one took."""
        return [
            one["total_s"] / one["steps"] / statistics.median(one["idle_s"])
            for one in self.events(kind, way, "loop")
            if one["update"] == update
        ]

    def restores(self, kind: Kind, way: str, floor: str) -> list[float]:
        """Return restores as multiples of ``memcpy_s`` or of ``read_s``."""
        return [one["seconds"] / one[floor] for one in self.events(kind, way, "restore")]

    def right(self, kind: Kind, way: str) -> float | None:
        """Return the smallest share of words that were those of the call."""
        return min((one["right"] for one in self.events(kind, way, "restore")), default=None)

    # --- tables ---

    def blocked_table(self, kind: Kind) -> list[Row]:
        """Return one row a way: blocked time by update."""
        return [
            {"way": way, **{one: middle(self.blocked(kind, way, one)) for one in SAVES}}
            for way in self.measured(kind)
        ]

    def durable_table(self, kind: Kind) -> list[Row]:
        """Return one row a way: time until durable, by update; and the floor."""
        floor: Row = {
            "way": FLOOR,
            **{one: middle(self.written(kind, one)) for one in SAVES},
        }
        return [floor] + [
            {"way": way, **{one: middle(self.durable(kind, way, one)) for one in SAVES}}
            for way in self.measured(kind)
        ]

    def stored_table(self, kind: Kind) -> list[Row]:
        """Return one row a way: MiB written by update; and those that changed."""
        floor: Row = {
            "way": FLOOR,
            **{
                one: mib([save["changed_bytes"] for save in self.saves(kind, None, one)])
                for one in SAVES
            },
        }
        return [floor] + [
            {"way": way, **{one: mib(self.stored(kind, way, one)) for one in SAVES}}
            for way in self.measured(kind)
        ]

    def other_table(self, kind: Kind) -> list[Row]:
        """Return one row a way: memory, steps, restores, and whether its bits are right."""
        return [self._other(kind, way) for way in self.ways]

    def _other(self, kind: Kind, way: str) -> Row:
        steps = self.step_ratios(kind, way)
        return {
            "way": way,
            "saves": len(self.saves(kind, way, "all words")),
            "memory few": largest(self.extra(kind, way, FEW)),
            "memory many": largest(self.extra(kind, way, ("first", *MANY))),
            "p50": middle(steps),
            "p95": quantile(steps, 0.95),
            "loop 1 %": middle(self.loop_ratios(kind, way, "1 % contiguous")),
            "loop all": middle(self.loop_ratios(kind, way, "all words")),
            "× memcpy": middle(self.restores(kind, way, "memcpy_s")),
            "× read": middle(self.restores(kind, way, "read_s")),
            "bits": self.verdict(kind, way),
        }

    def measured(self, kind: Kind) -> list[str]:
        """Return the ways that saved at least once."""
        return [way for way in self.ways if self.saves(kind, way, "first")]

    def verdict(self, kind: Kind, way: str) -> str:
        """Tell whether what was restored is what was saved, or why that is not known."""
        found = list(self.events(kind, way, "restore"))
        if not found:
            return NONE
        worst = min(found, key=lambda one: float(one["right"]))
        if worst["right"] == RIGHT:
            return "right"
        return f"WRONG: {100 * worst['later']:.3g} % later"


def middle(values: Sequence[float]) -> Value:
    """Return the median, or a dash."""
    return float(statistics.median(values)) if values else NONE


def mib(values: Sequence[float]) -> Value:
    """Return the median of bytes, in MiB, or a dash."""
    return float(statistics.median(values)) / (1 << 20) if values else NONE


def largest(values: Sequence[float]) -> Value:
    """Return the largest, or a dash."""
    return max(values) if values else NONE


def quantile(values: Sequence[float], share: float) -> Value:
    """Return the smallest value that a share of all does not exceed, or a dash."""
    if not values:
        return NONE
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
