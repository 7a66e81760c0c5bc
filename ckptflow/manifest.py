"""The manifest document: encode, decode, check. The only module that knows its bytes.

``docs/reference/format-v1.md`` is the specification, and the independent reader in
``tests/format`` is its witness.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from ckptflow import varint
from ckptflow.errors import CorruptionError, FormatError
from ckptflow.model import (
    FILL,
    KEEP,
    CheckpointId,
    DeltaLayer,
    DeltaOp,
    ExtentTable,
    LineageId,
    Manifest,
    PackRef,
    RegionEntry,
)

MAGIC = b"CKFMANI1"
VERSION = 1
SEAL_BYTES = 16
COMPACT, FILTERS, SHARDS = "compact-extents", "frame-filters", "shards"
FEATURES = frozenset({COMPACT, FILTERS, SHARDS})  # What this reader knows.

_LEVEL, _LEVEL_LARGE = 12, 3  # Of zstd: what is small costs no time either way.
_LARGE_BYTES = 1 << 15
_HEAD = struct.Struct("<8sIIQQ")
OBJECT_BYTES_MAX = 1 << 32  # A larger object is no manifest, whoever put it there.
_SECTION_BYTES_MAX = 1 << 33  # What a wrong length may make us allocate, at the most,
_ZSTD_RATIO_MAX = 1 << 17  # and per byte of the section: a block of zstd gives no more.
_COUNT_MAX = (1 << 63) - 1
_NONSENSE = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    *(struct.error, zstandard.ZstdError),
)  # What reading something else than was agreed on may raise.


def seal(data: bytes | memoryview) -> bytes:
    """Return the BLAKE2b-128 of ``data``: the seal of small tables."""
    return hashlib.blake2b(data, digest_size=SEAL_BYTES).digest()


def encode(manifest: Manifest) -> bytes:
    """Return the object that commits ``manifest``."""
    text = json.dumps(
        _document(manifest), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    document, table = (
        zstandard.ZstdCompressor(
            level=_LEVEL if len(part) < _LARGE_BYTES else _LEVEL_LARGE
        ).compress(part)
        for part in (text.encode(), _encode_extents(manifest.extents))
    )
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
    if len(data) > OBJECT_BYTES_MAX:
        raise CorruptionError(
            f"The manifest {where} has more than {OBJECT_BYTES_MAX} bytes: it is none."
        )
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
        compact = COMPACT in document["features"]
        return _manifest(document, _decode_extents(table) if compact else _plain_extents(table))
    except MemoryError as error:
        raise CorruptionError(f"The manifest {where} does not fit into memory.") from error
    except _NONSENSE as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"The manifest {where} is whole but does not follow format version {VERSION} "
            f"({error!r}). Another program wrote it?"
        ) from error


def _document(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": "ckptflow-checkpoint",
        "features": sorted(FEATURES if _is_shard(manifest) else FEATURES - {SHARDS}),
        "run": manifest.lineage.run,
        "task": manifest.lineage.task,
        "step": manifest.id.step,
        "attempt": manifest.id.attempt,
        "parent": manifest.parent.manifest_key if manifest.parent else None,
        "kind": manifest.kind,
        "created": manifest.created,
        "writer": manifest.writer,
        "metrics": {name: _number(value) for name, value in manifest.metrics.items()},
        **({"pace": dict(manifest.pace)} if manifest.pace else {}),
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
                **({"deltas": [_layer(one) for one in region.deltas]} if region.deltas else {}),
                **({"encoding": region.encoding} if region.encoding else {}),
                **({"cell": region.cell_bytes} if region.cell_bytes else {}),
            }
            for region in manifest.regions
        ],
        "structure": manifest.structure,
    }


def _is_shard(manifest: Manifest) -> bool:
    """Tell whether the structure says what the checkpoint is a part of."""
    match manifest.structure:
        case ["dict", "state", _, "rng", _, "shard", _]:
            return True
    return False


def _layer(layer: DeltaLayer) -> dict[str, Any]:
    return {"extents": layer.extent_count, "op": layer.op, "word": layer.word_bytes}


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
        id=CheckpointId(_count(document["step"]), _count(document["attempt"])),
        parent=CheckpointId.of_manifest(parent) if parent else None,
        kind=_text(document["kind"]),
        created=_text(document["created"]),
        writer=_text(document["writer"]),
        metrics={name: _float(value) for name, value in document["metrics"].items()},
        root=bytes.fromhex(document["root"]),
        chunk_bytes=_chunk_bytes(document["chunk"]),
        packs=tuple(_pack(pack) for pack in document["packs"]),
        regions=tuple(_region(region, document["chunk"]) for region in document["regions"]),
        extents=extents,
        structure=document["structure"],
        pace=_pace(document.get("pace")),
    )
    check_extents(manifest)
    return manifest


def _pace(value: Any) -> dict[str, Any]:
    # It is advice: nonsense in it is no reason to refuse a checkpoint.
    return value if isinstance(value, dict) else {}


def _pack(entry: dict[str, Any]) -> PackRef:
    if CheckpointId.of_pack(entry["key"]) is None:  # Keys from storage are not trusted.
        raise ValueError(f"{entry['key']!r} is not the key of a pack")
    return PackRef(
        key=entry["key"],
        size_bytes=_count(entry["bytes"]),
        plain_bytes=_count(entry["plain"]),
        frame_count=_count(entry["frames"]),
        table_seal=bytes.fromhex(entry["table"]),
    )


def _region(entry: dict[str, Any], chunk: int) -> RegionEntry:
    return RegionEntry(
        name=_text(entry["name"]),
        size_bytes=_count(entry["bytes"]),
        root=bytes.fromhex(entry["root"]),
        extent_count=_count(entry["extents"]),
        deltas=tuple(_read_layer(layer) for layer in entry.get("deltas", ())),
        encoding=_text(entry.get("encoding", "")),
        cell_bytes=_cell_bytes(_count(entry.get("cell", 0)), chunk),
    )


def _count(value: Any) -> int:
    # JSON has also true, 1.0 and 1e99, which Python would take for numbers of things.
    if type(value) is not int or not 0 <= value <= _COUNT_MAX:
        raise ValueError(f"{value!r} is no number of things")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # JSON can also say halves of surrogate pairs, which no text has.
    return value


def _chunk_bytes(value: Any) -> int:
    if _count(value) < 16 or value % 8:
        raise ValueError(f"chunks cannot have {value} bytes")
    return int(value)


def _cell_bytes(cell: int, chunk: int) -> int:
    if cell and (cell < 16 or cell % 8 or (chunk % cell and cell % chunk)):
        raise ValueError(f"chunks of {chunk} bytes cannot have cells of {cell}")
    return cell


def _read_layer(entry: dict[str, Any]) -> DeltaLayer:
    if _count(entry["word"]) not in {1, 2, 4, 8}:
        raise ValueError(f"a delta has words of {entry['word']!r} bytes")
    return DeltaLayer(_count(entry["extents"]), DeltaOp(entry["op"]), entry["word"])


def check_extents(manifest: Manifest) -> None:
    """Check that the extents cover the regions, and that what they name can be there.

    Raises:
        ValueError: it cannot.
    """
    table = manifest.extents
    if len(table) != sum(sum(region.row_counts) for region in manifest.regions):
        raise ValueError("the extent table and the region table disagree")
    layers = [(region, n) for region in manifest.regions for n in range(len(region.deltas) + 1)]
    if layers:
        _check_layers(table, manifest.layer_edges(), layers)
    stored = table.take(table.stored)
    if len(stored) and int(stored.pack.max()) >= len(manifest.packs):
        raise ValueError("an extent names a pack that is not in the list")
    ends = np.array([pack.plain_bytes for pack in manifest.packs], np.uint64)[stored.pack]
    if (
        (stored.extent > ends) | (stored.source > ends - np.minimum(stored.extent, ends))
    ).any():
        raise ValueError("an extent reaches past the end of its pack")
    if (stored.period > stored.length).any():
        raise ValueError("the period of an extent is longer than the extent")


def _check_layers(
    table: ExtentTable, edges: NDArray[np.intp], layers: Sequence[tuple[RegionEntry, int]]
) -> None:
    """Check the rows of each layer, given their edges, and the region and height of each."""
    size = np.array([region.size_bytes for region, _ in layers], np.uint64)
    counts = np.diff(edges)
    longest, total = (np.zeros(len(layers), np.uint64) for _ in range(2))
    some = np.flatnonzero(counts)
    longest[some] = np.maximum.reduceat(table.length, edges[some]) if len(some) else 0
    total[some] = np.add.reduceat(table.length, edges[some]) if len(some) else 0
    # The sum alone could wrap around.
    bad = np.flatnonzero((longest > size) | (total != size))
    if len(bad):
        name = layers[int(bad[0])][0].name
        raise ValueError(f"the extents of region {name!r} do not cover it")
    # Only a bottom has patterns, and only what lies above one can keep its bytes.
    above = np.repeat(np.array([number > 0 for _, number in layers], np.bool_), counts)
    wrong = np.where(above, (table.pack == FILL) | (table.period > 0), table.pack == KEEP)
    if wrong.any():
        row = int(np.argmax(wrong))
        name = layers[int(np.searchsorted(edges, row, side="right")) - 1][0].name
        raise ValueError(f"an extent of region {name!r} is on the wrong layer")


def _encode_extents(table: ExtentTable) -> bytes:
    stored = table.take(table.stored)
    code = np.where(
        table.pack < KEEP, table.pack.astype(np.uint64) + np.uint64(2), FILL - table.pack
    )
    columns = [
        varint.encode(code.astype(np.uint64)),
        varint.encode(table.length),
        varint.encode(varint.zigzag(stored.source - _expected(stored))),
        varint.encode(table.source[table.pack == FILL]),
        varint.encode(stored.period),
    ]
    return b"".join([struct.pack("<5Q", *map(len, columns)), *columns])


def _decode_extents(data: bytes) -> ExtentTable:
    if not data:
        return ExtentTable.of([])
    sizes = struct.unpack_from("<5Q", data)
    edges = [40, *itertools.accumulate(sizes, initial=40)][1:]
    if edges[-1] != len(data):
        raise ValueError("the columns do not fill the extent table")
    code, length, steps, fills, periods = (
        varint.decode(memoryview(data)[a:b]) for a, b in itertools.pairwise(edges)
    )
    if code.max(initial=np.uint64(0)) > KEEP:
        raise ValueError("an extent names a pack of an impossible number")
    is_stored, is_fill = code >= 2, code == 0
    if not (
        len(code) == len(length)
        and int(is_stored.sum()) == len(steps) == len(periods)
        and int(is_fill.sum()) == len(fills)
    ):
        raise ValueError("the columns of the extent table have different lengths")
    pack = np.where(is_stored, code - np.uint64(2), np.uint64(FILL) - code).astype(np.uint32)
    source, period = np.zeros((2, len(code)), np.uint64)
    source[is_fill], period[is_stored] = fills, periods
    stored = ExtentTable(length[is_stored], varint.unzigzag(steps), pack[is_stored], periods)
    source[is_stored] = _sums_by_pack(stored)
    return ExtentTable(length, source, pack, period)


def _by_pack(stored: ExtentTable) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the order that brings rows of one pack together, and where each pack begins."""
    order = np.argsort(stored.pack, kind="stable")
    pack = stored.pack[order]
    return order, np.concatenate([np.ones(min(1, len(pack)), np.bool_), pack[1:] != pack[:-1]])


def _expected(stored: ExtentTable) -> NDArray[np.uint64]:
    """Return, for each row, the end of the row before of the same pack; for the first, 0."""
    order, first = _by_pack(stored)
    end = (stored.source + stored.extent)[order]
    expected = np.zeros(len(stored), np.uint64)
    expected[order[1:]] = np.where(first[1:], np.uint64(0), end[:-1])
    return expected


def _sums_by_pack(stored: ExtentTable) -> NDArray[np.uint64]:
    """Undo `_expected`, where ``source`` holds the steps; modulo 2^64, like those."""
    order, first = _by_pack(stored)
    step, extent = stored.source[order], stored.extent[order]
    total = np.cumsum(step + extent, dtype=np.uint64)
    before = (total - step - extent)[first]
    run = np.cumsum(first) - 1
    source = np.empty(len(stored), np.uint64)
    source[order] = total - extent - before[run]
    return source


def _plain_extents(data: bytes) -> ExtentTable:
    """Read a table without the feature `COMPACT`."""
    count, rest = divmod(len(data), 20)
    if rest:
        raise ValueError(f"the extent table has {len(data)} bytes")
    length = np.frombuffer(data, "<u8", count).astype(np.uint64)
    step = np.frombuffer(data, "<u8", count, offset=8 * count).astype(np.uint64)
    pack = np.frombuffer(data, "<u4", count, offset=16 * count).astype(np.uint32)
    before = np.zeros(count, np.uint64)
    np.cumsum(length[:-1], out=before[1:])
    source = np.cumsum(step, dtype=np.uint64) + before
    return ExtentTable(length, source, pack)


def _decompress(data: memoryview) -> bytes:
    size_bytes = zstandard.frame_content_size(data)
    if not 0 <= size_bytes <= min(_SECTION_BYTES_MAX, len(data) * _ZSTD_RATIO_MAX):
        raise ValueError(f"a section claims {size_bytes} bytes")
    if size_bytes == 0:
        return b""
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)
