"""What makes a tier a store: one small object that says so, in which version, and which store.

``tests/unit/test_catalog.py``.
"""

from __future__ import annotations

import json
import re
import secrets

from ckptflow.errors import AlreadyExists, FormatError, NotFoundError
from ckptflow.model import STORE_KEY
from ckptflow.tiers.sealing import MAGIC as SEAL_MAGIC
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE
from ckptflow.tiers.tier import Tier

STORE_VERSION = 1
RECORD_BYTES_MAX = 1 << 20  # Of the descriptor and of what attempts record.

_STORE_ID = re.compile(r"[0-9a-f]{32}")


def check_store(tier: Tier) -> bool:
    """Return whether ``tier`` is a store already.

    Raises:
        FormatError: it is one of a newer version, or not one of ours.
    """
    try:
        text = tier.get(STORE_KEY, size_bytes=RECORD_BYTES_MAX)
    except NotFoundError:
        return False
    if text.startswith(SEAL_MAGIC):
        raise FormatError(
            f"Tier {tier.name!r} is a sealed store: give the file with its key, as key_file or "
            f"in the environment as {KEY_FILE_VARIABLE}."
        )
    try:
        descriptor = json.loads(text)
        version = descriptor["version"]
        known = descriptor["format"] == "ckptflow-store" and isinstance(version, int)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise FormatError(f"{STORE_KEY!r} on tier {tier.name!r} does not describe a store.")
    if version > STORE_VERSION:
        raise FormatError(
            f"Tier {tier.name!r} is a store of format version {version}; this ckptflow knows "
            f"version {STORE_VERSION}. Install a newer ckptflow; nothing was touched."
        )
    return True


def ensure_store(tier: Tier) -> None:
    """Make ``tier`` a store if it is not one."""
    if not check_store(tier):
        descriptor = {
            "format": "ckptflow-store",
            "version": STORE_VERSION,
            "store": secrets.token_hex(16),
        }
        text = json.dumps(descriptor, sort_keys=True).encode()
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
        FormatError: its id is none.
    """
    check_store(tier)
    identity = json.loads(tier.get(STORE_KEY)).get("store")
    if not isinstance(identity, str) or not _STORE_ID.fullmatch(identity):
        raise FormatError(f"{STORE_KEY!r} on tier {tier.name!r} gives the store no id.")
    return identity
