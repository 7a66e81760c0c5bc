"""The bytes of a manifest: they say what they were given, and any damage to them shows."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard

from ckptflow import manifest as manifest_file
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

HEAD_BYTES = 32


def extents(*rows: tuple[int, int, int]) -> ExtentTable:
    length, source, pack = zip(*rows, strict=True) if rows else ((), (), ())
    return ExtentTable(
        np.array(length, np.uint64), np.array(source, np.uint64), np.array(pack, np.uint32)
    )


OLD, NEW = CheckpointId(6, 1), CheckpointId(7, 2)

MANIFEST = Manifest(
    lineage=LineageId("exp", "train-seed=1"),
    id=NEW,
    parent=OLD,
    kind="delta",
    created="2026-01-02T03:04:05.678+00:00",
    writer="ckptflow 0",
    metrics={"loss": 0.1, "tiny": 5e-324, "huge": 1e308, "count": 3.0},
    root=bytes(range(16)),
    chunk_bytes=64,
    packs=(
        PackRef(OLD.pack_key(0, "0123abcd"), 1000, 900, 3, b"s" * 16),
        PackRef(NEW.pack_key(0, "89abcdef"), 2**40, 2**41, 12, b"t" * 16),
    ),
    regions=(
        RegionEntry("model/läyer", 2**40 + 10, b"a" * 16, 3),
        RegionEntry("empty", 0, b"b" * 16, 0),
        RegionEntry("rng", 16, b"c" * 16, 1),
    ),
    extents=extents(
        (2**40, 5, 1), (2, 2**64 - 1, FILL), (8, 100, 0), (16, 0x0102030405060708, FILL)
    ),
    structure=["dict", "k", 1, "text", "ünïcode", "none", None],
)


def decode(data: bytes) -> Manifest:
    return manifest_file.decode(data, where="'m' on tier 't'")


def document_of(data: bytes) -> dict[str, Any]:
    size = struct.unpack_from("<Q", data, 16)[0]
    return json.loads(zstandard.decompress(data[HEAD_BYTES : HEAD_BYTES + size]))


def rebuilt(
    document: Any, table: bytes = b"", *, version: int = 1, sections: tuple[bytes, ...] = ()
) -> bytes:
    """A sealed object around any document: damage is excluded, so only its sense is judged."""
    parts = sections or (
        zstandard.compress(json.dumps(document).encode()),
        zstandard.compress(table),
    )
    head = struct.pack("<8sIIQQ", b"CKFMANI1", version, 0, len(parts[0]), len(parts[1]))
    body = head + b"".join(parts)
    return body + manifest_file.seal(body)


def table_of(data: bytes) -> bytes:
    document_bytes, table_bytes = struct.unpack_from("<QQ", data, 16)
    start = HEAD_BYTES + document_bytes
    return zstandard.decompress(data[start : start + table_bytes])


def test_says_what_it_was_given() -> None:
    assert decode(manifest_file.encode(MANIFEST)) == MANIFEST


def test_the_same_manifest_gives_the_same_bytes() -> None:
    data = manifest_file.encode(MANIFEST)
    assert manifest_file.encode(decode(data)) == data


def test_a_state_without_regions() -> None:
    empty = replace(
        MANIFEST, packs=(), regions=(), extents=extents(), parent=None, kind="full", metrics={}
    )
    assert decode(manifest_file.encode(empty)) == empty


def test_metrics_that_are_not_finite_come_back() -> None:
    metrics = {"nan": float("nan"), "inf": float("inf"), "minus": -float("inf")}
    back = decode(manifest_file.encode(replace(MANIFEST, metrics=metrics))).metrics
    assert repr(back) == repr(metrics)


def test_own_packs_are_those_that_this_checkpoint_wrote() -> None:
    assert [pack.key for pack in MANIFEST.own_packs] == [MANIFEST.packs[1].key]
    assert MANIFEST.written_bytes == 2**40
    assert MANIFEST.state_bytes == 2**40 + 26


def test_extents_are_shared_out_among_the_regions() -> None:
    assert [[len(rows) for rows in layers] for layers in MANIFEST.region_layers()] == [[3], [0], [1]]


def test_every_flipped_bit_shows() -> None:
    data = manifest_file.encode(MANIFEST)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError, match=r"The manifest 'm' on tier 't' "):
            decode(bytes(damaged))


def test_every_cut_shows() -> None:
    data = manifest_file.encode(MANIFEST)
    for size in range(len(data)):
        with pytest.raises(CorruptionError, match=r"The manifest 'm' on tier 't' "):
            decode(data[:size])


def test_more_bytes_than_were_written_show() -> None:
    with pytest.raises(CorruptionError, match="does not match its seal"):
        decode(manifest_file.encode(MANIFEST) + b"\0")


def test_another_file_is_no_manifest() -> None:
    with pytest.raises(CorruptionError, match=r"is cut short or is no manifest \(200 bytes\)"):
        decode(b"PK\3\4" * 50)


def test_a_newer_version_is_refused_and_not_called_damage() -> None:
    data = manifest_file.encode(MANIFEST)
    newer = rebuilt(document_of(data), table_of(data), version=2)
    with pytest.raises(FormatError, match=r"version 2; .* up to version 1.*newer ckptflow"):
        decode(newer)


def test_a_damaged_version_is_damage() -> None:
    data = bytearray(manifest_file.encode(MANIFEST))
    data[8] = 2
    with pytest.raises(CorruptionError, match="does not match its seal"):
        decode(bytes(data))


def test_unknown_features_are_named() -> None:
    data = manifest_file.encode(MANIFEST)
    document = {**document_of(data), "features": ["encryption", "copy-extents"]}
    with pytest.raises(FormatError, match="features copy-extents, encryption, which this"):
        decode(rebuilt(document, table_of(data)))


def test_unknown_fields_are_ignored() -> None:
    data = manifest_file.encode(MANIFEST)
    document = {**document_of(data), "colour": "blue"}
    assert decode(rebuilt(document, table_of(data))) == MANIFEST


def _without(name: str) -> Any:
    def change(document: dict[str, Any]) -> None:
        del document[name]

    return change


def _pack_key(key: str) -> Any:
    def change(document: dict[str, Any]) -> None:
        document["packs"][0]["key"] = key

    return change


def _region(**fields: Any) -> Any:
    def change(document: dict[str, Any]) -> None:
        document["regions"][0].update(fields)

    return change


NONSENSE = [
    *(_without(name) for name in ("run", "step", "packs", "regions", "root", "features")),
    *(_pack_key(key) for key in ("../../secret", "/etc/passwd", "manifests/x.ckpt", 7)),
    _region(bytes=5),
    _region(bytes=-1),
    _region(extents=2),
    _region(extents=2**70),
    _region(root="xyz"),
    lambda document: document.update(run="../up"),
    lambda document: document.update(packs=document["packs"][:1]),
    lambda document: document.update(packs={"a": 1}),
    lambda document: document.update(parent=12),
]


@pytest.mark.parametrize("change", NONSENSE)
def test_sealed_nonsense_is_a_format_error(change: Any) -> None:
    data = manifest_file.encode(MANIFEST)
    document = document_of(data)
    change(document)
    with pytest.raises(FormatError, match="is whole but does not follow format version 1"):
        decode(rebuilt(document, table_of(data)))


@pytest.mark.parametrize("document", [None, 3, [], "text"])
def test_a_document_that_is_no_object(document: Any) -> None:
    with pytest.raises(FormatError, match="does not follow format version 1"):
        decode(rebuilt(document))


@pytest.mark.parametrize(
    "sections",
    [
        (b"not zstd", zstandard.compress(b"")),
        (zstandard.compress(b"{"), zstandard.compress(b"")),
        (zstandard.compress(b"\xff\xfe"), zstandard.compress(b"")),
        (zstandard.compress(b"{}"), b"not zstd"),
        (zstandard.compress(b"{}")[:-1], zstandard.compress(b"")),
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"),
            zstandard.compress(b""),
        ),
    ],
)
def test_sections_that_cannot_be_read(sections: tuple[bytes, bytes]) -> None:
    with pytest.raises(FormatError, match="does not follow format version 1"):
        decode(rebuilt(None, sections=sections))


def test_a_table_that_is_not_made_of_rows() -> None:
    data = manifest_file.encode(MANIFEST)
    with pytest.raises(FormatError, match="the extent table has 79 bytes"):
        decode(rebuilt(document_of(data), table_of(data)[:-1]))


def test_lengths_that_wrap_around_do_not_cover_a_region() -> None:
    """2**63 + 2**63 + 16 bytes are 16 bytes modulo 2**64."""
    wrapped = replace(
        MANIFEST,
        regions=(RegionEntry("r", 16, b"a" * 16, 3),),
        extents=extents((2**63, 0, 0), (2**63, 0, 0), (16, 0, 1)),
    )
    with pytest.raises(FormatError, match="the extents of region 'r' do not cover it"):
        decode(manifest_file.encode(wrapped))


def test_metrics_that_are_no_json_numbers_keep_their_bits() -> None:
    quiet = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    metrics = {"nan": quiet, "up": math.inf, "down": -math.inf, "loss": 0.1}
    data = manifest_file.encode(replace(MANIFEST, metrics=metrics))
    assert "NaN" not in json.dumps(document_of(data))
    back = decode(data).metrics
    assert {name: struct.pack(">d", value) for name, value in back.items()} == {
        name: struct.pack(">d", value) for name, value in metrics.items()
    }
