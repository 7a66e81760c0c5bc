"""``ls``, ``show``, ``verify``, ``prune`` and ``export`` of what many ranks saved together."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ckptflow as cf
from ckptflow.cli import app
from ckptflow.model import CheckpointId, LineageId, Shard
from ckptflow.tiers.posix import PosixTier

RANKS = 2


def state(step: int) -> dict[str, Any]:
    return {"model": {"w": np.arange(5000.0) * step}, "step": step}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    with ExitStack() as stack:
        for rank in range(RANKS):
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    store, rank=rank, world=RANKS, launch="a", replicated="*", keep="all",
                    run="exp", every="never",
                )
            )  # fmt: skip
            one.restore({})
            for step in (1, 2, 3):
                if (rank, step) != (1, 3):
                    one.save(step, state(step))
    with cf.Checkpointer(store, run="exp", task="other") as one:
        one.save(7, state(7))
    return store


def call(store: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--store", str(store)])
    assert done.exit_code == code, done.output
    return done.stdout


def called(store: Path, *arguments: str, code: int = 0) -> Any:
    return json.loads(call(store, *arguments, "--json", code=code))


def test_a_run_has_a_line_for_all_ranks_of_a_task(whole: Path) -> None:
    lines = call(whole, "ls", "exp").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["exp/main", "2"], ["exp/other", "7"]]


def test_a_set_has_a_line(whole: Path) -> None:
    lines = call(whole, "ls", "exp/main").splitlines()
    assert [line.split()[:4] for line in lines[2:]] == [
        ["3", "1", "2", "incomplete"],
        ["2", "1", "2", "complete"],
        ["1", "1", "2", "complete"],
    ]
    assert "the shards of rank 1 of 2 are not there" in lines[2]
    found = called(whole, "ls", "exp/main")["sets"]
    assert [one["missing"] for one in found] == [[1], [], []]
    assert [one["complete_on"] for one in found] == [[], ["store"], ["store"]]


def test_what_a_set_holds(whole: Path) -> None:
    text = call(whole, "show", "exp/main")
    assert "model/w" in text
    assert "replicated" in text
    found = called(whole, "show", "exp/main")
    assert (found["step"], found["ranks"], found["status"]) == (2, 2, "complete")
    assert found["values"] == {"step": 2}
    assert sum(found["bytes_by_rank"]) >= 40_000
    assert "rank 1 of 2 are not there" in CliRunner().invoke(
        app, ["show", "exp/main@3", "--store", str(whole)]
    ).output  # fmt: skip


def test_verified_as_one(whole: Path) -> None:
    lines = call(whole, "verify", "exp/main@2").splitlines()
    assert lines[1].split()[:3] == ["exp/main@2.1", "(2", "ranks)"]
    assert lines[1].endswith("sound")
    assert lines[2].startswith("2 copies")


def test_pruned_as_one(whole: Path) -> None:
    lines = call(whole, "prune", "exp/main", "--keep", "1", "--dry-run").splitlines()
    found = {line.split()[0]: line for line in lines[1:-1]}
    assert "not known to be complete, but nothing newer is good" in found["exp/main@3.1"]
    assert "drop" in found["exp/main@1.1"]
    assert "keep" in found["exp/main@2.1"]


def test_exported_as_one_array(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    call(whole, "export", "exp/main", str(path))
    assert (np.load(path)["model/w"] == state(2)["model"]["w"]).all()


def test_what_takes_one_process_says_how_a_rank_is_called(whole: Path) -> None:
    done = CliRunner().invoke(
        app, ["diff", "exp/main@1", "exp/main@2", "--store", str(whole)]
    )  # fmt: skip
    assert done.exit_code == 2
    assert "exp/main+00000of00002" in done.output


@pytest.mark.damaged_store
def test_damage_of_one_shard_is_told_of_the_set(whole: Path) -> None:
    tier = PosixTier(whole)
    lineage = Shard(LineageId("exp", "main"), 1, 2).lineage
    key = f"{lineage.prefix}/{CheckpointId(1, 1).manifest_key}"
    before = tier.get(key)
    tier.put(key, [before[:-1]])
    lines = call(whole, "ls", "exp/main").splitlines()
    assert "unreadable: ranks 1" in lines[-1]
    call(whole, "verify", "exp/main", code=4)
    tier.put(key, [before])
