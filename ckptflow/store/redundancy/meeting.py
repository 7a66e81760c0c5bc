"""How the nodes of a store find each other, and how one reaches another.

They meet on a tier that all see: each announces its address there and repeats that while it is
alive. Who has not for a while has left; its objects are then made anew from those of others.
``tests/unit/test_redundant_tier.py``.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

from ckptflow.errors import ConfigError
from ckptflow.policy.groups import choose_sets
from ckptflow.store.descriptor import ensure_store, store_id
from ckptflow.store.redundancy.announce import Announcement, announce, announced
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.survey import Member
from ckptflow.tiers.peer import PeerTier
from ckptflow.tiers.sealed import SealedTier
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier

ANNOUNCE_S = 60.0
GONE_AFTER = timedelta(seconds=10 * ANNOUNCE_S)

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Meeting:
    """Where nodes meet, from the point of view of one.

    Args:
        place: the tier that all see.
        own: this node's own tier.
        key: by which nodes know each other.
        bind: address to serve on: the loopback, or for a cluster ``0.0.0.0``.
        host: name under which others reach this node; its host name if ``None``, or the
            address it binds to where that is one.
        groups: failure groups by kind: patterns of host names for each, or a text in which
            ``${NAME}`` is taken from the environment of the node.
        now: the clock, UTC.
    """

    def __init__(
        self,
        place: Tier,
        own: Tier,
        key: StoreKey,
        *,
        bind: str = "127.0.0.1",
        host: str | None = None,
        groups: Mapping[str, str | Mapping[str, Sequence[str]]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._place, self._own, self.key = place, own, key
        self.bind, self._host, self._groups, self._now = bind, host, dict(groups or {}), now
        self._own_id: str | None = None
        self._peers: dict[tuple[str, str], Tier] = {}
        self._lock = threading.Lock()

    @property
    def served(self) -> Tier:
        """What others get: the objects as they lie there, sealed if they are."""
        return self._own.inner if isinstance(self._own, SealedTier) else self._own

    def own_id(self) -> str:
        """Return the id of this node's store, which is made if there is none."""
        if self._own_id is None:
            ensure_store(self._own)
            self._own_id = store_id(self._own)
        return self._own_id

    def arrive(self, port: int) -> None:
        """Announce this node, or that it is still there.

        Raises:
            TierError: the others cannot be told.
        """
        host = self._host or (
            socket.gethostname() if self.bind in {"0.0.0.0", "::"} else self.bind  # noqa: S104
        )
        announce(
            self._place,
            Announcement(
                store=self.own_id(),
                host=host,
                port=port,
                groups=self.own_groups(),
                since=self._now().isoformat(timespec="seconds"),
            ),
        )

    def own_groups(self) -> dict[str, str]:
        """Return this node's failure groups.

        Raises:
            ConfigError: a variable that a group is taken from is not set.
        """
        host = self._host or socket.gethostname()
        found = {kind: _group(kind, given, host) for kind, given in self._groups.items()}
        return {kind: name for kind, name in found.items() if name is not None}

    def hang_up(self) -> None:
        """Close the connections to other nodes."""
        with self._lock:
            peers, self._peers = list(self._peers.values()), {}
        for tier in peers:
            inner = tier.inner if isinstance(tier, SealedTier) else tier
            assert isinstance(inner, PeerTier), "others are reached by nothing else"
            inner.close()

    def members(self) -> tuple[Member, list[Member]]:
        """Return this node, and all others that are there.

        Raises:
            TierError: the place where they meet cannot be read.
        """
        own = Member(self.own_id(), self._own, self.own_groups())
        limit = self._now() - GONE_AFTER
        others = [
            Member(one.store, self._peer(one), one.groups)
            for one in announced(self._place)
            if one.store != own.id and _time_of(one) >= limit
        ]
        return own, others

    def set_of(self, own: Member, others: Sequence[Member], scheme: Scheme) -> list[Member]:
        """Return the other members of this node's redundancy set."""
        by_id = {one.id: one for one in (own, *others)}
        if len(by_id) < 2:
            return []
        nodes = [one.node for one in by_id.values()]
        size = max(2, min(scheme.set_size, len(nodes)))
        sets = choose_sets(nodes, size=size, losses=min(scheme.losses, size - 1))
        ours = next(one for one in sets.sets if own.id in one)
        return [by_id[one] for one in ours if one != own.id]

    def _peer(self, one: Announcement) -> Tier:
        with self._lock:
            place = (one.store, one.address)
            if place not in self._peers:
                tier: Tier = PeerTier(one.address, self.key, name=f"node-{one.store[:8]}")
                if isinstance(self._own, SealedTier):
                    tier = self._own.around(tier)
                self._peers[place] = tier
            return self._peers[place]


def _group(kind: str, given: str | Mapping[str, Sequence[str]], host: str) -> str | None:
    """Return the group of a node, or ``None`` if it belongs to none of that kind."""
    if isinstance(given, str):
        return _expanded(kind, given)
    for name, patterns in given.items():
        if any(fnmatchcase(host, pattern) for pattern in patterns):
            return name
    return None


def _expanded(kind: str, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if not found:
            raise ConfigError(
                f"The failure group {kind!r} of this node is {text!r}, and ${{{match[1]}}} is "
                f"not set here."
            )
        return found

    return _VARIABLE.sub(value, text)


def _time_of(one: Announcement) -> datetime:
    try:
        time = datetime.fromisoformat(one.since)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
