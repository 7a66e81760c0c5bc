"""Who takes part: each node says on a tier that all see where its bytes are served.

An announcement is a small JSON object, ``peers/<id of the store>.json``, put again when a node
comes back at another address. A member is its store, wherever that is now, and not its host.
It is no proof of anything: who answers at the address has to have the key of the store
(`ckptflow.tiers.peer_wire`). ``tests/unit/test_announce.py``.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice

from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError
from ckptflow.tiers.tier import Tier

PEERS = "peers"
ANNOUNCEMENT_BYTES_MAX = 1 << 16
ANNOUNCEMENTS_MAX = 1024  # Each is read; who fills the place must not hold up the others.
GROUPS_MAX = 16

_KEY = re.compile(rf"{PEERS}/([0-9a-f]{{32}})\.json")
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_TEXT_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One node that takes part.

    Attributes:
        store: id of the store on its own tier, 32 hex digits.
        host: where it is served.
        port: TCP.
        groups: failure groups by kind, the widest first: ``{"row": "w1", "rack": "r2"}``.
        since: UTC, ISO 8601.
    """

    store: str
    host: str
    port: int
    groups: Mapping[str, str] = field(default_factory=dict)
    since: str = ""

    @property
    def address(self) -> str:
        """``host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def announce(tier: Tier, announcement: Announcement) -> None:
    """Say where a node is served; replaces what it said before.

    Raises:
        TierError: it could not be said.
    """
    text = json.dumps(asdict(announcement))
    tier.put(f"{PEERS}/{announcement.store}.json", [text.encode()])


def announced(
    tier: Tier, *, note: Callable[[str], None] = lambda _text: None
) -> list[Announcement]:
    """Return who takes part, sorted by store; whether they answer is another question.

    Args:
        tier: that all nodes see.
        note: told of what cannot be read and was left out.

    Raises:
        TierError: the tier could not be listed.
    """
    found = []
    matches = (match for key in tier.iter_keys(PEERS) if (match := _KEY.fullmatch(key)))
    for match in islice(matches, ANNOUNCEMENTS_MAX):
        try:
            data = tier.get(match[0], size_bytes=ANNOUNCEMENT_BYTES_MAX)
            found.append(_read(data, match[1], where=f"{match[0]!r} on tier {tier.name!r}"))
        except NotFoundError:  # Withdrawn since.
            continue
        except CheckpointError as error:
            note(str(error))
    if next(matches, None):
        note(f"More than {ANNOUNCEMENTS_MAX} nodes are announced: the others were left out.")
    return found


def _is_host(host: str) -> bool:
    """Tell whether it is a name or an address that can be asked for."""
    if _HOST.fullmatch(host):
        return True
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False


def _read(data: bytes, store: str, *, where: str) -> Announcement:
    try:
        fields = json.loads(data)
        match fields:
            case {
                "store": str(own),
                "host": str(host),
                "port": int(port),
                "groups": dict(groups),
            }:
                since = fields.get("since", "")
                texts = [since, *groups, *groups.values()]
                if (
                    own == store
                    and _is_host(host)
                    and 0 < port < 1 << 16
                    and len(groups) <= GROUPS_MAX
                    and all(isinstance(one, str) and len(one) <= _TEXT_MAX for one in texts)
                ):
                    return Announcement(
                        store=own, host=host, port=port, groups=groups, since=since
                    )
    except (ValueError, RecursionError):
        pass
    raise CorruptionError(f"{where} does not say where a node is served; it was ignored.")
