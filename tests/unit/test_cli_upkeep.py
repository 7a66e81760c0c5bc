"""``prune`` and ``consolidate`` on real stores: what they say, do, and refuse."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import ckptflow as cf
from ckptflow.cli import app, naming
from ckptflow.flush.agent.folder import make_agent_folder
from ckptflow.flush.agent.ledger import Entry, Ledger
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention

STEPS = 12


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Tasks a (12 checkpoints that change a little) and b (1 checkpoint)."""
    folder, rng = tmp_path / "store", np.random.default_rng(0)
    with cf.Checkpointer(folder, run="exp", task="a", keep="all", packing="small") as ckpt:
        state = {"w": rng.standard_normal(20_000)}
        for step in range(1, STEPS + 1):
            state["w"][:: 50 + step] += 1e-6
            ckpt.save(step, state)
    with cf.Checkpointer(folder, run="exp", task="b", rng=False) as ckpt:
        ckpt.save(0, {"w": np.arange(3)})
    return folder


@dataclass
class Cli:
    store: Path

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--store", str(self.store)])

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def cli(store: Path) -> Cli:
    return Cli(store)


def objects(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


# --- consolidate ---


def test_consolidating_the_newest(cli: Cli) -> None:
    [before] = cli.json("consolidate", "exp/a", "--dry-run")["checkpoints"]
    assert (before["step"], before["worth"], before["done"]) == (STEPS, True, False)
    assert before["packs_before"] > 1
    [after] = cli.json("consolidate", "exp/a")["checkpoints"]
    assert (after["done"], after["packs_after"]) == (True, 1)
    assert cli("verify", "exp/a").exit_code == 0
    [again] = cli.json("consolidate", "exp/a", "--force")["checkpoints"]
    assert not again["done"]


def test_a_dry_run_writes_nothing(cli: Cli, store: Path) -> None:
    before = objects(store)
    result = cli("consolidate", "exp/a", "--all", "--dry-run")
    assert result.exit_code == 0
    assert "worth it" in result.output
    assert objects(store) == before


def test_consolidating_all_and_a_prune_afterwards(cli: Cli, store: Path) -> None:
    done = cli.json("consolidate", "exp/a", "--all")["checkpoints"]
    assert [one["step"] for one in done] == list(range(STEPS, 0, -1))
    assert cli("prune", "exp/a", "--keep", "2").exit_code == 0
    assert len(list((store / "lineages/exp/a/packs").iterdir())) == 2
    assert cli("verify", "exp/a").exit_code == 0


def test_one_step_and_what_is_not_there(cli: Cli) -> None:
    [one] = cli.json("consolidate", "exp/a@5", "--force")["checkpoints"]
    assert one["step"] == 5
    assert cli("consolidate", "exp/a@99").exit_code == 3
    assert cli("consolidate", "exp/a@5", "--all").exit_code == 2
    result = cli("consolidate", "exp/a", "--tier", "moon")
    assert result.exit_code == 2
    assert "no tier 'moon'" in result.output


@pytest.mark.damaged_store
def test_damage_stops_one_and_not_the_others(cli: Cli, store: Path) -> None:
    for pack in (store / "lineages/exp/a/packs").iterdir():
        data = bytearray(pack.read_bytes())
        data[20] ^= 1
        pack.write_bytes(data)
    result = cli("consolidate", "exp/a", "--all", "--force")
    assert result.exit_code == 4
    assert "no sound copy" in result.output
    assert "consolidated 0 of" in result.output


# --- prune ---


def test_a_prune_says_why_and_what_that_frees(cli: Cli, store: Path) -> None:
    before = objects(store)
    result = cli("prune", "exp/a", "--keep", "newest=2,every=4,count=3", "--dry-run")
    assert result.exit_code == 0
    assert "would drop 9 copies" in result.output
    assert objects(store) == before


def test_room_for_a_whole_store(cli: Cli, store: Path) -> None:
    packs = list(store.glob("lineages/*/*/packs/*"))
    taken = sum(path.stat().st_size for path in packs)
    plans = cli.json("prune", "--bytes", str(taken), "--dry-run")["plans"]
    assert all(one["keep"] for plan in plans for one in plan["checkpoints"])
    found = cli.json("prune", "--bytes", "1kB")
    assert found["freed_bytes"] > 0
    kept = {
        plan["lineage"]: [one["step"] for one in plan["checkpoints"] if one["keep"]]
        for plan in found["plans"]
    }
    assert kept["exp/b"] == [0]
    assert kept["exp/a"][0] == STEPS
    assert len(kept["exp/a"]) < STEPS  # Those that need nothing besides the newest stay.
    needed = cli.json("show", f"exp/a@{STEPS}")["packs"]
    assert len(list((store / "lineages/exp/a/packs").iterdir())) == needed


def test_a_prune_leaves_what_the_agent_is_still_copying(
    cli: Cli, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = make_agent_folder([tier.spec for tier in naming.open_store([store], None)])
    Ledger(folder).add(
        Entry(LineageId("exp", "a"), CheckpointId(5, 1), "pfs", Retention(), since=0.0)
    )
    for options in (["--dry-run"], []):
        [plan] = cli.json("prune", "exp/a", "--keep", "1", *options)["plans"]
        kept = {one["step"]: one["reasons"] for one in plan["checkpoints"] if one["keep"]}
        assert kept.keys() == {STEPS, 5}
        assert kept[5] == ["is being copied outward"]
    assert cli("verify", "exp/a").exit_code == 0


def test_a_prune_needs_to_be_told_what_stays(cli: Cli) -> None:
    result = cli("prune")
    assert result.exit_code == 2
    assert "nothing was deleted" in result.output


@pytest.mark.parametrize("keep", ["bytes=soon", "count=0", "bytes=-1", "bytes=1GB,bytes=2GB"])
def test_limits_that_make_no_sense(cli: Cli, keep: str) -> None:
    assert cli("prune", "--keep", keep).exit_code == 2
