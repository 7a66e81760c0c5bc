"""What the journal says of the blocks of a run: when each was asked for, held, and over. Pure.

``tests/unit/test_seeing_story.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStory:
    """One block.

    Attributes:
        life: number of the start that asked for it, from 0.
        executor: label of its executor.
        number: its number there.
        allocation: batch system and number of the allocation, as in a claim.
        submitted_s: when it was asked for, seconds since 1970; ``None`` if that is not known.
        ended_s: when it was seen to be over; ``None`` if it was not.
        state: how it ended, in Parsl's words.
        message: what was said about it.
        held: why it got no more tasks, if it was told to.
    """

    life: int
    executor: str
    number: str
    allocation: str = ""
    submitted_s: float | None = None
    ended_s: float | None = None
    state: str | None = None
    message: str | None = None
    held: str | None = None


def blocks_in(events: Iterable[Mapping[str, Any]]) -> list[BlockStory]:
    """Return the blocks that the events of a run tell of, in the order of their first event."""
    found: dict[tuple[int, str, str], BlockStory] = {}
    life = -1
    for event in events:
        kind = event["event"]
        life += kind == "run-started"
        if kind not in ("block-submitted", "block-held", "block-ended"):
            continue
        key = (max(life, 0), str(event.get("executor")), str(event.get("block")))
        known = found.get(key) or BlockStory(life=key[0], executor=key[1], number=key[2])
        number, at_s = event.get("job"), datetime.fromisoformat(event["time"]).timestamp()
        if kind == "block-submitted":
            allocation = f"{event.get('batch_system')}:{number}"
            known = replace(known, submitted_s=at_s, allocation=allocation)
        elif kind == "block-held":
            known = replace(known, held=str(event.get("reason")))
        else:
            message = event.get("message")
            known = replace(
                known,
                ended_s=at_s,
                state=str(event.get("state")),
                message=str(message) if message else None,
                allocation=known.allocation or (str(number) if number else ""),
            )
        found[key] = known
    return list(found.values())
