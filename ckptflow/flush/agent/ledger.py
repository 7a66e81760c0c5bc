"""What an agent was asked for, and what has failed, one file each.

A request is a file before the agent says that it has taken it, and until its checkpoint has
arrived. What the name of a file says is enough to know which checkpoints are on their way, also
while no agent runs. ``tests/unit/test_agent_ledger.py``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckptflow.errors import CheckpointError, ConfigError, TierDenied
from ckptflow.flush.agent.folder import agent_folder, check_private, make_private, short
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.tiers import durable
from ckptflow.tiers.tier import Tier

PENDING, FAILED, STORES = "pending", "failed", "stores.json"
FAILED_MAX = 1000
ERROR_CHARS_MAX = 2000  # All failures together go into one message.

_log = logging.getLogger("ckptflow")

_NAME = re.compile(r"([0-9a-f]{16})\.(\d{12})\.(\d{8})\.[0-9a-f]{16}\.json")


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint that is to be copied to one tier, or could not be.

    Attributes:
        lineage: whose checkpoint.
        id: which.
        target: name of the tier.
        retention: what is kept there.
        since: when it was asked for, in seconds since 1970.
        error: why it failed; empty while it has not.
        reported: whether somebody who waited for it, or asked for failures, was told.
        elsewhere: what is kept on other tiers, by name.
    """

    lineage: LineageId
    id: CheckpointId
    target: str
    retention: Retention
    since: float
    error: str = ""
    reported: bool = False
    elsewhere: tuple[tuple[str, Retention], ...] = ()

    @property
    def name(self) -> str:
        """Name of its file."""
        place = f"{self.id.step:012d}.{self.id.attempt:08d}"
        return f"{short(str(self.lineage))}.{place}.{short(self.target)}.json"

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "run": self.lineage.run,
            "task": self.lineage.task,
            "step": self.id.step,
            "attempt": self.id.attempt,
            "target": self.target,
            "retention": str(self.retention),
            "since": self.since,
            "error": self.error,
            "reported": self.reported,
            "elsewhere": {name: str(retention) for name, retention in self.elsewhere},
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Entry:
        """Read what `as_json` made.

        Raises:
            ConfigError: it is something else.
        """
        try:
            return cls(
                LineageId(str(fields["run"]), str(fields["task"])),
                CheckpointId(int(fields["step"]), int(fields["attempt"])),
                str(fields["target"]),
                parse_retention(str(fields["retention"])),
                float(fields["since"]),
                str(fields.get("error", "")),
                bool(fields.get("reported", False)),
                tuple(
                    (str(name), parse_retention(str(rules)))
                    for name, rules in fields.get("elsewhere", {}).items()
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{dict(fields)!r:.200} is no request for a copy.") from error

    def __str__(self) -> str:
        return f"{self.lineage} {self.id} to tier {self.target!r}"


class Ledger:
    """The files of one agent.

    Args:
        folder: its private folder.
    """

    def __init__(self, folder: Path) -> None:
        self._pending, self._failed = folder / PENDING, folder / FAILED
        self._stores = folder / STORES
        for one in (self._pending, self._failed):
            make_private(one)

    def add(self, entry: Entry) -> None:
        """Make a request durable; an earlier failure of the same is forgotten.

        Raises:
            OSError: it could not be written.
        """
        durable.write_atomic(self._pending / entry.name, [json.dumps(entry.as_json()).encode()])
        (self._failed / entry.name).unlink(missing_ok=True)

    def done(self, entry: Entry) -> None:
        """Forget a request: its checkpoint has arrived, or is not needed any more."""
        (self._pending / entry.name).unlink(missing_ok=True)

    def has(self, entry: Entry) -> bool:
        """Tell whether a request is to be carried out."""
        return (self._pending / entry.name).exists()

    def fail(self, entry: Entry, error: str, *, reported: bool) -> None:
        """Keep why a request failed, and forget that it is to be carried out."""
        if len(error) > ERROR_CHARS_MAX:
            error = f"{error[: ERROR_CHARS_MAX - 1]}…"
        failed = replace(entry, error=error, reported=reported)
        self._write_failed(failed)
        self.done(entry)
        for old in sorted(self.failures(), key=lambda one: one.since)[:-FAILED_MAX]:
            (self._failed / old.name).unlink(missing_ok=True)

    def mark_reported(self, entry: Entry) -> None:
        """Note that somebody was told of a failure."""
        if (self._failed / entry.name).exists():
            self._write_failed(replace(entry, reported=True))

    def pending(self) -> list[Entry]:
        """Return what is to be carried out, the oldest request first."""
        return _entries(self._pending)

    def failures(self) -> list[Entry]:
        """Return what has failed, the oldest request first."""
        return _entries(self._failed)

    def stores(self) -> dict[str, str]:
        """Return, by tier, the id of the store that was found there."""
        try:
            found = json.loads(self._stores.read_bytes())
            return {str(name): str(one) for name, one in found.items()}
        except (OSError, ValueError, AttributeError):
            return {}  # They are looked up again.

    def note_stores(self, stores: Mapping[str, str]) -> None:
        """Remember what `stores` returns."""
        with contextlib.suppress(OSError):
            durable.write_atomic(self._stores, [json.dumps(stores).encode()])

    def _write_failed(self, entry: Entry) -> None:
        durable.write_atomic(self._failed / entry.name, [json.dumps(entry.as_json()).encode()])


def in_flight(folder: Path, lineage: LineageId) -> list[CheckpointId]:
    """Return the checkpoints of a lineage that the agent of a folder still has to copy.

    A prune of any tier has to leave them there. Works whether or not the agent runs. A folder
    that is not ours alone has none.
    """
    try:
        check_private(folder)
    except TierDenied:
        return []
    paths = sorted((folder / PENDING).glob(f"{short(str(lineage))}.*.json"))
    matches = (_NAME.fullmatch(path.name) for path in paths)
    return [CheckpointId(int(match[2]), int(match[3])) for match in matches if match]


def in_flight_of(
    tiers: list[Tier] | tuple[Tier, ...], lineage: LineageId
) -> list[CheckpointId]:
    """Return what `in_flight` does, for the agent of these tiers on this node."""
    try:
        folder = agent_folder([tier.spec for tier in tiers])
    except TypeError:  # A spec that is no plain data: no agent can have opened it.
        return []
    return in_flight(folder, lineage)


def _entries(folder: Path) -> list[Entry]:
    entries = []
    for path in folder.glob("*.json"):
        try:
            entries.append(Entry.of(json.loads(path.read_bytes())))
        except FileNotFoundError:  # It was carried out meanwhile.
            continue
        except (ValueError, CheckpointError):
            aside = folder.parent / f"unread-{path.name}"  # Of a newer version, maybe.
            _log.warning("%s cannot be read by this version: now it is %s.", path, aside)
            with contextlib.suppress(OSError):
                path.rename(aside)
    return sorted(entries, key=lambda entry: (entry.since, entry.id))
