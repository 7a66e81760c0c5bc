"""Checkpoints that version 1 wrote are read, by the product and by the independent reader.

The expected values stand here by hand; nothing of them comes from what was written
(`golden.py`, once). A change that fails here is a change of the format: users have such
checkpoints.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import independent_reader as reader
import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer

GOLDEN = Path(__file__).resolve().parents[1] / "golden/v1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy, because an attempt claims its number in the store."""
    return shutil.copytree(GOLDEN, tmp_path / "store")


def restored(store: Path, task: str, step: int | None = None) -> Any:
    with Checkpointer(store, run="golden", task=task, rng=False) as checkpointer:
        return checkpointer.restore(step=step)


def both(store: Path, task: str, step: int | None = None) -> list[Any]:
    """Return what the product and the independent reader make of a checkpoint."""
    return [restored(store, task, step), reader.read(GOLDEN, "golden", task, step)["state"]]


def expected_delta(step: int) -> np.ndarray:
    state = np.arange(4000, dtype="<i4")
    for past in range(1, step + 1):
        state[100 * past : 100 * past + 10] = -past
    return state


def test_kinds(store: Path) -> None:
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
    for state in both(store, "kinds"):
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
    assert restored(store, "kinds")["generator"].random() == np.random.default_rng(7).random()


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_deltas(store: Path, step: int) -> None:
    for state in both(store, "deltas", step):
        assert state.dtype == np.dtype("<i4")
        assert state.tolist() == expected_delta(step).tolist()


def test_the_checkpoint_of_an_overtaken_attempt_is_void(store: Path) -> None:
    for state in both(store, "overtaken"):
        assert state.tolist() == [100, 102, 104, 106, 108]
    for state in both(store, "overtaken", 2):
        assert state.tolist() == [0, 2, 4, 6, 8]
    assert len(list(GOLDEN.glob("lineages/golden/overtaken/manifests/000000000003.*"))) == 2


def test_the_checkpoint_on_the_format_page(store: Path) -> None:
    for state in both(store, "shown"):
        assert bytes(state["text"]) == b"The quick brown fox jumps over the lazy dog."
        assert state["ones"].tolist() == [1.0, 1.0, 1.0, 1.0]
        assert state["rate"] == 0.5


def test_it_is_gone_on_from(store: Path) -> None:
    """A new checkpoint shares packs with one that version 1 wrote."""
    with Checkpointer(store, run="golden", task="deltas", rng=False, packing="chunk=256") as new:
        state = new.restore()
        state[:3] = 7
        new.save(6, state)
    document, _ = reader.read_manifest(reader.newest(store, "golden", "deltas"))
    assert document["kind"] == "delta"
    expected = expected_delta(5)
    expected[:3] = 7
    assert reader.read(store, "golden", "deltas")["state"].tolist() == expected.tolist()
