"""The bytes of a sealed object: a head, and segments with tags that nobody else can make.

An object is cut into segments of 256 KiB, so that a part of it can be read and checked alone.
A tag binds its segment to the name of the object, to its size, and to the number of the segment
(as the STREAM construction does: Hoang, Reyhanitabar, Rogaway, Vizár, CRYPTO 2015), so that
segments cannot be swapped, left out, or taken from another object. Every object has a key
of its own, derived from the store's key and 16 random bytes, so counters are safe nonces.

"Sealed objects" in ``docs/reference/format-v1.md``; ``tests/unit/test_sealing.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from typing_extensions import Buffer

from ckptflow.errors import ConfigError, ForgedError, TierDenied
from ckptflow.tiers.storekey import StoreKey
from ckptflow.units import KIB

MAGIC = b"CKFSEAL1"
SEGMENT_BYTES = 256 * KIB
TAG_BYTES = 16

_HEAD = struct.Struct("<8sB7s8s16sQ")
HEAD_BYTES = _HEAD.size
_ZERO = bytes(7)


class Mode(IntEnum):
    """What sealing does to the bytes."""

    AUTHENTICATED = 1  # They stay as they are; the tags are HMAC-SHA256, cut to 16 bytes.
    ENCRYPTED = 2  # AES-256-GCM.


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the segments."""

    mode: Mode
    key_id: bytes
    salt: bytes
    size_bytes: int  # Of the plain bytes.

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HEAD.pack(MAGIC, self.mode, _ZERO, self.key_id, self.salt, self.size_bytes)

    @property
    def segment_count(self) -> int:
        """Number of segments; no bytes are one empty segment."""
        return max(1, -(-self.size_bytes // SEGMENT_BYTES))


def new_head(key: StoreKey, mode: Mode, size_bytes: int) -> Head:
    """Return the head of an object that is about to be stored."""
    return Head(mode, bytes.fromhex(key.key_id), secrets.token_bytes(16), size_bytes)


def read_head(data: bytes, key: StoreKey, *, where: str) -> Head:
    """Read a head.

    Raises:
        ForgedError: it is none.
        TierDenied: the object is sealed with another key.
    """
    if len(data) < HEAD_BYTES or data[:8] != MAGIC:
        raise ForgedError(
            f"{where} is not sealed: it was stored without a key, or somebody else put it "
            f"there."
        )
    _, mode, zero, key_id, salt, size_bytes = _HEAD.unpack_from(data)
    if zero != _ZERO or mode not in set(Mode):
        raise ForgedError(f"{where} is sealed in a way that this version does not know.")
    if key_id.hex() != key.key_id:
        raise TierDenied(
            f"{where} is sealed with the key {key_id.hex()}, not with {key.key_id}. Give "
            f"the key that the store was made with."
        )
    return Head(Mode(mode), key_id, salt, size_bytes)


def stored_bytes(size_bytes: int) -> int:
    """Return how many bytes an object of ``size_bytes`` takes when it is sealed."""
    return HEAD_BYTES + size_bytes + TAG_BYTES * max(1, -(-size_bytes // SEGMENT_BYTES))


def plain_bytes(stored: int, *, where: str) -> int:
    """Undo `stored_bytes`.

    Raises:
        ForgedError: no sealed object takes so many bytes.
    """
    segments = max(1, -(-(stored - HEAD_BYTES) // (SEGMENT_BYTES + TAG_BYTES)))
    size_bytes = stored - HEAD_BYTES - TAG_BYTES * segments
    if size_bytes < 0 or stored_bytes(size_bytes) != stored:
        raise ForgedError(f"{where} has {stored} bytes, which no sealed object has.")
    return size_bytes


def segments_start(number: int) -> int:
    """Return where segment ``number`` begins in the stored object."""
    return HEAD_BYTES + number * (SEGMENT_BYTES + TAG_BYTES)


class Sealed:
    """The seal of one object: makes its segments, and opens them.

    Args:
        head: of the object.
        key: of the store.
        name: key of the object on its tier, which the tags are bound to.

    Raises:
        ConfigError: the object is encrypted, and what that takes is not installed.
    """

    def __init__(self, head: Head, key: StoreKey, name: str) -> None:
        self._head, self._name = head, name
        text = name.encode()
        self._bound = head.encode() + struct.pack("<H", len(text)) + text
        own_key = key.derive(b"sealed object %d " % head.mode + head.salt)
        self._own_key = own_key if head.mode is Mode.AUTHENTICATED else b""
        self._aes: Any = _aes(own_key) if head.mode is Mode.ENCRYPTED else None

    def seal(self, parts: Sequence[Buffer]) -> Iterator[Buffer]:
        """Yield the stored bytes of the object whose plain bytes are ``parts``."""
        yield self._head.encode()
        count = 0
        for number, pieces in enumerate(_segments(parts)):
            if self._aes is not None:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                yield self._aes.encrypt(_nonce(number), data, self._bound)
            else:
                yield from pieces
                yield self._tag(number, pieces)
            count += 1
        assert count == self._head.segment_count, "the head was made for these parts"

    def open(self, number: int, stored: memoryview) -> Buffer:
        """Return the plain bytes of segment ``number``, whose stored bytes are given.

        Raises:
            ForgedError: they are not what was sealed there.
        """
        if len(stored) == self._plain_size(number) + TAG_BYTES:
            if self._aes is not None:
                return self._decrypt(number, stored)
            data = stored[:-TAG_BYTES]
            if hmac.compare_digest(self._tag(number, [data]), stored[-TAG_BYTES:]):
                return data
        raise self._forged(number)

    def _plain_size(self, number: int) -> int:
        left = self._head.size_bytes - number * SEGMENT_BYTES
        return min(left, SEGMENT_BYTES)

    def _decrypt(self, number: int, stored: memoryview) -> Buffer:
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._aes.decrypt(_nonce(number), stored, self._bound)
        except InvalidTag:
            raise self._forged(number) from None
        return plain

    def _tag(self, number: int, pieces: Sequence[memoryview]) -> bytes:
        tag = hmac.new(self._own_key, _nonce(number) + self._bound, hashlib.sha256)
        for piece in pieces:
            tag.update(piece)
        return tag.digest()[:TAG_BYTES]

    def _forged(self, number: int) -> ForgedError:
        return ForgedError(
            f"Segment {number} of {self._name!r} is not what was sealed there: the object was "
            f"changed, cut short, or moved."
        )


def _segments(parts: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """Yield the pieces of each segment, without joining them."""
    pieces: list[memoryview] = []
    room, any_yet = SEGMENT_BYTES, False
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            if not room:
                yield pieces
                pieces, room, any_yet = [], SEGMENT_BYTES, True
            pieces.append(view[:room])
            view = view[len(pieces[-1]) :]
            room -= len(pieces[-1])
    if pieces or not any_yet:
        yield pieces


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def check_cipher() -> None:
    """Raise a `ConfigError` unless what encrypted objects take is installed."""
    _aes(bytes(32))


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "Encrypted stores need a package: pip install 'ckptflow[encryption]'."
        ) from None
    return AESGCM(key)
