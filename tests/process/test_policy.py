"""A workflow under a multi-level policy, with failures: what it learns, what it explains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptflow.model import LineageId
from ckptflow.site import load_site
from ckptflow.store.catalog import Lineage
from ckptflow.workflow.seeing.place import RunPlace
from ckptflow.workflow.seeing.placed import explained, plans_told

HERE = Path(__file__).resolve().parent
SITE = """
name = "mine"
run_dir = "runs"

[[tiers]]
kind = "posix"
name = "scratch"
path = "scratch"
level = 1

[[tiers]]
kind = "posix"
name = "disk"
path = "store"
level = 3

[executor]
kind = "htex"
workers = 2
heartbeat_period = "2s"
heartbeat_threshold = "20s"
rank_launcher = "processes"

[failures]
reboot_mtbf = "10h"
system_mtbf = "100h"
source = "for the test"

[policy]
every = "multilevel"
pattern = {{ interval = "{interval}", scratch = 1, disk = 3 }}
queue = "1s"
keep = "all"
"""


def ckptflow(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptflow.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("planned")
    (folder / "site.toml").write_text(SITE.format(interval="1ms"))
    done = ckptflow(
        folder,
        "run",
        str(HERE / "planned_workflow.py"),
        "--site",
        "site.toml",
        "--",
        "out.json",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def place(folder: Path) -> RunPlace:
    site = load_site(folder / "site.toml").at(folder)
    return RunPlace("planned", site.runs_folder / "planned", site, site.open_tiers())


def stored(folder: Path, tier: str, task: str) -> set[int]:
    found = (folder / tier).glob(f"lineages/planned/{task}/manifests/*.ckpt")
    return {int(path.name.partition(".")[0]) for path in found}


def test_the_results_are_those_of_a_run_without_failures(folder: Path) -> None:
    one, two = json.loads((folder / "out.json").read_text())
    assert one == 20_000 * 3 * sum(range(1, 101))
    assert two == 1000 * 60


def test_the_task_learns_the_class_and_the_number_of_its_failures(place: RunPlace) -> None:
    lineage = Lineage(place.tiers, LineageId("planned", "count-seed=3"))
    newest = lineage.newest()
    assert newest is not None
    assert newest.id.attempt == 3
    met = lineage.manifest(newest).pace
    # The node was not started anew, and has what was written first: it was the process.
    assert met["failures"] == [2, 0, 0, 0, 0]
    assert met["counts"]["scratch"] == 1
    plans = plans_told(place.events(), "count-seed=3")
    assert plans
    assert all(one.reasons and one.counts["scratch"] == 1 for one in plans)


def test_each_checkpoint_is_where_its_explanation_says(folder: Path, place: RunPlace) -> None:
    on = {
        "scratch": stored(folder, "scratch", "count-seed=3"),
        "disk": stored(folder, "store", "count-seed=3"),
    }
    (task,) = [one for one in place.story().tasks if one.name == "count-seed=3"]
    steps = sorted(on["scratch"] | on["disk"])
    assert {10, 20, 30, 40, 70, 100} <= set(steps)
    for step in steps:
        for one in explained(place.events(), task, step):
            assert one.why
            for tier in one.tiers:
                assert tier.reason
                assert tier.now == ("there" if step in on[tier.tier] else "never")
                if (
                    tier.now == "there" or one.attempt == 4
                ):  # The others were killed on the way.
                    assert bool(tier.goes) == (tier.now == "there")


def test_ranks_keep_the_pattern_and_place_the_same_checkpoints(folder: Path) -> None:
    shards = [f"together+{rank:05d}of00002" for rank in range(2)]
    inner = [stored(folder, "scratch", shard) for shard in shards]
    outer = [stored(folder, "store", shard) for shard in shards]
    assert inner[0] == inner[1]
    assert outer[0] == outer[1]
    in_order = sorted(inner[0] | outer[0])
    assert set(in_order[::3]) <= outer[0]


def test_a_person_can_read_it(folder: Path) -> None:
    what = ("policy", "explain", "planned/count-seed=3", "100", "--site", "site.toml")
    said = ckptflow(folder, *what).stdout
    assert "count-seed=3, step 100, attempt 3" in said
    assert "the task asked for it" in said
    assert "innermost tier" in said
    assert "there  kept" in said


def test_ranks_without_a_pattern_are_refused_before_anything_starts(tmp_path: Path) -> None:
    text = SITE.format(interval="1ms")
    lines = [line for line in text.splitlines() if not line.startswith("pattern")]
    (tmp_path / "site.toml").write_text("\n".join(lines))
    done = ckptflow(
        tmp_path,
        "run",
        str(HERE / "planned_workflow.py"),
        "--site",
        "site.toml",
        "--",
        "o.json",
    )
    assert done.returncode == 2
    assert "ckptflow tune" in done.stderr
    assert not (tmp_path / "o.json").exists()
