"""Parsl's programs on nodes load no clients of clouds and databases; tasks still can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptflow.workflow.blocks.lean import LEFT_OUT

ROOT = Path(__file__).resolve().parents[2]

LOOK = """
import json, sys
from ckptflow.workflow.blocks.lean import LEFT_OUT, leave_out
leave_out()
import parsl, parsl.executors, parsl.providers, parsl.monitoring
import parsl.executors.high_throughput.interchange
import parsl.executors.high_throughput.process_worker_pool
loaded = sorted(LEFT_OUT & {name.partition(".")[0] for name in sys.modules})
import {package}
print(json.dumps([loaded, {package}.__name__]))
"""

# What spawned processes of a pool have; the module is run as the pool is.
SPAWNED = """
from ckptflow.workflow.blocks.lean import LEFT_OUT, become
import multiprocessing, sys

def loaded(out):
    out.put(sorted(LEFT_OUT & {name.partition(".")[0] for name in sys.modules}))
    out.put("parsl" in sys.modules)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=loaded, args=(out,))
    process.start()
    print(out.get(), out.get())
    process.join()
else:
    become("process_worker_pool", globals())
"""


def said(*words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["boto3", "sqlalchemy"])
def test_parsl_comes_without_them_and_others_can_import_them(package: str) -> None:
    pytest.importorskip(package)
    assert json.loads(said("-c", LOOK.replace("{package}", package))) == [[], package]


def test_without_this_parsl_loads_some_of_them() -> None:
    pytest.importorskip("sqlalchemy")
    look = LOOK.replace("leave_out()\n", "\n").replace("{package}", "json")
    loaded, _ = json.loads(said("-c", look))
    assert "sqlalchemy" in loaded
    assert set(loaded) <= LEFT_OUT


def test_processes_that_the_pool_spawns_are_lean_too(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(SPAWNED)
    assert said(str(script)) == "[] True\n"


@pytest.mark.parametrize("program", ["pool", "mpi_pool"])
def test_they_are_the_programs_of_parsl(program: str) -> None:
    text = said("-m", f"ckptflow.workflow.blocks.{program}", "--help")
    assert "--hb_threshold" in text
