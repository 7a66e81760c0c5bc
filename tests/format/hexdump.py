"""Show one checkpoint of tests/golden/v1 in hex, with what its bytes mean.

    python tests/format/hexdump.py            prints it
    python tests/format/hexdump.py --write    puts it into docs/reference/format-v1.md

`test_hexdump.py` compares the page with it. The bytes are those of the golden store, because
another version of zstd may compress the same document to other bytes.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import zstandard

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/reference/format-v1.md"
LINEAGE = REPOSITORY / "tests/golden/v1/lineages/golden/shown"
BEGIN = "<!-- Written by tests/format/hexdump.py. -->\n```text\n"
END = "```\n<!-- End of what it wrote. -->"

Part = tuple[int, str]  # Bytes, meaning.


def pack_parts(raw: bytes) -> Iterator[Part]:
    (count,) = struct.unpack_from("<Q", raw, len(raw) - 16)
    yield 8, 'magic "CKFPACK1"'
    yield 8, "reserved"
    records = list(struct.iter_unpack("<2IB3s16s", raw[-32 - 28 * count : -32]))
    for number, (stored, _, codec, _, _) in enumerate(records):
        yield stored, f"frame {number}, {('raw', 'zstd')[codec]}"
    for number, (stored, plain, codec, _, _) in enumerate(records):
        yield 4, f"frame table, frame {number}: stored bytes, {stored}"
        yield 4, f"plain bytes, {plain}"
        yield 4, f"codec {codec}, 3 bytes 0"
        yield 16, "digest of the stored bytes"
    yield 16, "seal of the frame table"
    yield 8, f"number of frames, {count}"
    yield 8, 'magic "CKFPEND1"'


def manifest_parts(raw: bytes) -> Iterator[Part]:
    version, _, document, extents = struct.unpack_from("<2I2Q", raw, 8)
    yield 8, 'magic "CKFMANI1"'
    yield 4, f"version {version}"
    yield 4, "reserved"
    yield 8, f"bytes of the document, {document}"
    yield 8, f"bytes of the extent table, {extents}"
    yield document, "document, one zstd frame"
    yield extents, "extent table, one zstd frame"
    yield 16, "seal of all bytes before"


def extent_parts(table: bytes) -> Iterator[Part]:
    """Yield the parts of an extent table that has been decompressed."""
    count = len(table) // 20
    columns = struct.unpack(f"<{2 * count}Q{count}I", table)
    for number, length in enumerate(columns[:count]):
        yield 8, f"length of extent {number}, {length}"
    packs = columns[2 * count :]
    end = 0
    for number in range(count):
        source = (end + columns[count + number]) % 2**64
        is_fill = packs[number] == 0xFFFFFFFF
        value = struct.pack("<Q", source).hex(" ") if is_fill else source
        yield 8, f"source of extent {number}: this + {end} = {value}"
        end = (source + columns[number]) % 2**64
    for number, pack in enumerate(packs):
        yield 4, f"pack of extent {number}, {'none: a fill' if pack == 0xFFFFFFFF else pack}"


def document_lines(document: bytes) -> Iterator[str]:
    fields = json.loads(document)
    for number, (name, value) in enumerate(fields.items()):
        shown = json.dumps(value)
        if name in {"packs", "regions"}:
            shown = "[" + ",\n   ".join(json.dumps(item) for item in value) + "]"
        opening, closing = (
            "{" if number == 0 else " ",
            "}" if number == len(fields) - 1 else ",",
        )
        yield f"{opening}{json.dumps(name)}: {shown}{closing}"


def lines(raw: bytes, parts: Iterator[Part], *, row_bytes: int = 16) -> Iterator[str]:
    """Yield the lines of a dump: offset, bytes, meaning; of long parts the ends only."""
    start = 0
    for size, meaning in parts:
        rows = range(start, start + size, row_bytes)
        for number, row in enumerate(rows):
            if len(rows) > 6 and number == 2:
                yield f"{'…':>8}"
            if len(rows) <= 6 or number < 2 or number >= len(rows) - 1:
                shown = raw[row : min(row + row_bytes, start + size)].hex(" ")
                says = meaning if number == 0 else ""
                yield f"{row:08x}  {shown:<{3 * row_bytes}} {says}".rstrip()
        start += size
    if start != len(raw):
        raise ValueError(f"the parts have {start} bytes, the object {len(raw)}")


def dump() -> str:
    """Return the text between the markers of the page."""
    (pack,), (manifest,) = LINEAGE.glob("packs/*"), LINEAGE.glob("manifests/*")
    raw = manifest.read_bytes()
    document_bytes, table_bytes = struct.unpack_from("<2Q", raw, 16)
    document = zstandard.decompress(raw[32 : 32 + document_bytes])
    table = zstandard.decompress(raw[32 + document_bytes : 32 + document_bytes + table_bytes])
    blocks = [
        [pack.relative_to(LINEAGE).as_posix(), ""],
        lines(pack.read_bytes(), pack_parts(pack.read_bytes())),
        ["", manifest.relative_to(LINEAGE).as_posix(), ""],
        lines(raw, manifest_parts(raw)),
        [
            "",
            f"the document: {len(document)} bytes, here with spaces and line breaks added",
            "",
        ],
        document_lines(document),
        ["", f"the extent table: {len(table)} bytes", ""],
        lines(table, extent_parts(table)),
    ]
    return "".join(f"{line}\n" for block in blocks for line in block)


def page_with(text: str) -> str:
    """Return the page with this dump."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(dump()), encoding="utf-8")
    else:
        print(dump(), end="")
