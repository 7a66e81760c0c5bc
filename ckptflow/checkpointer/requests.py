"""What is asked of the thread that writes, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckptflow.checkpointer.hooks import Hooks
from ckptflow.checkpointer.taking import Captured
from ckptflow.checkpointer.ticket import Ticket
from ckptflow.tiers.tier import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A captured state to be written.

    Attributes:
        ticket: who waits for it.
        captured: its structure and bytes; nobody changes them until they are released.
        metrics: numbers from the application.
        first: the tier to write it to; others are tried if it fails.
        outer: tiers to copy it to afterwards.
        hooks: what else is to be done.
    """

    ticket: Ticket
    captured: Captured
    metrics: Mapping[str, float]
    first: Tier
    outer: Sequence[Tier]
    hooks: Hooks


@dataclass(frozen=True, slots=True)
class Written:
    """What one save came to."""

    step: int
    state_bytes: int
    stored_bytes: int
    duration_s: float
