"""Whether a restart file is complete: a decision about what was seen of it, with its reason.

While the code runs, a file is complete when nobody has it open for writing and it has stayed
as it is for a while, or when it came by a rename, or was closed and can be checked. Once the
code has died, quiet proves nothing: it may have died within the write. Then only a rename, a
newer file after it, or what the file itself shows (its last bytes, the verdict of a command)
counts. ``tests/unit/test_external_judge.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Ending(Enum):
    """Where the code is that writes the files."""

    RUNNING = "it runs"
    WELL = "it has ended with status 0"
    BADLY = "it has failed, or was killed"
    UNKNOWN = "nobody saw how it ended"


class Finding(Enum):
    """What to do with a file."""

    COMPLETE = "complete"
    WAIT = "wait"
    TORN = "torn"


class Verdict(NamedTuple):
    """A finding, and why."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one file.

    Attributes:
        size_bytes: its length.
        quiet_s: for how long it has stayed as it is.
        held_open: whether the code has it open for writing, as far as can be seen.
        renamed: whether it came by a rename, and was not written to since.
        closed: whether it was seen to be closed, and was not written to since.
        followed: whether the code has begun a newer one since: one is written after the other.
    """

    size_bytes: int
    quiet_s: float
    held_open: bool = False
    renamed: bool = False
    closed: bool = False
    followed: bool = False


def judge(seen: Observed, ending: Ending, *, stable_s: float, is_checked: bool) -> Verdict:
    """Return whether a file is complete.

    Args:
        seen: what was seen of it.
        ending: where its writer is.
        stable_s: how long a file has to stay as it is.
        is_checked: whether what the file itself shows is looked at next.
    """
    runs = ending is Ending.RUNNING
    later = Finding.WAIT if runs else Finding.TORN
    if seen.held_open:
        return Verdict(Finding.WAIT, "it is open for writing")
    if seen.size_bytes == 0:
        return Verdict(later, "it is empty")
    if seen.renamed:
        return Verdict(Finding.COMPLETE, "it came by a rename")
    if runs and seen.closed and is_checked:
        return Verdict(Finding.COMPLETE, "it was closed, and what it shows itself decides")
    if runs and seen.quiet_s < stable_s:
        return Verdict(Finding.WAIT, f"it was written to {seen.quiet_s:.1f} s ago")
    if runs:
        return Verdict(Finding.COMPLETE, f"it has stayed as it is for {seen.quiet_s:.1f} s")
    if ending is Ending.WELL:
        return Verdict(Finding.COMPLETE, "the code has ended well")
    if is_checked:
        return Verdict(Finding.COMPLETE, "what it shows itself decides")
    if seen.followed:
        return Verdict(Finding.COMPLETE, "the code has begun a newer one after it")
    return Verdict(
        Finding.TORN,
        f"nothing shows that it was complete when the code ended ({ending.value}); "
        f"ends_with= or valid= would",
    )
