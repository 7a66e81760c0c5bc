"""A stripe: one object of each of k members, and m parity pieces on m other members.

Its descriptor is a small sealed JSON object on every member of the stripe; the parity lies
beside it, in blocks. Names, sizes and limits: "Redundancy" in ``docs/reference/format-v1.md``.
Nothing in a descriptor is believed before it was checked here. ``tests/unit/test_stripes.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptflow.data.galois import PIECES_MAX
from ckptflow.errors import ConfigError, CorruptionError, FormatError
from ckptflow.manifest import SEAL_BYTES, seal
from ckptflow.model import LINEAGES, CheckpointId, LineageId, parse_attempt_key
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

REDUNDANCY = "redundancy"
VERSION = 1
BLOCK_BYTES = 32 * MIB  # Of parity, at the most in one object and in memory.
BLOCK_BYTES_MAX = 64 * MIB
PIECE_BYTES_MAX = 1 << 40
BLOCKS_MAX = 1 << 16
DESCRIPTOR_BYTES_MAX = 16 * MIB

_FORMAT = "ckptflow-stripe"
_ID = re.compile(r"[0-9a-f]{32}")
_SEAL = re.compile(rf"[0-9a-f]{{{2 * SEAL_BYTES}}}")


@dataclass(frozen=True, slots=True)
class DataPiece:
    """An object of a member: where it was written, whole and untouched."""

    member: str  # Id of the store.
    key: str
    size_bytes: int
    seal: bytes  # Of all its bytes.


@dataclass(frozen=True, slots=True)
class ParityPiece:
    """What a member holds for the others: blocks, each with its seal."""

    member: str
    seals: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Stripe:
    """What was coded together. Pieces are numbered: data from 0, parity from k on."""

    id: str  # 32 hex digits; the first 12 are its time, in ms since 1970.
    block_bytes: int
    data: tuple[DataPiece, ...]
    parity: tuple[ParityPiece, ...]

    @property
    def parity_bytes(self) -> int:
        """Length of each parity piece: that of the longest object."""
        return max(piece.size_bytes for piece in self.data)

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of all members, that of piece ``n`` at place ``n``."""
        return (*(one.member for one in self.data), *(one.member for one in self.parity))

    @property
    def descriptor_key(self) -> str:
        """Key of the descriptor, on every member."""
        return f"{REDUNDANCY}/{self.id}/stripe.json"

    def block_key(self, number: int, block: int) -> str:
        """Key of a block of piece ``number``, on the member that holds it."""
        return f"{REDUNDANCY}/{self.id}/{number:03d}.{block:05d}.parity"

    def block_size(self, block: int) -> int:
        """Bytes of a block: all but the last have ``block_bytes``."""
        return min(self.block_bytes, self.parity_bytes - block * self.block_bytes)

    def keys_of(self, number: int) -> tuple[str, ...]:
        """Return the keys that hold piece ``number`` on its member."""
        if number < len(self.data):
            return (self.data[number].key,)
        blocks = block_count(self.parity_bytes, self.block_bytes)
        return tuple(self.block_key(number, block) for block in range(blocks))


def block_count(size_bytes: int, block_bytes: int) -> int:
    """Return how many blocks a parity piece has; one of no bytes has none."""
    return -(-size_bytes // block_bytes)


def new_stripe_id(now_ms: int, random_bytes: bytes) -> str:
    """Return the id of a stripe made at ``now_ms`` since 1970, with 10 random bytes."""
    return f"{now_ms:012x}{random_bytes.hex()}"


def time_of(stripe_id: str) -> int:
    """Return when a stripe was made, in ms since 1970."""
    return int(stripe_id[:12], 16)


def is_stripe_id(name: str) -> bool:
    """Tell whether a folder below ``redundancy`` may be that of a stripe."""
    return _ID.fullmatch(name) is not None


def parse_object_key(key: str) -> tuple[LineageId, str] | None:
    """Return (lineage, key within it) of a pack, manifest or resume; else ``None``."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] != LINEAGES:
        return None
    within = f"{parts[3]}/{parts[4]}"
    attempt = parse_attempt_key(within)
    known = CheckpointId.of_pack(within) or CheckpointId.of_manifest(within)
    if known is None and (attempt is None or attempt[1] != "resume"):
        return None
    try:
        return LineageId(parts[1], parts[2]), within
    except ConfigError:
        return None


def encode(stripe: Stripe) -> bytes:
    """Return the descriptor: a line of JSON, and a line with its seal in hex."""
    document = {
        "format": _FORMAT,
        "version": VERSION,
        "stripe": stripe.id,
        "block": stripe.block_bytes,
        "data": [
            {
                "member": one.member,
                "key": one.key,
                "bytes": one.size_bytes,
                "seal": one.seal.hex(),
            }
            for one in stripe.data
        ],
        "parity": [
            {"member": one.member, "seals": [block.hex() for block in one.seals]}
            for one in stripe.parity
        ],
    }
    line = json.dumps(document, separators=(",", ":"), sort_keys=True).encode("ascii")
    return line + b"\n" + seal(line).hex().encode("ascii") + b"\n"


def read_stripe(tier: Tier, name: str) -> Stripe:
    """Read a descriptor from a member's tier, never more than one can be long.

    Raises:
        NotFoundError: there is none.
        TierError: the tier could not be read.
        CorruptionError, FormatError: see `decode`.
    """
    key = f"{REDUNDANCY}/{name}/stripe.json"
    data = tier.get(key, size_bytes=DESCRIPTOR_BYTES_MAX + 1)
    return decode(data, where=f"{key!r} on tier {tier.name!r}")


def decode(data: bytes, *, where: str) -> Stripe:
    """Read a descriptor.

    Raises:
        CorruptionError: it is cut short or damaged.
        FormatError: it is sound, but of a newer version, or says what cannot be.
    """
    line, _, sealed = data.removesuffix(b"\n").rpartition(b"\n")
    if len(data) > DESCRIPTOR_BYTES_MAX or sealed != seal(line).hex().encode():
        raise CorruptionError(f"The stripe {where} does not match its seal: it is damaged.")
    try:
        document = json.loads(line)
        if document["format"] == _FORMAT and document["version"] > VERSION:
            raise FormatError(
                f"The stripe {where} has format version {document['version']}; this ckptflow "
                f"reads up to version {VERSION}. Install a newer ckptflow."
            )
        stripe = _stripe(document)
        _check(stripe, document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"The stripe {where} is whole but does not follow format version {VERSION} "
            f"({error!r}). Another program wrote it?"
        ) from error
    return stripe


def _stripe(document: Mapping[str, Any]) -> Stripe:
    return Stripe(
        id=_text(document["stripe"], _ID),
        block_bytes=_number(document["block"], 1, BLOCK_BYTES_MAX),
        data=tuple(
            DataPiece(
                _text(one["member"], _ID),
                str(one["key"]),
                _number(one["bytes"], 0, PIECE_BYTES_MAX),
                bytes.fromhex(_text(one["seal"], _SEAL)),
            )
            for one in document["data"]
        ),
        parity=tuple(
            ParityPiece(
                _text(one["member"], _ID),
                tuple(bytes.fromhex(_text(block, _SEAL)) for block in one["seals"]),
            )
            for one in document["parity"]
        ),
    )


def _check(stripe: Stripe, document: Mapping[str, Any]) -> None:
    pieces = len(stripe.data) + len(stripe.parity)
    if document["format"] != _FORMAT or document["version"] != VERSION:
        raise ValueError("not a stripe of this version")
    if not stripe.data or not stripe.parity or pieces > PIECES_MAX:
        raise ValueError(f"{len(stripe.data)} data and {len(stripe.parity)} parity pieces")
    if len(set(stripe.members)) != pieces:
        raise ValueError("a member has two pieces")
    blocks = block_count(stripe.parity_bytes, stripe.block_bytes)
    if blocks > BLOCKS_MAX or any(len(one.seals) != blocks for one in stripe.parity):
        raise ValueError("the blocks do not make up the parity")
    for one in stripe.data:
        if parse_object_key(one.key) is None:
            raise ValueError(f"{one.key[:200]!r} is no object of a checkpoint")


def _text(value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is not of the form {pattern.pattern}")
    return value


def _number(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:80]!r} is not a number from {least} to {most}")
    return value
