"""Serves a tier to those who have the key of the store.

A thread for each connection, of which there is a limit; every wait has a time-out, every size a
limit, and whatever does not make sense ends the connection. What a client may change can be
narrowed to one folder. ``tests/unit/test_peer.py`` and ``tests/process/test_peers.py``.
"""

from __future__ import annotations

import contextlib
import mmap
import selectors
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

from typing_extensions import Buffer

from ckptflow.errors import CheckpointError, ConfigError, TierDenied
from ckptflow.tiers.peer_wire import (
    DATA_BYTES_MAX,
    PROOF_TIMEOUT_S,
    PeerError,
    Session,
    welcome,
)
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier, check_key

CONNECTIONS_MAX = 64
IDLE_TIMEOUT_S = 600.0
ACCEPT_PAUSE_S = 0.05
VALUE_BYTES_MAX = 1 << 40
KEYS_PER_ANSWER_BYTES = 32 * 1024
IN_MEMORY_BYTES = 4 << 20  # What is larger waits in a file, until all of it is there.

_WHAT_ENDS_A_SESSION = (PeerError, OSError, EOFError)


class PeerServer:
    """A server in threads of this process, from its creation until `close`.

    Args:
        tier: what it serves.
        key: who has it may use the tier.
        host: address to listen on; the loopback unless said otherwise.
        port: 0 takes a free one.
        writable_below: folder in which clients may put and delete; ``""`` is all.
        spool: folder for values that are being received.
        note: told, in a sentence, of connections that were refused or ended badly.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(
        self,
        tier: Tier,
        key: StoreKey,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        writable_below: str = "",
        spool: Path | None = None,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._tier, self._key, self._spool, self._note = tier, key, spool, note
        self._writable = check_key(writable_below, prefix=True)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listening = socket.create_server(
                (host, port), family=family, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            raise ConfigError(f"Nothing can listen on {host}:{port}: {error}.") from None
        self._listening.setblocking(False)  # noqa: FBT003 - the name of the standard library.
        self._waking, self._woken = socket.socketpair()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="ckptflow-peers", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` as it is."""
        host, port = self._listening.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Stop listening, end all connections, and wait until their threads have ended."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._waking.send(b"x")
        self._thread.join()
        with self._lock:
            threads = list(self._open.items())
        for connection, _ in threads:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _, thread in threads:
            thread.join()
        for one in (self._listening, self._waking, self._woken):
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._listening, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._closing.is_set():
                ready.select()
                try:
                    connection, _ = self._listening.accept()
                except OSError:  # The client has gone, or this process has no file left.
                    self._closing.wait(ACCEPT_PAUSE_S)
                else:
                    self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="ckptflow-peer", daemon=True
        )
        with self._lock:
            if self._closing.is_set() or len(self._open) >= CONNECTIONS_MAX:
                self._note(f"A connection was refused: {len(self._open)} are open already.")
                connection.close()
                return
            self._open[connection] = thread
            try:
                thread.start()
            except RuntimeError as error:  # The process may have no more threads.
                self._note(f"A connection was refused: {error}")
                del self._open[connection]
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(PROOF_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = welcome(connection, self._key)
            connection.settimeout(IDLE_TIMEOUT_S)
            with contextlib.suppress(EOFError):
                while True:
                    self._answer(session, session.receive())
        except _WHAT_ENDS_A_SESSION as error:
            self._note(f"A connection was ended: {error}")
        finally:
            connection.close()
            with self._lock:
                self._open.pop(connection, None)

    # --- requests ---

    def _answer(self, session: Session, request: dict[str, Any]) -> None:
        do = self._REQUESTS.get(str(request.get("do")))
        if do is None:
            raise PeerError("A request names nothing that can be done.")
        try:
            do(self, session, request)
        except CheckpointError as error:
            session.send({"error": error.kind, "text": str(error)[:4000]})

    def _get(self, session: Session, request: dict[str, Any]) -> None:
        """Answer with the size of the value and of the range, and then the range."""
        key, start = _text(request, "key"), _number(request, "start")
        whole = self._tier.size(key)
        wanted = whole if request.get("size") is None else _number(request, "size")
        end = max(start, min(whole, start + wanted))
        session.send({"whole": whole, "size": end - start})
        buffer = bytearray(min(DATA_BYTES_MAX, end - start))
        for at in range(start, end, DATA_BYTES_MAX):
            part = memoryview(buffer)[: min(DATA_BYTES_MAX, end - at)]
            try:
                self._tier.read_into(key, part, start_bytes=at)
            except CheckpointError as error:  # Too late for an answer: a size was promised.
                raise PeerError(f"{key!r} could not be read to its end: {error}") from error
            session.send_data(part)

    def _size(self, session: Session, request: dict[str, Any]) -> None:
        session.send({"size": self._tier.size(_text(request, "key"))})

    def _put(self, session: Session, request: dict[str, Any]) -> None:
        key, size = _text(request, "key"), _number(request, "size")
        with self._received(session, size) as value:
            self._check_writable(key)
            self._tier.put(key, [value])
        session.send({"done": True})

    def _create(self, session: Session, request: dict[str, Any]) -> None:
        key, size = _text(request, "key"), _number(request, "size")
        if size > IN_MEMORY_BYTES:
            raise PeerError(f"A claim of {size} bytes is none.")
        value = bytearray(size)
        session.receive_data(memoryview(value))
        self._check_writable(key)
        self._tier.create(key, value)
        session.send({"done": True})

    def _delete(self, session: Session, request: dict[str, Any]) -> None:
        key = _text(request, "key")
        self._check_writable(key)
        self._tier.delete(key)
        session.send({"done": True})

    def _keys(self, session: Session, request: dict[str, Any]) -> None:
        _send_names(session, self._tier.iter_keys(_text(request, "prefix")))

    def _folders(self, session: Session, request: dict[str, Any]) -> None:
        _send_names(session, self._tier.iter_folders(_text(request, "prefix")))

    @contextlib.contextmanager
    def _received(self, session: Session, size: int) -> Iterator[Buffer]:
        """Receive a value: a short one in memory, a longer one in a file without a name."""
        if size <= IN_MEMORY_BYTES:
            value = bytearray(size)
            session.receive_data(memoryview(value))
            yield value
            return
        if size > VALUE_BYTES_MAX:
            raise PeerError(f"A value of {size} bytes is too long.")
        with tempfile.TemporaryFile(dir=self._spool, prefix="ckptflow-") as file:
            _receive_file(session, file, size)
            # It is not closed here: when the tier fails, the frames of its error still look
            # into it, and closing would raise over that error. It goes with them.
            yield mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def _check_writable(self, key: str) -> None:
        check_key(key)
        if self._writable and not key.startswith(f"{self._writable}/"):
            raise TierDenied(
                f"Tier {self._tier.name!r} takes changes from other nodes below "
                f"{self._writable!r} only, and {key!r} is not there."
            )

    _REQUESTS: ClassVar[dict[str, Callable[[PeerServer, Session, dict[str, Any]], None]]] = {
        "get": _get,
        "size": _size,
        "put": _put,
        "create": _create,
        "delete": _delete,
        "keys": _keys,
        "folders": _folders,
    }


def _receive_file(session: Session, file: IO[bytes], size: int) -> None:
    buffer = bytearray(DATA_BYTES_MAX)
    view = memoryview(buffer)
    while size:
        count = session.receive_some(view[: min(DATA_BYTES_MAX, size)])
        file.write(view[:count])
        size -= count
    file.flush()


def _send_names(session: Session, names: Iterator[str]) -> None:
    """Answer with lists of names, the last one marked."""
    some: list[str] = []
    size = 0
    for name in names:
        some.append(name)
        size += len(name) + 3
        if size >= KEYS_PER_ANSWER_BYTES:
            session.send({"names": some, "more": True})
            some, size = [], 0
    session.send({"names": some, "more": False})


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise PeerError(f"A request has no text {name!r}.")
    return value


def _number(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise PeerError(f"A request has no number {name!r}.")
    return value
