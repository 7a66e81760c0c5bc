"""How ranks and their steward talk: frames over TCP, between two who both know a secret.

A frame is two lengths, four and eight bytes big-endian, then one JSON object and some bytes:
functions, results and exceptions of tasks travel in those, as they do with Parsl. A rank
connects, the steward sends a number that was never used, and each proves to the other that it
knows the secret (HMAC-SHA-256 over the other's number). Until then nothing that is said counts.

The secret is made for one launch and lives in the environment of its processes; it is in no
command line and no file but a private one. ``tests/unit/test_ranks_wire.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptflow.errors import ConfigError, FormatError, RankLost

STEWARD = "CKPTFLOW_STEWARD"  # The variable that tells ranks where their steward is.
VERSION = 1
JSON_BYTES_MAX = 4 << 20
BYTES_MAX = 4 << 30
CONNECT_S = 20.0

HEAD = struct.Struct(">IQ")
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a steward listens, and the secret of its launch.

    Attributes:
        hosts: names or addresses of its node; one of them is seen from where a rank is.
        port: of all of them.
        secret: known to who belongs to the launch.
    """

    hosts: tuple[str, ...]
    port: int
    secret: str

    def as_text(self) -> str:
        """Return it as the value of `STEWARD`."""
        return f"{self.secret}@{self.port}@{','.join(self.hosts)}"

    @staticmethod
    def of(text: str) -> Whereabouts:
        """Return what `as_text` made text of.

        Raises:
            ConfigError: it is something else.
        """
        secret, port, hosts = [*text.split("@", 2), "", ""][:3]
        if not secret or not port.isdecimal() or not hosts:
            raise ConfigError(f"{STEWARD} was not set by ckptflow; leave it alone.")
        return Whereabouts(tuple(hosts.split(",")), int(port), secret)

    def __repr__(self) -> str:
        return f"<steward on {self.hosts}, port {self.port}>"


def frame(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return a message as it goes over the wire."""
    text = json.dumps(message).encode()
    return HEAD.pack(len(text), len(data)) + text + data


def sizes(head: bytes, *, data_bytes_max: int = BYTES_MAX) -> tuple[int, int]:
    """Return the two lengths of a frame.

    Raises:
        FormatError: nobody who speaks this protocol sends such a frame.
    """
    text_bytes, data_bytes = HEAD.unpack(head)
    if text_bytes > JSON_BYTES_MAX or data_bytes > data_bytes_max:
        raise FormatError(
            f"A frame of {text_bytes} and {data_bytes} bytes; at most {JSON_BYTES_MAX} and "
            f"{data_bytes_max} can be."
        )
    return text_bytes, data_bytes


def parsed(text: bytes) -> Message:
    """Return the JSON object of a frame.

    Raises:
        FormatError: it is none.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"A frame without a JSON object: {error}.") from error
    if not isinstance(message, dict):
        raise FormatError(f"A frame with {type(message).__name__} in the place of an object.")
    return message


def send(connection: socket.socket, message: Mapping[str, Any], data: bytes = b"") -> None:
    """Send one message.

    Raises:
        OSError: the other end is gone.
    """
    connection.sendall(frame(message, data))


def receive(connection: socket.socket) -> tuple[Message, bytes] | None:
    """Return the next message, or ``None`` when the other end is gone.

    Raises:
        FormatError: what came is no message.
    """
    head = _read(connection, HEAD.size)
    if head is None:
        return None
    text_bytes, data_bytes = sizes(head)
    text, data = _read(connection, text_bytes), _read(connection, data_bytes)
    return None if text is None or data is None else (parsed(text), data)


def _read(connection: socket.socket, size_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < size_bytes:
        try:
            piece = connection.recv(min(size_bytes - len(data), 1 << 20))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def nonce() -> str:
    """Return a number that was never used."""
    return secrets.token_hex(16)


def proof(secret: str, who: str, number: object) -> str:
    """Return what proves to somebody that ``who`` knows the secret."""
    return hmac.new(secret.encode(), f"{who} {number}".encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, secret: str, who: str, number: object) -> bool:
    """Tell whether somebody has proven it."""
    return isinstance(given, str) and hmac.compare_digest(given, proof(secret, who, number))


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice, within a minute, that the node at the other end is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6)):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def connect(
    where: Whereabouts, hello: Mapping[str, Any]
) -> tuple[socket.socket, Message, bytes]:
    """Connect a rank to its steward; return the connection, and what it is welcomed with.

    Raises:
        RankLost: the steward is not to be found, or ends the launch.
        ConfigError: it refuses this rank.
    """
    failures: list[str] = []
    for host in where.hosts:
        try:
            connection = socket.create_connection((host, where.port), timeout=CONNECT_S)
        except OSError as error:
            failures.append(f"{host}: {error}")
            continue
        try:
            welcome = _introduce(connection, where.secret, hello)
        except BaseException:
            connection.close()
            raise
        if welcome is not None:
            connection.settimeout(None)
            keep_alive(connection)
            return connection, *welcome
        connection.close()
        failures.append(f"{host}: somebody else is there")
    raise RankLost(
        f"The worker that has started this rank cannot be reached on port {where.port}: "
        f"{'; '.join(failures)}. Nodes have to see each other's ports."
    )


def _introduce(
    connection: socket.socket, secret: str, hello: Mapping[str, Any]
) -> tuple[Message, bytes] | None:
    """Return what a steward answers; ``None`` if who listens there is another one."""
    first = receive(connection)
    if first is None or first[0].get("version") != VERSION:
        return None
    mine = nonce()
    proven = proof(secret, "rank", first[0].get("nonce"))
    send(connection, {**hello, "version": VERSION, "proof": proven, "nonce": mine})
    welcome = receive(connection)
    if welcome is None or not is_proof(welcome[0].get("proof"), secret, "steward", mine):
        return None
    if (refusal := welcome[0].get("refused")) is not None:
        raise ConfigError(str(refusal))
    return welcome
