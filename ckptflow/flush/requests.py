"""What is asked of a flusher, and what it tells of how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ckptflow.errors import CheckpointError
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.tiers.tier import Tier

State = Literal["queued", "copying", "waiting", "done", "skipped", "failed"]


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """One checkpoint to be copied to one tier, and who wants to know.

    Attributes:
        manifest: of the checkpoint.
        target: where it goes.
        on_done: called when it is durable there (``None``), or has failed.
        retention: what is kept on the target.
        kept_elsewhere: what is kept on other tiers, by name, for an agent, which prunes them
            when the task has gone.
        is_awaited: tells whether anybody waits for this very checkpoint. If nobody does, and
            the target would not keep it beside newer ones that have arrived, it is skipped.
    """

    manifest: Manifest
    target: Tier
    on_done: Callable[[CheckpointError | None], None]
    retention: Retention | None = None
    is_awaited: Callable[[], bool] = _always
    kept_elsewhere: Mapping[str, Retention] = field(default_factory=dict)

    @property
    def lineage(self) -> LineageId:
        """Whose checkpoint it is."""
        return self.manifest.lineage

    @property
    def id(self) -> CheckpointId:
        """Which checkpoint it is."""
        return self.manifest.id


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushProgress:
    """How far one copy is.

    Attributes:
        lineage: run/task.
        step: of the checkpoint.
        attempt: of the checkpoint.
        target: name of the tier it goes to.
        state: ``queued``; ``copying``; ``waiting`` until a tier that did not answer is tried
            again; ``done``; ``skipped``, since newer ones have arrived; ``failed``.
        done_bytes: bytes of its packs that are there.
        total_bytes: bytes of its packs.
        since: when it was asked for, in seconds since 1970.
        error: what went wrong, last or for good.
    """

    lineage: str
    step: int
    attempt: int
    target: str
    state: State
    done_bytes: int
    total_bytes: int
    since: float
    error: str | None = None


@dataclass(slots=True)
class Flight:
    """A request on its way, as the flusher knows it."""

    request: FlushRequest
    since: float = field(default_factory=time.time)
    state: State = "queued"
    done_bytes: int = 0
    total_bytes: int = 0
    error: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.total_bytes = sum(pack.size_bytes for pack in self.request.manifest.packs)

    def copied(self, done_bytes: int, total_bytes: int) -> None:
        """Note how far it is."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    @property
    def progress(self) -> FlushProgress:
        """How far it is."""
        return FlushProgress(
            lineage=str(self.request.lineage),
            step=self.request.id.step,
            attempt=self.request.id.attempt,
            target=self.request.target.name,
            state=self.state,
            done_bytes=self.done_bytes,
            total_bytes=self.total_bytes,
            since=self.since,
            error=self.error,
        )
