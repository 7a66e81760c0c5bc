"""Show two checkpoints of tests/golden in hex, with what their bytes mean.

    python tests/format/hexdump.py            prints it
    python tests/format/hexdump.py --write    puts it into docs/reference/format-v1.md

`test_hexdump.py` compares the page with it. The bytes are those of the golden stores, because
another version of zstd may compress the same document to other bytes.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import zstandard

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/reference/format-v1.md"
GOLDEN = REPOSITORY / "tests/golden"
LINEAGE = "lineages/golden/shown"
BEGIN = "<!-- Written by tests/format/hexdump.py. -->\n"
END = "<!-- End of what it wrote. -->"
SHOWN = {
    "v1-compact": (
        8,
        "With `compact-extents`: `beat` is a period, `steps` has a delta on what it was in the "
        "checkpoint before, which changes its last 8 numbers.",
    ),
    "v1": (7, "Without it: only what `text` and `ones` are."),
}
CODECS, FILTERS = ("raw", "zstd", "lz4"), ("no filter", "shuffle", "bit shuffle", "words")

Part = tuple[int, str]  # Bytes, meaning.


def pack_parts(raw: bytes) -> Iterator[Part]:
    (count,) = struct.unpack_from("<Q", raw, len(raw) - 16)
    yield 8, 'magic "CKFPACK1"'
    yield 8, "reserved"
    records = list(struct.iter_unpack("<2I4B16s", raw[-32 - 28 * count : -32]))
    for number, (stored, _, codec, *_) in enumerate(records):
        yield stored, f"frame {number}, {CODECS[codec]}"
    for number, (stored, plain, codec, kind, word, _, _) in enumerate(records):
        yield 4, f"frame table, frame {number}: stored bytes, {stored}"
        yield 4, f"plain bytes, {plain}"
        yield 4, f"codec {codec}, filter {kind}: {FILTERS[kind]}, words of {word}, and 0"
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


def leb128(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the bytes and the value of each number."""
    size = value = 0
    for byte in data:
        value |= (byte & 127) << 7 * size
        size += 1
        if byte < 128:
            yield size, value
            size = value = 0


def compact_parts(table: bytes) -> Iterator[Part]:
    """Yield the parts of a table with compact-extents that has been decompressed."""
    sizes = struct.unpack_from("<5Q", table)
    edges = list(itertools.accumulate(sizes, initial=40))
    columns = [list(leb128(table[a:b])) for a, b in itertools.pairwise(edges)]
    for number, size in enumerate(sizes, 1):
        yield 8, f"bytes of column {number}, {size}"
    codes, lengths = ([value for _, value in column] for column in columns[:2])
    stored = [row for row, code in enumerate(codes) if code > 1]
    periods = dict(zip(stored, (value for _, value in columns[4]), strict=True))
    for row, (size, code) in enumerate(columns[0]):
        means = {0: "a fill", 1: "keep"}.get(code, f"pack {code - 2}")
        yield size, f"row {row}: {code}, {means}"
    for row, (size, length) in enumerate(columns[1]):
        yield size, f"row {row}: length, {length}"
    ends: dict[int, int] = {}
    for row, (size, code) in zip(stored, columns[2], strict=True):
        step, end = code >> 1 ^ -(code & 1), ends.get(codes[row], 0)
        ends[codes[row]] = end + step + (periods[row] or lengths[row])
        yield (
            size,
            f"row {row}: source, {end} {'-' if step < 0 else '+'} {abs(step)} = {end + step}",
        )
    fills = [row for row, code in enumerate(codes) if code == 0]
    for row, (size, value) in zip(fills, columns[3], strict=True):
        yield size, f"row {row}: pattern, {struct.pack('<Q', value).hex(' ')}"
    for row, (size, period) in zip(stored, columns[4], strict=True):
        yield size, f"row {row}: {f'period, {period}' if period else 'no period'}"


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
    return "\n".join(
        f"{says} It lies in `tests/golden/{store}`.\n\n```text\n{dump_of(store, step)}```\n"
        for store, (step, says) in SHOWN.items()
    )


def dump_of(store: str, step: int) -> str:
    """Return the dump of one checkpoint and the pack that it wrote."""
    lineage = GOLDEN / store / LINEAGE
    (pack,), (manifest,) = (
        lineage.glob(f"{folder}/{step:012d}.*") for folder in ("packs", "manifests")
    )
    raw = manifest.read_bytes()
    document_bytes, table_bytes = struct.unpack_from("<2Q", raw, 16)
    document = zstandard.decompress(raw[32 : 32 + document_bytes])
    table = zstandard.decompress(raw[32 + document_bytes : 32 + document_bytes + table_bytes])
    is_compact = "compact-extents" in json.loads(document)["features"]
    blocks = [
        [pack.relative_to(lineage).as_posix(), ""],
        lines(pack.read_bytes(), pack_parts(pack.read_bytes())),
        ["", manifest.relative_to(lineage).as_posix(), ""],
        lines(raw, manifest_parts(raw)),
        [
            "",
            f"the document: {len(document)} bytes, here with spaces and line breaks added",
            "",
        ],
        document_lines(document),
        ["", f"the extent table: {len(table)} bytes", ""],
        lines(table, compact_parts(table) if is_compact else extent_parts(table)),
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
