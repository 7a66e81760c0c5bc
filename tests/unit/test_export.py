"""Exported files hold the same bits; other programs' readers say so."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.bridges.export import NPZ_VALUES, export
from ckptflow.errors import ConfigError, CorruptionError, NotFoundError, TierFull
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.find import find_checkpoint
from ckptflow.tiers.memory import MemoryTier


@pytest.fixture
def saved(save_state: Callable[..., Lineage]) -> Callable[[Any], StoredArrays]:
    """Return a function that saves a state and opens its checkpoint."""

    def run(state: Any) -> StoredArrays:
        lineage = save_state(MemoryTier(), "exp/a", 12, state, metrics={"loss": 0.5})
        return StoredArrays(lineage, lineage.manifest(find_checkpoint(lineage)))

    return run


def odd_arrays() -> dict[str, np.ndarray]:
    base = np.arange(24, dtype=np.int64).reshape(4, 6)
    return {
        "layer.weight": np.random.default_rng(0).standard_normal((5, 3)),
        "scalar": np.array(2.5),
        "empty": np.empty((0, 3), np.float32),
        "flags": np.array([True, False, True]),
        "bytes": np.arange(7, dtype=np.uint8),
        "big": np.arange(5, dtype=">i4"),
        "column": base[:, 2],
        "turned": base.T,
        "back": base[::-1],
        "complex": np.array([1 + 2j], np.complex64),
        "nan": np.array([0x7FF8000000000001], np.uint64).view(np.float64),
    }


def test_npz(saved: Callable[[Any], StoredArrays], tmp_path: Path) -> None:
    extra = {
        "when": np.array(["2024-02-29"], "M8[D]"),
        "text": np.array(["a", "bc"]),
        "record": np.array([(1, 2.0)], [("a", "<i2"), ("b", ">f8")]),
        "long": np.array([1.5], np.longdouble),
        "double complex": np.array([1 + 2j]),
    }
    state = {**odd_arrays(), **extra}
    done = export(saved(state), tmp_path / "out.npz")
    assert done.arrays == tuple(state)
    assert done.size_bytes == (tmp_path / "out.npz").stat().st_size
    with np.load(tmp_path / "out.npz") as file:
        assert set(file) == {*state, NPZ_VALUES}
        for name, array in state.items():
            assert file[name].dtype == array.dtype
            np.testing.assert_array_equal(file[name], array)
            assert file[name].tobytes() == array.tobytes()


def test_safetensors(saved: Callable[[Any], StoredArrays], tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    state = odd_arrays()
    export(saved(state), tmp_path / "out.safetensors")
    loaded = numpy.load_file(tmp_path / "out.safetensors")
    assert set(loaded) == set(state)
    for name, array in state.items():
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def test_safetensors_hold_small_floats(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    state = {
        str(dtype).removeprefix("torch."): torch.linspace(-2, 2, 9).to(dtype)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16)
    } | {
        "odd": torch.zeros(3, dtype=torch.uint8),
        "wide": torch.arange(3.0, dtype=torch.float64),
    }
    export(saved(state), tmp_path / "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


def test_each_array_starts_at_a_multiple_of_its_element_size(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    export(saved(odd_arrays()), tmp_path / "out.safetensors")
    data = (tmp_path / "out.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    bits = {"F64": 64, "I64": 64, "C64": 64, "F32": 32, "I32": 32, "BOOL": 8, "U8": 8}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % (bits[entry["dtype"]] // 8) == 0


def test_values_and_provenance_go_along(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    state = {"w": np.zeros(2), "step": 7, "name": "x", "nan": float("nan"), "tags": {3}}
    stored = saved(state)
    export(stored, tmp_path / "out.npz")
    export(stored, tmp_path / "out.safetensors")
    with np.load(tmp_path / "out.npz") as file:
        described = json.loads(file[NPZ_VALUES])
    assert described["values"] == {"step": 7, "name": "x", "nan": "nan", "tags": "{3}"}
    assert described["libraries"] == {"w": "numpy"}
    checkpoint = described["checkpoint"]
    assert (checkpoint["run"], checkpoint["task"], checkpoint["step"]) == ("exp", "a", 12)
    assert checkpoint["root"] == stored.manifest.root.hex()
    assert checkpoint["metrics"] == {"loss": 0.5}
    safe_open = pytest.importorskip("safetensors").safe_open
    with safe_open(tmp_path / "out.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["ckptflow"]) == described


def test_one_array_that_is_the_whole_state(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    stored = saved(np.arange(3))
    export(stored, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_array_equal(file["state"], np.arange(3))


def test_only_some(saved: Callable[[Any], StoredArrays], tmp_path: Path) -> None:
    stored = saved({"model": {"a": np.zeros(1), "b": np.zeros(1)}, "optimizer": np.zeros(1)})
    assert export(stored, tmp_path / "1.npz", only=["model/*"]).arrays == ("model/a", "model/b")
    assert export(stored, tmp_path / "2.npz", only=["*/b", "opt*"]).arrays == (
        "model/b",
        "optimizer",
    )
    with pytest.raises(
        NotFoundError, match=r"exp/a step 12 .* no array whose name matches x\*"
    ):
        export(stored, tmp_path / "3.npz", only=["x*"])


def test_a_format_that_cannot_hold_a_type_says_so_first(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    state = {
        "ok": np.zeros(2),
        "bf": np.zeros(2, ml_dtypes.bfloat16),
        "when": np.zeros(1, "M8[s]"),
    }
    stored = saved(state)
    with pytest.raises(
        ConfigError, match=r"npz cannot hold 'bf' \(bfloat16\)\. Leave them out"
    ):
        export(stored, tmp_path / "out.npz")
    with pytest.raises(ConfigError, match=r"safetensors cannot hold 'when' \(<M8\[s\]\)"):
        export(stored, tmp_path / "out.safetensors")
    assert list(tmp_path.glob("out*")) == []
    assert export(stored, tmp_path / "out.npz", only=["ok", "when"]).arrays == ("ok", "when")


@pytest.mark.parametrize("name", ["out", "out.pt", "npz"])
def test_the_ending_says_the_format(
    saved: Callable[[Any], StoredArrays], tmp_path: Path, name: str
) -> None:
    stored = saved({"w": np.zeros(2)})
    with pytest.raises(ConfigError, match=r"end in \.npz or \.safetensors"):
        export(stored, tmp_path / name)
    assert export(stored, tmp_path / name, file_format="npz").format == "npz"


def test_files_are_not_replaced_unless_asked(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    target = tmp_path / "out.npz"
    target.write_text("precious")
    stored = saved({"w": np.zeros(2)})
    with pytest.raises(ConfigError, match="is there already; say --force to replace it"):
        export(stored, target)
    assert target.read_text() == "precious"
    export(stored, target, overwrite=True)
    assert np.load(target)["w"].tolist() == [0, 0]


def test_a_file_that_cannot_be_written(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    stored = saved({"w": np.zeros(2)})
    with pytest.raises(ConfigError, match=r"Cannot write .*no/out\.npz: No such file"):
        export(stored, tmp_path / "no" / "out.npz")


def test_a_full_disk_leaves_no_file(
    saved: Callable[[Any], StoredArrays], tmp_path: Path
) -> None:
    stored = saved({"w": np.random.default_rng(0).bytes(9000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(TierFull, match=r"Cannot write .*out\.npz: File too large"):
            export(stored, tmp_path / "out.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_damage_leaves_no_file(save_state: Callable[..., Lineage], tmp_path: Path) -> None:
    tier = MemoryTier()
    lineage = save_state(tier, "exp/a", 1, {"w": np.random.default_rng(0).bytes(9000)})
    stored = StoredArrays(lineage, lineage.manifest(find_checkpoint(lineage)))
    tier.delete(f"{lineage.id.prefix}/{stored.manifest.packs[0].key}")
    for name in ("out.npz", "out.safetensors"):
        with pytest.raises(CorruptionError, match="no sound copy"):
            export(stored, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
