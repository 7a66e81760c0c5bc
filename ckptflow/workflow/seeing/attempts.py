"""One task's attempts and checkpoints, from what journal, trail and store know of them. Pure.

A try of Parsl claims one attempt in the store, or none if its task never uses the checkpointer,
or several if it goes back to an older step; which belongs to which is told by the times.
``tests/unit/test_seeing_story.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptflow.store.catalog import AttemptRecord
from ckptflow.workflow.seeing.events import seconds_of, whole
from ckptflow.workflow.seeing.facts import TaskFacts
from ckptflow.workflow.seeing.model import (
    Attempt,
    Checkpoint,
    Copy,
    Ending,
    Life,
    Try,
)
from ckptflow.workflow.seeing.told import Told, where

_LOST = ("WorkerLost", "ManagerLost")  # Parsl's, as the journal names them.
_ENDINGS: dict[str, Ending] = {
    "finished": "finished",
    "preempted": "stopped",
    "fenced": "fenced",
    "failed": "failed",
}
_MODULES = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")  # Before the class of an error.
_PATIENCE = 1.5  # Longest silences that may lie between the last word and the end.
_SLACK_S = 0.05  # Of the clocks of those that submit and those that work.


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one attempt before its end is judged."""

    number: int
    record: AttemptRecord
    told: Told
    claimed_s: float | None

    @property
    def end(self) -> Mapping[str, Any]:
        """How it ended, by its own words; empty if it never said."""
        return self.record.end or self.told.end or {}


def attempts_of(
    tries: Sequence[Try],
    lives: Sequence[Life],
    facts: TaskFacts,
    told: Mapping[int, Told],
    *,
    is_alive: bool | None,
) -> list[Attempt]:
    """Return all executions of a task, the oldest first, without what they lost.

    Args:
        tries: launches by Parsl, the oldest first.
        lives: starts of the script.
        facts: what the store has.
        told: what the attempts told, by number.
        is_alive: whether the last life goes on; ``None`` if nobody can tell.
    """
    records = {one.attempt: one for one in facts.attempts}
    known = [_known(number, records, told) for number in sorted({*records, *told})]
    of_try: dict[int, list[_Known]] = {}
    strays: list[_Known] = []
    for one in known:
        index = _try_of(one, tries)
        if index is None:
            strays.append(one)
        else:
            of_try.setdefault(index, []).append(one)
    newest = known[-1].number if known else 0
    made = [
        _stray(one, is_newest=one.number == newest, is_alive=is_alive if not lives else False)
        for one in strays
    ]
    for index, launch in enumerate(tries):
        judged = _Judge(launch, tries[index + 1 :], lives, is_alive=is_alive)
        ours = of_try.get(index, [])
        if not ours:
            made.append(judged.unclaimed())
        for one, after in zip(ours, [*ours[1:], None], strict=False):
            made.append(judged.attempt(one, after))
    return sorted(made, key=lambda one: (one.began_s or 0.0, one.number or 0))


def _known(
    number: int, records: Mapping[int, AttemptRecord], told: Mapping[int, Told]
) -> _Known:
    record = records.get(number) or AttemptRecord(number, None, None, None)
    words = told.get(number) or Told()
    claimed_s = seconds_of((record.claim or {}).get("started"))
    return _Known(number, record, words, claimed_s or words.began_s)


def _try_of(one: _Known, tries: Sequence[Try]) -> int | None:
    """Return which try claimed an attempt."""
    if one.claimed_s is None or not tries:
        return None
    before = [
        index
        for index, launch in enumerate(tries)
        if launch.launched_s <= one.claimed_s + _SLACK_S
    ]
    if not before:
        return None
    last = before[-1]
    if last and one.claimed_s < tries[last].launched_s:
        # Before that launch, if clocks agree: of the one before, then, if that went on.
        ended_s = tries[last - 1].ended_s
        if ended_s is None or one.claimed_s <= ended_s:
            return last - 1
    return last


class _Judge:
    """Says how the attempts of one try ended.

    Args:
        launch: the try.
        later: tries after it.
        lives: starts of the script.
        is_alive: whether the last of them goes on.
    """

    def __init__(
        self, launch: Try, later: Sequence[Try], lives: Sequence[Life], *, is_alive: bool | None
    ) -> None:
        self._launch, self._later, self._is_alive = launch, later, is_alive
        self._life = lives[launch.life] if launch.life < len(lives) else None
        self._is_last_life = launch.life >= len(lives) - 1
        self._next_life = None if self._is_last_life else lives[launch.life + 1]

    def attempt(self, one: _Known, after: _Known | None) -> Attempt:
        """Return a claimed attempt; ``after`` is the next one of the same try."""
        ending, ended_s, reason = self._end(one, after)
        return _attempt(
            one, ending, ended_s, reason, life=self._launch.life, launch=self._launch
        )

    def unclaimed(self) -> Attempt:
        """Return the attempt of a try whose task has not used its checkpointer (yet)."""
        ending, ended_s, reason = self._end(None, None)
        return Attempt(
            number=None,
            life=self._launch.life,
            began_s=self._launch.launched_s,
            ended_s=ended_s,
            ending=ending,
            reason=reason,
            launch=self._launch,
        )

    def _end(
        self, one: _Known | None, after: _Known | None
    ) -> tuple[Ending, float | None, str | None]:
        if one is not None:
            if one.end:
                return _own_words(one)
            if after is not None:
                return "went back", after.claimed_s, "it restored an older step and goes on"
        launch = self._launch
        if launch.error is not None:
            kind: Ending = "lost" if launch.error.startswith(_LOST) else "failed"
            if launch.error.startswith("Preempted"):
                kind = "stopped"
            return kind, _last_sign(one, launch.ended_s), launch.error
        if launch.ended_s is not None:
            return "finished", launch.ended_s, None
        if self._life is not None and not (self._is_last_life and self._is_alive):
            return self._end_of_life(one)
        if self._later:
            return "lost", _last_sign(one, self._later[0].launched_s), "it was launched again"
        return "running", None, None

    def _end_of_life(self, one: _Known | None) -> tuple[Ending, float | None, str | None]:
        life = self._life
        assert life is not None
        if not life.died and life.ended_s is not None:
            return "died", _last_sign(one, life.ended_s), "the run ended before it was done"
        main = f"process {life.pid} on {life.host}" if life.pid else "the main process"
        # Its worker may have gone on for a while, until the next start ended it.
        noticed_s = self._next_life.began_s if self._next_life else None
        ended_s = _last_sign(one, noticed_s) or life.ended_s
        return "died", ended_s, f"the run died: {main} was gone"


def _own_words(one: _Known) -> tuple[Ending, float | None, str | None]:
    end = one.end
    ended_s = seconds_of(end.get("ended")) or seconds_of(end.get("time"))
    error = end.get("error")
    lines = str(error or "").strip().splitlines()
    reason = _MODULES.sub("", lines[0]) if lines else None
    return _ENDINGS.get(str(end.get("outcome")), "failed"), ended_s, reason


def _last_sign(one: _Known | None, noticed_s: float | None) -> float | None:
    """Return about when an attempt that was killed ended.

    Until somebody noticed there may be a whole heartbeat. But one that leaves a trail says
    something with every save, and every few seconds at the end of a step: it was gone about as
    soon after its last word as the next one would have come.
    """
    if one is None or one.told.silence_s is None:
        return noticed_s
    silent_s = one.told.last_s + _PATIENCE * one.told.silence_s
    return silent_s if noticed_s is None else min(noticed_s, silent_s)


def _stray(one: _Known, *, is_newest: bool, is_alive: bool | None) -> Attempt:
    """Return an attempt that the journal knows nothing of."""
    if one.end:
        return _attempt(one, *_own_words(one), life=None, launch=None)
    if not is_newest or is_alive is False:
        reason = "a newer attempt took over" if not is_newest else "it never said how it ended"
        return _attempt(one, "died", _last_sign(one, None), reason, life=None, launch=None)
    return _attempt(one, "open", None, None, life=None, launch=None)


def _attempt(
    one: _Known,
    ending: Ending,
    ended_s: float | None,
    reason: str | None,
    *,
    life: int | None,
    launch: Try | None,
) -> Attempt:
    told, end = one.told, one.end
    resumed_step, resumed = _resumed(one)
    steps = [told.reached_step, whole(end.get("step")), resumed_step]
    steps.append(max(told.saves, default=None))
    reached = max((step for step in steps if step is not None), default=None)
    return Attempt(
        number=one.number,
        life=life,
        began_s=told.try_began_s or one.claimed_s or (launch.launched_s if launch else None),
        ended_s=ended_s,
        ending=ending,
        reason=reason,
        resumed_step=resumed_step,
        resumed=resumed,
        skipped=_skipped(told),
        reached_step=reached,
        saved_step=max(
            (step for step, save in told.saves.items() if save.stored), default=None
        ),
        blocked_s=sum(save.blocked_s or 0.0 for save in told.saves.values()),
        where={**where(one.record.claim or {}), **told.where},
        launch=launch,
        failures=tuple(str(text) for text in _items(end.get("failures"))),
        tiers=tuple(item for item in _items(end.get("tiers")) if isinstance(item, Mapping)),
    )


def _resumed(one: _Known) -> tuple[int | None, bool]:
    """Return where an attempt went on from, and whether that is known."""
    for source, name in (
        (one.told.resumed, "step"),
        (one.record.resume, "step"),
        (one.end, "resumed_step"),
    ):
        if source:
            return whole(source.get(name)), True
    return None, False


def _skipped(told: Told) -> tuple[Mapping[str, Any], ...]:
    items = _items((told.resumed or {}).get("skipped"))
    return tuple(item for item in items if isinstance(item, Mapping))


def _items(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def checkpoints_of(
    facts: TaskFacts | None, told: Mapping[int, Told], tiers: Sequence[tuple[str, int]]
) -> list[Checkpoint]:
    """Return all checkpoints that are there, or were, by step and attempt.

    Args:
        facts: what the store has; ``None`` if nobody looked.
        told: what the attempts told, by number.
        tiers: names and levels of the tiers that were looked at, inner ones first.
    """
    there = {(one.step, one.attempt): one for one in facts.checkpoints} if facts else {}
    saves = {
        (step, number): save
        for number, one in told.items()
        for step, save in one.saves.items()
        if save.stored
    }
    levels = dict(tiers)
    found = []
    for step, number in sorted({*there, *saves}):
        fact, save = there.get((step, number)), saves.get((step, number))
        names = [*(fact.tiers if fact else ()), *(save.stored if save else ())]
        copies = []
        for name in dict.fromkeys(names):
            stored_s, level = save.stored.get(name, (None, None)) if save else (None, None)
            looked = facts is not None and name in levels
            present = name in fact.tiers if fact and looked else (False if looked else None)
            copies.append(Copy(tier=name, level=levels.get(name, level), stored_s=stored_s,
                               present=present))  # fmt: skip
        stored = [copy.stored_s for copy in copies if copy.stored_s is not None]
        taken_s = (save.taken_s if save else None) or (fact.created_s if fact else None)
        found.append(
            Checkpoint(
                step=step,
                attempt=number,
                taken_s=taken_s or min(stored, default=None),
                blocked_s=save.blocked_s if save else None,
                state_bytes=_either(
                    save.state_bytes if save else None, fact.state_bytes if fact else None
                ),
                stored_bytes=_either(
                    save.stored_bytes if save else None, fact.stored_bytes if fact else None
                ),
                copies=tuple(sorted(copies, key=lambda one: (one.level or 0, one.tier))),
                status=fact.status if fact else ("pruned" if facts else "told"),
                problem=fact.problem if fact else None,
            )
        )
    return found


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first
