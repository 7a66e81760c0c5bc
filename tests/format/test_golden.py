"""Checkpoints that version 1 wrote are read, by the product and by the independent reader.

There are two stores: ``v1`` is from before repeats, delta layers, filters and LZ4, and
``v1-compact`` from when they came.

The expected values stand here by hand; nothing of them comes from what was written
(`golden.py`, once). A change that fails here is a change of the format: users have such
checkpoints.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import independent_reader as reader
import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(params=["v1", "v1-compact"])
def each_store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy, because an attempt claims its number in the store."""
    return shutil.copytree(GOLDEN / request.param, tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy of the older one."""
    return shutil.copytree(GOLDEN / "v1", tmp_path / "store")


@pytest.fixture
def compact(tmp_path: Path) -> Path:
    """A copy of the newer one."""
    return shutil.copytree(GOLDEN / "v1-compact", tmp_path / "store")


def restored(store: Path, task: str, step: int | None = None) -> Any:
    with Checkpointer(store, run="golden", task=task, rng=False) as checkpointer:
        return checkpointer.restore(step=step)


def both(store: Path, task: str, step: int | None = None) -> list[Any]:
    """Return what the product and the independent reader make of a checkpoint."""
    alone = reader.read(store, "golden", task, step)["state"]
    return [restored(store, task, step), alone]


def expected_delta(step: int) -> np.ndarray:
    state = np.arange(4000, dtype="<i4")
    for past in range(1, step + 1):
        state[100 * past : 100 * past + 10] = -past
    return state


def test_kinds(each_store: Path) -> None:
    arrays = {
        "grid": [[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        "its column": [1.0, 5, 9],
        "big-endian": [0, 1, 2, 3, 4, 5],
        "flags": [n in {0, 3, 6, 9} for n in range(10)],
        "complex": [0, 1 - 2j, 2 - 4j, 3 - 6j],
        "zeros": [0.0] * 5000,
        "empty": [],
        "zero-d": 2.5,
        "backwards": [8, 7, 6, 5, 4, 3, 2, 1, 0],
        "compressible": [number for number in range(200) for _ in range(100)],
    }
    types = ["<f8", "<f8", ">i4", "|b1", "<c16", "<f8", "<f4", "<f8", "<i8", "<i8"]
    for state in both(each_store, "kinds"):
        for (name, values), dtype in zip(arrays.items(), types, strict=True):
            assert (state[name].tolist(), state[name].dtype.str) == (values, dtype)
        assert state["empty"].shape == (0, 3)
        assert np.shares_memory(state["grid"], state["its column"])
        bf16 = [0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0]
        assert state["bf16"].view(np.uint16).tolist() == bf16
        assert state["plain"] == [
            None, True, -7, 2**70, 0.1, float("-inf"), "ß", b"bytes", (1, 2), {3}, 1 + 2j,
        ]  # fmt: skip
        assert state["NumPy scalar"].tobytes() == b"\xcd\xcc\xcc\x3d"
        assert state["long bytes"] == bytes(range(256)) * 20
        assert state[5] == {"key": "number"}
    assert (
        restored(each_store, "kinds")["generator"].random() == np.random.default_rng(7).random()
    )


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_deltas(each_store: Path, step: int) -> None:
    for state in both(each_store, "deltas", step):
        assert state.dtype == np.dtype("<i4")
        assert state.tolist() == expected_delta(step).tolist()


def test_the_checkpoint_of_an_overtaken_attempt_is_void(store: Path) -> None:
    for state in both(store, "overtaken"):
        assert state.tolist() == [100, 102, 104, 106, 108]
    for state in both(store, "overtaken", 2):
        assert state.tolist() == [0, 2, 4, 6, 8]
    assert len(list(store.glob("lineages/golden/overtaken/manifests/000000000003.*"))) == 2


def test_the_checkpoint_on_the_format_page(each_store: Path) -> None:
    for state in both(each_store, "shown", 7):
        assert bytes(state["text"]) == b"The quick brown fox jumps over the lazy dog."
        assert state["ones"].tolist() == [1.0, 1.0, 1.0, 1.0]
        assert state["rate"] == 0.5


def test_the_compact_checkpoint_on_the_format_page(compact: Path) -> None:
    for state in both(compact, "shown", 8):
        assert bytes(state["text"]) == b"The quick brown fox jumps over the lazy dog."
        assert state["ones"].tolist() == [1.0, 1.0, 1.0, 1.0]
        assert state["beat"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8] * 8
        steps = [100, 101, 102, 103, 105, 106, 107, 108, 109, 110, 111, 112]
        assert (state["steps"].tolist(), state["steps"].dtype.str) == (steps, "<u4")
        assert state["rate"] == 0.25


@pytest.mark.parametrize("step", range(5))
def test_layers_of_deltas(compact: Path, step: int) -> None:
    numbers = [1009 * number % 4099 for number in range(3001)]
    for past in range(step + 1):
        numbers[past * 400 :] = [number + past for number in numbers[past * 400 :]]
    for state in both(compact, "layers", step):
        assert (state["numbers"].tolist(), state["numbers"].dtype.str) == (numbers, "<u8")
        whole = b"".join(number.to_bytes(8, "little") for number in numbers)
        assert bytes(state["odd"]) == whole[: 5000 + step]


def test_the_compact_store_has_what_it_is_for() -> None:
    """So that these tests go on reading every kind of row and frame there was."""
    layers, rows, frames = set(), set(), set()
    for task in ("shown", "layers", "kinds", "deltas"):
        for checkpoint in reader.checkpoints(GOLDEN / "v1-compact", "golden", task):
            document, table = reader.read_manifest(checkpoint)
            deltas = [one for region in document["regions"] for one in region.get("deltas", [])]
            layers |= {(one["op"], one["word"]) for one in deltas}
            packs = {reader.FILL: "fill", reader.KEEP: "keep"}
            rows |= {"repeat" if row.period else packs.get(row.pack, "data") for row in table}
    for path in GOLDEN.glob("v1-compact/**/*.pack"):
        raw = path.read_bytes()
        (count,) = struct.unpack_from("<Q", raw, len(raw) - 16)
        table = raw[-32 - 28 * count : -32]
        frames |= {(codec, kind) for codec, kind in struct.iter_unpack("<8x2B18x", table)}
    assert layers == {("sub", 2), ("sub", 4), ("xor", 1), ("xor", 4)}
    assert rows == {"data", "repeat", "fill", "keep"}
    assert frames == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (2, 3)}


def test_it_is_gone_on_from(each_store: Path) -> None:
    """A new checkpoint shares packs with one that version 1 wrote."""
    with Checkpointer(
        each_store, run="golden", task="deltas", rng=False, packing="chunk=256"
    ) as new:
        state = new.restore()
        state[:3] = 7
        new.save(6, state)
    document, _ = reader.read_manifest(reader.newest(each_store, "golden", "deltas"))
    assert document["kind"] == "delta"
    expected = expected_delta(5)
    expected[:3] = 7
    assert reader.read(each_store, "golden", "deltas")["state"].tolist() == expected.tolist()
