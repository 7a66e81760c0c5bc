"""Read checkpoints with what docs/reference/format-v1.md says and nothing else.

A witness for that page, written from it alone: what the product writes and this file cannot
read is a mistake of the product or of the page. `test_independent_reader.py` compares the two,
and `witness.py` reads again what the other tests leave. Arrays of types that NumPy lacks
(bfloat16, …) come back as unsigned integers of their size, objects as tuples and dictionaries.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lz4.block
import numpy as np
import zstandard
from ckh128 import digest, digests, merkle, text

FILL, KEEP = 0xFFFFFFFF, 0xFFFFFFFE
FEATURES = {"compact-extents", "frame-filters", "shards"}
SHARD = r"(.+)\+(\d{5})of(\d{5})"


class Refused(ValueError):
    """Not a sound checkpoint of format 1."""


def check(condition: object, complaint: str) -> None:
    if not condition:
        raise Refused(complaint)


def load(raw: bytes) -> Any:
    """Return what JSON says; Python alone would take the NaN and Infinity that JSON lacks."""
    return json.loads(raw, parse_constant=lambda name: check(None, f"{name} is not JSON"))


# --- layout of a store; attempts and fencing


class Checkpoint(NamedTuple):
    lineage: Path
    step: int
    attempt: int


def numbers(folder: Path, pattern: str) -> list[list[int]]:
    """Return the numbers in the names of the files that have such a name."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = (re.fullmatch(pattern, name, re.ASCII) for name in names)
    return sorted([int(group) for group in match.groups()] for match in matches if match)


def checkpoints(store: Path, run: str, task: str) -> list[Checkpoint]:
    """Return the checkpoints that may be restored, the newest last."""
    if not (store / "ckptflow-store.json").exists():
        return []
    about = load((store / "ckptflow-store.json").read_bytes())
    check(about["format"] == "ckptflow-store" and about["version"] <= 1, f"version of {store}")
    lineage = store / "lineages" / run / task
    shard = re.fullmatch(SHARD, task, re.ASCII)
    attempts = lineage.with_name(shard[1] if shard else task) / "attempts"
    resumes = [
        (attempt, load((attempts / f"{attempt:08d}.resume").read_bytes())["step"])
        for (attempt,) in numbers(attempts, r"(\d{8})\.resume")
    ]
    return [
        Checkpoint(lineage, step, attempt)
        for step, attempt in numbers(lineage / "manifests", r"(\d{12})\.(\d{8})\.ckpt")
        if not any(b > attempt and (s is None or s < step) for b, s in resumes)
    ]


def newest(store: Path, run: str, task: str, step: int | None = None) -> Checkpoint:
    """Return the newest checkpoint, of this step if one is given."""
    found = [c for c in checkpoints(store, run, task) if step in {None, c.step}]
    check(found, f"no checkpoint of {run}/{task} in {store}")
    return found[-1]


# --- pack; manifest


def seal(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)


def unfilter(kind: int, word: int, data: bytes, size: int) -> bytes:
    """Undo a filter; ``size`` is what has to come out."""
    check(
        kind in range(4) and (1 <= word <= 16 if kind else word == 0), f"filter {kind}, {word}"
    )
    if not kind:
        return data
    raw, count = np.frombuffer(data, np.uint8), size // word
    if kind == 1:
        words, rest = raw[: count * word].reshape(word, count).T, raw[count * word :]
    elif kind == 2:
        count = count // 8 * 8
        planes = raw[: count * word].reshape(8 * word, count // 8)
        bits = np.unpackbits(
            planes, axis=1, bitorder="little"
        )  # One row for each bit of a word.
        words, rest = np.packbits(bits.T, axis=1, bitorder="little"), raw[count * word :]
    else:
        head, tail = -(-count // 8), size - count * word
        is_stored = np.unpackbits(raw[:head], bitorder="little")
        check(not is_stored[count:].any(), "a word that is not there")
        is_stored = is_stored[:count].astype(bool)
        check(len(raw) == head + is_stored.sum() * word + tail, "length of a filtered frame")
        words, rest = np.zeros((count, word), np.uint8), raw[len(raw) - tail :]
        words[is_stored] = raw[head : len(raw) - tail].reshape(word, is_stored.sum()).T
    return np.ascontiguousarray(words).tobytes() + rest.tobytes()


def plain_stream(lineage: Path, pack: dict[str, Any]) -> bytes:
    key, n = pack["key"], pack["frames"]
    check(re.fullmatch(r"packs/[\d.]+\.[\da-f]{8}\.pack", key, re.ASCII), f"{key}: wrong key")
    check((lineage / key).is_file(), f"{key}: missing")
    raw = (lineage / key).read_bytes()
    end, table = len(raw) - 32 - 28 * n, raw[-32 - 28 * n : -32]
    check(len(raw) == pack["bytes"] and end >= 16, f"{key}: wrong size")
    check(raw[:16] == b"CKFPACK1" + bytes(8), f"{key}: wrong magic")
    check(raw[-16:] == struct.pack("<Q8s", n, b"CKFPEND1"), f"{key}: wrong end")
    check(seal(table) == raw[-32:-16] == bytes.fromhex(pack["table"]), f"{key}: wrong seal")
    position, plain = 16, []
    for stored, size, codec, kind, word, zero, expected in struct.iter_unpack(
        "<2I4B16s", table
    ):
        check(stored <= 8 << 20, f"{key}: a frame of {stored} stored bytes")
        frame = raw[position : position + stored]
        position += stored
        check(text(digest(frame)) == expected.hex(), f"{key}: damaged before {position}")
        check(codec in {0, 1, 2} and zero == 0, f"{key}: unknown codec {codec}")
        if codec == 2:
            most = size + (-(-(size // word) // 8) if kind == 3 else 0)
            frame = lz4.block.decompress(frame, uncompressed_size=most)
        plain.append(unfilter(kind, word, unzstd(frame) if codec == 1 else frame, size))
        check(0 < len(plain[-1]) == size <= 4 << 20, f"{key}: wrong size of a frame")
    check(position == end and sum(map(len, plain)) == pack["plain"], f"{key}: wrong sums")
    return b"".join(plain)


def read_manifest(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[Row]]:
    """Return the document and the rows of the extent table."""
    lineage, step, attempt = checkpoint
    path = lineage / "manifests" / f"{step:012d}.{attempt:08d}.ckpt"
    name, raw = path.name, path.read_bytes()
    check(len(raw) >= 48 and raw[:8] == b"CKFMANI1", f"{name}: not a manifest")
    check(seal(raw[:-16]) == raw[-16:], f"{name}: wrong seal")
    version, reserved, j, t = struct.unpack_from("<2I2Q", raw, 8)
    check(version == 1, f"{name}: version {version}")
    check(reserved == 0 and len(raw) == 48 + j + t, f"{name}: wrong size")
    document, table = load(unzstd(raw[32 : 32 + j])), unzstd(raw[32 + j : -16])
    check(document["format"] == "ckptflow-checkpoint", f"{name}: of something else")
    check(set(document["features"]) <= FEATURES, f"{name}: needs {document['features']}")
    says = tuple(document[field] for field in ("run", "task", "step", "attempt"))
    check(says == (*lineage.parts[-2:], step, attempt), f"{name}: is of {says}")
    rows = compact(table) if "compact-extents" in document["features"] else columns(table)
    m = sum(sum(layer["extents"] for layer in layers(region)) for region in document["regions"])
    check(len(rows) == m, f"{name}: {len(rows)} extents instead of {m}")
    packs = {row.pack for row in rows} - {FILL, KEEP}
    check(packs == {*range(len(document["packs"]))}, f"{name}: packs")
    return document, rows


class Row(NamedTuple):
    length: int
    source: int
    pack: int
    period: int


def layers(region: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers of a region, the bottom first."""
    return [{"extents": region["extents"]}, *region.get("deltas", [])]


def columns(table: bytes) -> list[Row]:
    """Read an extent table without compact-extents."""
    m = len(table) // 20
    check(len(table) == 20 * m, "bytes of the extent table")
    length, source = np.frombuffer(table, "<u8", 2 * m).reshape(2, m).copy()
    source[1:] += length[:-1]
    source, pack = np.cumsum(source, dtype=np.uint64), np.frombuffer(table, "<u4", m, 16 * m)
    rows = zip(length.tolist(), source.tolist(), pack.tolist(), strict=True)
    return [Row(*row, 0) for row in rows]


def leb128(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            check(number < 1 << 64 and shift <= 70, "a number of more than 64 bits")
            numbers.append(number)
            number = shift = 0
    check(shift == 0, "a column is cut short")
    return numbers


def compact(table: bytes) -> list[Row]:
    if not table:
        return []
    sizes = struct.unpack_from("<5Q", table)
    edges = [40, *itertools.accumulate(sizes, initial=40)][1:]
    check(edges[-1] == len(table), "columns of the extent table")
    pairs = itertools.pairwise(edges)
    codes, lengths, *others = (leb128(table[a:b]) for a, b in pairs)
    steps, fills, periods = map(iter, others)
    rows, ends = [], dict[int, int]()
    for code, length in zip(codes, lengths, strict=True):
        if code < 2:
            rows.append(Row(length, 0 if code else next(fills), FILL - code, 0))
            continue
        step, period = next(steps), next(periods)
        source = (ends.get(code, 0) + ((step >> 1) ^ -(step & 1))) % 2**64
        ends[code] = (source + (period or length)) % 2**64
        rows.append(Row(length, source, code - 2, period))
    check([*steps, *fills, *periods] == [], "columns of different lengths")
    return rows


def combine(below: bytes, delta: bytes, op: str, word: int) -> bytes:
    """Apply a delta to what the layers below give."""
    check(op in {"xor", "sub"} and word in {1, 2, 4, 8}, f"delta {op} of {word}")
    whole = len(below) // word * word
    old, new = (np.frombuffer(data[:whole], f"<u{word}") for data in (below, delta))
    one = old.dtype.type(1)
    result = old ^ new if op == "xor" else old + ((new >> one) ^ (~(new & one) + one))
    rest = bytes(a ^ b for a, b in zip(below[whole:], delta[whole:], strict=True))
    return result.tobytes() + rest


def read_regions(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[bytearray]]:
    """Return the document and the bytes of each region, all of it checked."""
    document, table = read_manifest(checkpoint)
    streams = [memoryview(plain_stream(checkpoint.lineage, p)) for p in document["packs"]]
    extents, regions, leaves = iter(table), [], [np.zeros((0, 2), np.uint64)]
    for region in document["regions"]:
        name, data = region["name"], bytearray(region["bytes"])
        for height, layer in enumerate(layers(region)):
            at = 0
            for length, source, pack, period in itertools.islice(extents, layer["extents"]):
                end = at + length
                check(end <= len(data), f"{name}: covered beyond its end")
                if pack == FILL:
                    check(height == 0, f"{name}: a fill on a delta layer")
                    data[at:end] = (struct.pack("<Q", source) * (length // 8 + 1))[:length]
                elif pack == KEEP:
                    check(height > 0, f"{name}: a bottom that keeps")
                else:
                    taken = period or length
                    check(source + taken <= len(streams[pack]), f"{name}: outside of a pack")
                    check(taken <= length and not (height and period), f"{name}: period")
                    new = bytes(streams[pack][source : source + taken])
                    new = (new * (length // taken + 1))[:length] if length else b""
                    if height:
                        new = combine(bytes(data[at:end]), new, layer["op"], layer["word"])
                    data[at:end] = new
                at = end
            check(at == len(data), f"{name}: not covered")
        root = merkle(digests(data, document["chunk"]))
        check(text(root) == region["root"], f"{name}: damaged")
        leaves.append(merkle(np.concatenate([digest(name.encode()), root])))
        regions.append(data)
    check(text(merkle(np.concatenate(leaves))) == document["root"], "wrong root")
    check(sum(map(len, regions)) == document["state_bytes"], "wrong state_bytes")
    return document, regions


# --- structure


def dtype_of(name: str | list[Any] | dict[str, Any]) -> np.dtype:
    if isinstance(name, list):
        return np.dtype((dtype_of(name[0]), tuple(name[1])))
    if isinstance(name, dict):
        return np.dtype({**name, "formats": [dtype_of(item) for item in name["formats"]]})
    if name[0] == "{":
        return dtype_of(load(name.encode()))
    if long := re.fullmatch(r"(c?longdouble)-(\d+)", name):
        check(int(long[2]) == np.finfo(np.longdouble).nmant, f"{name} is of another machine")
        return np.dtype(long[1])
    if bits := re.fullmatch(r"[a-z]+(\d+)(_\w+)?", name):  # As in float8_e4m3fn.
        return np.dtype(f"<u{(int(bits[1]) + 7) // 8}")
    check(name[0] in "<>|" and name[1] != "O", f"type {name}")
    return np.dtype(name)


def value(node: Any, regions: list[bytearray]) -> Any:
    """Return what a node of the structure stands for."""
    match node:
        case ["list" | "tuple" | "set" | "frozenset" as tag, *items]:
            kinds = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
            return kinds[tag](value(item, regions) for item in items)
        case ["dict" | "dataclass", *items]:
            flat = [value(item, regions) for item in items]
            return dict(zip(flat[::2], flat[1::2], strict=True))
        case ["namedtuple", *items]:
            return tuple(value(item, regions) for item in items[1::2])
        case ["object", item] | ["rng" | "leaf", _, item]:
            return value(item, regions)
        case ["array", _, dtype, shape, region, *rest]:
            offset, strides = [*rest, *[0, None][len(rest) :]]
            check(
                region >= 0 and offset >= 0, "array before its region"
            )  # The rest NumPy checks.
            return np.ndarray(shape, dtype_of(dtype), regions[region], offset, strides)
        case ["int", digits]:
            return int(digits, 16)
        case ["float", bits]:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case ["complex", real, imaginary]:
            return complex(value(real, regions), value(imaginary, regions))
        case ["str", utf8]:
            return bytes.fromhex(utf8).decode("utf-8", "surrogatepass")
        case ["bytes" | "bytearray" as tag, str() as body]:
            return {"bytes": bytes, "bytearray": bytearray}[tag](base64.b64decode(body))
        case ["bytes" | "bytearray" as tag, body]:
            return {"bytes": bytes, "bytearray": bytearray}[tag](value(body, regions).tobytes())
        case ["scalar", dtype, element]:
            return np.ndarray((), dtype_of(dtype), bytes.fromhex(element))[()]
        case list():
            raise Refused(f"unknown node {node!r}")
    return node


# --- shards


def sets(store: Path, run: str, task: str) -> list[list[Checkpoint]]:
    """Return the complete sets that may be restored, the newest last: a shard of each rank."""
    found: dict[tuple[int, int, int], dict[int, Checkpoint]] = {}
    for folder in (store / "lineages" / run).iterdir():
        shard = re.fullmatch(SHARD, folder.name, re.ASCII)
        if shard and shard[1] == task:
            rank, world = int(shard[2]), int(shard[3])
            check(rank < world, f"{folder.name}: no rank")
            for one in checkpoints(store, run, folder.name):
                found.setdefault((one.step, one.attempt, world), {})[rank] = one
    return [
        [shards[rank] for rank in range(world)]
        for (_, _, world), shards in sorted(found.items())
        if len(shards) == world
    ]


class Part(NamedTuple):
    kind: str
    name: str
    shape: tuple[int, ...]
    item: int
    offset: list[int]
    array: np.ndarray


def leaves(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, dict):
        for one in tree.values():
            yield from leaves(one)
    else:
        yield tree


def read_shard(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[Part], Any]:
    """Return what a shard says of the whole, the parts that it has, and its random states."""
    document, regions = read_regions(checkpoint)
    check("shards" in document["features"], f"{checkpoint}: is no shard")
    whole = value(document["structure"], regions)
    about = load(whole["shard"]["map"].encode())
    shard = re.fullmatch(SHARD, checkpoint.lineage.name, re.ASCII)
    says = [whole["shard"]["rank"], whole["shard"]["world"]]
    check(shard and says == [int(shard[2]), int(shard[3])], f"{checkpoint}: is of {says}")
    arrays, parts = list(leaves(whole["state"])), []
    check(len(arrays) == len(about["parts"]), "parts")
    columns = zip(about["names"], about["kinds"], about["shapes"], about["items"], strict=True)
    regions_ = list(columns)
    for (number, offset, lengths), array in zip(about["parts"], arrays, strict=True):
        name, kind, shape, item = regions_[number]
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        box = raw.reshape(*lengths, item)
        parts.append(Part(kind, name, tuple(shape), item, offset, box))
    return about, parts, whole["rng"]


def read_set(shards: list[Checkpoint], rank: int = 0) -> Any:
    """Return the state that a rank had, put together from all shards of a set."""
    read_ = [read_shard(one) for one in shards]
    roots = [about["roots"] for about, _, _ in read_ if about["roots"] is not None]
    check(all(one == roots[0] for one in roots), "the ranks had different replicated arrays")
    about, regions = read_[rank][0], []
    columns = (about[name] for name in ("names", "kinds", "shapes", "items"))
    for name, kind, shape, item in zip(*columns, strict=True):
        whole, there = np.zeros((*shape, item), np.uint8), np.zeros(shape, bool)
        for owner, (_, parts, _) in enumerate(read_):
            for part in parts:
                is_own = part.kind == kind == "o" and owner == rank
                if part.name != name or not (is_own or "o" not in {part.kind, kind}):
                    continue
                check((list(part.shape), part.item) == (shape, item), f"{name}: shapes")
                ends = np.add(part.offset, part.array.shape[:-1])
                check((ends <= shape).all(), f"{name}: outside")
                where = tuple(map(slice, part.offset, ends.tolist()))
                whole[where], there[where] = part.array, True
        check(there.all(), f"{name}: no shard has all of it")
        regions.append(bytearray(whole.tobytes()))
    return value(about["structure"], regions)


def read(store: Path, run: str, task: str, step: int | None = None) -> dict[str, Any]:
    """Return the newest checkpoint, of this step if one is given: "state" and "rng"."""
    document, regions = read_regions(newest(store, run, task, step))
    state: dict[str, Any] = value(document["structure"], regions)
    return state
