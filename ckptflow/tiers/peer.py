"""A tier whose bytes lie with the agent of another node, reached over TCP.

Both sides prove that they have the key of the store before anything is said, see
`ckptflow.tiers.peer_wire`. Connections are kept and used again, a few at once; one that broke
is replaced. Every wait has a time-out, so a node that went down costs seconds and is then a
`TierUnavailable`. Conformance: ``tests/conformance/test_peer_tier.py``.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from typing_extensions import Buffer

from ckptflow.errors import (
    AlreadyExists,
    CheckpointError,
    ConfigError,
    CorruptionError,
    NotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers.peer_wire import PeerError, Session, greet
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE, StoreKey
from ckptflow.tiers.tier import check_key

_T = TypeVar("_T")

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 120.0
CONNECTIONS_MAX = 4
NAMES_MAX = 10_000_000
VALUE_BYTES_MAX = 1 << 40

_ERRORS: dict[str, type[CheckpointError]] = {
    one.kind: one
    for one in (
        AlreadyExists,
        ConfigError,
        CorruptionError,
        NotFoundError,
        TierDenied,
        TierError,
        TierFull,
        TierUnavailable,
    )
}


class PeerTier:
    """The tier that a `ckptflow.tiers.peer_server.PeerServer` serves.

    Args:
        address: ``host:port``.
        key: of the store.
        name: used in messages.
        level: 1 for another node's own disk.
        key_file: where another process finds the key; from the environment if ``None``.
    """

    def __init__(
        self,
        address: str,
        key: StoreKey,
        *,
        name: str = "peer",
        level: int = 1,
        key_file: str | None = None,
    ) -> None:
        self._host, self._port = _parse(address)
        self._key, self._name, self._level, self._key_file = key, name, level, key_file
        self._begin()

    def _begin(self) -> None:
        self._pid, self._idle = os.getpid(), list[Session]()
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def __repr__(self) -> str:
        return f"PeerTier({self.address!r}, name={self._name!r}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> PeerTier:
        """See `ckptflow.tiers.opening.Opens`."""
        key_file = spec.get("peer_key_file") or spec.get("key_file")
        key_file = str(Path(key_file).expanduser().absolute()) if key_file else None
        key = StoreKey.from_file(key_file) if key_file else StoreKey.from_environment()
        if key is None:
            raise ConfigError(
                f"Tier {spec['name']!r} needs the key of its store: give it a peer_key_file, "
                f"or set {KEY_FILE_VARIABLE}."
            )
        return cls(
            spec["address"], key, name=spec["name"], level=spec["level"], key_file=key_file
        )

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`: ``peer://host:port``."""
        address = urlsplit(url).netloc
        _parse(address)
        return {"kind": "peer", "name": "peer", "level": 1, "address": address}

    @property
    def address(self) -> str:
        """``host:port``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def name(self) -> str:
        """Name used in messages."""
        return self._name

    @property
    def level(self) -> int:
        """Survival class of what is served."""
        return self._level

    @property
    def can_create(self) -> bool:
        """The other node's tier decides, if it can."""
        return True

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`; it names the file of the key."""
        spec = {
            "kind": "peer",
            "name": self._name,
            "level": self._level,
            "address": self.address,
        }
        return spec | ({"peer_key_file": self._key_file} if self._key_file else {})

    def close(self) -> None:
        """Close the connections that are not in use. The tier can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        check_key(key)
        views = [memoryview(part).cast("B") for part in parts]
        self._send_value({"do": "put", "key": key, "size": sum(map(len, views))}, views)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        check_key(key)
        view = memoryview(value).cast("B")
        self._send_value({"do": "create", "key": key, "size": len(view)}, [view])

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        check_key(key)
        request = {"do": "get", "key": key, "start": start_bytes, "size": size_bytes}

        def talk(session: Session) -> bytes:
            size = _number(self._asked(session, request), "size")
            if size_bytes is not None and size > size_bytes:
                raise PeerError(
                    f"{size} bytes are announced where {size_bytes} were asked for."
                )
            value = bytearray(size)
            session.receive_data(memoryview(value))
            return bytes(value)

        return self._with_session(talk)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`. The bytes go straight into ``target``."""
        check_key(key)
        view = memoryview(target).cast("B")
        request = {"do": "get", "key": key, "start": start_bytes, "size": len(view)}

        def talk(session: Session) -> tuple[int, int]:
            answer = self._asked(session, request)
            size = _number(answer, "size")
            if size > len(view):
                raise PeerError(f"{size} bytes are announced where {len(view)} were asked for.")
            session.receive_data(view[:size])
            return size, _number(answer, "whole")

        size, whole = self._with_session(talk)
        if size < len(view):
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {whole} bytes; {len(view)} bytes "
                f"were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        request = {"do": "size", "key": check_key(key)}
        return self._with_session(
            lambda session: _number(self._asked(session, request), "size")
        )

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        yield from self._names("keys", prefix)

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        yield from self._names("folders", prefix)

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        request = {"do": "delete", "key": check_key(key)}
        self._with_session(lambda session: self._asked(session, request))

    # --- sessions ---

    def _names(self, do: str, prefix: str) -> list[str]:
        request = {"do": do, "prefix": check_key(prefix, prefix=True)}

        def talk(session: Session) -> list[str]:
            answer, names = self._asked(session, request), list[str]()
            while True:
                some = answer.get("names")
                if not isinstance(some, list) or len(names) > NAMES_MAX:
                    raise PeerError("A listing is no list of names, or has no end.")
                names += [str(name) for name in some]
                if not answer.get("more"):
                    return names
                answer = session.receive()

        return self._with_session(talk)

    def _send_value(self, request: Mapping[str, Any], views: Sequence[memoryview]) -> None:
        def talk(session: Session) -> None:
            session.send(request)
            for view in views:
                session.send_data(view)
            self._answer(session)

        self._with_session(talk)

    def _asked(self, session: Session, request: Mapping[str, Any]) -> dict[str, Any]:
        session.send(request)
        return self._answer(session)

    def _answer(self, session: Session) -> dict[str, Any]:
        answer = session.receive()
        if "error" in answer:
            failed = _ERRORS.get(str(answer["error"]), TierError)
            raise _Refused(failed(f"Tier {self._name!r}: {answer.get('text')}"))
        return answer

    def _with_session(self, talk: Callable[[Session], _T]) -> _T:
        if self._pid != os.getpid():  # Forked: these connections are our parent's.
            for session in self._idle:  # That ends our hold on them, and nothing of theirs.
                session.connection.close()
            self._begin()
        with self._slots:
            session = self._usable_session()
            try:
                result = talk(session)
            except _Refused as refused:
                self._give_back(session)
                raise refused.error from None
            except (PeerError, OSError, EOFError) as error:
                session.close()
                raise TierUnavailable(
                    f"Tier {self._name!r} at {self.address} did not go through with it: {error}"
                ) from error
            except BaseException:
                session.close()
                raise
            self._give_back(session)
            return result

    def _usable_session(self) -> Session:
        with self._lock:
            while self._idle:
                session = self._idle.pop()
                waiting = select.poll()  # `select` cannot watch descriptors from 1024 on.
                waiting.register(session.connection, select.POLLIN)
                if not waiting.poll(0):
                    return session
                session.close()  # The server has closed it, or says what nobody asked for.
        connection = None
        try:
            address = (self._host, self._port)
            connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = greet(connection, self._key)
            connection.settimeout(ANSWER_TIMEOUT_S)
            return session
        except (OSError, EOFError, PeerError, UnicodeError) as error:  # The last of names.
            if connection is not None:
                connection.close()
            raise TierUnavailable(
                f"Tier {self._name!r} at {self.address} does not answer, or not to this key "
                f"({self._key.key_id}): {error}"
            ) from error

    def _give_back(self, session: Session) -> None:
        with self._lock:
            self._idle.append(session)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.close()


class _Refused(Exception):
    """The server answered with an error; the session goes on."""

    def __init__(self, error: CheckpointError) -> None:
        self.error = error
        super().__init__(str(error))


def _parse(address: str) -> tuple[str, int]:
    shown = address if "@" not in address and "?" not in address else "…"  # Secrets.
    wrong = ConfigError(f"{shown!r} is no address of a peer: write host:port.")
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not host or not port or parts.username is not None or parts.path or parts.query:
        raise wrong
    return host, port


def _number(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if type(value) is not int or not 0 <= value <= VALUE_BYTES_MAX:
        raise PeerError(f"An answer has no number {name!r}.")
    return value
