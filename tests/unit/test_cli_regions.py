"""``show`` says how regions are stored: counted by hand on tables whose sums are known.

Then on a real store, written for size, whose regions are one of each kind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ckptflow as cf
from ckptflow.cli import app
from ckptflow.cli.regions import Layer, older_packs, stored_regions
from ckptflow.data.digest import digest
from ckptflow.model import (
    FILL,
    KEEP,
    CheckpointId,
    DeltaLayer,
    DeltaOp,
    ExtentTable,
    LineageId,
    Manifest,
    PackRef,
    RegionEntry,
)

OLD, NEW = 0, 1  # Numbers of the packs of `manifest`.


def table(*rows: tuple[int, int, int, int]) -> ExtentTable:
    """Rows of length, source, pack and period."""
    length, source, pack, period = zip(*rows, strict=True)
    return ExtentTable(
        np.array(length, np.uint64),
        np.array(source, np.uint64),
        np.array(pack, np.uint32),
        np.array(period, np.uint64),
    )


@pytest.fixture
def manifest() -> Manifest:
    """One region of each kind of rows, in a pack of step 3 and one of step 4."""
    here, before = CheckpointId(4, 1), CheckpointId(3, 2)
    return Manifest(
        lineage=LineageId("exp", "a"),
        id=here,
        parent=before,
        kind="delta",
        created="2026-01-01T00:00:00.000+00:00",
        writer="test",
        metrics={},
        root=digest(b""),
        chunk_bytes=4096,
        packs=(
            PackRef(before.pack_key(0, "0" * 8), 900, 1000, 1, bytes(16)),
            PackRef(here.pack_key(0, "0" * 8), 500, 600, 1, bytes(16)),
        ),
        regions=(
            RegionEntry("a", 1000, digest(b"a"), 4, (), "zstd-1: It is small. And fast.", 256),
            RegionEntry(
                "b", 200, digest(b"b"), 1, (DeltaLayer(3, DeltaOp.SUB, 8),), "sub8+zstd-1: So."
            ),
            RegionEntry("c", 0, digest(b"c"), 0),
        ),
        extents=ExtentTable.of(
            [
                table(
                    (100, 0, OLD, 0), (500, 7, FILL, 0), (300, 50, NEW, 30), (100, 80, OLD, 0)
                ),
                table((200, 300, OLD, 0)),
                table((40, 0, KEEP, 0), (10, 100, NEW, 0), (150, 0, KEEP, 0)),
            ]
        ),
        structure={},
    )


def test_bytes_are_counted_by_kind(manifest: Manifest) -> None:
    a, b, c = stored_regions(manifest)
    assert (a.data_bytes, a.repeat_bytes, a.fill_bytes, a.bytes) == (200, 300, 500, 1000)
    assert (b.data_bytes, b.repeat_bytes, b.fill_bytes, b.bytes) == (200, 0, 0, 200)
    assert (c.data_bytes, c.repeat_bytes, c.fill_bytes, c.bytes) == (0, 0, 0, 0)
    assert [one.rows for one in (a, b, c)] == [4, 4, 0]
    assert [one.cell_bytes for one in (a, b, c)] == [256, 4096, 4096]


def test_new_bytes_are_those_in_packs_of_this_checkpoint(manifest: Manifest) -> None:
    """Of a repeat only the period is stored, and layers count like the bottom."""
    assert [one.new_bytes for one in stored_regions(manifest)] == [30, 10, 0]


def test_delta_layers_say_what_they_change(manifest: Manifest) -> None:
    a, b, _ = stored_regions(manifest)
    assert a.deltas == ()
    assert b.deltas == (Layer("sub", 8, 3, 10),)
    assert str(b.deltas[0]) == "sub8 10 B"


def test_an_encoding_is_told_from_its_reasons(manifest: Manifest) -> None:
    a, _, c = stored_regions(manifest)
    assert (a.encoding, a.reasons) == ("zstd-1", "It is small. And fast.")
    assert (c.encoding, c.reasons) == ("", "")


@pytest.mark.parametrize(
    ("part", "text"), [(0, ""), (1, "<1 %"), (10, "1 %"), (500, "50 %"), (1000, "100 %")]
)
def test_shares(manifest: Manifest, part: int, text: str) -> None:
    assert stored_regions(manifest)[0].share(part) == text


def test_bytes_of_a_pack_that_several_rows_use_count_once(manifest: Manifest) -> None:
    """0..100 and 80..180 overlap in the old pack; 300..500 lies apart."""
    (old,) = older_packs(manifest)
    assert (old.step, old.attempt, old.bytes, old.plain_bytes) == (3, 2, 900, 1000)
    assert old.used_bytes == 180 + 200


# --- on a store ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "store"
    rng = np.random.default_rng(0)
    state: dict[str, Any] = {
        "walk": np.cumsum(rng.standard_normal(20_000)),
        "noise": rng.standard_normal(4096),
        "tile": np.tile(rng.integers(0, 9, 512), 40),
        "zero": np.zeros(5000),
    }
    packing = cf.Packing(goal="small", chunk_bytes=1024)
    with cf.Checkpointer(folder, run="exp", task="a", packing=packing, rng=False) as ckpt:
        for step in range(3):
            ckpt.save(step, state)
            ckpt.wait()  # So that the next one finds its parent.
            state["walk"] *= 1 + 1e-9
    return folder


def show(store: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["show", "exp/a", "--store", str(store), *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_json(store: Path) -> None:
    found = json.loads(show(store, "--json"))
    regions = {one["name"]: one for one in found["regions"]}
    assert set(regions) == {"state/walk", "state/noise", "state/tile", "state/zero"}
    for one in regions.values():
        assert one["bytes"] == one["data_bytes"] + one["repeat_bytes"] + one["fill_bytes"]
    assert regions["state/zero"]["fill_bytes"] == 40_000
    assert regions["state/tile"]["repeat_bytes"] > regions["state/tile"]["bytes"] / 2
    assert regions["state/noise"]["new_bytes"] == 0
    walk = regions["state/walk"]
    assert walk["new_bytes"] == walk["bytes"]
    assert [layer["word_bytes"] for layer in walk["deltas"]] == [8, 8]
    assert walk["encoding"].split("+")[0] in {"sub8", "xor8"}
    assert "samples" in walk["reasons"]
    packs = found["older_packs"]
    assert [pack["step"] for pack in packs] == [1, 0]
    assert all(0 < pack["used_bytes"] <= pack["plain_bytes"] for pack in packs)
    assert len(packs) == found["packs"] - 1


def test_show(store: Path) -> None:
    lines = [line.split() for line in show(store).splitlines()]
    (head,) = (line for line in lines if line[:1] == ["REGION"])
    assert head[1:8] == ["BYTES", "NEW", "CELL", "ROWS", "DATA", "REPEAT", "FILL"]
    assert head[8:] == ["DELTAS", "ENCODING"]
    rows = {line[0]: line[1:] for line in lines[lines.index(head) + 1 :] if line}
    assert rows["'state/zero'"][-2:] == ["100", "%"]
    assert rows["'state/walk'"][:2] == ["160000", "160000"]
    older = [line for line in lines if line and line[0].endswith(".pack")]
    assert [line[1] for line in older] == ["1", "0"]
    assert "The samples" not in show(store)


def test_show_reasons(store: Path) -> None:
    (line,) = [line for line in show(store, "--reasons").splitlines() if "The samples" in line]
    assert line.startswith("'state/walk': ")


def test_show_reasons_where_nothing_was_chosen(tmp_path: Path) -> None:
    with cf.Checkpointer(tmp_path, run="exp", task="a", rng=False) as ckpt:
        ckpt.save(0, {"w": np.arange(10)})
    assert "No region had enough new bytes" in show(tmp_path, "--reasons")
    assert "OLDER PACK" not in show(tmp_path)
