"""How a client and an agent talk: frames of JSON over a socket of this user.

A frame is its length, four bytes big-endian, and so many bytes of one JSON object. Every one of
a client names the version of the protocol and what it wants; the agent answers each, and tells
besides what becomes of the copies that this client has asked for. Who is at the other end is
known from the kernel (``SO_PEERCRED``, see unix(7)). ``tests/unit/test_agent_protocol.py``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptflow.errors import FormatError, TierDenied, TierUnavailable
from ckptflow.flush.agent.folder import SOCKET, check_private

VERSION = 1
FRAME_BYTES_MAX = 4 << 20

_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid.

Message = dict[str, Any]


class OtherVersionError(FormatError):
    """Who is at the other end speaks another version of the protocol."""


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message.

    Raises:
        OSError: the other end is gone.
    """
    data = json.dumps({"version": VERSION, **message}).encode()
    assert len(data) <= FRAME_BYTES_MAX, "lists in messages are limited by who makes them"
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Message | None:
    """Return the next message, or ``None`` when the other end has closed.

    Raises:
        FormatError: what came is no message.
        OtherVersionError: it is one of another version.
        OSError: the other end is gone.
    """
    head = _read(connection, _LENGTH.size)
    if head is None:
        return None
    (size_bytes,) = _LENGTH.unpack(head)
    if size_bytes > FRAME_BYTES_MAX:
        raise FormatError(f"A message of {size_bytes} bytes; at most {FRAME_BYTES_MAX} can be.")
    data = _read(connection, size_bytes)
    if data is None:
        return None
    try:
        message = json.loads(data)
    except ValueError as error:
        raise FormatError(f"A message is no JSON: {error}.") from error
    if not isinstance(message, dict) or "version" not in message:
        raise FormatError(f"A message is not of version {VERSION} of the protocol.")
    if (version := message["version"]) != VERSION:
        raise OtherVersionError(
            f"A message is not of version {VERSION} of the protocol but of {version!r:.20}."
        )
    return message


def _read(connection: socket.socket, size_bytes: int) -> bytes | None:
    """Return so many bytes, or ``None`` if the other end closes before."""
    data = bytearray()
    while len(data) < size_bytes:
        piece = connection.recv(min(size_bytes - len(data), 1 << 16))
        if not piece:
            return None
        data += piece
    return bytes(data)


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end."""
    size = _CREDENTIALS.size
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(_CREDENTIALS.unpack(data)[1])


def connect(folder: Path) -> socket.socket:
    """Return a connection to the agent of a folder.

    Raises:
        TierUnavailable: there is none.
        TierDenied: the folder, or the one who listens there, is somebody else's.
    """
    if not folder.exists():
        raise TierUnavailable(f"There is no agent in {folder}.")
    check_private(folder)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with_name(folder, connection.connect)
        if (uid := peer_uid(connection)) != os.geteuid():
            raise TierDenied(f"The agent in {folder} is one of user {uid}.")
    except OSError as error:
        connection.close()
        raise TierUnavailable(f"No agent answers in {folder}: {error}.") from error
    except BaseException:
        connection.close()
        raise
    return connection


def with_name(folder: Path, use: Any) -> None:
    """Call ``use`` with a name of the socket in ``folder`` that is short enough for one.

    A name of a socket has 107 characters at most, and a folder may be longer.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
