"""How each region of a state is captured, and how many snapshots may be in flight.

*copy* copies all bytes within the call; *diff-first* digests them where they lie and copies
what changed; *lazy* does that after the call, while the application only reads. Decisions
return their reasons. ``tests/unit/test_capture_policy.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.units import KIB


class CaptureMode(StrEnum):
    """What happens to a region in a save."""

    AUTO = "auto"
    COPY = "copy"
    DIFF_FIRST = "diff-first"
    LAZY = "lazy"


Capture: TypeAlias = "str | Mapping[str, str] | None"
"""One mode for all regions, or modes by patterns of their names; the first that fits counts."""

SMALL_BYTES = 16 * KIB  # Below it there is little to spare.
DENSE = 0.5  # Of the chunks changed: then to compare costs more than to copy what did not.

IN_FLIGHT_FIRST = 4  # Before anything was measured.
IN_FLIGHT_MIN, IN_FLIGHT_MAX = 2, 8
QUEUE_S_MAX = 60.0  # Of writing that may wait in memory: who has to stop waits for it.


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """Which mode is asked for, by the names of regions."""

    patterns: tuple[tuple[str, CaptureMode], ...] = ()
    other: CaptureMode = CaptureMode.AUTO

    def asked(self, name: str) -> CaptureMode:
        """Return the mode that is asked for of a region."""
        for pattern, mode in self.patterns:
            if fnmatchcase(name, pattern):
                return mode
        return self.other

    @property
    def may_be_lazy(self) -> bool:
        """Whether any region may be captured after the call."""
        modes = {self.other, *(mode for _, mode in self.patterns)}
        return not modes.isdisjoint({CaptureMode.AUTO, CaptureMode.LAZY})


def parse_capture(value: Capture) -> CaptureRules:
    """Return what ``capture=`` means: a mode, or modes by name patterns (as of a shell).

    Raises:
        ConfigError: it is neither.
    """
    if value is None:
        return CaptureRules()
    if isinstance(value, Mapping):
        return CaptureRules(tuple((_pattern(k), _mode(v)) for k, v in value.items()))
    return CaptureRules(other=_mode(value))


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"A pattern of names of regions is text, not {value!r}.")
    return value


def _mode(value: object) -> CaptureMode:
    try:
        return CaptureMode(str(value))
    except ValueError:
        words = ", ".join(CaptureMode)
        raise ConfigError(
            f"capture is one of {words}, or a table of such by name patterns, not {value!r}."
        ) from None


class RegionFacts(NamedTuple):
    """What is known of a region before it is captured.

    Attributes:
        is_small: it is shorter than `SMALL_BYTES`.
        readable: it lies as it is stored, on the host or on a device that can capture it;
            others are gathered by their library.
        kept: its bytes are kept for deltas, so that all of them are wanted each time.
        next_writer_known: nothing but a call that waits for the capture will write to it.
        known: its digests in the snapshot before are known.
        coming: they are not, but whoever writes that snapshot is computing them.
        changed: fraction of its chunks that changed last time; ``None``: not known.
        wanted: the writer wants all of it.
        torn: it was written to while it was captured, once.
    """

    is_small: bool = False
    readable: bool = True
    kept: bool = False
    next_writer_known: bool = False
    known: bool = False
    coming: bool = False
    changed: float | None = None
    wanted: bool = False
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """How a region is captured, and why.

    Attributes:
        mode: not `CaptureMode.AUTO`.
        whole: all of it is held, whatever changed.
        digested: its chunks are digested at capture.
        reason: for people.
        again: the next save will probably hold all of it, too.
    """

    mode: CaptureMode
    whole: bool
    digested: bool
    reason: str
    again: bool = False

    def __str__(self) -> str:
        return f"{self.mode}: {self.reason}"


class Choices:
    """The choices for many regions, most of which are like some other.

    Args:
        made: the different ones.
        of: number of the one of each region, intp [n].
    """

    def __init__(self, made: Sequence[Choice], of: NDArray[np.intp]) -> None:
        self._made, self._of = made, of

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, number: int) -> Choice:
        return self._made[int(self._of[number])]

    def which(self, what: Callable[[Choice], bool]) -> NDArray[np.bool_]:
        """Return of which regions something can be said, bool [n]."""
        return np.array([what(choice) for choice in self._made], np.bool_)[self._of]


COPY, DIFF, LAZY = CaptureMode.COPY, CaptureMode.DIFF_FIRST, CaptureMode.LAZY

SMALL = Choice(COPY, whole=True, digested=False, reason="small", again=True)
GATHERED = Choice(
    COPY, whole=True, digested=False, reason="gathered, or by its library", again=True
)


def choose(facts: RegionFacts, asked: CaptureMode) -> Choice:
    """Return how a region is captured.

    What was asked for holds, but for what cannot be read in place, whose bytes are kept for
    deltas, or was torn: these are copied.
    """
    if not facts.readable:
        return GATHERED
    if facts.kept:
        return _copied("its bytes are kept for deltas")
    if facts.torn:
        return _whole(COPY, "it was written to while it was captured")
    if asked is COPY:
        return _copied("asked for")
    if asked is CaptureMode.AUTO:
        return _automatic(facts)
    return _compared(facts, asked, "asked for")


def _automatic(facts: RegionFacts) -> Choice:
    if facts.is_small:
        return SMALL
    if facts.next_writer_known:
        return _compared(facts, LAZY, "only its optimizer writes, and waits")
    if facts.wanted:
        return _copied("the writer wants all of it", again=False)
    if facts.changed is not None and facts.changed > DENSE:
        return _copied(f"{facts.changed:.0%} of it changed last time")
    if facts.known or facts.coming:
        last = "" if facts.changed is None else f", {facts.changed:.0%} last time"
        return _compared(facts, DIFF, f"little may have changed{last}")
    return _copied("nothing to compare it with", again=False)


def _copied(reason: str, *, again: bool = True) -> Choice:
    return Choice(COPY, whole=True, digested=False, reason=reason, again=again)


def _compared(facts: RegionFacts, mode: CaptureMode, reason: str) -> Choice:
    if not facts.known:
        why = f"{reason}; all of it, since there is nothing to compare it with"
        if mode is DIFF and not facts.coming:  # Whoever writes it digests it.
            return Choice(mode, whole=True, digested=False, reason=why)
        return _whole(mode, why)
    if facts.wanted:
        return _whole(mode, f"{reason}; all of it, since the writer wants that")
    return Choice(mode, whole=False, digested=True, reason=reason)


def _whole(mode: CaptureMode, reason: str) -> Choice:
    return Choice(mode, whole=True, digested=True, reason=reason)


def in_flight(durable_s: float | None, between_s: float | None) -> int:
    """Return how many snapshots may be in flight.

    So many as saves begin while one is being written, and the one that is: then a save waits
    only if the writer cannot keep up at all. Not so many that `QUEUE_S_MAX` of writing wait.

    Args:
        durable_s: how long a save takes to become durable; ``None`` before the first.
        between_s: time between saves, without what they blocked; likewise.
    """
    if durable_s is None or between_s is None or durable_s <= 0:
        return IN_FLIGHT_FIRST
    wanted = 1 + math.ceil(durable_s / max(between_s, 1e-3))
    within = math.floor(QUEUE_S_MAX / durable_s)
    return max(IN_FLIGHT_MIN, min(wanted, within, IN_FLIGHT_MAX))
