"""What whoever saves has done around a commit, besides what every save does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckptflow.tiers.tier import Tier


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is to be done around the commit of one save, in the writer's threads.

    Attributes:
        before_commit: called when all packs are durable; what it raises fails the save.
        committed: told of each tier that has the checkpoint; raises nothing.
        missed: told of each tier that was to have it and does not; raises nothing.
    """

    before_commit: Callable[[], None] = _nothing
    committed: Callable[[Tier], None] = _nothing
    missed: Callable[[Tier], None] = _nothing
