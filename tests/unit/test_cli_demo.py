"""The demo's command: how it ends is on the last line, and in the exit status.

The demo itself is run in ``tests/process/test_demo.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ckptflow.cli import app, demo
from ckptflow.cli.demo import DemoResult, Holding


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let a demo pass at once; return the folders it was told to use."""
    folders: list[Path] = []

    def run_demo(out: Path, **_options: object) -> DemoResult:
        folders.append(out)
        held = Holding(task="train-seed=1", checkpoints=2, full_bytes=200, stored_bytes=100)
        return DemoResult(out=out, kills=3, resumed=4, bit_identical=True, holdings=[held])

    monkeypatch.setattr(demo, "run_demo", run_demo)
    return folders


def test_a_demo_that_passes(seen: list[Path]) -> None:
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0
    assert seen == [Path("demo-out")]
    lines = result.stdout.splitlines()
    assert lines[-1] == "demo: PASS kills=3 resumed=4 bit_identical=true stored_ratio=2.00"
    tried = [line for line in lines if "diff undisturbed/train-seed=1 disturbed/" in line]
    assert tried[0].endswith("--store demo-out/store")


def test_a_demo_that_passes_as_json(seen: list[Path], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--json", "--out", str(tmp_path)])
    found = json.loads(result.stdout)
    assert (found["kills"], found["failure"], found["out"]) == (3, None, str(tmp_path))


def test_a_demo_that_cannot_begin_fails_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("demo: FAIL (config)")
    assert "holds something else than an earlier demo" in line
