"""When a checkpoint is worth being written anew: a verdict with reasons.

A restore opens every pack that a manifest names and reads what is needed of it, the deltas
besides what they change. Were the checkpoint full, it would read its state out of few packs. If
the first takes `COST_RATIO_MAX` times as long as the second, or the packs are mostly dead
bytes, consolidating pays. ``tests/unit/test_consolidation_policy.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptflow.model import CheckpointId
from ckptflow.policy.retention import Retention
from ckptflow.units import MIB, format_bytes

COST_RATIO_MAX = 1.3  # Of a restore to that of a full checkpoint of the same state.
DEAD_SHARE_MAX = 0.5  # Of the bytes of its packs that nothing in it needs.
DEAD_BYTES_MIN = 64 * MIB  # Less is not worth the work, whatever its share.

QUIET_S = 600.0  # Nothing new for so long, at least,
QUIET_GAPS = 4.0  # and for so many times the last pause: nothing seems to follow.

# Orders of magnitude, of a request and its answer, by the level of a tier; and of reading.
_OPEN_S = {0: 1e-5, 1: 2e-4, 2: 1e-3, 3: 2e-3}
_OPEN_FAR_S = 2e-2
_BYTES_PER_S = 1e9
# A full checkpoint has one pack for so many bytes; one that is encoded has a few smaller ones.
_PACK_BYTES, _ENCODED_PACK_BYTES, _ENCODED_PACKS = 256 * MIB, 32 * MIB, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a restore of a checkpoint has to do.

    Attributes:
        packs: that its manifest names.
        older_packs: of those, the ones that older checkpoints wrote.
        layers: delta layers, of the region that has most.
        delta_bytes: plain bytes of deltas, which are read besides what they change.
        live_bytes: plain bytes that are needed of the packs, deltas included.
        stored_bytes: size of the packs.
        dead_bytes: of those, what the checkpoint does not need.
    """

    packs: int
    older_packs: int
    layers: int
    delta_bytes: int
    live_bytes: int
    stored_bytes: int
    dead_bytes: int

    @property
    def can_improve(self) -> bool:
        """Whether it would be another one afterwards."""
        return self.older_packs > 0 or self.layers > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to consolidate a checkpoint, and why."""

    worth: bool
    reasons: tuple[str, ...]


def cost_ratio(shape: Shape, *, level: int) -> float:
    """Return how long a restore takes, for one of a full checkpoint of the same state."""
    open_s = _OPEN_S.get(level, _OPEN_FAR_S)
    state_bytes = max(0, shape.live_bytes - shape.delta_bytes)
    full_packs = _full_packs(max(state_bytes, 1))
    now_s = shape.packs * open_s + shape.live_bytes / _BYTES_PER_S
    full_s = full_packs * open_s + state_bytes / _BYTES_PER_S
    return now_s / full_s


def _full_packs(state_bytes: int) -> int:
    """Return how many packs a full checkpoint has at most."""
    encoded = min(_ENCODED_PACKS, -(-state_bytes // _ENCODED_PACK_BYTES))
    return max(encoded, -(-state_bytes // _PACK_BYTES))


def judge(shape: Shape, *, level: int) -> Verdict:
    """Tell whether a checkpoint on a tier of some level is worth consolidating."""
    if not shape.can_improve:
        return Verdict(worth=False, reasons=("names no packs but its own, and has no deltas",))
    reasons = []
    ratio = cost_ratio(shape, level=level)
    work = f"{shape.packs} packs ({shape.older_packs} older), {shape.layers} delta layers"
    if ratio > COST_RATIO_MAX:
        reasons.append(f"a restore costs {ratio:.2f} times a full one: {work}")
    share = shape.dead_bytes / max(shape.stored_bytes, 1)
    if share > DEAD_SHARE_MAX and shape.dead_bytes >= DEAD_BYTES_MIN:
        dead, stored = format_bytes(shape.dead_bytes), format_bytes(shape.stored_bytes)
        reasons.append(f"it needs nothing of {dead} of the {stored} of its packs")
    if reasons:
        return Verdict(worth=True, reasons=tuple(reasons))
    good = f"a restore costs {ratio:.2f} times a full one, at most {COST_RATIO_MAX:g}: {work}"
    return Verdict(worth=False, reasons=(good,))


def quiet_after_s(gap_s: float) -> float:
    """Return after how many seconds without a new checkpoint none is to be expected.

    Args:
        gap_s: how long the last one took to come after the one before.
    """
    return max(QUIET_S, QUIET_GAPS * gap_s)


def to_judge(
    there: Sequence[CheckpointId], retention: Retention, *, rests: bool
) -> list[CheckpointId]:
    """Return which checkpoints of a lineage on a tier may be worth it without being asked for.

    Those that stay for long: what rules keep besides the newest, and the newest itself once no
    other is to be expected. Before, the next copy would bring the older packs again. Others go
    soon, or share most of their packs with their neighbours: where all are kept, or as many
    bytes as there is room for, one after the other would be made a full one.

    Args:
        there: all that are there after a prune and are not void, the newest first.
        retention: what is kept there.
        rests: whether no other is to be expected.
    """
    newest = list(there[:1]) if rests else []
    return [*newest, *there[retention.newest :]] if judges_kept(retention) else newest


def judges_kept(retention: Retention) -> bool:
    """Tell whether `to_judge` ever names any but the newest."""
    has_rules = retention.every_steps is not None or retention.best is not None
    return has_rules and retention.newest is not None and retention.size_bytes is None
