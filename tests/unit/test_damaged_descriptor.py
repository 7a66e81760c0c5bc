"""The descriptor of one tier is damaged: the others serve, and it can be mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ckptflow import Checkpointer
from ckptflow.checkpointer import CheckpointWarning
from ckptflow.cli import app
from ckptflow.errors import StoreDamaged
from ckptflow.model import STORE_KEY, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import check_store, mend_store, store_id
from ckptflow.store.prune import prune
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.opening import open_store
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

pytestmark = pytest.mark.damaged_store


def state(step: int) -> dict[str, Any]:
    return {"step": step, "w": np.random.default_rng(step).standard_normal(1000)}


@pytest.fixture
def tiers(tmp_path: Path) -> list[PosixTier]:
    """Two checkpoints on three tiers; the second has the claims."""
    names = ("near", "far", "remote")
    tiers = [
        PosixTier(tmp_path / name, name=name, level=level)
        for name, level in zip(names, (1, 3, 4), strict=True)
    ]
    with Checkpointer([*tiers], rng=False, keep="all") as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).wait(4)
    return tiers


def damage(tier: PosixTier) -> None:
    path = tier.root / STORE_KEY
    path.write_bytes(path.read_bytes()[:20])


def contents(tier: PosixTier) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in tier.root.rglob("*")}


@pytest.mark.parametrize("number", range(3))
def test_the_others_are_restored_from(tiers: list[PosixTier], number: int) -> None:
    damage(tiers[number])
    ckpt = Checkpointer([*tiers], rng=False)
    found = ckpt.restore()
    assert (found["w"] == state(2)["w"]).all()
    assert f"Tier {tiers[number].name!r} was skipped: 'ckptflow-store.json'" in ckpt.notes[0]


def save_another(tiers: list[Tier]) -> None:
    ckpt = Checkpointer(tiers, rng=False)
    ckpt.restore()
    ckpt.save(3, state(3)).wait()
    ckpt.shut()


@pytest.mark.parametrize("number", range(3))
def test_a_save_goes_to_the_others_and_says_how_to_mend_it(
    tiers: list[PosixTier], number: int
) -> None:
    damage(tiers[number])
    before = contents(tiers[number])
    claims = {path for path in before if "attempts" in path.parts}
    with pytest.warns(CheckpointWarning, match="it is damaged.*`ckptflow repair` mends it"):
        save_another([*tiers])
    after = contents(tiers[number])
    assert {path for path in after if "attempts" not in path.parts} == before.keys() - claims
    others = [tier for tier in tiers if tier is not tiers[number]]
    assert Checkpointer([*others], rng=False).restore()["step"] == 3


def test_alone_it_is_neither_written_nor_read(tiers: list[PosixTier]) -> None:
    damage(tiers[1])
    before = contents(tiers[1])
    ckpt = Checkpointer(tiers[1], rng=False)
    with pytest.raises(StoreDamaged, match="ckptflow repair"):
        ckpt.restore()
    ckpt.shut()
    assert contents(tiers[1]) == before


def test_nothing_is_pruned_there(tiers: list[PosixTier]) -> None:
    damage(tiers[0])
    before = contents(tiers[0])
    lineage = Lineage([*tiers], LineageId("default", "main"))
    with pytest.raises(StoreDamaged, match="is damaged"):
        prune(lineage, tiers[0], Retention(newest=1))
    assert contents(tiers[0]) == before


def test_repair_writes_it_again(tiers: list[PosixTier]) -> None:
    damage(tiers[0])
    stores = [part for tier in tiers for part in ("--store", str(tier.root))]
    for command in ("ls", "repair --dry-run"):
        result = CliRunner().invoke(app, [*command.split(), *stores])
        assert result.exit_code == 5
        assert "`ckptflow repair` mends it" in result.stderr
    result = CliRunner().invoke(app, ["repair", *stores])
    assert result.exit_code == 0, result.output
    assert "was damaged, and was written again" in result.stderr
    assert len(store_id(tiers[0])) == 32
    assert CliRunner().invoke(app, ["verify", *stores]).exit_code == 0


def test_what_is_sound_is_not_mended(tiers: list[PosixTier]) -> None:
    before = store_id(tiers[0])
    assert not mend_store(tiers[0])
    assert not mend_store(MemoryTier())
    assert store_id(tiers[0]) == before


def test_an_id_that_other_nodes_know_is_not_invented(tiers: list[PosixTier]) -> None:
    damage(tiers[0])
    tiers[0].put(f"redundancy/{'0' * 32}/stripe.json", [b"{}"])
    with pytest.raises(StoreDamaged, match="Write it again by hand"):
        mend_store(tiers[0])
    descriptor = {"format": "ckptflow-store", "version": 1, "store": "7" * 32}
    (tiers[0].root / STORE_KEY).write_text(json.dumps(descriptor))
    assert check_store(tiers[0])


def test_damage_of_a_sealed_one_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(32))
    (tmp_path / "key").chmod(0o600)
    near = open_store(tmp_path / "near", key_file=tmp_path / "key")
    tiers = [near, PosixTier(tmp_path / "far", name="far", level=3)]
    with Checkpointer(tiers, rng=False) as ckpt:
        ckpt.save(1, state(1)).wait(3)
    path = tmp_path / "near" / STORE_KEY
    path.write_bytes(path.read_bytes()[:-1])
    assert Checkpointer(tiers, rng=False).restore()["step"] == 1
