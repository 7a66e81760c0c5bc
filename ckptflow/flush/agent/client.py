"""A task's side of an agent: a flusher that has it done.

It has the face of a `Flusher`. A thread talks to the agent, starts one if there is none, and
when it dies another, which takes up what is in the ledger; all that is not over yet is then
asked for again. Where no agent can do it (its folder is not safe, it does not see the
checkpoint, a tier is memory of this process) this process does it, as it would without one.
``tests/unit/test_agent_client.py``, ``tests/process/test_agent.py``.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    FlushError,
    FormatError,
    NotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
)
from ckptflow.flush.agent.folder import held, make_agent_folder, prune_lock_path
from ckptflow.flush.agent.ledger import Entry, Ledger, in_flight
from ckptflow.flush.agent.protocol import Message, OtherVersionError, receive, send
from ckptflow.flush.agent.starting import connected
from ckptflow.flush.flusher import Flusher, TierLock
from ckptflow.flush.options import Flushing
from ckptflow.flush.requests import FlushRequest
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store.descriptor import ensure_store, store_id
from ckptflow.tiers.tier import Tier

RESTARTS_MAX = 5  # Agents that may die in a row before anything gets done.
TAKE_S = 120.0  # How long an agent may take to note a request down.

_log = logging.getLogger("ckptflow")


@dataclass(slots=True)
class _Asked:
    """A request that is not over."""

    request: FlushRequest
    entry: Entry
    ready: bool = False  # Whether it is known which stores are meant.
    taken: bool = False  # Whether the agent has said that it is durable.


def _error_of(message: Message) -> FlushError | None:
    """Return the error that a message tells of, with the kind of its cause."""
    if (text := message.get("error")) is None:
        return None
    error = FlushError(str(text))
    causes = {one.kind: one for one in (TierError, TierUnavailable, TierFull, TierDenied)}
    if (kind := message.get("cause")) in causes:
        error.__cause__ = causes[kind](str(text))
    return error


class _TierLock:
    """A lock between threads of this process and between processes."""

    def __init__(self, path: Path) -> None:
        self._path, self._threads = path, threading.Lock()
        self._processes: AbstractContextManager[None] = nullcontext()

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock; return whether that came off within ``timeout`` seconds, if not -1."""
        ends_s = time.monotonic() + timeout

        def is_over() -> bool:
            return timeout >= 0 and time.monotonic() >= ends_s

        if not self._threads.acquire(timeout=timeout):
            return False
        self._processes = held(self._path, until=is_over)
        self._processes.__enter__()
        if is_over():  # Then it may be that others have it.
            self.release()
            return False
        return True

    def release(self) -> None:
        """Give it back."""
        self._processes.__exit__(None, None, None)
        self._threads.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


def open_flusher(
    tiers: Sequence[Tier],
    *,
    options: Flushing,
    after_copy: Callable[[FlushRequest], None],
) -> Flusher | AgentFlusher:
    """Return what copies the checkpoints of a task outward: this process, or the agent.

    Args:
        tiers: of the store, inner ones first.
        options: what copies may take, and whether the agent does them.
        after_copy: see `Flusher`; the agent prunes by the retention of the requests instead.
    """
    own = partial(Flusher, tiers, after_copy=after_copy, options=options)
    if not options.agent or len(tiers) < 2:
        return own()
    try:
        return AgentFlusher(tiers, options=options, own=own)
    except (ConfigError, TierError) as error:
        _log.warning("Checkpoints are copied by the task itself, without an agent: %s", error)
        return own()


class AgentFlusher:
    """Has checkpoints copied by the agent of this node.

    Args:
        tiers: of the store, inner ones first.
        options: what copies may take; the one who starts the agent decides for all.
        own: makes a flusher of this process, for what no agent can do.
    """

    def __init__(
        self, tiers: Sequence[Tier], *, options: Flushing, own: Callable[[], Flusher]
    ) -> None:
        self._tiers, self._options, self._make_own = tuple(tiers), options, own
        self._own: Flusher | None = None
        self._asked: dict[str, _Asked] = {}
        self._ids: dict[str, str] = {}  # Of the stores on our tiers, as far as known.
        self._looking: dict[str, list[_Asked]] = {}  # By target; asked for when it is known.
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closing = self._given_up = False
        self._changed = threading.Condition()
        self.folder: Path = make_agent_folder([tier.spec for tier in self._tiers])

    def submit(self, request: FlushRequest) -> None:
        """Ask for a copy; ``request.on_done`` is called when it is durable, or has failed."""
        retention = request.retention or Retention(newest=None)
        entry = Entry(
            request.lineage,
            request.id,
            request.target.name,
            retention,
            time.time(),
            elsewhere=tuple(request.kept_elsewhere.items()),
        )
        asked = _Asked(request, entry)
        with self._changed:
            if self._given_up:
                self._by_ourselves(asked)
                return
            self._asked[entry.name] = asked
            if request.target.name in self._ids:
                self._ask_soon(asked)
                return
            looking = self._looking.setdefault(request.target.name, [])
            looking.append(asked)
            if len(looking) == 1:  # Whoever saves does not wait for a tier that may hang.
                name = f"ckptflow-look-{request.target.name}"
                threading.Thread(
                    target=self._look, args=(request.target,), name=name, daemon=True
                ).start()

    def in_flight(self, lineage: LineageId) -> list[CheckpointId]:
        """Return the checkpoints of a lineage that still have to be copied, whoever asked."""
        own = self._own.in_flight(lineage) if self._own else []
        return [*in_flight(self.folder, lineage), *own]

    def tier_lock(self, lineage: LineageId, tier: Tier) -> TierLock:
        """Return what a save to a tier and a prune of it, here or by the agent, hold."""
        return _TierLock(prune_lock_path(self.folder, lineage, tier.name))

    def close(self) -> None:
        """Wait until the agent has taken everything; what it has taken goes on without us."""
        with self._changed:
            everything = self._changed.wait_for(
                lambda: all(one.taken for one in self._asked.values()), TAKE_S
            )
            if not everything:
                _log.warning("The agent has taken nothing for %.0f s; the task copies.", TAKE_S)
                self._give_up()
            self._closing = True
            self._changed.notify_all()
            left = len(self._asked)
            if not left:
                self._hang_up()
            elif self._connection is not None:  # Nobody passes failures on.
                self._leave(self._connection)
        if left:
            _log.info("%d copies are still on their way; the agent goes on with them.", left)
        elif self._thread is not None:
            self._thread.join()
        if self._own is not None:
            self._own.close()

    # --- the threads ---

    def _look(self, target: Tier) -> None:
        """Find out which stores we mean, then ask for what waits for that."""
        knows = False
        try:
            knows = self._knows_places(target)
        finally:
            with self._changed:
                for asked in self._looking.pop(target.name):
                    if self._asked.get(asked.entry.name) is not asked:
                        continue  # It was given up meanwhile.
                    if knows:
                        self._ask_soon(asked)
                    else:
                        del self._asked[asked.entry.name]
                        self._by_ourselves(asked)
                self._changed.notify_all()

    def _ask_soon(self, asked: _Asked) -> None:
        asked.ready = True
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="ckptflow-agent", daemon=True
            )
            self._thread.start()
        elif self._connection is not None:
            self._ask(self._connection, asked)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the boundary of this thread
            _log.error("Checkpoints are copied by the task itself: talking broke: %r", error)
            with self._changed:
                self._connection = None
            self._give_up()

    def _work(self) -> None:
        """Talk to the agent until everything is over, or no agent can be had."""
        failures = 0
        while failures <= RESTARTS_MAX:
            with self._changed:
                self._changed.wait_for(lambda: self._ready() or self._closing)
                if not self._asked:
                    return
            try:
                with connected(
                    self.folder, [tier.spec for tier in self._tiers], self._options
                ) as connection:
                    if self._converse(connection):
                        failures = 0
                    failures += 1
            except (TierError, OtherVersionError, OSError) as error:
                _log.warning("Checkpoints are copied by the task itself: %s", error)
                break
            finally:
                with self._changed:
                    self._connection = None
        self._give_up()

    def _converse(self, connection: socket.socket) -> bool:
        """Ask for all that is not over, and listen; tell whether anything came of it."""
        with self._changed:
            if self._closing and not self._asked:
                return False
            self._connection = connection
            if self._closing:
                self._leave(connection)
            for asked in self._ready():
                asked.taken = False
                self._ask(connection, asked)
        progress = False
        try:
            while (message := receive(connection)) is not None:
                progress = self._heard(message) or progress
        except OtherVersionError:
            raise
        except (OSError, FormatError):
            pass  # It is gone.
        return progress

    def _ready(self) -> list[_Asked]:
        return [asked for asked in self._asked.values() if asked.ready]

    def _leave(self, connection: socket.socket) -> None:
        """Say that failures are to be told to the end of the run, too."""
        with contextlib.suppress(OSError):
            send(connection, {"op": "leave"})

    def _ask(self, connection: socket.socket, asked: _Asked) -> None:
        """Send a request; if the agent is gone the thread notices, and asks the next one."""
        with contextlib.suppress(OSError):
            send(
                connection,
                {
                    "op": "flush",
                    "id": asked.entry.name,
                    "entry": asked.entry.as_json(),
                    "stores": dict(self._ids),
                },
            )

    def _heard(self, message: Message) -> bool:
        """Act on a message; tell whether it brings anything to its end."""
        if message.get("event") == "over":
            self._over(str(message.get("name")), _error_of(message))
            return True
        name = str(message.get("id"))
        with self._changed:
            asked = self._asked.get(name)
            if asked is None:
                return False
            if message.get("ok"):
                asked.taken = True
                self._changed.notify_all()
                return False
            del self._asked[name]
            why = message.get("message")
            _log.warning("%s is copied by the task itself: %s", asked.entry, why)
            self._by_ourselves(asked)
            self._changed.notify_all()
        return True

    def _over(self, name: str, error: FlushError | None) -> None:
        with self._changed:
            asked = self._asked.pop(name, None)
        if asked is not None:
            asked.request.on_done(error)
        with self._changed:
            self._changed.notify_all()
            if self._closing and not self._asked:
                self._hang_up()

    def _hang_up(self) -> None:
        """End the conversation; the thread then finds nothing left to do."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _give_up(self) -> None:
        """From now on do all by ourselves."""
        with self._changed:
            self._given_up = True
            left, self._asked = list(self._asked.values()), {}
            for asked in left:
                self._by_ourselves(asked)
            self._changed.notify_all()

    def _by_ourselves(self, asked: _Asked) -> None:
        if self._closing:
            # A flusher of ours would not be waited for; the request is in the ledger.
            error = f"{asked.entry}: no agent could be started again to go on with it."
            asked.request.on_done(FlushError(error))
            return
        with self._changed:
            if self._own is None:
                self._own = self._make_own()
        self._own.submit(asked.request)

    def _knows_places(self, target: Tier) -> bool:
        """Find out which stores our tiers hold, for the agent to compare with what it sees.

        The target, and those inner to it: an outer one may hang.
        """
        for tier in self._tiers:
            if tier.name in self._ids or (tier.level >= target.level and tier is not target):
                continue
            try:
                if tier is target:
                    ensure_store(tier)
                self._ids[tier.name] = store_id(tier)
            except NotFoundError:  # It will be one when something is put there.
                continue
            except CheckpointError as error:
                known = Ledger(self.folder).stores().get(tier.name)
                if known is not None:  # Others, with the same specs, have seen it before.
                    self._ids[tier.name] = known
                _log.warning("Tier %r could not be looked at: %s", tier.name, error)
        return target.name in self._ids
