"""Unseal a store with what docs/reference/format-v1.md says and nothing else.

A witness like `independent_reader`: HKDF and HMAC by Python, AES-GCM by cryptography.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"CKFSEAL1"
SEGMENT = 262_144


def derive(key: bytes, label: bytes, size: int = 32) -> bytes:
    """HKDF of RFC 5869 with one block of output, which is all that is needed."""
    extracted = hmac.new(b"ckptflow-store-key-1", key, hashlib.sha256).digest()
    return hmac.new(extracted, label + b"\x01", hashlib.sha256).digest()[:size]


def unseal(raw: bytes, name: str, key: bytes) -> bytes:
    """Return the plain bytes of one object.

    Raises:
        AssertionError: a reader with this key must refuse it.
    """
    assert raw[:8] == MAGIC
    assert raw[9:16] == bytes(7)
    mode, salt = raw[8], raw[24:40]
    assert raw[16:24] == derive(key, b"key id", 8)
    (size,) = struct.unpack("<Q", raw[40:48])
    own = derive(key, b"sealed object " + str(mode).encode() + b" " + salt)
    bound = raw[:48] + struct.pack("<H", len(name.encode())) + name.encode()
    plain, at, number = b"", 48, 0
    while number == 0 or len(plain) < size:
        length = min(SEGMENT, size - len(plain))
        segment, tag = raw[at : at + length], raw[at + length : at + length + 16]
        assert len(tag) == 16
        nonce = number.to_bytes(12, "big")
        if mode == 1:
            expected = hmac.new(own, nonce + bound + segment, hashlib.sha256).digest()[:16]
            assert hmac.compare_digest(tag, expected)
            plain += segment
        else:
            assert mode == 2
            plain += AESGCM(own).decrypt(nonce, segment + tag, bound)
        at, number = at + length + 16, number + 1
    assert at == len(raw)
    return plain


def unseal_store(sealed: Path, plain: Path, key: bytes) -> int:
    """Write an unsealed copy of a store; return how many objects it has."""
    count = 0
    for path in sorted(sealed.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            name = path.relative_to(sealed)
            (plain / name).parent.mkdir(parents=True, exist_ok=True)
            (plain / name).write_bytes(unseal(path.read_bytes(), name.as_posix(), key))
            count += 1
    return count
