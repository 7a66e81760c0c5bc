"""Sizes that cannot be, words that mean nothing, parents that are not there: errors, or full.

Nothing is ever written by halves: a size or a word that makes no sense is a `ConfigError` that
names it, before anything is touched; a parent that cannot be used makes a full checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ckptflow as cf
from ckptflow import manifest as manifest_file
from ckptflow.cli import app
from ckptflow.data.scan import scan
from ckptflow.errors import ConfigError, FormatError, RestoreError
from ckptflow.model import STORE_KEY, CheckpointId, LineageId, Manifest
from ckptflow.site import load_site
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.packing import parse_packing
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

A, B = LineageId("exp", "a"), LineageId("exp", "b")
CHUNK_BYTES = 64

Bits = Mapping[str, bytes]


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def write(tier: Tier, state: Bits, step: int, base: Base | None = None, **options: Any) -> Base:
    given: dict[str, Any] = {"lineage": A, "chunk_bytes": CHUNK_BYTES, **options}
    return write_checkpoint(
        tier,
        given.pop("lineage"),
        CheckpointId(step, 1),
        structure=["dict"],
        regions=[NamedRegion(name, memoryview(data), 8) for name, data in state.items()],
        base=base,
        **given,
    )


def task(ckpt: cf.Checkpointer) -> None:
    """Do nothing: what would save it makes no sense."""


def read(tier: Tier, manifest: Manifest) -> dict[str, bytes]:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    read_checkpoint([tier], manifest, buffers)
    names = [entry.name for entry in manifest.regions]
    return {name: bytes(buffer) for name, buffer in zip(names, buffers, strict=True)}


@pytest.fixture
def disk() -> MemoryTier:
    return MemoryTier("disk")


# --- sizes -----------------------------------------------------------------------------

SIZES = [
    ({"chunk_bytes": 0}, r"chunk_bytes is a multiple of 8, at least 16, not 0"),
    ({"chunk_bytes": -4096}, "not -4096"),
    ({"chunk_bytes": 8}, "at least 16, not 8"),
    ({"chunk_bytes": 4095}, "a multiple of 8, at least 16, not 4095"),
    (
        {"cell_bytes": 0},
        r"cell_bytes is a multiple of 8, .* divides chunk_bytes .*not 0",
    ),
    ({"cell_bytes": -64}, "not -64"),
    ({"cell_bytes": 8}, "at least 16, .* not 8"),
    ({"cell_bytes": 63}, "a multiple of 8, .* not 63"),
    ({"cell_bytes": 48}, r"divides chunk_bytes \(4096\) .* not 48"),
    ({"cell_bytes": 6144}, r"or is a multiple of it, not 6144"),
    ({"cell_bytes": 128 << 10}, "cell_bytes is at most 65536, not 131072"),
]


@pytest.mark.parametrize(("sizes", "message"), SIZES)
def test_a_packing_of_sizes_that_cannot_be(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cf.Packing(**sizes)


@pytest.mark.parametrize(
    ("sizes", "message"), [one for one in SIZES if min(one[0].values()) >= 0]
)
def test_the_short_form_of_sizes_that_cannot_be(
    sizes: dict[str, int], message: str, tmp_path: Path
) -> None:
    """In whatever way it is given, and before a store is made."""
    ((name, size),) = sizes.items()
    text = f"small,{name.removesuffix('_bytes')}={size}"
    with pytest.raises(ConfigError, match=message):
        parse_packing(text)
    with pytest.raises(ConfigError, match=message):
        cf.Checkpointer(tmp_path / "store", packing=text)
    with pytest.raises(ConfigError, match=message):
        cf.python_app(packing=text)(task)
    assert not (tmp_path / "store").exists()


def test_a_site_file_of_sizes_that_cannot_be(tmp_path: Path) -> None:
    site = tmp_path / "mine.toml"
    site.write_text(
        '[[tiers]]\nkind = "posix"\nname = "disk"\npath = "store"\nlevel = 3\n'
        '[policy]\npacking = "auto,cell=48"\n'
    )
    with pytest.raises(ConfigError, match="cell_bytes is a multiple of 8") as caught:
        load_site(str(site))
    assert "mine.toml" in str(caught.value)
    assert "packing" in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"chunk_bytes": 60}, "chunk_bytes"),
        ({"chunk_bytes": 64, "cell_bytes": 24}, "cell_bytes"),
        ({"chunk_bytes": 64, "cell_bytes": 8}, "cell_bytes"),
        ({"chunk_bytes": 64, "cell_bytes": 17}, "cell_bytes"),
    ],
)
def test_nothing_is_written_in_sizes_that_cannot_be(
    disk: MemoryTier, sizes: dict[str, int], name: str
) -> None:
    base = write(disk, {"w": noise(200)}, 1)
    before = sorted(disk.iter_keys(""))
    with pytest.raises(ConfigError, match=f"{name} .*(multiple of 8|chunks)"):
        write(disk, {"w": noise(200, 1)}, 2, base, **sizes)
    assert sorted(disk.iter_keys("")) == before
    follower = write(disk, {"w": noise(200)}, 3, base)
    assert follower.manifest.own_packs == ()


@pytest.mark.parametrize("cell_bytes", [0, 12, 24, 128])
def test_a_scan_in_cells_that_cannot_be(cell_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"divide chunk_bytes, which is 64; got {cell_bytes}"):
        scan(noise(200), chunk_bytes=64, cell_bytes=cell_bytes)


@pytest.mark.parametrize(
    ("chunk_bytes", "cell_bytes"),
    [(16, None), (1 << 20, None), (1 << 20, 64), (1 << 20, 1 << 20), (24, 24), (4096, 65536)],
)
def test_sizes_larger_than_the_region_or_unusual_ones_are_fine(
    tmp_path: Path, chunk_bytes: int, cell_bytes: int | None
) -> None:
    packing = cf.Packing(chunk_bytes=chunk_bytes, cell_bytes=cell_bytes, verify="all")
    state = {"odd": np.frombuffer(noise(1001), np.uint8).copy(), "none": np.zeros(0)}
    with cf.Checkpointer(tmp_path, packing=packing, every=1, rng=False) as ckpt:
        for step in range(3):
            state["odd"][-1] = step
            ckpt.save(step, state)
    found = cf.Checkpointer(tmp_path).restore()
    assert found["odd"].tobytes() == state["odd"].tobytes()
    assert found["none"].shape == (0,)


def test_other_sizes_in_a_later_attempt_are_fine(tmp_path: Path) -> None:
    state = {"w": np.frombuffer(noise(100_000), np.uint8).copy()}
    sizes = ["auto", "auto,chunk=1024,cell=64", "small,cell=65536", "auto,chunk=24", "small"]
    for step, packing in enumerate(sizes):
        with cf.Checkpointer(tmp_path, packing=packing, rng=False, keep="all") as ckpt:
            if step:
                assert np.array_equal(ckpt.restore()["w"], state["w"])
            state["w"][step * 1000 : step * 1000 + 70] += 1
            ckpt.save(step, state)
    assert np.array_equal(cf.Checkpointer(tmp_path).restore()["w"], state["w"])


# --- words -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "tiny", "Small", "small;cell=64", "small,", "cell", "cell=", "cell=64 KiB",
        "cell=-64", "cell=6.4", "chunk=4k", "deltas=true", "deltas=", "goal=small", "small=yes",
        "auto cell=64", "layers=3",
    ],
)  # fmt: skip
def test_texts_that_say_nothing_are_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r"does not say how to store .* It is 'auto' or"):
        parse_packing(text)


@pytest.mark.parametrize("text", ["verify=", "verify=yes", "auto,verify=All"])
def test_a_verification_that_there_is_not(text: str) -> None:
    with pytest.raises(ConfigError, match="verify is one of off, sample, all, not"):
        parse_packing(text)


@pytest.mark.parametrize("goal", ["fast", "", None, 1])
def test_a_goal_that_there_is_not(goal: Any) -> None:
    with pytest.raises(ConfigError, match=f"goal is one of auto, small, not {goal!r}"):
        cf.Packing(goal=goal)


@pytest.mark.parametrize("value", [64, True, 0.5, {"goal": "small"}, ["small"]])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="does not say how to store checkpoints"):
        parse_packing(value)


@pytest.mark.parametrize(
    "packing",
    [
        cf.Packing(),
        cf.Packing(goal="small", chunk_bytes=64, cell_bytes=16, deltas=False, verify="all"),
        cf.Packing(cell_bytes=65536, deltas=True, verify="sample"),
    ],
)
def test_a_packing_is_read_from_its_text(packing: cf.Packing) -> None:
    assert parse_packing(str(packing)) == packing
    assert parse_packing(f" {packing} ".replace(",", " , ")) == packing


# --- parents ---------------------------------------------------------------------------


@pytest.mark.damaged_store
@pytest.mark.parametrize("goal", ["auto", "small"])
def test_a_parent_whose_packs_are_gone_makes_a_full_checkpoint(
    disk: MemoryTier, goal: str
) -> None:
    """Also where its bytes are in memory, and a delta on them would be smaller."""
    walk = np.cumsum(np.random.default_rng(0).standard_normal(4000))
    old = {"w": walk.tobytes(), "still": noise(32_000)}
    new = {"w": (walk * (1 + 1e-9)).tobytes(), "still": noise(32_000)}
    views = {name: memoryview(data) for name, data in old.items()}
    base = write(disk, old, 1, goal=goal)
    base.memory.bytes_at_hand = views
    alike = write(disk, new, 2, base, goal=goal).manifest
    assert alike.kind == "delta", "or this test shows nothing"
    assert bool(alike.regions[0].deltas) == (goal == "small")
    base = write(disk, old, 3, goal=goal)
    base.memory.bytes_at_hand = views
    for pack in base.manifest.packs:
        disk.delete(f"{A.prefix}/{pack.key}")
    found = write(disk, new, 4, base, goal=goal).manifest
    assert (found.kind, found.parent) == ("full", None)
    assert found.packs == found.own_packs
    assert not any(region.deltas for region in found.regions)
    assert read(disk, found) == new


@pytest.mark.damaged_store
def test_known_bytes_whose_pack_is_gone_are_written_again(disk: MemoryTier) -> None:
    """The log still has the cells of step 1, which no manifest names any more."""
    first, second = noise(4096, 1), noise(4096, 2)
    base = write(disk, {"w": first}, 1)
    (old_pack,) = base.manifest.packs
    base = write(disk, {"w": second}, 2, base)
    moved = {"w": first[64:] + first[:64]}
    base = write(disk, moved, 3, base)
    assert old_pack in base.manifest.packs, "or this test shows nothing"
    base = write(disk, {"w": second}, 4, base)
    disk.delete(f"{A.prefix}/{old_pack.key}")
    found = write(disk, moved, 5, base).manifest
    assert old_pack not in found.packs
    assert read(disk, found) == moved


@pytest.mark.damaged_store
def test_a_task_whose_packs_were_swept_away_goes_on_in_full(tmp_path: Path) -> None:
    state = {"w": np.frombuffer(noise(50_000), np.uint8).copy()}
    with cf.Checkpointer(tmp_path, run="exp", task="a", rng=False, packing="small") as ckpt:
        ckpt.save(1, state)
        ckpt.wait()
        for pack in (tmp_path / A.prefix / "packs").iterdir():
            pack.unlink()
        state["w"][7] += 1
        ckpt.save(2, state)
    found = cf.Checkpointer(tmp_path, run="exp", task="a").restore()
    assert np.array_equal(found["w"], state["w"])


def test_a_parent_of_another_lineage_makes_a_full_checkpoint(disk: MemoryTier) -> None:
    state = {"w": noise(4096), "z": bytes(512)}
    base = write(disk, state, 1, lineage=B)
    base.memory.bytes_at_hand = {name: memoryview(data) for name, data in state.items()}
    found = write(disk, state, 2, base, goal="small").manifest
    assert (found.lineage, found.kind, found.parent) == (A, "full", None)
    assert found.packs == found.own_packs
    assert set(found.packs).isdisjoint(base.manifest.packs)
    for key in [key for key in disk.iter_keys(B.prefix) if "/packs/" in key]:
        disk.delete(key)
    assert read(disk, found) == state


def test_whoever_lent_its_memory_to_another_lineage_keeps_it(disk: MemoryTier) -> None:
    state = {"w": noise(4096)}
    base = write(disk, state, 1, lineage=B)
    write(disk, {"w": noise(4096, 1)}, 2, base)
    found = write(disk, state, 3, base, lineage=B).manifest
    assert (found.kind, found.parent, found.own_packs) == ("delta", CheckpointId(1, 1), ())


# --- stores ----------------------------------------------------------------------------


def other_lineage(key: str) -> str:
    return f"../b/{key}"


@pytest.mark.parametrize(
    "key_of",
    [
        other_lineage,
        lambda key: f"/lineages/exp/b/{key}",
        lambda key: f"packs/../../b/{key}",
        lambda key: key.replace("packs/", "packs/x/"),
    ],
)
def test_a_manifest_that_names_packs_of_another_lineage_is_refused(
    disk: MemoryTier, key_of: Any
) -> None:
    manifest = write(disk, {"w": noise(512)}, 1).manifest
    write(disk, {"w": noise(512)}, 1, lineage=B)
    packs = tuple(dataclasses.replace(p, key=key_of(p.key)) for p in manifest.packs)
    forged = manifest_file.encode(dataclasses.replace(manifest, packs=packs))
    with pytest.raises(FormatError, match="is not the key of a pack"):
        manifest_file.decode(forged, where="here")


@pytest.mark.damaged_store
def test_a_checkpoint_of_another_lineage_is_not_restored(tmp_path: Path) -> None:
    """Its manifest was copied, with its packs: all digests agree, and it is not this task's."""
    for task in ("a", "b"):
        with cf.Checkpointer(tmp_path, run="exp", task=task, rng=False) as ckpt:
            ckpt.save(1, {"w": np.frombuffer(noise(512), np.uint8)})
    for kind in ("packs", "manifests"):
        shutil.rmtree(tmp_path / A.prefix / kind)
        shutil.copytree(tmp_path / B.prefix / kind, tmp_path / A.prefix / kind)
    with pytest.raises(RestoreError) as caught:
        cf.Checkpointer(tmp_path, run="exp", task="a").restore()
    assert "exp/b" in "\n".join([str(caught.value), *caught.value.__notes__])


@pytest.mark.damaged_store
def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with cf.Checkpointer(tmp_path, run="exp", task="a", rng=False) as ckpt:
        ckpt.save(1, {"w": np.arange(100)})
    descriptor = tmp_path / STORE_KEY
    newer = {**json.loads(descriptor.read_text()), "version": 2}
    descriptor.write_text(json.dumps(newer))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for use in (lambda ckpt: ckpt.restore(), lambda ckpt: ckpt.save(2, {"w": np.arange(100)})):
        with pytest.raises(FormatError, match=r"format version 2; .* nothing was touched"):
            use(cf.Checkpointer(PosixTier(tmp_path), run="exp", task="a"))
    result = CliRunner().invoke(app, ["show", "exp/a", "--store", str(tmp_path)])
    assert result.exit_code != 0
    assert "Install a newer ckptflow" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
