"""What a newcomer sees first: ``ckptflow demo`` kills three times what it runs, and passes.

Method: the command is run as a user runs it, on real processes, with all of the work.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ckptflow.cli.disturb import TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

PATIENCE_S = 800.0


def demo(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptflow.cli", "demo", "--out", str(out)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def survivors(out: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "environ", "cmdline"]):
        if process.info["environ"] and TOKEN in process.info["environ"]:
            found += [word for word in process.info["cmdline"] or [] if str(out) in word]
    return found


def test_the_demo_passes_and_leaves_figures_and_a_store(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = demo(out)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    passed = re.fullmatch(
        r"demo: PASS kills=3 resumed=(\d+) bit_identical=true stored_ratio=(\d+\.\d+)", last
    )
    assert passed, last
    assert int(passed[1]) >= 3
    assert float(passed[2]) > 1
    for run in ("undisturbed", "disturbed"):
        for figure in ("patterns.png", "training.png"):
            assert (out / run / figure).read_bytes().startswith(b"\x89PNG")
    results = [(out / run / "result.json").read_bytes() for run in ("undisturbed", "disturbed")]
    assert results[0] == results[1]
    for seed in json.loads(results[0])["seeds"].values():
        assert float.fromhex(seed["training"]["best_accuracy"]) > 0.9
    assert (out / "store" / "ckptflow-store.json").is_file()
    assert survivors(out) == []
    _a_folder_with_other_things_is_refused(tmp_path)


def _a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    refused = demo(other)
    assert refused.returncode != 0
    assert "holds something else than an earlier demo" in refused.stdout + refused.stderr
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
