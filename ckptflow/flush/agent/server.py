"""The agent's side of the socket: who may talk, and what each may ask for.

A thread for each connection waits for messages, which costs nothing while none come. The agent
ends by itself when nothing is to be carried out and nobody is connected for a while.
``tests/process/test_agent.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from ckptflow.errors import CheckpointError, ConfigError, FormatError
from ckptflow.flush.agent.folder import SOCKET
from ckptflow.flush.agent.ledger import Entry
from ckptflow.flush.agent.protocol import Message, peer_uid, receive, send, with_name
from ckptflow.flush.agent.work import Work
from ckptflow.flush.options import Flushing
from ckptflow.tiers.tier import Dependent, Served, Tier

CONNECTIONS_MAX = 512
SERVING_IDLE_S = 86_400.0  # How long one stays at least whose bytes other nodes need.
LIST_MAX = 2000  # Rows of a list in one answer.

_SEND_S = 10  # A client that does not read for so long is given up.
_WAIT_MAX_S, _PAUSE_S = 3600.0, 0.5
_RECOVER_S = 30.0  # Between two tries to begin what is on file.
_log = logging.getLogger("ckptflow")


class Agent:
    """One agent, from listening to its end.

    Args:
        folder: its private folder.
        tiers: of its store, inner ones first.
        options: what copies may take, and how long it stays.
    """

    def __init__(self, folder: Path, tiers: Sequence[Tier], options: Flushing) -> None:
        self._folder, self._tiers, self._options = folder, tuple(tiers), options
        self._idle_s, self._began = options.idle_s, time.time()
        self._served: list[Served] = []
        self._work = Work(folder, tiers, options)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.settimeout(0)
        self._grace_s: float | None = None  # Set when it is to end.
        self._recovering: threading.Thread | None = None
        self._complete = False  # Whether all that is on file was begun.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def listen(self) -> None:
        """Make the socket; whoever holds the lock of the folder may replace an old one.

        Raises:
            ConfigError: a tier that other nodes depend on cannot be served as it is set up.
            TierError: or not now.
        """
        for tier in self._tiers:
            if isinstance(tier, Dependent):
                self._served.append(tier.serve(_log.warning))
                self._idle_s = max(self._idle_s, SERVING_IDLE_S)  # Others rely on it.
        (self._folder / SOCKET).unlink(missing_ok=True)
        with_name(self._folder, self._listener.bind)
        self._listener.listen(CONNECTIONS_MAX)
        self._listener.settimeout(0)

    def stop(self, grace_s: float) -> None:
        """Ask it to scavenge for ``grace_s`` at most, and end. Safe in a signal handler."""
        self._grace_s = grace_s
        with contextlib.suppress(OSError):  # Full, or closed: it has ended already.
            self._wake_writer.send(b"x")

    def serve(self) -> None:
        """Carry out requests until it is idle for long, or asked to end."""
        idle_since_s = time.monotonic()
        while self._grace_s is None:
            if not self._complete:
                self._begin_recovery()
            ready, _, _ = select.select(
                [self._listener, self._wake_reader], [], [], self._pause_s()
            )
            if self._wake_reader in ready:
                self._wake_reader.recv(4096)
            if self._listener in ready:
                self._accept()
            if self._is_idle() and self._complete:
                if not ready and time.monotonic() - idle_since_s >= self._idle_s:
                    break
            else:
                idle_since_s = time.monotonic()
        self._end()

    def _begin_recovery(self) -> None:
        """Begin what is on file, in a thread of its own: a tier may hang."""
        if self._recovering is None or not self._recovering.is_alive():
            self._recovering = threading.Thread(
                target=self._recover, name="ckptflow-recovery", daemon=True
            )
            self._recovering.start()

    def _recover(self) -> None:
        self._complete = self._work.recover()
        if self._complete:
            with contextlib.suppress(OSError):
                self._wake_writer.send(b"x")

    def _pause_s(self) -> float:
        """Return for how long to wait for a client before looking at the rest."""
        if not self._complete:
            return min(max(self._idle_s, _PAUSE_S), _RECOVER_S)
        return max(self._idle_s, _PAUSE_S)

    def _end(self) -> None:
        """Leave: nobody gets an answer any more, so nobody relies on one."""
        self._listener.close()
        (self._folder / SOCKET).unlink(missing_ok=True)
        if self._grace_s:
            report = self._work.scavenge(self._grace_s, go_on=False)
            for one in report.rescues:
                _log.info("scavenged: %s", one)
            for problem in report.problems:
                _log.warning("scavenging: %s", problem)
        elif not self._work.copying:
            self._work.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for served in self._served:
            served.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _is_idle(self) -> bool:
        return not self._connections and not self._work.busy

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # No more files, for instance.
            _log.warning("A client could not be served: %s", error)
            time.sleep(_PAUSE_S)
            return
        full = len(self._connections) >= CONNECTIONS_MAX
        if full or peer_uid(connection) != os.geteuid():
            connection.close()
            return
        connection.settimeout(None)
        limit = struct.pack("ll", _SEND_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with self._lock:
            self._connections.add(connection)
        threading.Thread(
            target=self._converse, args=(connection,), name="ckptflow-client", daemon=True
        ).start()

    def _converse(self, connection: socket.socket) -> None:
        """Answer one client until it goes."""
        client = _Client(connection)
        try:
            with contextlib.suppress(OSError):
                while (message := receive(connection)) is not None:
                    client.send(self._answer(message, client))
                    self._work.mark_reported(client.take_told())
                    if self._grace_s is not None:
                        break
        except FormatError as error:
            with contextlib.suppress(OSError):
                client.send(_refusal(error))
        finally:
            self._work.unfollow(client.tell)
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            with contextlib.suppress(OSError):  # So that it notices when it is idle.
                self._wake_writer.send(b"x")

    def _answer(self, message: Message, client: _Client) -> Message:
        answers: dict[str, Callable[[Message, _Client], Message]] = {
            "flush": self._flush,
            "status": self._status,
            "wait": self._wait,
            "scavenge": self._scavenge,
            "stop": self._stop,
            "leave": self._leave,
        }
        wanted = message.get("op")
        try:
            if wanted not in answers:
                raise ConfigError(f"An agent cannot {wanted!r:.100}.")
            return {"ok": True, "id": message.get("id"), **answers[wanted](message, client)}
        except (KeyError, TypeError, ValueError, CheckpointError) as error:
            return {**_refusal(error), "id": message.get("id")}

    def _flush(self, message: Message, client: _Client) -> Message:
        entry = Entry.of(message["entry"])
        stores = {str(name): str(one) for name, one in dict(message["stores"]).items()}
        self._work.take(entry, stores=stores, follower=client.tell)
        return {}

    def _status(self, _message: Message, _client: _Client) -> Message:
        return {
            "pid": os.getpid(),
            "since": self._began,
            "tiers": [tier.spec for tier in self._tiers],
            "options": asdict(self._options),
            "progress": [asdict(one) for one in self._work.progress()[:LIST_MAX]],
            "failures": [one.as_json() for one in self._work.failures()[-LIST_MAX:]],
            "consolidations": [asdict(one) for one in self._work.upkept()],
        }

    def _wait(self, message: Message, client: _Client) -> Message:
        wanted = {
            key: message[key]
            for key in ("run", "task", "step", "attempt", "target")
            if message.get(key) is not None
        }

        def is_meant(entry: Entry) -> bool:
            fields = entry.as_json()
            return all(fields[key] == value for key, value in wanted.items())

        timeout_s = min(float(message["timeout_s"]), _WAIT_MAX_S)
        pending, failed = self._work.wait(is_meant, timeout_s, awaited="step" in wanted)
        new = [entry for entry in failed if not entry.reported]
        client.told += new  # Marked when the answer has gone out.
        return {
            "pending": [entry.as_json() for entry in pending[:LIST_MAX]],
            "failed": [entry.as_json() for entry in failed[-LIST_MAX:]],
        }

    def _scavenge(self, message: Message, _client: _Client) -> Message:
        report = self._work.scavenge(float(message["deadline_s"]), go_on=True)
        return {"report": {**asdict(report), "rescues": [asdict(o) for o in report.rescues]}}

    def _leave(self, _message: Message, client: _Client) -> Message:
        client.listens = False
        return {}

    def _stop(self, message: Message, _client: _Client) -> Message:
        self.stop(float(message["grace_s"]))
        return {"pid": os.getpid()}


class _Client:
    """One connection; several threads may send on it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.listens = True  # Whether somebody still acts on what it hears.
        self.told: list[Entry] = []

    def take_told(self) -> list[Entry]:
        """Return the failures that the last answer told of, once."""
        told, self.told = self.told, []
        return told

    def send(self, message: Message) -> None:
        """Send one message; see `protocol.send`."""
        with self._lock:
            try:
                send(self._connection, message)
            except OSError:  # Maybe half of it went out: nothing can follow that.
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
                raise

    def tell(self, entry: Entry, error: CheckpointError | None) -> bool:
        """Tell that a copy is over; return whether it was heard."""
        cause = error.__cause__ if error else None
        kind = cause.kind if isinstance(cause, CheckpointError) else None
        text = str(error) if error else None
        try:
            self.send({"event": "over", "name": entry.name, "error": text, "cause": kind})
        except OSError:
            return False
        return self.listens


def _refusal(error: Exception) -> Message:
    kind = error.kind if isinstance(error, CheckpointError) else "config"
    return {"ok": False, "kind": kind, "message": str(error)}
