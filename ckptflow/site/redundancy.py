"""The table ``[redundancy]`` of a site file, and the set of this node that it makes.

Failure groups are given by patterns of host names; what is stored names members by the ids of
their stores. ``tests/unit/test_site_redundancy.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, model_validator

from ckptflow.errors import NotFoundError, TierError
from ckptflow.policy.groups import choose_sets
from ckptflow.site.tiers import Seconds, Strict
from ckptflow.store.redundancy.scheme import Scheme, SchemeName
from ckptflow.store.redundancy.set import WAIT_S, RedundancySet
from ckptflow.store.redundancy.survey import Member, member_of
from ckptflow.tiers.tier import Tier


class RedundancyModel(Strict):
    """How nodes protect each other's checkpoints."""

    scheme: SchemeName = "xor"
    set_size: int = 8
    losses: int = 1
    wait_s: Annotated[Seconds, Field(alias="wait", ge=0)] = WAIT_S
    groups: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_possible(self) -> RedundancyModel:
        _ = self.wanted
        return self

    @property
    def wanted(self) -> Scheme:
        """The scheme, as the store knows it.

        Raises:
            ConfigError: there is none like that.
        """
        return Scheme(name=self.scheme, set_size=self.set_size, losses=self.losses)

    def groups_of(self, host: str) -> dict[str, str]:
        """Return the failure group of each kind that a host belongs to, the widest first."""
        return {
            kind: name
            for kind, named in self.groups.items()
            for name, patterns in named.items()
            if any(fnmatchcase(host, pattern) for pattern in patterns)
        }

    def open_set(
        self,
        own: Tier,
        others: Mapping[str, Tier],
        *,
        host: str,
        note: Callable[[str], None] = lambda _text: None,
    ) -> RedundancySet | None:
        """Return the redundancy set of this node, or ``None`` if there is nobody else in it.

        Args:
            own: this node's own tier.
            others: by host name, the tiers of all other nodes. Those that do not answer are
                left out, and noted; look again when they are back.
            host: this node's name.
            note: told, in a sentence, of what was left out, and why sets are as they are.

        Raises:
            TierError: this node's own tier failed.
            ConfigError: two nodes have stores of one id.
        """
        me = member_of(own, self.groups_of(host))
        members = {me.id: me}
        nodes = [me.node]
        for name in sorted(others):
            if (member := self._member(name, others[name], note)) is not None:
                members[member.id] = member
                nodes.append(member.node)
        chosen = choose_sets(
            nodes, size=self.set_size, losses=self.losses, kinds=tuple(self.groups)
        )
        for reason in chosen.reasons:
            note(reason)
        mine = next((one for one in chosen.sets if me.id in one), (me.id,))
        if len(mine) < 2:
            return None
        rest = [members[one] for one in mine if one != me.id]
        return RedundancySet(
            own=me, others=rest, scheme=self.wanted, wait_s=self.wait_s, note=note
        )

    def _member(self, host: str, tier: Tier, note: Callable[[str], None]) -> Member | None:
        try:
            return member_of(tier, self.groups_of(host))
        except (TierError, NotFoundError) as error:
            note(f"Node {host!r} was left out: {error}")
            return None
