"""From plain data, or an address, to a tier. What is not used is not imported.

``tests/unit/test_opening.py``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from ckptflow.errors import ConfigError
from ckptflow.tiers.sealed import SealedTier
from ckptflow.tiers.sealing import check_cipher
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE, StoreKey
from ckptflow.tiers.tier import Tier

ENCRYPT_VARIABLE = "CKPTFLOW_ENCRYPT"

# Kind, as a site file says it, to the class that opens it. A class has `from_spec`.
_KINDS = {
    "posix": "ckptflow.tiers.posix:PosixTier",
    "memory": "ckptflow.tiers.memory:MemoryTier",
    "fsspec": "ckptflow.tiers.filesystem:FilesystemTier",
    "device": "ckptflow.tiers.device:DeviceTier",
    "shared_memory": "ckptflow.tiers.shared_memory:SharedMemoryTier",
    "sftp": "ckptflow.tiers.sftp:SftpTier",
    "globus": "ckptflow.tiers.globus:GlobusTier",
    "object": "ckptflow.tiers.objectstore:ObjectStoreTier",
    "peer": "ckptflow.tiers.peer:PeerTier",
    "redundant": "ckptflow.store.redundancy.tier:RedundantTier",
}
# Scheme of an address to the kind that understands it.
_SCHEMES = {
    "file": "posix",
    "fsspec+…": "fsspec",
    "sftp": "sftp",
    "globus": "globus",
    "shm": "shared_memory",
    "peer": "peer",
    "s3": "object",
    "gs": "object",
    "az": "object",
}


class Opens(Protocol):
    """A class of tiers that can be opened from plain data."""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the tier whose `Tier.spec` this is.

        Raises:
            ConfigError: there can be no such tier.
        """
        ...


class HasAddresses(Opens, Protocol):
    """A class of tiers that addresses name, too."""

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """Return the spec that an address means; the caller may change its name and level.

        Raises:
            ConfigError: it is no address of this kind.
        """
        ...


def open_tier(spec: Mapping[str, Any]) -> Tier:
    """Return the tier whose `Tier.spec` is ``spec``.

    Raises:
        ConfigError: the kind is unknown, or what it needs is not installed.
    """
    opens: type[Opens] = _class_of(str(spec.get("kind")))
    tier: Tier = opens.from_spec(spec)  # type: ignore[assignment]
    return sealed(tier, spec.get("key_file"), encrypt=bool(spec.get("encrypt")))


def open_store(
    url: str | Path, *, key_file: str | Path | None = None, encrypt: bool = False
) -> Tier:
    """Return the tier at an address: a folder, or ``scheme://…``.

    Args:
        url: where it is.
        key_file: seal it with the key in this file; by default with that of the environment.
        encrypt: with a key, also hide the bytes.

    Raises:
        ConfigError: nothing of that scheme is known, the address is wrong, or the file holds
            no key.
    """
    spec = spec_of(url)
    if key_file is not None or encrypt:
        spec |= {"key_file": key_file, "encrypt": encrypt}
    return open_tier(spec)


def sealed(tier: Tier, key_file: str | Path | None, *, encrypt: bool = False) -> Tier:
    """Return ``tier``, sealed with the key in a file, if there is one.

    Raises:
        ConfigError: the file is no private file with a key, or encryption needs a package;
            or encryption is asked for without a key.
    """
    if key_file is None:
        if encrypt:
            raise ConfigError(f"Tier {tier.name!r} cannot be encrypted without a key_file.")
        return tier
    path = Path(key_file).expanduser().absolute()
    if encrypt:
        check_cipher()
    return SealedTier(tier, StoreKey.from_file(path), encrypt=encrypt, key_file=str(path))


def spec_of(url: str | Path) -> dict[str, Any]:
    """Return the spec of the tier at an address: a folder, or ``scheme://…``.

    It is sealed if ``CKPTFLOW_KEY_FILE`` names a key, and encrypted if besides
    ``CKPTFLOW_ENCRYPT`` is 1.

    Raises:
        ConfigError: nothing of that scheme is known, or the address is wrong.
    """
    return {**_place_of(url), **_sealing_of_environment()}


def _place_of(url: str | Path) -> dict[str, Any]:
    scheme, sign, _ = str(url).partition("://")
    if not sign:
        return {"kind": "posix", "name": "store", "level": 1, "path": str(Path(url).absolute())}
    scheme = "fsspec+…" if scheme.startswith("fsspec+") else scheme  # And any protocol of it.
    if scheme not in _SCHEMES:
        known = ", ".join(f"{one}://" for one in sorted(_SCHEMES))
        # What may hold a password is not repeated.
        shown = f"{scheme}://…" if {"@", "?"} & set(str(url)) else str(url)
        raise ConfigError(f"{shown!r}: a store is a folder, or an address of {known}.")
    named: type[HasAddresses] = _class_of(_SCHEMES[scheme])
    return named.spec_of(str(url))


def _sealing_of_environment() -> dict[str, Any]:
    path = os.environ.get(KEY_FILE_VARIABLE)
    encrypt = os.environ.get(ENCRYPT_VARIABLE) == "1"
    return {"key_file": path, "encrypt": encrypt} if path else {}


def _class_of(kind: str) -> Any:
    if kind not in _KINDS:
        raise ConfigError(f"There is no tier of kind {kind!r}; there are {', '.join(_KINDS)}.")
    module, name = _KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name)
