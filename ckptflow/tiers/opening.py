"""From plain data, or an address, to a tier. What is not used is not imported.

``tests/unit/test_opening.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from ckptflow.errors import ConfigError
from ckptflow.tiers.tier import Tier

# Kind, as a site file says it, to the class that opens it. A class has `from_spec`.
_KINDS = {
    "posix": "ckptflow.tiers.posix:PosixTier",
    "memory": "ckptflow.tiers.memory:MemoryTier",
    "object": "ckptflow.tiers.objectstore:ObjectStoreTier",
}
# Scheme of an address to the kind that understands it.
_SCHEMES = {"file": "posix", "s3": "object", "gs": "object", "az": "object"}


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
    return opens.from_spec(spec)  # type: ignore[return-value]


def spec_of(url: str | Path) -> dict[str, Any]:
    """Return the spec of the tier at an address: a folder, or ``scheme://…``.

    Raises:
        ConfigError: nothing of that scheme is known, or the address is wrong.
    """
    scheme, sign, _ = str(url).partition("://")
    if not sign:
        return {"kind": "posix", "name": "store", "level": 1, "path": str(Path(url).absolute())}
    if scheme not in _SCHEMES:
        known = ", ".join(f"{one}://" for one in sorted(_SCHEMES))
        raise ConfigError(f"{str(url)!r}: a store is a folder, or an address of {known}.")
    named: type[HasAddresses] = _class_of(_SCHEMES[scheme])
    return named.spec_of(str(url))


def _class_of(kind: str) -> Any:
    if kind not in _KINDS:
        raise ConfigError(f"There is no tier of kind {kind!r}; there are {', '.join(_KINDS)}.")
    module, name = _KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name)
