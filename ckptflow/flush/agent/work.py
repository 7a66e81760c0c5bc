"""What an agent does: take requests, carry them out, tell of them.

``tests/unit/test_agent_work.py`` with tiers that fail and wait, ``tests/process/test_agent.py``
with real processes that are killed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    CorruptionError,
    FencedError,
    FormatError,
    NotFoundError,
    TierError,
    TierUnavailable,
)
from ckptflow.flush.agent.folder import held, lease_path, prune_lock_path
from ckptflow.flush.agent.ledger import Entry, Ledger
from ckptflow.flush.agent.upkeep import Upkeep, Upkept
from ckptflow.flush.copying import GivenUp, Superseded, manifest_on
from ckptflow.flush.flusher import Flusher
from ckptflow.flush.options import Flushing
from ckptflow.flush.requests import Flight, FlushProgress, FlushRequest
from ckptflow.flush.scavenge import ScavengeReport, scavenge
from ckptflow.model import Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import store_id
from ckptflow.store.prune import prune
from ckptflow.tiers.tier import Tier

RETRY_S = 900.0  # For so long an agent tries a tier that does not answer.

Follower = Callable[[Entry, CheckpointError | None], bool]
"""Told of an entry that it has arrived, or why not; returns whether anybody heard it."""

_log = logging.getLogger("ckptflow")


class Work:
    """The copies of one agent.

    Args:
        folder: its private folder.
        tiers: of its store, inner ones first.
        options: what copies may take.
    """

    def __init__(self, folder: Path, tiers: Sequence[Tier], options: Flushing) -> None:
        self._folder, self._tiers = folder, tuple(tiers)
        # The process has stepped back as a whole.
        self._options = replace(options, retry_s=max(options.retry_s, RETRY_S), nice=0)
        self._ledger = Ledger(folder)
        self._entries: dict[str, Entry] = {}  # By name: all that is on its way or waits.
        self._followers: dict[str, list[Follower]] = {}
        self._stores = (
            self._ledger.stores()
        )  # By tier: the id of the store that we found there.
        self._paused = False
        self._changed = threading.Condition()
        self._upkeep = Upkeep(
            self._tiers,
            prune=self._prune,
            in_use=self._in_use,
            consolidates=options.consolidate,
            bandwidth_bytes_per_s=options.bandwidth_bytes_per_s,
        )
        self._flusher = Flusher(
            self._tiers, after_copy=self._arrived, options=self._options, lease=self._lease
        )

    @property
    def busy(self) -> bool:
        """Whether anything is to be carried out."""
        return self.copying or self._upkeep.busy

    @property
    def copying(self) -> bool:
        """Whether copies are on their way, or wait."""
        return bool(self._entries)

    def take(
        self,
        entry: Entry,
        *,
        stores: Mapping[str, str] | None = None,
        follower: Follower | None = None,
    ) -> None:
        """Take a request: when this returns, it is durable.

        Args:
            entry: the request.
            stores: by tier, the id of the store that the client finds there.
            follower: told when it is over.

        Raises:
            ConfigError: there is no such tier, or it is another place than the client means.
            NotFoundError: no tier that this process sees has the checkpoint.
            TierError: a tier does not answer, or the request cannot be written down.
        """
        self._check_places(stores or {})
        target, manifest = self._tier(entry.target), self._manifest(entry)
        if follower is not None:
            self._upkeep.used_by(entry.lineage, follower)
        with self._changed:
            is_new = entry.name not in self._entries
            if is_new:
                try:
                    self._ledger.add(entry)
                except OSError as error:
                    text = f"The agent cannot note down a request in {self._folder}: {error}."
                    raise TierUnavailable(text) from error
                self._entries[entry.name] = entry
            if follower is not None:
                self._followers.setdefault(entry.name, []).append(follower)
            if is_new and not self._paused:
                self._submit(entry, target, manifest)

    def recover(self) -> bool:
        """Carry out what the ledger has; tell whether all of it could be begun."""
        complete = True
        for entry in self._ledger.pending():
            if entry.name in self._entries:
                continue
            try:  # Not under the lock: a tier may hang.
                target, manifest = self._tier(entry.target), self._manifest(entry)
            except TierError as error:
                _log.warning("%s waits: %s", entry, error)
                complete = False
                continue
            except CheckpointError as error:
                self._note_failure(entry, error)
                continue
            with self._changed:
                if self._paused:  # Meanwhile. Whoever goes on begins it.
                    return False
                if entry.name not in self._entries and self._ledger.has(entry):
                    self._entries[entry.name] = entry
                    self._submit(entry, target, manifest)
        return complete

    def wait(
        self, is_meant: Callable[[Entry], bool], timeout_s: float, *, awaited: bool
    ) -> tuple[list[Entry], list[Entry]]:
        """Wait until nothing that is meant is on its way.

        Args:
            is_meant: tells it.
            timeout_s: for how long.
            awaited: whether these very checkpoints are wanted, none is to be skipped.

        Returns:
            What is still on its way, with what keeps it there; and what has failed.
        """

        def left() -> list[Entry]:
            there = {entry.name: entry for entry in self._ledger.pending()}
            return [one for one in {**there, **self._entries}.values() if is_meant(one)]

        def heard(_entry: Entry, _error: CheckpointError | None) -> bool:
            return True

        with self._changed:
            for entry in left() if awaited else ():
                self._followers.setdefault(entry.name, []).append(heard)
            self._changed.wait_for(lambda: not left(), timeout_s)
            pending = left()
            self.unfollow(heard)
        pending = [replace(entry, error=self._obstacle(entry)) for entry in pending]
        return pending, [entry for entry in self._ledger.failures() if is_meant(entry)]

    def _obstacle(self, entry: Entry) -> str:
        """Return why a copy that is on its way has not arrived, if that is known."""
        wanted = (str(entry.lineage), entry.id.step, entry.id.attempt, entry.target, "waiting")
        for one in self._flusher.progress():
            if (one.lineage, one.step, one.attempt, one.target, one.state) == wanted:
                return one.error or ""
        return ""

    def unfollow(self, follower: Follower) -> None:
        """Forget somebody who was told of entries."""
        with self._changed:
            for followers in self._followers.values():
                while follower in followers:
                    followers.remove(follower)
        self._upkeep.gone(follower)

    def mark_reported(self, entries: Sequence[Entry]) -> None:
        """Note that somebody was told of failures."""
        for entry in entries:
            self._ledger.mark_reported(entry)

    def progress(self) -> list[FlushProgress]:
        """Return how far everything is; see `Flusher.progress`."""
        return self._flusher.progress()

    def failures(self) -> list[Entry]:
        """Return what has failed, the oldest request first."""
        return self._ledger.failures()

    def upkept(self) -> list[Upkept]:
        """Return what came of consolidations; see `Upkeep.history`."""
        return self._upkeep.history()

    def scavenge(self, deadline_s: float, *, go_on: bool) -> ScavengeReport:
        """Give up the order of requests for that of `scavenge`.

        What has not arrived by then stays in the ledger: for this agent if it is to ``go_on``,
        or else for the next.
        """
        with self._changed:
            self._paused = True
        self._upkeep.pause()
        self._flusher.cancel()
        try:
            return scavenge(
                self._tiers, deadline_s, options=self._options, rates=self._flusher.rates()
            )
        finally:
            if go_on:
                with self._changed:
                    self._paused = False
                    self._entries.clear()
                self.recover()
                self._upkeep.go_on()

    def close(self) -> None:
        """End the threads, when no copies are on their way any more."""
        with self._changed:
            self._paused = True
        self._flusher.close()
        self._upkeep.close()

    def _submit(self, entry: Entry, target: Tier, manifest: Manifest) -> None:
        self._flusher.submit(
            FlushRequest(
                manifest,
                target,
                partial(self._over, entry, manifest),
                entry.retention,
                lambda: bool(self._followers.get(entry.name)),
                dict(entry.elsewhere),
            )
        )

    def _over(self, entry: Entry, manifest: Manifest, error: CheckpointError | None) -> None:
        """Note that a copy has arrived, or failed, and tell who follows it."""
        if isinstance(error, GivenUp):
            return  # For the sake of others; it stays in the ledger.
        with self._changed:
            if isinstance(error, Superseded):
                if self._followers.get(entry.name):  # Somebody asked for it just now.
                    self._submit(entry, self._tier(entry.target), manifest)
                    return
                error = None
            followers = self._followers.pop(entry.name, [])
            self._entries.pop(entry.name, None)
            if error is None:
                self._note_done(entry)
            else:
                _log.error("%s", error)
                self._note_failure(entry, error)
            self._changed.notify_all()
        self._upkeep.look()
        heard = [follower(entry, error) for follower in followers]
        if error is not None and any(heard):
            try:
                self._ledger.mark_reported(replace(entry, error=str(error)))
            except OSError as problem:  # It is told once more.
                _log.error("That %s failed cannot be noted: %s", entry, problem)

    def _note_done(self, entry: Entry) -> None:
        try:
            self._ledger.done(entry)
        except OSError as error:  # The next agent finds that it has arrived.
            _log.error("That %s has arrived cannot be noted: %s", entry, error)

    def _note_failure(self, entry: Entry, failure: CheckpointError) -> None:
        try:
            self._ledger.fail(entry, str(failure), reported=False)
        except OSError as error:  # It stays on file: the next agent tries it.
            _log.error("That %s failed cannot be noted: %s", entry, error)

    def _arrived(self, request: FlushRequest) -> None:
        """Make room where a checkpoint has arrived, and have it looked after."""
        if request.retention is not None:
            lineage = Lineage(self._tiers, request.lineage)
            self._prune(lineage, request.id.attempt, request.target, request.retention)
        self._upkeep.arrived(request)

    def _prune(self, lineage: Lineage, attempt: int, tier: Tier, retention: Retention) -> None:
        """Prune a tier, unless the attempt was overtaken."""
        if retention.keeps_all:
            return
        entries = list(self._entries.values())
        in_flight = {one.id for one in entries if one.lineage == lineage.id}
        try:
            lineage.check_fence(attempt)
            with held(prune_lock_path(self._folder, lineage.id, tier.name)):
                prune(lineage, tier, retention, in_flight=in_flight)
        except FencedError:
            return  # Whoever has taken over knows what is needed, and prunes.
        except (CheckpointError, OSError) as error:
            # The checkpoint is safe; old ones stay a little longer.
            _log.warning("Pruning tier %r failed: %s", tier.name, error)

    def _in_use(self) -> set[str]:
        """Return the tiers that something is on its way to."""
        return {one.target for one in list(self._entries.values())}

    def _lease(self, flight: Flight) -> AbstractContextManager[None]:
        request = flight.request
        path = lease_path(self._folder, request.lineage, request.id, request.target.name)
        return held(path, pause=flight.cancelled.wait, until=flight.cancelled.is_set)

    def _tier(self, name: str) -> Tier:
        for tier in self._tiers:
            if tier.name == name:
                return tier
        raise ConfigError(f"The agent has no tier {name!r}.")

    def _check_places(self, stores: Mapping[str, str]) -> None:
        """Raise unless the tiers are the places that the client means by them.

        What is memory of the client's process, say, is another place here.
        """
        for name, expected in stores.items():
            if self._stores.get(name) == expected:
                continue  # So a tier that does not answer now is known by what it was.
            if store_id(self._tier(name)) != expected:
                raise ConfigError(f"Tier {name!r} is another place for the agent.")
            self._stores[name] = expected
            self._ledger.note_stores(self._stores)

    def _manifest(self, entry: Entry) -> Manifest:
        """Read the manifest from the first tier that has it, other than the target."""
        failures: list[CheckpointError] = []
        for tier in self._tiers:
            try:
                return manifest_on(tier, entry.lineage, entry.id)
            except (NotFoundError, CorruptionError, FormatError, TierError) as error:
                failures.append(error)
        unavailable = [error for error in failures if isinstance(error, TierError)]
        if unavailable:
            raise unavailable[0]
        raise NotFoundError(f"The agent finds {entry.lineage} {entry.id} on no tier.")
