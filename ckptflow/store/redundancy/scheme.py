"""How much redundancy: the scheme of a set, and what it means for one stripe.

``partner`` copies each object to other members; ``xor`` survives one loss, ``rs``
(Reed-Solomon) several, for a part of the space. ``tests/unit/test_redundancy_scheme.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ckptflow.errors import ConfigError
from ckptflow.policy.groups import check_set_size

SchemeName: TypeAlias = Literal["partner", "xor", "rs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What a redundancy set promises.

    Attributes:
        name: ``partner``, ``xor`` or ``rs``.
        set_size: wanted members of a set.
        losses: how many of them may be lost at once.

    Raises:
        ConfigError: there is no such scheme.
    """

    name: SchemeName = "xor"
    set_size: int = 8
    losses: int = 1

    def __post_init__(self) -> None:
        check_set_size(self.set_size, self.losses)
        if self.name not in ("partner", "xor", "rs"):
            raise ConfigError(
                f"There is no scheme {self.name!r} of redundancy: write partner, xor or rs."
            )
        if self.name == "xor" and self.losses != 1:
            raise ConfigError(
                f"XOR can rebuild one loss, not {self.losses}: use the scheme rs."
            )

    def losses_of(self, member_count: int) -> int:
        """Return how many losses can be provided for while so many members answer."""
        return max(0, min(self.losses, member_count - 1))

    def data_count(self, member_count: int) -> int:
        """Return of how many members one stripe takes objects, at the most."""
        if self.name == "partner":
            return 1
        return max(1, member_count - self.losses_of(member_count))
