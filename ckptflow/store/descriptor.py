"""What makes a tier a store: one small object that says so, in which version, and which store.

A descriptor that cannot be understood is damage of its tier: that is not read and not written
until somebody mends it, and the other tiers of the store are used. One of a newer version stops
everybody before anything is touched, since what that version means is not known here.
``tests/unit/test_catalog.py``, ``tests/unit/test_damaged_descriptor.py``.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from ckptflow.errors import (
    AlreadyExists,
    CorruptionError,
    FormatError,
    NotFoundError,
    StoreDamaged,
    TierDenied,
)
from ckptflow.model import STORE_KEY
from ckptflow.store.redundancy.stripes import REDUNDANCY
from ckptflow.tiers.sealing import MAGIC as SEAL_MAGIC
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE
from ckptflow.tiers.tier import Tier

STORE_VERSION = 1
RECORD_BYTES_MAX = 1 << 20  # Of the descriptor and of what attempts record.

_STORE_ID = re.compile(r"[0-9a-f]{32}")


def check_store(tier: Tier) -> bool:
    """Return whether ``tier`` is a store already.

    Raises:
        FormatError: it is one of a newer version, or sealed and opened without its key.
        StoreDamaged: its descriptor is damaged.
        TierDenied: its descriptor is not sealed with the key that was given.
    """
    return _descriptor(tier) is not None


def ensure_store(tier: Tier) -> None:
    """Make ``tier`` a store if it is not one.

    Raises:
        FormatError: it is one of a newer version, or sealed and opened without its key.
        StoreDamaged: its descriptor is damaged; nothing is put over it.
    """
    if not check_store(tier):
        text = _new_descriptor()
        if not tier.can_create:
            tier.put(STORE_KEY, [text])  # Of two at once, the later one names it.
            return
        try:
            tier.create(STORE_KEY, text)
        except AlreadyExists:
            check_store(tier)


def store_id(tier: Tier) -> str:
    """Return the id of a store, 32 hex digits; it stays when the store is moved.

    Raises:
        NotFoundError: ``tier`` is no store yet.
        FormatError: it is one of a newer version, or sealed and opened without its key.
        StoreDamaged: its descriptor is damaged.
    """
    descriptor = _descriptor(tier)
    if descriptor is None:
        raise NotFoundError(f"Tier {tier.name!r} is no store: it holds no {STORE_KEY!r}.")
    return str(descriptor["store"])


def mend_store(tier: Tier) -> bool:
    """Put a descriptor over one that is damaged; return whether it was.

    The store has a new id then. Nothing but other nodes depends on the old one.

    Raises:
        FormatError: it is one of a newer version, or sealed and opened without its key.
        ForgedError: it is not sealed with the key that was given: maybe nothing here is.
        StoreDamaged: stripes name the store by the id that is lost.
    """
    try:
        text = tier.get(STORE_KEY, size_bytes=RECORD_BYTES_MAX)
    except NotFoundError:
        return False
    if _parsed(text, tier) is not None:
        return False
    if any(True for _ in tier.iter_folders(REDUNDANCY)):
        raise StoreDamaged(
            f"{STORE_KEY!r} on tier {tier.name!r} is damaged, and other nodes know this store "
            f"by the id that stood there. Write it again by hand, as the guide to repair says."
        )
    tier.put(STORE_KEY, [_new_descriptor()])
    return True


def _descriptor(tier: Tier) -> dict[str, Any] | None:
    """Return what describes the store; ``None`` if ``tier`` is none yet."""
    try:
        text = tier.get(STORE_KEY, size_bytes=RECORD_BYTES_MAX)
    except NotFoundError:
        return None
    except CorruptionError as error:
        raise TierDenied(f"{error} So nothing on tier {tier.name!r} is used.") from error
    descriptor = _parsed(text, tier)
    if descriptor is None:
        raise StoreDamaged(
            f"{STORE_KEY!r} on tier {tier.name!r} does not describe a store: it is damaged, "
            f"and nothing on that tier is used. `ckptflow repair` mends it."
        )
    return descriptor


def _parsed(text: bytes, tier: Tier) -> dict[str, Any] | None:
    """Return a descriptor, or ``None`` if it cannot be understood."""
    if text.startswith(SEAL_MAGIC):
        raise FormatError(
            f"Tier {tier.name!r} is a sealed store: give the file with its key, as key_file or "
            f"in the environment as {KEY_FILE_VARIABLE}."
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match found:
        case {"format": "ckptflow-store", "version": int(version)} if version > STORE_VERSION:
            raise FormatError(
                f"Tier {tier.name!r} is a store of format version {version}; this ckptflow "
                f"knows version {STORE_VERSION}. Install a newer ckptflow; nothing was touched."
            )
        case {"format": "ckptflow-store", "version": int(), "store": str(identity)}:
            return dict(found) if _STORE_ID.fullmatch(identity) else None
    return None


def _new_descriptor() -> bytes:
    descriptor = {
        "format": "ckptflow-store",
        "version": STORE_VERSION,
        "store": secrets.token_hex(16),
    }
    return json.dumps(descriptor, sort_keys=True).encode()
