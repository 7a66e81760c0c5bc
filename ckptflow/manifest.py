"""The manifest document: encode, decode, check. The only module that knows its bytes.

``docs/reference/format-v1.md`` is the specification, and the independent reader in
``tests/format`` is its witness.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import zstandard

from ckptflow.errors import CorruptionError, FormatError
from ckptflow.model import (
    FILL,
    CheckpointId,
    ExtentTable,
    LineageId,
    Manifest,
    PackRef,
    RegionEntry,
)

MAGIC = b"CKFMANI1"
VERSION = 1
SEAL_BYTES = 16
EXTENT_BYTES = 20
FEATURES: frozenset[str] = frozenset()

_HEAD = struct.Struct("<8sIIQQ")
_SECTION_BYTES_MAX = 1 << 33  # What a damaged length may make us allocate, at the most.


def seal(data: bytes | memoryview) -> bytes:
    """Return the BLAKE2b-128 of ``data``: the seal of small tables."""
    return hashlib.blake2b(data, digest_size=SEAL_BYTES).digest()


def encode(manifest: Manifest) -> bytes:
    """Return the object that commits ``manifest``."""
    compressor = zstandard.ZstdCompressor(level=3)
    text = json.dumps(
        _document(manifest), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    document = compressor.compress(text.encode())
    table = compressor.compress(_encode_extents(manifest.extents))
    body = _HEAD.pack(MAGIC, VERSION, 0, len(document), len(table)) + document + table
    return body + seal(body)


def decode(data: bytes, *, where: str) -> Manifest:
    """Read a manifest object.

    Args:
        data: the whole object.
        where: tier and key, for messages.

    Raises:
        CorruptionError: the object is cut short, damaged, or not a manifest.
        FormatError: it is sound, but of a newer version or with unknown features.
    """
    if len(data) < _HEAD.size + SEAL_BYTES or data[:8] != MAGIC:
        raise CorruptionError(
            f"The manifest {where} is cut short or is no manifest ({len(data)} bytes)."
        )
    _, version, _, document_bytes, table_bytes = _HEAD.unpack_from(data)
    body = memoryview(data)[:-SEAL_BYTES]
    sealed = seal(body) == data[-SEAL_BYTES:]
    if version != VERSION and sealed:
        raise FormatError(
            f"The manifest {where} has format version {version}; this ckptflow reads up to "
            f"version {VERSION}. Install a newer ckptflow."
        )
    if not sealed or _HEAD.size + document_bytes + table_bytes != len(body):
        raise CorruptionError(f"The manifest {where} does not match its seal: it is damaged.")
    start = _HEAD.size
    try:
        text = _decompress(body[start : start + document_bytes])
        table = _decompress(body[start + document_bytes :])
        document = json.loads(text)
        _check_features(document, where)
        return _manifest(document, _decode_extents(table))
    except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"The manifest {where} is whole but does not follow format version {VERSION} "
            f"({error!r}). Another program wrote it?"
        ) from error


def _document(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": "ckptflow-checkpoint",
        "features": sorted(FEATURES),
        "run": manifest.lineage.run,
        "task": manifest.lineage.task,
        "step": manifest.id.step,
        "attempt": manifest.id.attempt,
        "parent": manifest.parent.manifest_key if manifest.parent else None,
        "kind": manifest.kind,
        "created": manifest.created,
        "writer": manifest.writer,
        "metrics": {name: _number(value) for name, value in manifest.metrics.items()},
        "root": manifest.root.hex(),
        "state_bytes": manifest.state_bytes,
        "chunk": manifest.chunk_bytes,
        "packs": [
            {
                "key": pack.key,
                "bytes": pack.size_bytes,
                "plain": pack.plain_bytes,
                "frames": pack.frame_count,
                "table": pack.table_seal.hex(),
            }
            for pack in manifest.packs
        ],
        "regions": [
            {
                "name": region.name,
                "bytes": region.size_bytes,
                "root": region.root.hex(),
                "extents": region.extent_count,
            }
            for region in manifest.regions
        ],
        "structure": manifest.structure,
    }


def _number(value: float) -> float | list[str]:
    """JSON has no NaN and no infinity: they are written as their bits."""
    return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]


def _float(value: Any) -> float:
    if isinstance(value, list):
        _tag, bits = value
        return float(struct.unpack(">d", bytes.fromhex(bits))[0])
    return float(value)


def _check_features(document: dict[str, Any], where: str) -> None:
    unknown = sorted(set(document["features"]) - FEATURES)
    if unknown:
        raise FormatError(
            f"The manifest {where} needs the features {', '.join(unknown)}, which this "
            f"ckptflow does not know. Install a newer ckptflow."
        )


def _manifest(document: dict[str, Any], extents: ExtentTable) -> Manifest:
    parent = document["parent"]
    manifest = Manifest(
        lineage=LineageId(document["run"], document["task"]),
        id=CheckpointId(document["step"], document["attempt"]),
        parent=CheckpointId.of_manifest(parent) if parent else None,
        kind=document["kind"],
        created=document["created"],
        writer=document["writer"],
        metrics={name: _float(value) for name, value in document["metrics"].items()},
        root=bytes.fromhex(document["root"]),
        chunk_bytes=document["chunk"],
        packs=tuple(_pack(pack) for pack in document["packs"]),
        regions=tuple(
            RegionEntry(
                region["name"],
                region["bytes"],
                bytes.fromhex(region["root"]),
                region["extents"],
            )
            for region in document["regions"]
        ),
        extents=extents,
        structure=document["structure"],
    )
    _check_extents(manifest)
    return manifest


def _pack(entry: dict[str, Any]) -> PackRef:
    if CheckpointId.of_pack(entry["key"]) is None:  # Keys from storage are not trusted.
        raise ValueError(f"{entry['key']!r} is not the key of a pack")
    return PackRef(
        key=entry["key"],
        size_bytes=entry["bytes"],
        plain_bytes=entry["plain"],
        frame_count=entry["frames"],
        table_seal=bytes.fromhex(entry["table"]),
    )


def _check_extents(manifest: Manifest) -> None:
    if len(manifest.extents) != sum(region.extent_count for region in manifest.regions):
        raise ValueError("the extent table and the region table disagree")
    for region, rows in zip(manifest.regions, manifest.region_extents(), strict=True):
        longest = int(rows.length.max(initial=0))  # The sum alone could wrap around.
        if longest > region.size_bytes or int(rows.length.sum()) != region.size_bytes:
            raise ValueError(f"the extents of region {region.name!r} do not cover it")
    data_packs = manifest.extents.pack[manifest.extents.pack != FILL]
    if data_packs.size and int(data_packs.max()) >= len(manifest.packs):
        raise ValueError("an extent names a pack that is not in the list")


def _encode_extents(table: ExtentTable) -> bytes:
    columns: Sequence[np.ndarray[Any, Any]] = (
        table.length.astype("<u8"),
        (table.source - _predicted(table.length, table.source)).astype("<u8"),
        table.pack.astype("<u4"),
    )
    return b"".join(column.tobytes() for column in columns)


def _decode_extents(data: bytes) -> ExtentTable:
    count, rest = divmod(len(data), EXTENT_BYTES)
    if rest:
        raise ValueError(f"the extent table has {len(data)} bytes")
    length = np.frombuffer(data, "<u8", count).astype(np.uint64)
    step = np.frombuffer(data, "<u8", count, offset=8 * count).astype(np.uint64)
    pack = np.frombuffer(data, "<u4", count, offset=16 * count).astype(np.uint32)
    before = np.zeros(count, np.uint64)
    np.cumsum(length[:-1], out=before[1:])
    source = np.cumsum(step, dtype=np.uint64) + before
    return ExtentTable(length, source, pack)


def _predicted(
    length: np.ndarray[Any, np.dtype[np.uint64]], source: np.ndarray[Any, np.dtype[np.uint64]]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    predicted = np.zeros(len(source), np.uint64)
    predicted[1:] = source[:-1] + length[:-1]  # Modulo 2**64, as the format says.
    return predicted


def _decompress(data: memoryview) -> bytes:
    size_bytes = zstandard.frame_content_size(data)
    if not 0 <= size_bytes <= _SECTION_BYTES_MAX:
        raise ValueError(f"a section claims {size_bytes} bytes")
    if size_bytes == 0:
        return b""
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)
