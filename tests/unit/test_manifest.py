"""The bytes of a manifest: they say what they were given, and any damage to them shows."""

from __future__ import annotations

import itertools
import json
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard

from ckptflow import manifest as manifest_file
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

HEAD_BYTES = 32


def extents(*rows: tuple[int, ...]) -> ExtentTable:
    """Rows of length, source, pack, and maybe a period."""
    whole = [(*row, 0)[:4] for row in rows]
    length, source, pack, period = zip(*whole, strict=True) if rows else ((), (), (), ())
    return ExtentTable(
        np.array(length, np.uint64),
        np.array(source, np.uint64),
        np.array(pack, np.uint32),
        np.array(period, np.uint64),
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
        RegionEntry(
            "weights",
            100,
            b"d" * 16,
            2,
            (DeltaLayer(3, DeltaOp.SUB, 4), DeltaLayer(1, DeltaOp.XOR, 8)),
            "sub4+zstd-1: half the bytes",
            32,
        ),
    ),
    extents=extents(
        *((2**40, 5, 1), (2, 2**64 - 1, FILL), (8, 100, 0), (16, 0x0102030405060708, FILL)),
        *((80, 40, 0, 24), (20, 3, 1)),  # The bottom of the weights,
        *((32, 0, KEEP), (64, 2**41 - 64, 1), (4, 0, KEEP)),  # a delta on it,
        (100, 800, 0),  # and one on that.
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
    assert MANIFEST.state_bytes == 2**40 + 126


def test_extents_are_shared_out_among_the_regions_and_their_layers() -> None:
    counts = [[len(rows) for rows in layers] for layers in MANIFEST.region_layers()]
    assert counts == [[3], [0], [1], [2, 3, 1]]


def test_rows_take_of_their_pack_what_they_repeat() -> None:
    table = MANIFEST.region_layers()[3]
    assert [rows.extent.tolist() for rows in table] == [[24, 20], [0, 64, 0], [100]]


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


@pytest.mark.parametrize("pace", [None, [1], "fast", 3])
def test_nonsense_about_the_pace_is_no_reason_to_refuse_a_checkpoint(pace: Any) -> None:
    data = manifest_file.encode(MANIFEST)
    document = {**document_of(data), "pace": pace}
    assert decode(rebuilt(document, table_of(data))) == MANIFEST


def test_the_pace_comes_back() -> None:
    manifest = replace(MANIFEST, pace={"measured_on": "0123", "blocked_s": 0.25})
    assert decode(manifest_file.encode(manifest)) == manifest
    assert "pace" not in document_of(manifest_file.encode(MANIFEST))


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
    _region(name=7),
    _region(name="\ud800"),
    _region(encoding=["zstd"]),
    _region(bytes=10.0),
    lambda document: document.update(metrics=[1]),
    lambda document: document.update(chunk=12),
    lambda document: document.update(chunk="64"),
    lambda document: document.update(step=True),
    lambda document: document["packs"][0].update(plain=-1),
    lambda document: document["packs"][0].update(frames=1e3),
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
    with pytest.raises(FormatError, match="the columns do not fill the extent table"):
        decode(rebuilt(document_of(data), table_of(data)[:-1]))


def _columns(data: bytes) -> list[bytes]:
    table = table_of(data)
    edges = [40, *itertools.accumulate(struct.unpack_from("<5Q", table), initial=40)][1:]
    return [table[a:b] for a, b in itertools.pairwise(edges)]


def _table(columns: list[bytes]) -> bytes:
    return struct.pack("<5Q", *map(len, columns)) + b"".join(columns)


def test_the_columns_are_those_of_the_format_page() -> None:
    """Spelled out, for one region of each kind of row; `-1` is 1 in zigzag, and 2 is 4."""
    rows = extents((8, 5, 0), (8, 77, FILL), (24, 12, 0, 8), (4, 20, 0))
    region = RegionEntry("r", 44, b"a" * 16, 4)
    data = manifest_file.encode(replace(MANIFEST, regions=(region,), extents=rows))
    assert _columns(data) == [b"\2\0\2\2", b"\x08\x08\x18\4", b"\x0a\1\0", b"\x4d", b"\0\x08\0"]


@pytest.mark.parametrize(
    ("number", "column", "message"),
    [
        (0, b"\2\2", "columns of the extent table have different lengths"),
        (0, varint.encode(np.array([2**32 - 1] * 10, np.uint64)), "of an impossible number"),
        (1, b"\1", "columns of the extent table have different lengths"),
        (1, b"", "columns of the extent table have different lengths"),
        (2, b"", "columns of the extent table have different lengths"),
        (2, b"\x80", "a column of integers is cut short"),
        (3, b"\1" * 10, "columns of the extent table have different lengths"),
        (4, b"\0", "columns of the extent table have different lengths"),
        (4, b"\xff" * 10 + b"\1", "an integer has more than 64 bits"),
    ],
)
def test_columns_that_do_not_fit_each_other(number: int, column: bytes, message: str) -> None:
    data = manifest_file.encode(MANIFEST)
    columns = _columns(data)
    columns[number] = column
    with pytest.raises(FormatError, match=message):
        decode(rebuilt(document_of(data), _table(columns)))


def test_a_table_shorter_than_its_head() -> None:
    data = manifest_file.encode(MANIFEST)
    with pytest.raises(FormatError, match="does not follow format version 1"):
        decode(rebuilt(document_of(data), table_of(data)[:20]))


def test_a_table_without_compact_extents_is_read() -> None:
    """As version 1 wrote it before there were repeats and delta layers."""
    old = replace(MANIFEST, regions=MANIFEST.regions[:3], extents=MANIFEST.extents.rows(0, 4))
    document = {**document_of(manifest_file.encode(old)), "features": []}
    table = old.extents
    before = np.concatenate([np.zeros(1, np.uint64), (table.source + table.length)[:-1]])
    columns = [table.length.tobytes(), (table.source - before).tobytes(), table.pack.tobytes()]
    assert decode(rebuilt(document, b"".join(columns))) == old
    with pytest.raises(FormatError, match="the extent table has 79 bytes"):
        decode(rebuilt(document, b"".join(columns)[:-1]))


BAD_ROWS = [
    ([(16, 0, 2)], "names a pack that is not in the list"),
    ([(8, 0, 0), (9, 8, 0)], "do not cover it"),
    ([(8, 0, 0)], "do not cover it"),
    ([(16, 890, 0)], "reaches past the end of its pack"),
    ([(16, 2**64 - 8, 0)], "reaches past the end of its pack"),
    ([(16, 899, 0, 2)], "reaches past the end of its pack"),
    ([(16, 0, 0, 17)], "the period of an extent is longer than the extent"),
    ([(16, 0, KEEP)], "is on the wrong layer"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS)
def test_rows_that_cannot_be(rows: list[tuple[int, ...]], message: str) -> None:
    region = RegionEntry("r", 16, b"a" * 16, len(rows))
    data = manifest_file.encode(replace(MANIFEST, regions=(region,), extents=extents(*rows)))
    with pytest.raises(FormatError, match=message):
        decode(data)


BAD_DELTAS = [
    ([(16, 0, FILL)], "is on the wrong layer"),
    ([(16, 0, 0, 8)], "is on the wrong layer"),
    ([(8, 0, 0)], "do not cover it"),
    ([(8, 0, KEEP), (16, 0, KEEP)], "do not cover it"),
    ([(16, 0, 9)], "names a pack that is not in the list"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_DELTAS)
def test_delta_rows_that_cannot_be(rows: list[tuple[int, ...]], message: str) -> None:
    layer = DeltaLayer(len(rows), DeltaOp.XOR, 4)
    region = RegionEntry("r", 16, b"a" * 16, 1, (layer,))
    table = extents((16, 0, 0), *rows)
    data = manifest_file.encode(replace(MANIFEST, regions=(region,), extents=table))
    with pytest.raises(FormatError, match=message):
        decode(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word": 3}, "a delta has words of 3 bytes"),
        ({"word": 16}, "a delta has words of 16 bytes"),
        ({"word": True}, "True is no number of things"),
        ({"op": "add"}, "'add' is not a valid DeltaOp"),
        ({"op": None}, "None is not a valid DeltaOp"),
        ({"extents": -1}, "-1 is no number of things"),
        ({"extents": 2}, "the extent table and the region table disagree"),
    ],
)
def test_layers_that_nobody_knows(change: dict[str, Any], message: str) -> None:
    data = manifest_file.encode(MANIFEST)
    document = document_of(data)
    document["regions"][3]["deltas"][0].update(change)
    with pytest.raises(FormatError, match=message):
        decode(rebuilt(document, table_of(data)))


@pytest.mark.parametrize("cell", [8, 20, 48, 100, 2**70, "32", 1.5])
def test_cells_that_cannot_be(cell: object) -> None:
    """Chunks have 64 bytes here: smaller cells divide them, larger ones are multiples."""
    data = manifest_file.encode(MANIFEST)
    document = document_of(data)
    document["regions"][3]["cell"] = cell
    with pytest.raises(FormatError, match="does not follow format version 1"):
        decode(rebuilt(document, table_of(data)))


@pytest.mark.parametrize("cell", [0, 16, 32, 64, 128, 640])
def test_cells_that_can_be(cell: int) -> None:
    data = manifest_file.encode(MANIFEST)
    document = document_of(data)
    document["regions"][3]["cell"] = cell
    assert decode(rebuilt(document, table_of(data))).regions[3].cell_bytes == cell


def test_a_section_cannot_claim_more_than_zstd_can_give() -> None:
    """The head of a zstd frame with a content size of 8 GiB, and nothing that gives them."""
    claim = bytes.fromhex("28b52ffde0") + struct.pack("<Q", 1 << 33) + bytes(20)
    with pytest.raises(FormatError, match="a section claims 8589934592 bytes"):
        decode(rebuilt(None, sections=(claim, zstandard.compress(b""))))


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
