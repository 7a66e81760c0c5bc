"""What a peer and its server say to each other over TCP, and how each knows the other.

Both hold the key of the store. The server opens with a nonce; the client answers with one of
its own and an HMAC over both; only when that is right does the server prove itself too. From
then on every frame carries an HMAC under a key of this session and this direction, over its
number and its length too: nothing can be replayed, left out, turned round or taken to another
connection. Whoever has not got the key gets nothing but 40 random bytes.

Values are authenticated, not encrypted: where others listen on the network, encrypt the packs.
``tests/unit/test_peer.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from typing_extensions import Buffer

from ckptflow.tiers.storekey import StoreKey

MAGIC = b"CKFPEER1"
NONCE_BYTES = 32
MAC_BYTES = 32
PROOF_TIMEOUT_S = 5.0
MESSAGE_BYTES_MAX = 64 * 1024  # Of a request or an answer.
DATA_BYTES_MAX = 1 << 20  # Of a value, in one frame.

_HEAD = struct.Struct("<BI")  # What it is, and how long its body is.
_NUMBER = struct.Struct("<Q")
_MESSAGE, _DATA = 1, 2


class PeerError(Exception):
    """The other side does not speak as one does who has the key. The connection is over.

    Never seen outside of the two: a peer raises `TierUnavailable`, its server notes it.
    """


class Session:
    """An authenticated connection. Not for several threads at once."""

    def __init__(self, connection: socket.socket, sending: bytes, receiving: bytes) -> None:
        self.connection = connection
        self._sending, self._receiving = sending, receiving
        self._sent = self._received = 0

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request or an answer."""
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MESSAGE_BYTES_MAX:
            raise PeerError(f"A message of {len(body)} bytes is too long.")
        self._send(_MESSAGE, body)

    def send_data(self, data: Buffer) -> None:
        """Send bytes of a value, in as many frames as it takes."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), DATA_BYTES_MAX):
            self._send(_DATA, view[start : start + DATA_BYTES_MAX])

    def receive(self) -> dict[str, Any]:
        """Return the next request or answer.

        Raises:
            PeerError: it is not authentic, too long or no JSON object.
            EOFError: the other side has closed.
        """
        body = bytearray(self._announced(_MESSAGE, MESSAGE_BYTES_MAX))
        self._body_into(memoryview(body), _MESSAGE)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise PeerError("A message is no JSON object.")
        return message

    def receive_data(self, target: memoryview) -> None:
        """Fill ``target`` with the bytes of the next frames, exactly.

        Nothing may be used before this returns: a frame is checked after it was read.

        Raises:
            PeerError: a frame is not authentic, or has other bytes than are due.
        """
        done = 0
        while done < len(target):
            done += self.receive_some(target[done:])

    def receive_some(self, target: memoryview) -> int:
        """Put the bytes of the next frame at the start of ``target``; return how many.

        Raises:
            PeerError: it is not authentic, empty or longer than ``target``.
        """
        size = self._announced(_DATA, min(DATA_BYTES_MAX, len(target)))
        if not size:
            raise PeerError("A frame of a value is empty.")
        self._body_into(target[:size], _DATA)
        return size

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _send(self, what: int, body: Buffer) -> None:
        head = _HEAD.pack(what, memoryview(body).nbytes)
        mac = _mac(self._sending, self._sent, head, body)
        self._sent += 1
        self.connection.sendall(head)
        self.connection.sendall(body)
        self.connection.sendall(mac)

    def _announced(self, expected: int, most_bytes: int) -> int:
        head = bytearray(_HEAD.size)
        receive_exactly(self.connection, memoryview(head))
        what, size = _HEAD.unpack(head)
        if what != expected or size > most_bytes:
            raise PeerError(f"A frame of kind {what} with {size} bytes came out of turn.")
        return int(size)

    def _body_into(self, target: memoryview, what: int) -> None:
        receive_exactly(self.connection, target)
        mac = bytearray(MAC_BYTES)
        receive_exactly(self.connection, memoryview(mac))
        head = _HEAD.pack(what, len(target))
        if not hmac.compare_digest(mac, _mac(self._receiving, self._received, head, target)):
            raise PeerError("A frame is not authentic.")
        self._received += 1


def greet(connection: socket.socket, key: StoreKey) -> Session:
    """Prove to a server that we have the key, let it prove the same, and return the session.

    Raises:
        PeerError: it has not got the key, or is no such server.
        EOFError: it closed: we have not got its key.
    """
    end = time.monotonic() + PROOF_TIMEOUT_S
    opening = bytearray(len(MAGIC) + NONCE_BYTES)
    receive_exactly(connection, memoryview(opening), until=end)
    if opening[: len(MAGIC)] != MAGIC:
        raise PeerError("What answers there is no peer of ckptflow.")
    own, theirs = os.urandom(NONCE_BYTES), bytes(opening[len(MAGIC) :])
    if hmac.compare_digest(own, theirs):
        raise PeerError("The server has repeated our nonce.")
    connection.sendall(own + _proof(key, b"client", theirs, own))
    proof = bytearray(MAC_BYTES)
    receive_exactly(connection, memoryview(proof), until=end)
    if not hmac.compare_digest(proof, _proof(key, b"server", theirs, own)):
        raise PeerError("The server has not got the key of the store.")
    to_server, to_client = _session_keys(key, theirs, own)
    return Session(connection, to_server, to_client)


def welcome(connection: socket.socket, key: StoreKey) -> Session:
    """Let a client prove that it has the key, then prove the same, and return the session.

    Raises:
        PeerError: it has not got the key. It was told nothing.
        EOFError: it closed.
    """
    own, end = os.urandom(NONCE_BYTES), time.monotonic() + PROOF_TIMEOUT_S
    connection.sendall(MAGIC + own)
    answer = bytearray(NONCE_BYTES + MAC_BYTES)
    receive_exactly(connection, memoryview(answer), until=end)
    theirs, proof = bytes(answer[:NONCE_BYTES]), bytes(answer[NONCE_BYTES:])
    if not hmac.compare_digest(proof, _proof(key, b"client", own, theirs)):
        raise PeerError("A client has not got the key of the store.")
    connection.sendall(_proof(key, b"server", own, theirs))
    to_server, to_client = _session_keys(key, own, theirs)
    return Session(connection, to_client, to_server)


def receive_exactly(
    connection: socket.socket, target: memoryview, *, until: float | None = None
) -> None:
    """Fill ``target`` from a connection, before the monotonic clock shows ``until``.

    Raises:
        EOFError: the other side closed before.
        OSError: the connection broke, or its time-out passed.
    """
    done = 0
    while done < len(target):
        if until is not None:  # Who sends a byte now and then does not hold a place for long.
            connection.settimeout(max(0.001, until - time.monotonic()))
        count = connection.recv_into(target[done:])
        if not count:
            raise EOFError("The other side has closed the connection.")
        done += count


def _proof(key: StoreKey, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    secret = key.derive(b"peer proof")
    return hmac.digest(secret, role + b"\0" + server_nonce + client_nonce, hashlib.sha256)


def _session_keys(
    key: StoreKey, server_nonce: bytes, client_nonce: bytes
) -> tuple[bytes, bytes]:
    """Return the keys of frames to the server and to the client."""
    both = server_nonce + client_nonce
    return key.derive(b"peer to server\0" + both), key.derive(b"peer to client\0" + both)


def _mac(key: bytes, number: int, head: bytes, body: Buffer) -> bytes:
    authentic = hmac.new(key, _NUMBER.pack(number) + head, hashlib.sha256)
    authentic.update(body)
    return authentic.digest()
