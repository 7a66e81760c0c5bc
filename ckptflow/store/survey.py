"""What a store holds, in numbers: lineages at a glance, and the checkpoints of one of them.

Reads manifests and lists keys; never a pack. A manifest that cannot be read is part of the
answer, not its end; what a live run prunes meanwhile is left out.
``tests/unit/test_survey.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.find import is_there
from ckptflow.store.quarantine import quarantined
from ckptflow.tiers.tier import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageSummary:
    """A lineage at a glance.

    Attributes:
        lineage: run and task.
        checkpoints: how many count.
        void: how many do not, because the task went on without them.
        newest: the newest that counts, readable or not.
        saved: when it was committed, UTC; ``None`` if its manifest cannot be read.
        attempts: how often the task was started.
        state_bytes: what full copies of all readable ones that count would take.
        stored_bytes: what the lineage takes, per tier.
    """

    lineage: LineageId
    checkpoints: int
    void: int
    newest: CheckpointId | None
    saved: str | None
    attempts: int
    state_bytes: int
    stored_bytes: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """A checkpoint at a glance.

    Attributes:
        id: which.
        tiers: names of those that hold it, inner ones first.
        void: the task went on without it.
        manifest: what it is; ``None`` if no copy can be read.
        problem: why not.
        quarantined: a restore passes it over, since several attempts could not restore it.
    """

    id: CheckpointId
    tiers: tuple[str, ...]
    void: bool
    manifest: Manifest | None
    problem: str | None
    quarantined: bool = False

    @property
    def status(self) -> str:
        """``ok``, ``void``, ``quarantined`` or ``unreadable``."""
        if self.manifest is None:
            return "unreadable"
        if self.void:
            return "void"
        return "quarantined" if self.quarantined else "ok"


def survey_checkpoints(lineage: Lineage) -> list[CheckpointSummary]:
    """Return every checkpoint of a lineage, the newest first.

    Raises:
        TierError: no tier could be listed.
    """
    bad = quarantined(lineage, note=lambda _text: None)
    summaries = (_summary(lineage, found, found.id in bad) for found in lineage.checkpoints())
    return [one for one in summaries if one is not None]


def survey_lineage(lineage: Lineage) -> LineageSummary:
    """Return a lineage at a glance. Costs a look at every key and every manifest.

    Raises:
        TierError: a tier could not be listed.
    """
    found = survey_checkpoints(lineage)
    counting = [one for one in found if not one.void]
    manifests = [one.manifest for one in counting if one.manifest is not None]
    newest = counting[0] if counting else None
    return LineageSummary(
        lineage=lineage.id,
        checkpoints=len(counting),
        void=len(found) - len(counting),
        newest=newest.id if newest else None,
        saved=newest.manifest.created if newest and newest.manifest else None,
        attempts=len(lineage.attempts()),
        state_bytes=sum(manifest.state_bytes for manifest in manifests),
        stored_bytes={
            tier.name: sum(_size(tier, key) for key in tier.iter_keys(lineage.id.prefix))
            for tier in lineage.tiers
        },
    )


def _size(tier: Tier, key: str) -> int:
    try:
        return tier.size(key)
    except NotFoundError:
        return 0


def _summary(lineage: Lineage, found: Found, is_bad: bool) -> CheckpointSummary | None:  # noqa: FBT001
    manifest, problem = None, None
    try:
        manifest = lineage.manifest(found)
    except (CorruptionError, FormatError) as error:
        if not any(is_there(tier, lineage.id, found.id) for tier in found.tiers):
            return None
        problem = "; ".join([str(error), *getattr(error, "__notes__", ())])
    return CheckpointSummary(
        id=found.id,
        tiers=tuple(tier.name for tier in found.tiers),
        void=found.void,
        manifest=manifest,
        problem=problem,
        quarantined=is_bad,
    )
