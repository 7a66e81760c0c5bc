"""The commands that mend and carry: on real folders, as text and as JSON."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import ckptflow as cf
from ckptflow.cli import app
from ckptflow.errors import TierUnavailable
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.resume import restore_newest
from ckptflow.tiers.posix import PosixTier

LINEAGE = LineageId("exp", "a")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two tiers with the same two checkpoints."""
    near, far = tmp_path / "near", tmp_path / "far"
    tiers = [PosixTier(near, name="near", level=1), PosixTier(far, name="far", level=3)]
    with cf.Checkpointer(tiers, run="exp", task="a", every=1, keep="all") as ckpt:
        state = ckpt.restore({"w": np.random.default_rng(0).standard_normal(4000)})
        for step in (1, 2):
            state["w"][100 * step :][:100] += 1.0
            ckpt.save(step, state).wait(level=3)
    return near, far


def run(*arguments: str, stores: tuple[Path, ...] = ()) -> Result:
    options = [part for store in stores for part in ("--store", str(store))]
    return CliRunner().invoke(app, [*arguments, *options])


def run_json(*arguments: str, stores: tuple[Path, ...] = ()) -> Any:
    return json.loads(run(*arguments, "--json", stores=stores).stdout)


def damage(folder: Path, pattern: str) -> Path:
    path = max((folder / LINEAGE.prefix).glob(pattern))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def test_repair(folders: tuple[Path, Path]) -> None:
    near, far = folders
    pack, manifest = damage(near, "packs/*"), damage(far, "manifests/*")
    damaged = pack.read_bytes()
    said = run_json("repair", "--dry-run", stores=folders)
    assert (said["complete"], said["dry_run"]) == (True, True)
    assert {one["key"].rpartition("/")[2] for one in said["mended"]} == {
        pack.name,
        manifest.name,
    }
    assert pack.read_bytes() == damaged
    result = run("repair", "exp/a@2", stores=folders)
    assert result.exit_code == 0
    assert "mended from store2" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 objects mended, 0 lost"
    assert run("verify", stores=folders).exit_code == 0
    assert pack.read_bytes() == (far / pack.relative_to(near)).read_bytes()


def test_verify_goes_on_when_a_tier_goes_away(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be listed, and nothing more."""

    def away(tier: PosixTier, key: str) -> int:
        if tier.name == "store1":
            raise TierUnavailable(f"no answer about {key}")
        return size(tier, key)

    size = PosixTier.size
    monkeypatch.setattr(PosixTier, "size", away)
    found = run_json("verify", stores=folders)
    sound = {copy["tier"]: not copy["problems"] for copy in found["copies"]}
    assert sound == {"store1": False, "store2": True}
    assert "no answer about" in found["copies"][0]["problems"][0]


@pytest.mark.damaged_store
def test_repair_says_what_is_lost(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        damage(folder, "packs/*")
    result = run("repair", stores=folders)
    assert result.exit_code == 4
    assert result.stdout.splitlines()[-1] == "0 objects mended, 2 lost"
    found = run_json("repair", stores=folders)
    assert {one["tier"] for one in found["lost"]} == {"store1", "store2"}


def test_repair_fills_a_new_disk(folders: tuple[Path, Path], tmp_path: Path) -> None:
    near, far = folders
    new = tmp_path / "new"
    new.mkdir()
    (new / "ckptflow-store.json").write_bytes((near / "ckptflow-store.json").read_bytes())
    assert run_json("repair", stores=(new, far))["mended"] == []
    assert run("repair", "exp", "--everywhere", stores=(new, far)).exit_code == 0
    assert len(run_json("verify", stores=(new,))["copies"]) == 2


@pytest.mark.damaged_store
def test_quarantine_is_listed_and_lifted(folders: tuple[Path, Path]) -> None:
    _near, far = folders
    assert "No checkpoint has failed" in run("quarantine", stores=(far,)).stdout
    damage(far, "packs/*")
    lineage = Lineage([PosixTier(far, level=3)], LINEAGE)
    for attempt in (2, 3, 4):
        restore_newest(lineage, None, attempt=attempt)
    (row,) = run_json("quarantine", "exp", stores=(far,))["checkpoints"]
    assert (row["step"], row["failures"], row["quarantined"]) == (2, 3, True)
    assert "exp/a@2.1" in run("quarantine", stores=(far,)).stdout
    ls = run("ls", "exp/a", stores=(far,)).stdout
    assert "quarantined" in ls
    assert "quarantined" in run("show", "exp/a@2", stores=(far,)).stdout
    assert run("verify", "exp/a", stores=(far,)).exit_code == 4
    assert run_json("quarantine", stores=(far,))["checkpoints"]
    assert run("quarantine", "exp/a@1", "--lift", stores=(far,)).exit_code == 0
    assert run_json("quarantine", stores=(far,))["checkpoints"]
    assert "lifted" in run("quarantine", "exp/a@2", "--lift", stores=(far,)).stdout
    assert run_json("quarantine", stores=(far,))["checkpoints"] == []


def test_a_verify_that_finds_it_sound_lifts_the_quarantine(folders: tuple[Path, Path]) -> None:
    near, far = folders
    pack = damage(far, "packs/*")
    lineage = Lineage([PosixTier(far, level=3)], LINEAGE)
    for attempt in (2, 3, 4):
        restore_newest(lineage, None, attempt=attempt)
    pack.write_bytes((near / pack.relative_to(far)).read_bytes())
    assert run("verify", "--sample", "50%", stores=(far,)).exit_code == 0
    assert run_json("quarantine", stores=(far,))["checkpoints"]
    assert run("verify", stores=(far,)).exit_code == 0
    assert run_json("quarantine", stores=(far,))["checkpoints"] == []


def test_copy_and_go_on(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "moved" / "store"
    result = run("copy", "exp", "--to", str(target), stores=folders)
    assert result.exit_code == 0, result.output
    assert "2 checkpoints" in result.stdout
    again = run_json("copy", "exp", "--to", str(target), stores=folders)
    assert (again["objects"], again["checkpoints"], again["complete"]) == (0, 2, True)
    assert run("copy", "exp", "--to", str(target), "--as", "b", stores=folders).exit_code == 0
    ckpt = cf.Checkpointer(target, run="b", task="a")
    assert ckpt.restore()["w"].shape == (4000,)
    assert (ckpt.restored_step, ckpt.attempt) == (2, 2)
    ckpt.close()


def test_archive_and_import(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, file = tmp_path / "target", tmp_path / "exp.tar"
    assert run("archive", "exp", str(file), stores=folders).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    there = run("archive", "exp", str(file), stores=folders)
    assert there.exit_code == 2
    assert "say --force" in there.stderr
    assert run("archive", "exp", str(file), "--force", stores=folders).exit_code == 0
    assert run_json("import", str(file), "--to", str(target))["checkpoints"] == 2
    assert run("verify", stores=(target,)).exit_code == 0
    result = run("import", str(tmp_path / "none.tar"), "--to", str(target))
    assert result.exit_code == 2
    assert "Cannot read" in result.stderr
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])  # Its end is padding.
    result = run("import", str(file), "--to", str(target))
    assert result.exit_code == 4
    assert "cut off" in result.stderr


def test_an_archive_that_may_not_grow(folders: tuple[Path, Path], tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        result = run("archive", "exp", str(tmp_path / "exp.tar"), stores=folders)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert result.exit_code == 5
    assert "Cannot write" in result.stderr
    assert list(tmp_path.glob("*.tar")) == list(tmp_path.glob(".*.partial")) == []


def test_copy_says_what_differs(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "target"
    with cf.Checkpointer(target, run="exp", task="a") as ckpt:
        ckpt.save(7, {"w": np.zeros(3)})
    result = run("copy", "exp", "--to", str(target), stores=folders)
    assert result.exit_code == 1
    assert "the two histories of exp/a have parted" in result.stdout
    assert run_json("ls", "exp/a", stores=(target,))["checkpoints"][0]["step"] == 7
