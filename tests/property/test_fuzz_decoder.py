"""Manifests, frame tables and frames that say nonsense under a right seal.

A flipped bit never gets past a seal or a digest, so damage alone shows nothing about what lies
behind them. Here each mutation is sealed again, down to the manifest: it is what a wrong, or a
hostile, program might write. Whatever it says, reading ends with the bytes that the roots name
or with one of the errors that a restore knows how to treat; never with another exception, a
crash, or more memory than the manifest owns up to.

The cases run in a process of its own, whose memory has a limit. The independent reader is not
asked: it is for checkpoints that somebody means to read.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zstandard

from ckptflow import manifest as manifest_file
from ckptflow.data import digest
from ckptflow.data.codec import Codec
from ckptflow.data.filters import Filter
from ckptflow.data.frames import Encoding
from ckptflow.data.regions import flatten
from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import CheckpointId, DeltaOp, LineageId, Manifest
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.planning import plan
from ckptflow.store.planning.drafting import RegionEncoding
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.resume import read_state
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("fuzz", "task")
STATE_BYTES_MAX = 16 << 20  # A manifest that owns up to more is not read: it is no lie.
MEMORY_BYTES = 1 << 30  # Beyond what the process has when it begins.
KNOWN = (CorruptionError, FormatError, NotFoundError)
CASES = 2000

ENCODINGS = {
    "raw": Encoding(),
    "zstd": Encoding(Codec.ZSTD, 1),
    "lz4": Encoding(Codec.LZ4),
    "shuffled": Encoding(Codec.ZSTD, 1, Filter.SHUFFLE, 4),
    "bits": Encoding(Codec.LZ4, 0, Filter.BITSHUFFLE, 4),
    "words": Encoding(Codec.RAW, 0, Filter.WORDS, 4),
    "packed words": Encoding(Codec.LZ4, 0, Filter.WORDS, 8),
    "periodic": Encoding(Codec.ZSTD, 1),
    "filled": Encoding(Codec.ZSTD, 1),
}


@dataclass(frozen=True)
class Specimen:
    """A sound checkpoint in parts: everything that there is to mutate."""

    objects: dict[str, bytes]
    manifest: bytes
    document: dict[str, Any]
    table: bytes
    packs: dict[str, bytes]


def specimen() -> Specimen:
    """The third checkpoint of a lineage, with every feature of the format in it."""
    rng = np.random.default_rng(5)
    numbers = rng.integers(0, 60, 700, dtype="<u4")
    state: dict[str, Any] = {name: numbers * (n + 1) for n, name in enumerate(ENCODINGS)}
    state["words"] = numbers * (rng.random(700) < 0.3)
    state["packed words"] = np.repeat(state["words"], 2)
    state["periodic"] = np.tile(numbers[:48], 20)
    state["filled"] = np.zeros(500, "<u4")
    tier, base = MemoryTier(), None
    for step in range(3):
        state = {name: array.copy() for name, array in state.items()}
        for array in state.values():
            array[step * 16 : step * 16 + 40] += np.uint32(step)
        base = _write(tier, step, state, base)
    assert base is not None
    key = f"{LINEAGE.prefix}/{base.manifest.id.manifest_key}"
    packs = {pack.key: tier.get(f"{LINEAGE.prefix}/{pack.key}") for pack in base.manifest.packs}
    raw = tier.get(key)
    document_bytes, table_bytes = struct.unpack_from("<2Q", raw, 16)
    return Specimen(
        {name: tier.get(name) for name in tier.iter_keys("")},
        raw,
        json.loads(zstandard.decompress(raw[32 : 32 + document_bytes])),
        zstandard.decompress(raw[32 + document_bytes : 32 + document_bytes + table_bytes]),
        packs,
    )


def _write(tier: MemoryTier, step: int, state: dict[str, Any], base: Base | None) -> Base:
    flat = flatten({"state": state, "rng": None})
    views = flat.copy_into(memoryview(bytearray(flat.total_bytes)))
    regions = [
        NamedRegion(r.name, view, 4) for r, view in zip(flat.regions, views, strict=True)
    ]

    def chosen(diffs: Sequence[Any], _memory: Any, **_options: Any) -> list[RegionEncoding]:
        names = [diff.region.name.removeprefix("state/") for diff in diffs]
        return [
            RegionEncoding(
                ENCODINGS[name],
                replace(ENCODINGS[name], op=[DeltaOp.SUB, DeltaOp.XOR][n % 2], op_word=4),
            )
            for n, name in enumerate(names)
        ]

    with mock.patch.object(plan, "choose_encodings", chosen):
        new = write_checkpoint(
            tier,
            LINEAGE,
            CheckpointId(step, 1),
            structure=flat.structure,
            regions=regions,
            base=base,
            chunk_bytes=64,
            goal="small",
        )
    new.memory.bytes_at_hand = {region.name: region.data for region in regions}
    return new


# --- what is mutated -------------------------------------------------------------------

VALUES: list[Any] = [
    *(-1, 0, 1, 3, 7, 8, 16, 64, 2**31, 2**32 - 2, 2**63 - 1, 2**63, 2**64, 2**70),
    *(0.5, 1e300, True, False, None, "", "x", "../x", "packs", "\ud800", "00" * 16),
    *([], {}, [1], {"a": 1}, [[]], ["array", "numpy", "<f8", [2], 0], ["dict"]),
]


class Mutator:
    """Draws mutations of one specimen."""

    def __init__(self, of: Specimen, seed: int) -> None:
        self.of, self.rng = of, np.random.default_rng(seed)
        self.packs = dict(of.packs)

    def mutated(self) -> tuple[bytes, dict[str, bytes]]:
        """Return a manifest and the packs that go with it, all seals right."""
        kinds: list[Callable[[], bytes]] = [
            *(self.a_field, self.a_number, self.the_table, self.a_column),
            *(self.a_section, self.a_record, self.a_frame, self.a_pack),
        ]
        return kinds[self.below(len(kinds))](), self.packs

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def changed(self, data: bytes) -> bytes:
        """Some bytes changed, cut out, or put in."""
        result = bytearray(data)
        for _ in range(1 + self.below(3)):
            at, kind = self.below(len(result) + 1), self.below(5)
            if kind == 0:
                del result[at : at + 1 + self.below(8)]
            elif kind == 1:
                result[at:at] = self.rng.bytes(1 + self.below(8))
            elif kind == 2:
                result[at : at + 8] = result[(other := self.below(len(data))) : other + 8]
            elif at < len(result):
                result[at] ^= 1 << self.below(8) if kind == 3 else 0xFF
        return bytes(result)

    def sealed(self, document: Any, table: bytes) -> bytes:
        text = json.dumps(document).encode()
        return self.object([zstandard.compress(text), zstandard.compress(table)])

    def object(self, sections: list[bytes]) -> bytes:
        head = struct.pack("<8s2I2Q", b"CKFMANI1", 1, 0, *map(len, sections))
        body = head + b"".join(sections)
        return body + manifest_file.seal(body)

    def a_field(self) -> bytes:
        """Anything in the place of anything in the document."""
        document = copy.deepcopy(self.of.document)
        node: Any = document
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[self.below(len(keys))]
            if not isinstance(node[key], dict | list) or not node[key] or self.below(6) == 0:
                break
            node = node[key]
        if self.below(8) == 0:
            del node[key]
        else:
            node[key] = VALUES[self.below(len(VALUES))]
        return self.sealed(document, self.of.table)

    def a_number(self) -> bytes:
        """One of the sizes and counts, a little off."""
        document = copy.deepcopy(self.of.document)
        lists = [document["packs"], document["regions"]]
        lists += [region["deltas"] for region in document["regions"] if "deltas" in region]
        entry = (entries := lists[self.below(len(lists))])[self.below(len(entries))]
        names = [name for name, value in entry.items() if isinstance(value, int)]
        entry[names[self.below(len(names))]] += [-64, -8, -1, 1, 8, 64][self.below(6)]
        return self.sealed(document, self.of.table)

    def the_table(self) -> bytes:
        return self.sealed(self.of.document, self.changed(self.of.table))

    def a_column(self) -> bytes:
        """One column of the extent table; the lengths of the columns are right."""
        sizes = struct.unpack_from("<5Q", self.of.table)
        edges = np.cumsum([40, *sizes]).tolist()
        columns = [self.of.table[a:b] for a, b in itertools.pairwise(edges)]
        which = self.below(5)
        columns[which] = self.changed(columns[which])
        head = struct.pack("<5Q", *map(len, columns))
        return self.sealed(self.of.document, head + b"".join(columns))

    def a_section(self) -> bytes:
        """The compressed bytes of the document or of the table."""
        document_bytes, _ = struct.unpack_from("<2Q", self.of.manifest, 16)
        body = self.of.manifest[32:-16]
        sections = [body[:document_bytes], body[document_bytes:]]
        which = self.below(2)
        sections[which] = self.changed(sections[which])
        return self.object(sections)

    def a_record(self) -> bytes:
        """One field of one frame's record."""
        key, pack, count = self._some_pack()
        record = bytearray(self._table(pack, count))
        at = 28 * self.below(count)
        field, form = [(0, "I"), (4, "I"), (8, "B"), (9, "B"), (10, "B"), (11, "B")][
            self.below(6)
        ]
        (value,) = struct.unpack_from(f"<{form}", record, at + field)
        some = [value - 1, value + 1, 0, self.below(20), self.below(1 << 24), (1 << 32) - 1]
        top = 1 << 8 * struct.calcsize(form)
        struct.pack_into(f"<{form}", record, at + field, some[self.below(6)] % top)
        return self._with_pack(key, pack[: -32 - 28 * count], bytes(record))

    def a_frame(self) -> bytes:
        """The stored bytes of one frame, of any length; its digest is right."""
        key, pack, count = self._some_pack()
        record = bytearray(self._table(pack, count))
        sizes = [struct.unpack_from("<I", record, 28 * n)[0] for n in range(count)]
        number, start = self.below(count), 16
        start += sum(sizes[:number])
        stored = self.changed(pack[start : start + sizes[number]])
        struct.pack_into("<I", record, 28 * number, len(stored))
        record[28 * number + 12 : 28 * number + 28] = digest.digest(stored)
        frames = pack[:start] + stored + pack[start + sizes[number] : -32 - 28 * count]
        return self._with_pack(key, frames, bytes(record))

    def a_pack(self) -> bytes:
        """A whole object, or its being there."""
        keys = list(self.packs)
        key = keys[self.below(len(keys))]
        if self.below(4) == 0:
            del self.packs[key]
        else:
            self.packs[key] = self.changed(self.packs[key])
        return self.of.manifest

    def _some_pack(self) -> tuple[str, bytes, int]:
        keys = list(self.packs)
        key = keys[self.below(len(keys))]
        (count,) = struct.unpack_from("<Q", self.packs[key], len(self.packs[key]) - 16)
        return key, self.packs[key], count

    @staticmethod
    def _table(pack: bytes, count: int) -> bytes:
        return pack[-32 - 28 * count : -32]

    def _with_pack(self, key: str, frames: bytes, table: bytes) -> bytes:
        """A manifest that names this pack, sealed."""
        seal = manifest_file.seal(table)
        tail = struct.pack("<16sQ8s", seal, len(table) // 28, b"CKFPEND1")
        self.packs[key] = frames + table + tail
        document = copy.deepcopy(self.of.document)
        entry = next(pack for pack in document["packs"] if pack["key"] == key)
        entry |= {"table": seal.hex(), "bytes": len(self.packs[key])}
        if self.below(2):  # Else it disagrees about the length of the plain stream.
            records = struct.iter_unpack("<2I20x", table)
            entry["plain"] = min(sum(plain for _, plain in records), 2**62)
        return self.sealed(document, self.of.table)


# --- what comes of it ------------------------------------------------------------------


def outcome(manifest: bytes, packs: dict[str, bytes], right: dict[bytes, bytes]) -> str:
    """Read a checkpoint; return how it ended. What it may not do is raised."""
    tier = MemoryTier()
    for key, data in packs.items():
        tier.put(f"{LINEAGE.prefix}/{key}", [data])
    try:
        found = manifest_file.decode(manifest, where="here")
        if found.state_bytes > STATE_BYTES_MAX:
            return "too large"
        read_state([tier], replace(found, lineage=LINEAGE), None)
    except KNOWN as error:
        return type(error).__name__
    for entry, data in zip(found.regions, _bytes_of(tier, found), strict=True):
        # It was read, so it has its root; and then it has the bytes of that root.
        assert found.chunk_bytes != 64 or right.get(entry.root, data) == data
        assert found.chunk_bytes != 64 or entry.root in right or not data
    return "read"


def _bytes_of(tier: MemoryTier, manifest: Manifest) -> list[bytes]:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    read_checkpoint([tier], replace(manifest, lineage=LINEAGE), buffers)
    return [bytes(buffer) for buffer in buffers]


def right_bytes(of: Specimen) -> dict[bytes, bytes]:
    """The bytes of every region, by its root."""
    tier = MemoryTier()
    for key, data in of.packs.items():
        tier.put(f"{LINEAGE.prefix}/{key}", [data])
    manifest = manifest_file.decode(of.manifest, where="here")
    roots = [entry.root for entry in manifest.regions]
    return dict(zip(roots, _bytes_of(tier, manifest), strict=True))


def fuzz(first: int, count: int) -> dict[str, int]:
    """Try some seeds; return how many ended how. Says which seed went wrong."""
    of = specimen()
    right = right_bytes(of)
    counts: dict[str, int] = {}
    for seed in range(first, first + count):
        try:
            how = outcome(*Mutator(of, seed).mutated(), right)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts[how] = counts.get(how, 0) + 1
    return counts


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


# --- the tests -------------------------------------------------------------------------


def test_the_specimen_has_every_feature() -> None:
    """Else the cases would not reach what they are for."""
    of = specimen()
    manifest = manifest_file.decode(of.manifest, where="here")
    frames = [
        record
        for pack in of.packs.values()
        for record in struct.iter_unpack(
            "<8x3B17x", pack[-32 - 28 * struct.unpack_from("<Q", pack, len(pack) - 16)[0] : -32]
        )
    ]
    assert {codec for codec, _, _ in frames} == {0, 1, 2}
    assert {kind for _, kind, _ in frames} == {0, 1, 2, 3}
    ops = {layer.op for entry in manifest.regions for layer in entry.deltas}
    assert ops == {DeltaOp.SUB, DeltaOp.XOR}
    assert manifest.extents.period.any()
    assert not manifest.extents.stored.all()
    assert len(of.packs) > 1
    # What shards have besides is a text in the structure: ``tests/unit/test_sharded.py``.
    assert set(of.document["features"]) == manifest_file.FEATURES - {manifest_file.SHARDS}


def run(first: int, count: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, __file__, str(first), str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    assert sum(counts.values()) == count
    return counts


def test_nonsense_under_a_right_seal_is_refused() -> None:
    counts = run(0, CASES)
    # Some is read: not every byte matters to every reader, as the name of who wrote it.
    assert {"read", "CorruptionError", "FormatError", "NotFoundError"} >= counts.keys() - {
        "too large"
    }
    assert min(counts["read"], counts["CorruptionError"], counts["FormatError"]) > CASES // 50


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_three_times_as_many_kinds_of_nonsense() -> None:
    run(CASES, 3 * CASES)


if __name__ == "__main__":
    fuzz(0, 1)  # Threads and tables that every case needs.
    limit_memory()
    print(json.dumps(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
