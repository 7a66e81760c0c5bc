"""Die before every change that an action makes, and look at what is left each time.

For whoever writes something that changes a store: a save, a flush, a prune, a repair. There
is no randomness, so a failure names its own case. See ``tests/stateful/test_crashes.py``:

    def action(tiers): prune(Lineage(tiers, LINEAGE), tiers[0], KEEP)
    def check(tiers, died_at): assert newest_restores(tiers)
    assert crash_everywhere(make_store, action, check) > 5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptflow.testing.faults import Crash, FaultyTier
from ckptflow.tiers.tier import Tier

CHANGES = ("put", "create", "delete")


def crash_everywhere(
    make_store: Callable[[], Sequence[Tier]],
    action: Callable[[Sequence[Tier]], object],
    check: Callable[[Sequence[Tier], int | None], object],
) -> int:
    """Run ``action`` undisturbed, then again and again, dying just before each of its changes.

    Args:
        make_store: returns tiers in the state before the action, new ones each time.
        action: gets these tiers, wrapped. A put, create or delete on any of them counts as a
            change, and after the death none answers any more.
        check: gets the tiers without the wrapping, as the next process finds them, and the
            number of changes that were made; ``None`` after the undisturbed run, the first.

    Returns:
        How many changes there are, that is, how often the action was killed.

    Raises:
        AssertionError: the action went on after its death, or made fewer changes than before.
        And what ``check`` raises, with the place of the death as a note.
    """
    total = _run(make_store, action, check, None)
    for at in range(total):
        _run(make_store, action, check, at)
    return total


def _run(
    make_store: Callable[[], Sequence[Tier]],
    action: Callable[[Sequence[Tier]], object],
    check: Callable[[Sequence[Tier], int | None], object],
    dies_at: int | None,
) -> int:
    tiers, doom = make_store(), _Doom(dies_at)
    try:
        action([FaultyTier(tier, doom) for tier in tiers])
        assert dies_at is None, f"the action survived its death before change {dies_at}"
    except Crash:
        assert dies_at is not None, "nothing dies by itself"
    try:
        check(tiers, dies_at)
    except BaseException as error:
        error.add_note(f"killed before change {dies_at}: {doom.last}")
        raise
    return doom.changes


class _Doom:
    """Counts the changes on all tiers of a process, and kills it before one of them."""

    def __init__(self, dies_at: int | None) -> None:
        self.changes, self.last, self._dies_at = 0, "nothing", dies_at

    def __call__(self, operation: str, key: str) -> None:
        dead = self._dies_at is not None and self.changes > self._dies_at
        if operation in CHANGES and not dead:
            dead = self.changes == self._dies_at
            self.changes, self.last = self.changes + 1, f"{operation} {key}"
        if dead:
            raise Crash(f"{operation} {key}")
