"""Measure one tier: its latency, and what 1, 2, 4 … writers get.

All writers write at the same time, and then read. The state of a writer begins small and grows
until a measurement lasts long enough for the time there is, but takes only a part of what is
free. ``tests/unit/test_calibration.py``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from types import TracebackType
from typing import Any, Self

from ckptflow.checkpointer.room import free_in
from ckptflow.errors import CheckpointError, TierFull
from ckptflow.plan.calibration import MeasuredTier, SaveCosts, Totals
from ckptflow.plan.crew import Crew
from ckptflow.plan.request import Request, Wanted
from ckptflow.plan.sandbox import Sandbox
from ckptflow.site.tiers import TierModel
from ckptflow.tiers.memory_left import memory_left_bytes
from ckptflow.units import GIB, KIB, MIB, format_bytes

SIZE_BYTES_MIN, SIZE_BYTES_MAX = MIB, GIB

_ROUNDS = 5  # So many should fit into the time that one number of writers has.
_REPETITIONS = 3
_LATE = 1.5  # So many times its share one number of writers may take, for repetitions.
_GROWTH_MAX = 16
_LATENCIES_MAX = 5
_SAVES_BYTES_PER_S = 16 * MIB  # State of the saves beside which a loop runs.
_STATES = 4  # A writer has its state, what it flushes from, a snapshot, and buffers.
_ROOM = 4  # At most one part in so many of what is free, of a tier or of memory, is taken.
_ANSWER_LEAST_S = 60.0

Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class _Round:
    """One write and one read by all writers together, and how long it took with all else."""

    write_s: float
    read_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """What the tiers of a request have in common.

    Attributes:
        crew: the writers.
        request: what is measured.
        share_s: about how long one tier may take with one number of writers.
        sandboxes: gets every place to which something may be written, before it is.
        notes: gets what went wrong besides.
    """

    crew: Crew
    request: Request
    share_s: float
    sandboxes: list[Sandbox]
    notes: list[str]


class OneTier:
    """The measuring of one tier. Leaving it deletes what was written.

    Args:
        wanted: the tier.
        work: what it has in common with others.
    """

    def __init__(self, wanted: Wanted, work: Work) -> None:
        self._crew, self._share_s, self._notes = work.crew, work.share_s, work.notes
        self._wanted, self._busy = wanted, 1
        # Whoever is asked to make an arena, or to hold states, leaves most of memory alone.
        self._memory_bytes = memory_left_bytes() // _ROOM
        model = wanted.model.expanded(os.environ)
        self._sandbox = Sandbox.on(model.spec, arena_bytes_max=self._memory_bytes)
        work.sandboxes.append(self._sandbox)
        self._free_bytes = free_bytes(model)
        self._limit_s = max(_ANSWER_LEAST_S, work.request.seconds)
        self._order = {
            "tier": self._sandbox.spec,
            "folder": self._sandbox.folder,
            "how": wanted.how,
            "streams": work.request.flushing.streams,
            "budget_bytes": work.request.flushing.budget_bytes,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, CheckpointError):
            return  # Interrupted: writers are busy with what nobody waits for any more.
        with contextlib.suppress(CheckpointError):  # What they leave is deleted from here.
            self._obey(self._busy, "leave")
        self._sandbox.clear(note=self._notes.append)

    def tier(self, host: str, counts: Sequence[int], *, tell: Tell) -> MeasuredTier:
        """Return what was measured of the tier."""
        tell(0.0, "latency")
        latencies = self._latencies()
        totals: list[Totals] = []
        size_bytes = SIZE_BYTES_MIN
        for number, count in enumerate(counts):
            tell((number + 0.5) / (len(counts) + 1), f"{count} writers")
            found = self._totals(count, size_bytes)
            totals.append(found)
            size_bytes = max(SIZE_BYTES_MIN, found.size_bytes // 2)
        return MeasuredTier(
            tier=self._wanted.identity,
            host=host,
            how=self._wanted.how,
            totals=tuple(totals),
            write_latency_s=median(one.write_s for one in latencies),
            read_latency_s=median(one.read_s for one in latencies),
            free_bytes=self._free_bytes,
        )

    def saves(self, host: str, limit_s: float) -> SaveCosts | None:
        """Return what a save costs besides; ``None``, with a note, if that cannot be told."""
        try:
            size_bytes = min(int(limit_s * _SAVES_BYTES_PER_S), self._size_bytes_max(1))
            (answer,) = self._obey(1, "saves", size_bytes=size_bytes, limit_s=limit_s)
        except CheckpointError as error:
            self._notes.append(f"What a save costs besides could not be measured: {error}")
            return None
        return SaveCosts.model_validate({"host": host, **answer["saves"]})

    def _latencies(self) -> list[_Round]:
        self._obey(1, "prepare", size_bytes=0)  # Processes start, and have no time to lose.
        ends_s = time.monotonic() + self._share_s / 4
        found = [self._round(1, 0)]  # The first one finds nothing prepared.
        while len(found) <= _LATENCIES_MAX and time.monotonic() < ends_s:
            found.append(self._round(1, 0))
        return found[1:] or found

    def _totals(self, count: int, size_bytes: int) -> Totals:
        self._busy = max(self._busy, count)
        self._obey(count, "prepare", size_bytes=0)
        began_s = time.monotonic()
        goal_s, most_bytes = self._share_s / _ROUNDS, self._size_bytes_max(count)
        size_bytes = min(size_bytes, most_bytes)
        first = self._round(count, size_bytes)
        while first.took_s < goal_s / 2 and size_bytes < most_bytes:
            factor = min(_GROWTH_MAX, max(2.0, goal_s / first.took_s))
            size_bytes = min(most_bytes, int(size_bytes * factor) // KIB * KIB)
            first = self._round(count, size_bytes)
        rounds: list[_Round] = []  # The first one of a size also takes the memory for it.
        while (
            len(rounds) < _REPETITIONS
            and time.monotonic() - began_s + first.took_s < _LATE * self._share_s
        ):
            rounds.append(self._round(count, size_bytes))
        rounds = rounds or [first]
        write = [count * size_bytes / one.write_s for one in rounds]
        read = [count * size_bytes / one.read_s for one in rounds]
        return Totals(
            writers=count,
            size_bytes=size_bytes,
            repetitions=len(rounds),
            write_bytes_per_s=fmean(write),
            write_spread=_spread(write),
            read_bytes_per_s=fmean(read),
            read_spread=_spread(read),
        )

    def _round(self, count: int, size_bytes: int) -> _Round:
        began_s = time.monotonic()
        self._obey(count, "prepare", size_bytes=size_bytes)
        write_s = _elapsed_s(self._obey(count, "write"))
        read_s = _elapsed_s(self._obey(count, "read"))
        self._obey(count, "delete")
        return _Round(write_s, read_s, time.monotonic() - began_s)

    def _obey(self, count: int, word: str, **more: Any) -> list[dict[str, Any]]:
        return self._crew.order(
            count, {**self._order, "do": word, **more}, limit_s=self._limit_s
        )

    def _size_bytes_max(self, count: int) -> int:
        """Return how large the state of each of ``count`` writers may be.

        Raises:
            TierFull: there is no room for the smallest.
        """
        for free, states, what in (
            (self._free_bytes, 1, f"tier {self._wanted.identity.name!r}"),
            (self._memory_bytes * _ROOM, _STATES, "memory"),
        ):
            needed_bytes = count * SIZE_BYTES_MIN * states * _ROOM
            if free is not None and free < needed_bytes:
                raise TierFull(
                    f"Measuring with {count} writers needs {format_bytes(needed_bytes)} of "
                    f"free room, so that enough is left for others, and {what} has "
                    f"{format_bytes(free)}. Prune it, free space, or ask for fewer --writers."
                )
        room = [SIZE_BYTES_MAX, self._memory_bytes // (_STATES * count)]
        if self._free_bytes is not None:
            room.append(self._free_bytes // (_ROOM * count))
        if (capacity := self._sandbox.spec.get("capacity_bytes")) is not None:
            room.append(int(capacity) // (2 * count))
        return min(room)


def free_bytes(model: TierModel) -> int | None:
    """Return the room that a tier has left, as far as this computer can tell."""
    if model.folder is not None:
        try:
            return free_in(model.folder.absolute())
        except OSError:
            return None
    capacity: int | None = getattr(model, "capacity_bytes", None)
    if model.kind in {"memory", "shared_memory"}:
        left = memory_left_bytes()
        return left if capacity is None else min(capacity, left)
    return capacity


def _elapsed_s(answers: Sequence[dict[str, Any]]) -> float:
    """Return how long it took until the last one was done; all have the same clock."""
    began_s: float = min(one["began_s"] for one in answers)
    ended_s: float = max(one["ended_s"] for one in answers)
    return max(ended_s - began_s, 1e-9)


def _spread(values: Sequence[float]) -> float:
    return float(stdev(values) / fmean(values)) if len(values) > 1 else 0.0
