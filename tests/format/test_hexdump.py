"""The hex dump on the format page is true: of the golden bytes, and of what is written now."""

from __future__ import annotations

import json
import struct

import golden
import hexdump
import zstandard

from ckptflow.tiers.memory import MemoryTier


def opened(manifest: bytes) -> tuple[bytes, dict[str, object], bytes]:
    """Return the first 16 bytes, the document and the extent table of a manifest."""
    document_bytes, table_bytes = struct.unpack_from("<2Q", manifest, 16)
    table = manifest[32 + document_bytes : 32 + document_bytes + table_bytes]
    document = json.loads(zstandard.decompress(manifest[32 : 32 + document_bytes]))
    return manifest[:16], document, zstandard.decompress(table)


def test_the_page_shows_the_golden_checkpoints() -> None:
    page = hexdump.PAGE.read_text(encoding="utf-8")
    assert page == hexdump.page_with(hexdump.dump()), (
        "docs/reference/format-v1.md shows other bytes than tests/golden holds. "
        "If only the explanations changed: python tests/format/hexdump.py --write"
    )


def test_the_same_states_are_written_the_same_way_now() -> None:
    """But for what zstd compresses, which is its choice, and the writer's version."""
    tier = MemoryTier()
    golden.write_shown_compact(tier)
    folder = golden.SHOWN.prefix
    lineage = hexdump.GOLDEN / "v1-compact" / hexdump.LINEAGE
    written = {key.removeprefix(folder + "/"): tier.get(key) for key in tier.iter_keys(folder)}
    stored = {
        path.relative_to(lineage).as_posix(): path.read_bytes() for path in lineage.rglob("*.*")
    }
    assert written.keys() == stored.keys()
    for key, old in stored.items():
        if key.endswith(".ckpt"):
            head, document, table = opened(written[key])
            old_head, old_document, old_table = opened(old)
            assert document | {"writer": ""} == old_document | {"writer": ""}
            assert (head, table) == (old_head, old_table)
        else:
            assert written[key] == old, key
