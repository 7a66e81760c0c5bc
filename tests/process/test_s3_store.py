"""Whole runs whose store is a bucket: save, flush, restore, kill -9, command line, workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.checkpointer import Checkpointer
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

PROGRAM = Path(__file__).with_name("killed_task.py")
LONGEST_S = 240


def start(store: str, steps: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), store, "1", str(steps)],
        stdout=subprocess.PIPE,
        text=True,
    )


def said(text: str, word: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line.startswith(word)]


def newest_step(tiers: list[Tier]) -> int:
    return Lineage(tiers, LineageId("default", "main")).valid()[0].id.step


def test_a_state_goes_to_a_bucket_and_comes_back(s3_url: str) -> None:
    state = {"w": np.arange(200_000.0), "step": 0}
    with Checkpointer(s3_url) as ckpt:
        for step in (1, 2, 3):
            state["w"][step * 1000 : step * 1000 + 500] = step
            state["step"] = step
            ckpt.save(step, state).wait()
    with Checkpointer(s3_url) as ckpt:
        restored = ckpt.restore()
    assert restored["step"] == 3
    assert np.array_equal(restored["w"], state["w"])


def test_a_folder_is_flushed_to_a_bucket_that_replaces_it(s3_url: str, tmp_path: Path) -> None:
    state = {"w": np.random.default_rng(1).standard_normal(300_000), "step": 0}
    with Checkpointer([PosixTier(tmp_path / "disk"), open_tier(spec_of(s3_url))]) as ckpt:
        for step in (1, 2):
            state["w"][:1000] += 1.0
            state["step"] = step
            ckpt.save(step, state).wait(level=4)
    # The node is lost with its disk, and another one begins with nothing.
    with Checkpointer([PosixTier(tmp_path / "other"), open_tier(spec_of(s3_url))]) as ckpt:
        restored: Any = ckpt.restore()
        assert ckpt.restored_step == 2
    assert np.array_equal(restored["w"], state["w"])


def test_a_writer_that_is_killed_goes_on_from_the_bucket(s3_url: str) -> None:
    undisturbed = start(f"{s3_url}/undisturbed", 12)
    expected = said(undisturbed.communicate(timeout=LONGEST_S)[0], "final")
    assert expected
    url = f"{s3_url}/killed"
    victim = start(url, 12)
    assert victim.stdout is not None
    assert any("durable 4" in line for line in victim.stdout)
    victim.kill()
    victim.wait()
    victim.stdout.close()
    newest = newest_step([open_tier(spec_of(url))])
    last = start(url, 12)
    text = last.communicate(timeout=LONGEST_S)[0]
    assert last.returncode == 0
    assert said(text, "resumed") == [str(newest)]
    assert newest >= 4
    assert said(text, "final") == expected


def test_the_command_line_takes_an_address(s3_url: str, tmp_path: Path) -> None:
    with Checkpointer(s3_url, run="run", task="task") as ckpt:
        ckpt.save(5, {"w": np.ones(10)}).wait()

    def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ckptflow.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    listed = cli("ls", "--json", "--store", s3_url)
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)["lineages"][0]["lineage"] == {"run": "run", "task": "task"}
    verified = cli("verify", "--store", s3_url)
    assert verified.returncode == 0, verified.stderr
    missing = cli("ls", "--store", f"{s3_url}/nothing")
    assert missing.returncode == 3
    assert f"There is no store in {s3_url}/nothing" in missing.stderr


def test_the_runs_of_a_bucket_lie_in_the_current_folder(s3_url: str) -> None:
    site = cf.load_site("local").with_store(s3_url)
    assert [(tier.kind, tier.level) for tier in site.tiers] == [("object", 4)]
    assert site.runs_folder == Path.cwd() / "ckptflow-runs"


SCRIPT = """
    import numpy as np
    import ckptflow as cf

    @cf.python_app(key=("name",), every=1)
    def work(name, steps, ckpt):
        state = ckpt.restore({"i": 0, "w": np.ones(1000)})
        while state["i"] < steps:
            state["i"] += 1
            state["w"] += state["i"]
            ckpt.step(state["i"], state)
        return float(state["w"].sum())

    with cf.run("bucket"):
        print([work(name, 4).result() for name in ("a", "b")])
"""


@pytest.mark.slow
def test_worker_processes_with_nothing_but_a_bucket(s3_url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "ckptflow.cli", "run", str(script), "--store", s3_url]
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parents[2])}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "[11000.0, 11000.0]" in done.stdout
    assert list((Path.cwd() / "ckptflow-runs" / "bucket").glob("journal*"))
    listed = subprocess.run(
        [sys.executable, "-m", "ckptflow.cli", "ls", "--json", "--store", s3_url],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert len(json.loads(listed.stdout)["lineages"]) == 2
