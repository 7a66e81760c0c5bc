"""The key of a store: read from private files only, shown nowhere, derived as in RFC 5869."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE, StoreKey, hkdf_sha256

SECRET = bytes(range(100, 132))


def key_file(folder: Path, held: bytes, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_bytes(held)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "held", [SECRET, SECRET.hex().encode(), SECRET.hex().upper().encode() + b"\n"]
)
def test_a_key_is_read_from_raw_bytes_or_hex(tmp_path: Path, held: bytes) -> None:
    assert StoreKey.from_file(key_file(tmp_path, held)) == StoreKey.from_bytes(SECRET)


@pytest.mark.parametrize("held", [b"", SECRET[:31], SECRET + b"x", b"z" * 64, b"0" * 70])
def test_a_file_without_a_key_is_refused_and_not_shown(tmp_path: Path, held: bytes) -> None:
    with pytest.raises(ConfigError, match="holds no key: a key is 32 bytes") as refused:
        StoreKey.from_file(key_file(tmp_path, held))
    assert not held or held.decode("latin1") not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}.*chmod 600"):
        StoreKey.from_file(key_file(tmp_path, SECRET, mode))


def test_links_folders_and_absent_files_are_refused(tmp_path: Path) -> None:
    key_file(tmp_path, SECRET)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    for name, message in (
        ("link", "cannot be read"),
        ("absent", "cannot be read: No such file"),
        (".", "not a regular file"),
    ):
        with pytest.raises(ConfigError, match=message):
            StoreKey.from_file(tmp_path / name)


def test_the_environment_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    assert StoreKey.from_environment() is None
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file(tmp_path, SECRET)))
    assert StoreKey.from_environment() == StoreKey(SECRET)


def test_a_key_does_not_leak() -> None:
    key = StoreKey(SECRET)
    shown = f"{key!r} {key!s} {key.key_id}"
    assert SECRET.hex() not in shown
    assert repr(SECRET) not in shown
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="does not travel"):
            use(key)


def test_each_use_has_a_key_of_its_own() -> None:
    key, other = StoreKey(SECRET), StoreKey(bytes(32))
    derived = {one.derive(label) for one in (key, other) for label in (b"a", b"b", b"")}
    assert len(derived) == 6
    assert key.derive(b"a", 100)[:32] == key.derive(b"a")
    assert key.key_id != other.key_id
    assert len(key.key_id) == 16


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ConfigError, match="32 bytes, not 16"):
        StoreKey.from_bytes(bytes(16))


@pytest.mark.parametrize(
    ("secret", "salt", "info", "made"),
    [
        (  # RFC 5869, A.1
            "0b" * 22,
            "000102030405060708090a0b0c",
            "f0f1f2f3f4f5f6f7f8f9",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (  # RFC 5869, A.3: no salt, no info
            "0b" * 22,
            "",
            "",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_gives_the_published_values(secret: str, salt: str, info: str, made: str) -> None:
    expected = bytes.fromhex(made)
    got = hkdf_sha256(
        bytes.fromhex(secret),
        salt=bytes.fromhex(salt),
        info=bytes.fromhex(info),
        size=len(expected),
    )
    assert got == expected


@pytest.mark.parametrize("size", [0, -1, 255 * 32 + 1])
def test_hkdf_has_limits(size: int) -> None:
    with pytest.raises(ValueError, match="1 to 8160"):
        hkdf_sha256(b"x", salt=b"", info=b"", size=size)
