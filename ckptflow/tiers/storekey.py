"""The secret of a store: 32 bytes in a private file, from which all other keys are derived.

It is read where it is used and goes nowhere else: what names it (a site file, the spec of a
tier) names the file, its ``repr`` shows a fingerprint, and it refuses to be pickled. Each use
has a key of its own, by HKDF with SHA-256 (RFC 5869) and a label, so that none tells anything
about another one. ``tests/unit/test_storekey.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from pathlib import Path
from typing import NoReturn

from ckptflow.errors import ConfigError

KEY_BYTES = 32
KEY_FILE_VARIABLE = "CKPTFLOW_KEY_FILE"

_FILE_BYTES_MAX = 2 * KEY_BYTES + 2  # Hex digits, and the end of the line.
_SALT = b"ckptflow-store-key-1"
_HASH_BYTES = 32
_HEX = re.compile(rb"[0-9a-fA-F]{%d}\s{0,2}" % (2 * KEY_BYTES))


class StoreKey:
    """The key of a store. Two are equal if their bytes are."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ConfigError(f"A store's key has {KEY_BYTES} bytes, not {len(secret)}.")
        self._secret = bytes(secret)

    @classmethod
    def from_bytes(cls, secret: bytes) -> StoreKey:
        """Return the key of these 32 bytes.

        Raises:
            ConfigError: they are not 32.
        """
        return cls(secret)

    @classmethod
    def from_file(cls, path: str | Path) -> StoreKey:
        """Read a key: 32 bytes, or 64 hex digits on a line.

        Raises:
            ConfigError: there is no such file, others may read it, or it holds no key. The
                message never shows what it holds.
        """
        held = _read_private(Path(path))
        if len(held) == KEY_BYTES:
            return cls(held)
        if not _HEX.fullmatch(held):
            raise ConfigError(
                f"{path} holds no key: a key is {KEY_BYTES} bytes, or {2 * KEY_BYTES} hex "
                f"digits on one line."
            )
        return cls(bytes.fromhex(held.decode("ascii")))

    @classmethod
    def from_environment(cls) -> StoreKey | None:
        """Return the key in the file that ``CKPTFLOW_KEY_FILE`` names, or ``None`` without it.

        Raises:
            ConfigError: it names a file that is no private file with a key.
        """
        path = os.environ.get(KEY_FILE_VARIABLE)
        return cls.from_file(path) if path else None

    def derive(self, label: bytes, size: int = KEY_BYTES) -> bytes:
        """Return ``size`` bytes for one use, named by ``label`` (RFC 5869, SHA-256)."""
        return hkdf_sha256(self._secret, salt=_SALT, info=label, size=size)

    @property
    def key_id(self) -> str:
        """16 hex digits that tell keys apart and say nothing about them; may be shown."""
        return self.derive(b"key id", 8).hex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreKey) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.key_id)

    def __repr__(self) -> str:
        return f"StoreKey(key_id={self.key_id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A store's key does not travel: name its file, and read it there.")


def hkdf_sha256(secret: bytes, *, salt: bytes, info: bytes, size: int) -> bytes:
    """Return ``size`` bytes of key material: extract, then expand (RFC 5869).

    Raises:
        ValueError: more than 255 blocks of 32 bytes were asked for.
    """
    if not 0 < size <= 255 * _HASH_BYTES:
        raise ValueError(f"HKDF gives 1 to {255 * _HASH_BYTES} bytes, not {size}.")
    extracted = hmac.digest(salt or bytes(_HASH_BYTES), secret, hashlib.sha256)
    block, made = b"", b""
    for number in range(1, -(-size // _HASH_BYTES) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), hashlib.sha256)
        made += block
    return made[:size]


def _read_private(path: Path) -> bytes:
    """Return the first bytes of a file that only its owner may touch."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be read: {error.strerror}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"The key file {path} is not a regular file.")
        if status.st_uid != os.geteuid():
            raise ConfigError(f"The key file {path} belongs to another user.")
        if status.st_mode & 0o077:
            raise ConfigError(
                f"The key file {path} has mode {stat.S_IMODE(status.st_mode):04o}, so others "
                f"may read or change it. Run: chmod 600 {path}"
            )
        return os.read(descriptor, _FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
