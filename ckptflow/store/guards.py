"""What processes that do not know of each other tell each other through a tier.

Two notices lie in the folder ``guards`` of a lineage. A *hold* says that something under way
will need packs that no manifest names yet, or reads a checkpoint; an *announcement* says which
packs are about to be deleted. Each side first puts its notice and then looks for that of the
other, so that at least one of them sees the other, in whatever order things happen; the format
page says who gives way. ``tests/unit/test_guards.py``, ``tests/stateful/test_upkeep.py``.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ckptflow.errors import CorruptionError, NotFoundError, TierError, TierUnavailable
from ckptflow.model import CheckpointId, LineageId, guard_key, is_guard_key
from ckptflow.tiers.tier import Settling, Tier

HOLD_AGE_MAX = timedelta(days=1)  # What was put longer ago has lost its writer,
ANNOUNCEMENT_AGE_MAX = timedelta(minutes=10)  # likewise; nothing is deleted on one of
DELETE_WITHIN = timedelta(minutes=2)  # this age: tries last 5 min, clocks of two nodes differ.
NOTICE_BYTES_MAX = 1 << 28  # A longer one is none.
WAIT_S, _POLL_S = 900.0, 0.2  # For an announcement to go; those of the dead are too old before.


@dataclass(slots=True)
class Notices:
    """The notices on a tier that count.

    Attributes:
        checkpoints: that something holds, with all that their manifests name.
        held: packs that something holds, relative to the lineage.
        announced: packs that are about to be deleted.
        outdated: keys of notices whose writer is gone, absolute.
    """

    checkpoints: set[CheckpointId] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    announced: set[str] = field(default_factory=set)
    outdated: list[str] = field(default_factory=list)

    def protects(self, pack: str) -> bool:
        """Whether a pack is held, by itself or because it belongs to a held checkpoint."""
        return pack in self.held or CheckpointId.of_pack(pack) in self.checkpoints


def read_notices(
    tier: Tier,
    lineage: LineageId,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    but: str | None = None,
) -> Notices:
    """Return the notices on a tier; costs one listing, and one read for each.

    Args:
        tier: where.
        lineage: whose.
        now: the clock, UTC.
        but: a key that does not count.

    Raises:
        TierError: they could not be read; then nothing may be deleted or relied on.
    """
    notices = Notices()
    for key in tier.iter_keys(f"{lineage.prefix}/guards"):
        if key == but or not is_guard_key(key.removeprefix(f"{lineage.prefix}/")):
            continue
        try:
            text = tier.get(key, size_bytes=NOTICE_BYTES_MAX)
        except NotFoundError:  # It is over.
            continue
        except CorruptionError:  # No such object as a notice is: it counts for nothing.
            text = b""
        _take(notices, key, text, now())
    return notices


@dataclass(frozen=True)
class Hold:
    """A hold on what a checkpoint on a tier needs, before its commit there."""

    tier: Tier
    lineage: LineageId
    checkpoint: CheckpointId
    since: datetime

    def confirm(self, *, found: bool) -> None:
        """Make sure, right before the commit, that it may be made.

        Args:
            found: whether some of the packs were there already. Whoever put them may have been
                killed before their names were durable.

        Raises:
            TierUnavailable: the hold is so old that others may take its writer for dead.
            TierError: the tier failed.
        """
        if datetime.now(UTC) - self.since > HOLD_AGE_MAX - 2 * ANNOUNCEMENT_AGE_MAX:
            raise TierUnavailable(
                f"{self.lineage} {self.checkpoint} has been on its way to tier "
                f"{self.tier.name!r} for so long that its hold may not count any more. Try "
                f"again: what has arrived is used."
            )
        if found and isinstance(self.tier, Settling):
            self.tier.settle(f"{self.lineage.prefix}/packs")


@contextlib.contextmanager
def hold(
    tier: Tier,
    lineage: LineageId,
    checkpoint: CheckpointId,
    packs: Collection[str] = (),
    *,
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Hold]:
    """Keep everything of a checkpoint on a tier, there or to come, from being deleted.

    On entry the announcements that were made before are waited for: what they name is gone
    then, and can be put again. What it gives is asked right before the commit.

    Args:
        tier: where.
        lineage: whose.
        checkpoint: its manifest, what that names, and the packs that are put in its name.
        packs: other packs that are needed, relative to the lineage.
        wait_s: how long to wait, in seconds.
        sleep: waits for some seconds.

    Raises:
        TierError: the tier failed.
        TierUnavailable: something else is deleting what is needed, and does not end.
    """
    holding = Hold(tier, lineage, checkpoint, since=datetime.now(UTC))
    key = _put(tier, lineage, "hold", packs, checkpoint)
    try:
        waited_s = 0.0
        while doomed := [
            pack
            for pack in read_notices(tier, lineage).announced
            if pack in packs or CheckpointId.of_pack(pack) == checkpoint
        ]:
            if waited_s >= wait_s:
                raise TierUnavailable(
                    f"{lineage} {checkpoint} needs {min(doomed)!r} on tier {tier.name!r}, "
                    f"which has been about to be deleted for {waited_s:.0f} s. Try again."
                )
            sleep(_POLL_S)
            waited_s += _POLL_S
        yield holding
    finally:
        with contextlib.suppress(TierError):  # It is outdated some day.
            tier.delete(key)


@contextlib.contextmanager
def announced(tier: Tier, lineage: LineageId, packs: Collection[str]) -> Iterator[str]:
    """Say that some packs are about to be deleted, and take that back in the end.

    Gives the key of the announcement. A crash leaves it; the next prune takes it away when it
    is old.
    """
    key = _put(tier, lineage, "prune", packs, None)
    try:
        yield key
    finally:
        with contextlib.suppress(TierError):
            tier.delete(key)


def _put(
    tier: Tier,
    lineage: LineageId,
    what: str,
    packs: Collection[str],
    checkpoint: CheckpointId | None,
) -> str:
    key = f"{lineage.prefix}/{guard_key(secrets.token_hex(8), what)}"
    notice = {
        "since": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "manifest": checkpoint.manifest_key if checkpoint else None,
        "packs": sorted(packs),
    }
    tier.put(key, [json.dumps(notice).encode()])
    return key


def _take(notices: Notices, key: str, text: bytes, now: datetime) -> None:
    """Add what one notice says. One that cannot be read says nothing, and is outdated."""
    is_hold = key.endswith(".hold")
    try:
        notice = json.loads(text)
        age = now - datetime.fromisoformat(notice["since"])
        packs = {str(pack) for pack in notice["packs"]}
        checkpoint = CheckpointId.of_manifest(notice["manifest"] or "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        notices.outdated.append(key)
        return
    if age > (HOLD_AGE_MAX if is_hold else ANNOUNCEMENT_AGE_MAX):
        notices.outdated.append(key)
    elif not is_hold:
        notices.announced |= packs
    else:
        notices.held |= packs
        if checkpoint:
            notices.checkpoints.add(checkpoint)
