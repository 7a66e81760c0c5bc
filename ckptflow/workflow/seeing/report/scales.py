"""From values to pixels: a straight scale, and one of time that leaves long pauses out.

``tests/unit/test_report_scales.py``.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ckptflow.units import GIB, KIB, MIB

GAP_PX = 34.0
_GAP_SHARE = 0.12  # Of the time in which something happened: a longer pause is cut out.
_TICK_PX = 92.0
_NAME_PX = 58.0
_STEPS_S = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800,
    21600, 43200, 86400, 172800, 604800,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight scale from values to pixels."""

    low: float
    high: float
    begin_px: float
    end_px: float

    def __call__(self, value: float) -> float:
        """Return where a value is."""
        span = self.high - self.low or 1.0
        return self.begin_px + (value - self.low) / span * (self.end_px - self.begin_px)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round values, about so many."""
        return round_ticks(self.low, self.high, count)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round values from ``low`` to ``high``."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / max(1, count)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def byte_ticks(high: float, count: int = 4) -> list[float]:
    """Return about ``count`` sizes that are round in their binary unit."""
    unit = next((one for one in (GIB, MIB, KIB) if high >= one), 1)
    return [value * unit for value in round_ticks(0, high / unit, count)]


class TimeScale:
    """Times as pixels; long pauses in which nothing happened are cut out.

    Args:
        spans: when something happened: begin and end, seconds since 1970.
        begin_px: where it begins.
        end_px: where it ends.
    """

    def __init__(
        self, spans: Iterable[tuple[float, float]], begin_px: float, end_px: float
    ) -> None:
        self.pieces = _pieces(_joined(spans))
        self.begin_px, self.end_px = begin_px, end_px
        room_px = end_px - begin_px - GAP_PX * (len(self.pieces) - 1)
        total_s = sum(b - a for a, b in self.pieces) or 1.0
        self.px_per_s = max(room_px, 1.0) / total_s

    def __call__(self, at_s: float) -> float:
        """Return where a time is; one within a pause lies in the gap."""
        here = self.begin_px
        for number, (begin_s, end_s) in enumerate(self.pieces):
            if at_s < begin_s:
                return here if number == 0 else here - GAP_PX / 2
            if at_s <= end_s:
                return here + (at_s - begin_s) * self.px_per_s
            here += (end_s - begin_s) * self.px_per_s + GAP_PX
        return here - GAP_PX

    def gaps(self) -> list[tuple[float, float]]:
        """Return where pauses were cut out, and how long each was, in seconds."""
        return [
            (self(before[1]) + GAP_PX / 2, after[0] - before[1])
            for before, after in itertools.pairwise(self.pieces)
        ]

    def ticks(self) -> list[tuple[float, str]]:
        """Return places with the time of day there, as text."""
        step_s = next(
            (step for step in _STEPS_S if step * self.px_per_s >= _TICK_PX), _STEPS_S[-1]
        )
        found: list[tuple[float, str]] = []
        for begin_s, end_s in self.pieces:
            offset_s = _offset_s(begin_s)
            first = math.ceil((begin_s + offset_s) / step_s)
            last = math.floor((end_s + offset_s) / step_s)
            found += [
                (self(number * step_s - offset_s), clock(number * step_s - offset_s, step_s))
                for number in range(first, last + 1)
            ]
        pauses = [x for x, _ in self.gaps()]  # Their names stand at the same height.
        return [
            (x, text) for x, text in found if all(abs(x - gap) > _NAME_PX for gap in pauses)
        ]


def clock(at_s: float, step_s: float = 1.0) -> str:
    """Return the local time of day, as exactly as a step needs it."""
    moment = time.localtime(at_s + 1e-6)
    if step_s >= 86400:
        return time.strftime("%d %b", moment)
    if step_s >= 60:
        return time.strftime("%H:%M", moment)
    text = time.strftime("%H:%M:%S", moment)
    return text if step_s >= 1 else f"{text}.{int((at_s + 1e-6) % 1 * 10)}"


def _offset_s(at_s: float) -> float:
    """Return by how much local time is ahead of UTC."""
    return float(time.localtime(at_s).tm_gmtoff or 0)


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans without overlaps, in order."""
    joined: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if joined and begin_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((begin_s, max(begin_s, end_s)))
    return joined or [(0.0, 1.0)]


def _pieces(joined: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Close the pauses that are short beside the time in which something happened."""
    worked_s = sum(b - a for a, b in joined)
    pieces = [joined[0]]
    for begin_s, end_s in joined[1:]:
        if begin_s - pieces[-1][1] <= _GAP_SHARE * worked_s:
            pieces[-1] = (pieces[-1][0], end_s)
        else:
            pieces.append((begin_s, end_s))
    return pieces if len(pieces) > 1 or pieces[0][1] > pieces[0][0] else [
        (pieces[0][0], pieces[0][0] + 1.0)
    ]  # fmt: skip
