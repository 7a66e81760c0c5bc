"""Read the events of a run: its journal, and what attempts told in its trail, in order of time.

Files only grow, so a `Reader` that looks again reads what is new. A line that is not whole yet
is read the next time. ``tests/unit/test_seeing_events.py``; `docs/reference/events.md` lists
the events.
"""

from __future__ import annotations

import functools
import heapq
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ckptflow.workflow.run import JOURNAL
from ckptflow.workflow.trail import TRAIL

Event = Mapping[str, Any]

_NONSENSE = 1e16  # No step, time or size is as large as that.
_BLOCK_BYTES = 1 << 24  # Read at a time: a journal of 10,000 tasks has a few MB.


class Reader:
    """Reads the events of a run, and later on those that have come since.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """Return the events that were not returned before, in order of time."""
        journal = self._folder / JOURNAL
        trails = sorted((self._folder / TRAIL).glob("*.jsonl"))
        found = [self._lines(path) for path in (journal, *trails)]
        return list(heapq.merge(*(sorted(one, key=time_text) for one in found), key=time_text))

    def _lines(self, path: Path) -> list[Event]:
        begin = self._offsets.get(path, 0)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(begin)
                data = bytearray()
                while block := file.read(_BLOCK_BYTES):
                    data += block
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offsets[path] = begin + whole
        return list(parsed(bytes(data[:whole]).splitlines()))


def parsed(lines: Iterable[bytes]) -> Iterable[Event]:
    """Yield the events among lines; what is none is passed over."""
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if (
            isinstance(event, dict)
            and isinstance(event.get("event"), str)
            and seconds_of(event.get("time")) is not None
        ):
            yield event


def time_text(event: Event) -> str:
    """Return the time of an event as text, which sorts like the time: all are in UTC."""
    return str(event["time"])


def seconds_of(text: object) -> float | None:
    """Return seconds since 1970 for a time in ISO 8601; ``None`` for anything else."""
    return _moment(text) if isinstance(text, str) else None


@functools.lru_cache(maxsize=1 << 16)
def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def at(event: Event) -> float:
    """Return when an event happened."""
    return seconds_of(event["time"]) or 0.0


def number(value: object) -> float | None:
    """Return a number that was read somewhere; ``None`` for what is none, or makes no sense."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _NONSENSE else None  # A NaN is not less, either.


def whole(value: object) -> int | None:
    """Return a whole number that was read somewhere; ``None`` for anything else."""
    return value if isinstance(value, int) and number(value) is not None else None
