"""The independent reader gives back, bit for bit, what the product wrote.

The reader knows the format page only, so these tests hold the product to that page. States
cover each kind of node; histories cover what only shows after many saves: packs that several
checkpoints share, packs left behind, regions that grow and shrink, attempts that were
overtaken. Damage at every hundredth of a manifest or pack must be refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import random
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import independent_reader as reader
import ml_dtypes
import numpy as np
import pytest
import zstandard
from ckh128 import digest, merkle, text
from witness import read_again

from ckptflow.checkpointer import Checkpointer
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

RUN, TASK = "run", "task"


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Mesh:
    points: Any
    name: str


class Model:
    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]


def plain(value: Any) -> Any:
    """Return a state as the reader gives it: no classes, unknown element types as bits."""
    if isinstance(value, Model):
        return plain(value.state_dict())
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.isbuiltin == 2:
        return value.view(f"<u{value.dtype.itemsize}")
    return value


def bits(value: Any) -> Any:
    """Return something that is equal for two values only if every bit and type is."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return dict, [(bits(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [bits(item) for item in value]
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    if isinstance(value, complex):
        return complex, struct.pack("<2d", value.real, value.imag)
    return type(value), value


def save_all(store: Path | list[Tier], states: dict[int, Any], **options: Any) -> None:
    """Save states, by step, in one attempt that keeps them all."""
    options = {"run": RUN, "task": TASK, "keep": len(states), "rng": False} | options
    with Checkpointer(store, **options) as checkpointer:
        checkpointer.restore(next(iter(states.values())))
        for step, state in states.items():
            checkpointer.save(step, state)


def read(store: Path, step: int | None = None) -> Any:
    return reader.read(store, RUN, TASK, step)["state"]


def assert_reads(store: Path, states: dict[int, Any]) -> None:
    """Assert that each step reads back as it was saved."""
    assert [c.step for c in reader.checkpoints(store, RUN, TASK)] == list(states)
    for step, state in states.items():
        assert bits(read(store, step)) == bits(plain(state))


# --- states --------------------------------------------------------------------------


def numbers() -> dict[str, Any]:
    signalling_nan = struct.unpack("<d", bytes.fromhex("010000000000f07f"))[0]
    return {
        "none": None,
        "true": True,
        "int": -7,
        "big": [2**53 - 1, 2**53, -(2**53), 2**64, -(10**40)],
        "float": [0.1, -0.0, 5e-324, 1e22, 1e16, math.pi],
        "special": [math.nan, -math.nan, math.inf, -math.inf, signalling_nan],
        "complex": [1 + 2j, complex(math.nan, -0.0)],
        "text": ["", "ß→漢 \N{GRINNING FACE}", 'nul \0 quote " slash \\', "\ud800 alone"],
        "bytes": [b"", bytes(range(256)), bytearray(b"changes"), bytes(5000) + b"end"],
        "long bytearray": bytearray(range(256)) * 20,
        "scalars": [np.float32(0.1), np.int8(-3), np.bool_(True), np.complex64(1j)],
        "empty scalars": [np.str_(""), np.bytes_(b"")],
        "more scalars": [np.datetime64("2025-01-01", "ns"), np.str_("ß"), np.longdouble(1) / 3],
        "bf16 scalar": ml_dtypes.bfloat16(1.5),
    }


def containers() -> dict[Any, Any]:
    return {
        "nested": [[], {}, (), [({"a": (1, [2])},)]],
        "sets": [set(), {1, "1", (1, 2), b"1"}, frozenset({None, 2.5})],
        "point": Point(np.arange(3), y=[Point(1, 2)]),
        "mesh": Mesh(points=np.arange(6.0).reshape(2, 3), name="fine"),
        "model": Model(np.linspace(0, 1, 7)),
        0: "a number, not a string",
        True: np.arange(2),
        (1, "a", (2.5, None)): "a tuple",
        b"key": np.arange(4),
        2**70: 1,
        "a/b~c": {"[0]": np.arange(5)},
        "\udfff": np.arange(6),
        "": {"": np.arange(7)},
    }


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    table = rng.standard_normal((40, 30))
    record = np.dtype([("a", "<f4", (2, 3)), ("b", [("c", ">i2"), ("d", "S3")])], align=True)
    titled = np.dtype({"names": ["n"], "formats": ["<i4"], "titles": ["t"], "itemsize": 9})
    return {
        "zero-d": np.array(2.5),
        "empty": [np.empty((0, 3), np.float32), np.empty((3, 0))],
        "columns": np.asfortranarray(rng.standard_normal((7, 9))),
        "every other": rng.integers(0, 99, 1000)[::2],
        "backwards": np.arange(100)[::-1],
        "transposed": rng.standard_normal((3, 4, 5)).transpose(2, 0, 1)[:, ::-1],
        "repeated": np.broadcast_to(np.arange(4.0), (1000, 4)),
        "big-endian": [np.arange(9, dtype=">f4"), np.arange(9, dtype=">i8")],
        "flags": rng.integers(0, 2, 1001).astype(np.bool_),
        "complex": rng.standard_normal(8).astype(np.complex64) * 1j,
        "half": np.arange(5, dtype=np.float16),
        "long": np.arange(5, dtype=np.longdouble) / 3,
        "long complex": np.arange(5, dtype=np.clongdouble) / 3j,
        "dates": np.arange("2025-01", "2025-05", dtype="<M8[M]"),
        "spans": np.arange(5).astype("<m8[us]"),
        "text": np.array(["a", "ß漢"]),
        "codes": np.array([b"ab", b"c"]),
        "raw": np.arange(10, dtype=np.uint8).view("V5"),
        "records": rng.integers(0, 255, 3 * record.itemsize).astype(np.uint8).view(record),
        "titled": np.zeros(3, titled),
        "bf16": np.arange(33).astype(ml_dtypes.bfloat16),
        "fp8": [
            np.arange(33).astype(getattr(ml_dtypes, name))
            for name in ("float8_e4m3fn", "float8_e5m2", "float8_e3m4")
        ],
        "small": [
            np.arange(3).astype(getattr(ml_dtypes, name))
            for name in ("int4", "uint2", "float4_e2m1fn", "float6_e2m3fn")
        ],
        "nan payloads": np.arange(1, 50, dtype="<u8").view("<f8") * 1,
        "payload bits": (np.arange(1, 50, dtype="<u4") | 0x7F800000).view("<f4"),
        "table": table,
        "its column": table[:, 3],
        "its corner": table[::-3, ::-2],
        "itself": table,
    }


def fills() -> dict[str, Any]:
    mixed = np.zeros(50_000)
    mixed[20_000:20_100] = np.arange(100)
    return {
        "zeros": np.zeros(100_000),
        "sevens": np.full(33_333, 7, np.int32),
        "pairs": np.tile(np.array([1.5, -2.5], "<f4"), 5000),
        "bytes": np.full(12_345, 0xAB, np.uint8),
        "mixed": mixed,
        "odd": np.full(4099, 3, np.uint8),
    }


def many() -> dict[str, Any]:
    return {f"layer {i}": {"w": np.arange(i % 37), "b": np.full(i % 5, i)} for i in range(1000)}


def large() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "noise": rng.integers(0, 256, 5_000_001, dtype=np.uint8),
        "counted": np.arange(700_000),
        "coarse": rng.integers(0, 3, 400_000).astype(np.float64),
        "between": rng.integers(0, 256, 70_000, dtype=np.uint8),
    }


STATES = [numbers, containers, arrays, fills, many, large, lambda: np.arange(9), lambda: 5]
NAMES = [*(make.__name__ for make in STATES[:6]), "array", "number"]


@pytest.mark.parametrize("chunk_bytes", [64, 4096, 65536])
@pytest.mark.parametrize("make", STATES, ids=NAMES)
def test_a_state_reads_back(tmp_path: Path, make: Callable[[], Any], chunk_bytes: int) -> None:
    states = {3: make()}
    save_all(tmp_path / "store", states, packing=f"chunk={chunk_bytes}")
    assert_reads(tmp_path / "store", states)


def test_arrays_that_share_memory_come_back_sharing_it(tmp_path: Path) -> None:
    save_all(tmp_path, {1: arrays()})
    state = read(tmp_path)
    assert state["itself"].ctypes.data == state["table"].ctypes.data
    state["table"][4, 3] = 99.0
    assert state["its column"][4] == 99.0


def test_large_states_hold_raw_and_compressed_frames(tmp_path: Path) -> None:
    save_all(tmp_path, {1: large()})
    (pack,) = tmp_path.rglob("*.pack")
    raw = pack.read_bytes()
    (count,) = struct.unpack_from("<Q", raw, len(raw) - 16)
    table = struct.iter_unpack("<2IB19x", raw[-32 - 28 * count : -32])
    codecs = {codec for _, _, codec in table}
    assert 0 in codecs
    assert codecs & {1, 2}  # Which one is quicker is measured.


def test_torch_tensors_read_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.arange(12).reshape(3, 4)
    types = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64]
    save_all(tmp_path, {1: {"t": [numbers.T.to(kind) for kind in types], "n": numbers[:, 1]}})
    state = read(tmp_path)
    for got, kind in zip(state["t"], types, strict=True):
        sent = numbers.T.to(kind).contiguous()
        assert got.shape == (4, 3)
        assert got.tobytes() == sent.view(torch.uint8).numpy().tobytes()
    assert state["n"].tolist() == [1, 5, 9]


def test_random_states_read_back(tmp_path: Path) -> None:
    generators = [np.random.default_rng(3), random.Random(3), np.random.RandomState(3)]
    save_all(tmp_path, {1: generators}, rng=True)
    whole = reader.read(tmp_path, RUN, TASK)
    (first, second, third), glob = whole["state"], whole["rng"]
    assert first["bits"] == generators[0].bit_generator.state
    assert tuple(second["words"].tolist()) == generators[1].getstate()[1]
    assert bits(third) == bits(generators[2].get_state(legacy=False))
    assert bits(glob["numpy"]) == bits(np.random.get_state(legacy=False))  # noqa: NPY002
    assert tuple(glob["python"]["words"].tolist()) == random.getstate()[1]


# --- histories -----------------------------------------------------------------------


def history(steps: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield states of which little changes from step to step, and regions come and go."""
    rng = np.random.default_rng(11)
    state = {
        "dense": rng.integers(0, 256, 300_000, dtype=np.uint8),
        "filled": np.zeros(20_000),
        "lists": rng.standard_normal(1000),
    }
    for step in range(1, steps + 1):
        state = {name: array.copy() for name, array in state.items()}
        start = int(rng.integers(0, 290_000))
        state["dense"][start : start + int(rng.integers(1, 9000))] += 1
        state["filled"][step * 300 : step * 300 + 100] = step % 3
        state["lists"] = rng.standard_normal(1000 + 37 * (step % 5)) * (step % 4)
        if step % 7 == 0:
            state[f"new {step}"] = np.full(5000 + step, step)
            state.pop(f"new {step - 21}", None)
        yield step, state


@pytest.mark.parametrize("chunk_bytes", [64, 4096, 65536])
def test_every_checkpoint_of_a_long_history_reads_back(
    tmp_path: Path, chunk_bytes: int
) -> None:
    states = dict(history(60))
    save_all(tmp_path, states, packing=f"chunk={chunk_bytes}")
    assert_reads(tmp_path, states)
    documents = [reader.read_manifest(c)[0] for c in reader.checkpoints(tmp_path, RUN, TASK)]
    kinds = [document["kind"] for document in documents]
    assert kinds[0] == "full"
    assert kinds.count("delta") > 40
    assert max(len(document["packs"]) for document in documents) > 3


def test_packs_are_left_behind_and_the_rest_reads_back(tmp_path: Path) -> None:
    """One chunk changes at a time, so each save adds a pack that stays in use for long."""
    state = np.random.default_rng(2).integers(0, 256, 4096 * 60, dtype=np.uint8)
    states = {}
    for step in range(1, 51):
        state = state.copy()
        state[4096 * step : 4096 * (step + 1)] ^= 0xFF
        states[step] = state
    save_all(tmp_path, states)
    assert_reads(tmp_path, states)
    found = reader.checkpoints(tmp_path, RUN, TASK)
    counts = [len(reader.read_manifest(checkpoint)[0]["packs"]) for checkpoint in found]
    assert max(counts) > 20
    assert any(after < before for before, after in itertools.pairwise(counts))


def test_what_an_overtaken_attempt_commits_late_is_void(tmp_path: Path) -> None:
    save_all(tmp_path, {1: np.arange(9), 2: np.arange(9) * 2, 5: np.arange(9) * 5})
    late = {path: path.read_bytes() for path in tmp_path.rglob("*/000000000005.*")}
    with Checkpointer(tmp_path, run=RUN, task=TASK, keep=9, rng=False) as second:
        second.restore(np.zeros(9, int), step=2)
        assert [c.step for c in reader.checkpoints(tmp_path, RUN, TASK)] == [1, 2, 5]
        second.save(3, np.arange(9) * 3)
    for path, raw in late.items():
        path.write_bytes(raw)
    found = [(c.step, c.attempt) for c in reader.checkpoints(tmp_path, RUN, TASK)]
    assert found == [(1, 1), (2, 1), (3, 2)]
    assert found == [(f.id.step, f.id.attempt) for f in reversed(second.lineage.valid())]
    assert [f.id.step for f in second.lineage.checkpoints() if f.void] == [5]
    assert read(tmp_path).tolist() == (np.arange(9) * 3).tolist()
    with pytest.raises(reader.Refused, match="no checkpoint of run/task"):
        read(tmp_path, 5)


def test_each_tier_reads_back_alone(tmp_path: Path) -> None:
    tiers = [PosixTier(tmp_path / name, name=name, level=i) for i, name in enumerate("ab")]
    states = dict(history(9))
    save_all(tiers, states)
    for name in "ab":
        assert_reads(tmp_path / name, states)


def test_an_empty_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert reader.checkpoints(tmp_path, RUN, TASK) == []


def test_the_digest_agrees_with_the_golden_vectors(repository: Path) -> None:
    golden = json.loads((repository / "tests/golden/ckh128.json").read_text())
    for size, expected in golden["digests"].items():
        data = bytes((7 * i * i + 3 * i + (i >> 8)) % 256 for i in range(int(size)))
        assert text(digest(data)) == expected
    assert text(merkle(digest(b""))) == golden["roots"]["0"]


# --- damage --------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, bytes]:
    """A store with a full checkpoint and a delta, and the bits of its newest state."""
    rng = np.random.default_rng(4)
    first = {
        "noise": rng.standard_normal(3000),
        "plain": np.arange(4000),
        "zeros": np.zeros(99),
    }
    second = {**first, "noise": first["noise"].copy()}
    second["noise"][1000:1600] = 1
    save_all(tmp_path / "store", {1: first, 2: second})
    return tmp_path / "store", bits(second)


def spoil(path: Path, where: int, how: str) -> bytes:
    raw = path.read_bytes()
    at = min(len(raw) * where // 100, len(raw) - 1)
    spoilt = bytearray(raw)
    spoilt[at] ^= 1 << where % 8
    path.write_bytes(spoilt if how == "flip" else raw[:at])
    return raw


@pytest.mark.damaged_store
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damage_anywhere_is_refused(stored: tuple[Path, bytes], how: str) -> None:
    store, expected = stored
    manifest = store / "lineages" / RUN / TASK / "manifests" / "000000000002.00000001.ckpt"
    packs = sorted(store.rglob("*.pack"))
    assert len(packs) == 2
    for path in [manifest, *packs]:
        for where in range(101):
            raw = spoil(path, where, how)
            with pytest.raises(reader.Refused, match=re.escape(path.name)):
                read(store)
            path.write_bytes(raw)
    assert bits(read(store)) == expected


def test_the_witness_reads_every_lineage_of_every_store(tmp_path: Path) -> None:
    states = {1: np.arange(1000)}
    save_all(tmp_path / "one", states)
    save_all(tmp_path / "one", states, task="second")
    save_all(tmp_path / "deep/er", states, run="other")
    lineages = [path.relative_to(tmp_path).as_posix() for path in read_again(tmp_path)]
    assert lineages == [
        "deep/er/lineages/other/task",
        "one/lineages/run/second",
        "one/lineages/run/task",
    ]
    assert len(read_again(tmp_path, state_bytes_max=16_000)) == 2


@pytest.mark.damaged_store
def test_the_witness_complains_of_damage(stored: tuple[Path, bytes]) -> None:
    store, _ = stored
    spoil(next(store.rglob("*.pack")), 50, "flip")
    with pytest.raises(reader.Refused, match="damaged"):
        read_again(store)


@pytest.mark.damaged_store
def test_a_missing_pack_is_refused(stored: tuple[Path, bytes]) -> None:
    store, _ = stored
    next(iter(sorted(store.rglob("*.pack")))).unlink()
    with pytest.raises(reader.Refused, match=r"packs/.*: missing"):
        read(store)


@pytest.mark.damaged_store
def test_a_newer_store_is_refused(stored: tuple[Path, bytes]) -> None:
    store, _ = stored
    mark = store / "ckptflow-store.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "version": 2}))
    with pytest.raises(reader.Refused, match="version of"):
        read(store)


def rewrite(path: Path, *, version: int = 1, **changes: Any) -> None:
    """Write a sound manifest that says something else."""
    raw = path.read_bytes()
    document_bytes, table_bytes = struct.unpack_from("<2Q", raw, 16)
    document = json.loads(zstandard.decompress(raw[32 : 32 + document_bytes])) | changes
    packed = zstandard.compress(json.dumps(document).encode())
    head = struct.pack("<8s2I2Q", b"CKFMANI1", version, 0, len(packed), table_bytes)
    body = head + packed + raw[32 + document_bytes : -16]
    path.write_bytes(body + hashlib.blake2b(body, digest_size=16).digest())


@pytest.mark.damaged_store
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"features": ["encryption"]}, r"needs \['encryption'\]"),
        ({"step": 3}, r"is of \('run', 'task', 3, 1\)"),
        ({"run": "other"}, r"is of \('other'"),
        ({"root": "00" * 16}, "wrong root"),
        ({"state_bytes": 1}, "wrong state_bytes"),
        ({"regions": []}, "extents instead of 0"),
        ({"packs": []}, "packs"),
        ({"metrics": {"loss": math.nan}}, "NaN is not JSON"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    stored: tuple[Path, bytes], changes: dict[str, Any], message: str
) -> None:
    store, _ = stored
    rewrite(next(store.rglob("000000000002.*.ckpt")), **changes)
    with pytest.raises(reader.Refused, match=message):
        read(store)
