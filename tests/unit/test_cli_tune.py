"""``tune`` and ``policy`` as they are typed: what they print, and how they end."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ckptflow.cli import app
from ckptflow.policy.multilevel import surrogate
from ckptflow.policy.multilevel.presets import PRESETS
from ckptflow.units import parse_seconds
from ckptflow.workflow.run import JOURNAL
from ckptflow.workflow.trail import TRAIL

SITE = """
name = "there"
[[tiers]]
kind = "posix"
name = "nvme"
path = "nvme"
level = 1
[[tiers]]
kind = "posix"
name = "pfs"
path = "pfs"
level = 3
[failures]
node_mtbf = "260d"
system_mtbf = "7d"
source = "made up"
"""
LOAD = ("--state", "40TB", "--nodes", "1024", "--writers", "8", "--changed", "0.3")


@pytest.fixture
def site(tmp_path: Path) -> str:
    path = tmp_path / "there.toml"
    path.write_text(SITE)
    return str(path)


def tune(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tune", *arguments])


def as_json(*arguments: str) -> Any:
    result = tune(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_all_is_printed_that_decides(site: str) -> None:
    result = tune("--site", site, *LOAD, "--work", "500h", "--preset", "safe")
    assert result.exit_code == 0, result.output
    text = result.stdout
    for part in (
        "there: 36.4 TiB of state on 1024 nodes with 8 writers each, 0.3 of it changes",
        "Not calibrated: typical values of nvme, pfs.",
        "redundancy between nodes: none",
        "expected, 0.", "time: useful", "found by: ",
        "WHAT IF", "rates of all failures", "Level 3 (pfs) gets every save",
        "a node is lost every 6h05min", "From: made up",
        "for the site file:",
    ):  # fmt: skip
        assert part in text, part
    written = tomllib.loads(text.split("for the site file:")[1])["policy"]
    assert written["every"] == "multilevel,safe"
    assert written["pattern"]["pfs"] == 1


def test_other_ways_are_printed_with_what_they_come_to(site: str) -> None:
    result = tune("--site", site, *LOAD, "--redundancy", "auto")
    assert result.exit_code == 0, result.output
    instead = result.stdout.split("INSTEAD")[1]
    assert sum(scheme in instead for scheme in ("none", "partner 2", "xor 8", "rs 8-2")) >= 3


def test_the_document_has_the_same_answer(site: str) -> None:
    found = as_json("--site", site, *LOAD, "--quick", "--tier", "s3:level=4,write=1GB",
                    "--redundancy", "auto", "--failures", "hpc-cpu",
                    "--queue", "10min")  # fmt: skip
    every = found["pattern"]["every"]
    assert list(every) == ["nvme", "redundant", "pfs"]  # Nothing is known that needs s3.
    assert any("'s3' is left out" in note for note in found["notes"])
    assert found["pattern"]["period_s"]["pfs"] == pytest.approx(
        every["pfs"] * found["pattern"]["interval_s"]
    )
    assert 0 < found["low"] < found["efficiency"] < found["high"] < 1
    assert sum(found["parts"].values()) == pytest.approx(1)
    assert found["redundancy"] in ("partner 2", "xor 8", "rs 8-2")
    assert found["reaction"]["queue_s"] == 600
    assert found["sensitivity"] == []
    lines = tomllib.loads(found["toml"])["policy"]
    assert lines["queue"] == "600s"
    written = lines["pattern"]
    interval_s = parse_seconds(written.pop("interval"))
    assert interval_s == pytest.approx(found["pattern"]["interval_s"], rel=1e-3)
    assert written == {name: count for name, count in every.items() if count}


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_are_named(site: str, tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    result = tune("--site", site, *LOAD, "--quick", "--plot", str(folder))
    assert result.exit_code == 0, result.output
    names = [line.removeprefix("drawn: ") for line in result.stdout.splitlines()
             if line.startswith("drawn: ")]  # fmt: skip
    assert sorted(folder.iterdir()) == sorted(map(Path, names))
    assert len(names) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (LOAD[2:], 2, "How much is to be saved? Give --state"),
        ((*LOAD, "--mtbf", "0s"), 2, "mean time between failures must be above 0 s"),
        ((*LOAD, "--mtbf", "5s"), 1, "(no-progress) No configuration makes progress: failures"),
        ((*LOAD, "--tier", "nvme:write=-1GB"), 2, "'-1GB' is not a size"),
        ((*LOAD, "--tier", "nvme:write=0GB"), 2, "write_bytes_per_s must be above 0"),
        ((*LOAD, "--tier", "nvme:capacity=1GB"), 2, "has room for 954 MiB on each node"),
        ((*LOAD, "--changed", "0"), 2, "changed is a part, above 0"),
        ((*LOAD, "--stored", "2"), 2, "stored is a part, above 0"),
        ((*LOAD, "--nodes", "0"), 2, "0 nodes with 8 writers"),
        ((*LOAD, "--work", "0s"), 2, "work is more than 0 s"),
        ((*LOAD, "--state", "0"), 2, "it must have some"),
        ((*LOAD, "--preset", "quick"), 2, "no preset 'quick'; there are fast"),
        ((*LOAD, "--failures", "mine"), 2, "No failure rates are known as 'mine'"),
        ((*LOAD, "--redundancy", "raid"), 2, "no redundancy 'raid'"),
        ((*LOAD, "--store", "x"), 2, "name the run, too"),
        (("exp", "--set", "executor.workers=2"), 2, "--user and --set are for a site alone"),
        (("exp",), 3, "There is no run 'exp'"),
    ],
)
def test_what_is_wrong_is_said(
    site: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = tune("--site", site, "--quick", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error (")
    assert message in result.stderr


def test_a_site_whose_failures_nobody_knows_asks_for_them(tmp_path: Path) -> None:
    path = tmp_path / "quiet.toml"
    path.write_text(SITE.partition("[failures]")[0])
    result = tune("--site", str(path), *LOAD, "--quick")
    assert result.exit_code == 2
    assert "Nobody knows how often things fail on site 'there'" in result.stderr
    found = as_json("--site", str(path), *LOAD, "--quick", "--mtbf", "6h")
    assert sum(found["failures"]["per_s"]) == pytest.approx(1 / 21_600)


def tell(folder: Path) -> None:
    """Write what a run of one task with four saves tells, one every 10 s."""
    (folder / TRAIL).mkdir(parents=True)
    (folder / JOURNAL).touch()
    events: list[tuple[int, str, dict[str, Any]]] = [
        (0, "attempt-began", {"host": "node", "pid": 1, "try_began_s": 1_796_040_000.0}),
        (45, "attempt-ended", {"outcome": "finished", "step": 9, "resumed_step": None}),
    ]
    for step in range(1, 5):
        size = {"state_bytes": 1000, "stored_bytes": 1000 if step == 1 else 100}
        on = {"tier": "nvme", "level": 1}
        events.append((10 * step, "checkpoint-taken", {"step": step, "blocked_s": 0.5}))
        events.append((10 * step + 1, "checkpoint-stored", {"step": step} | on | size))
    lines = [
        {"event": name, "time": f"2026-11-30T12:00:{at_s:02}.000+00:00",
         "task": "work", "attempt": 1, **fields}
        for at_s, name, fields in events
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / TRAIL / "node-1-a.jsonl").write_text(text)


def test_a_run_is_told_what_would_have_been_best(site: str) -> None:
    tell(Path("pfs/runs/exp"))
    result = tune("exp/work", "--site", site, "--quick")
    assert result.exit_code == 0, result.output
    assert "task work: it did 9.5 s (nvme 1), " in result.stdout
    assert "of the time that it took 95.56% was computing" in result.stdout
    assert "no failure in 45.0 s of the run" in result.stdout
    found = as_json("exp", "--site", site, "--quick")
    assert (found["met"]["saves"], found["met"]["changed"]) == (4, pytest.approx(0.1))
    assert found["workload"]["state_bytes"] == 1000
    assert found["comparison"]["pattern"]["every"] == [1, 0]
    other = as_json("exp", "--site", site, "--quick", "--state", "1GB", "--changed", "0.5")
    assert (other["workload"]["state_bytes"], other["workload"]["changed"]) == (1e9, 0.5)


# --- policy ---


def policy(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments])


def test_presets_are_listed() -> None:
    found = json.loads(policy("presets", "--json").stdout)
    assert [one["name"] for one in found] == list(PRESETS)
    text = policy("presets").stdout
    assert all(aim.about in text for aim in PRESETS.values())


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)
def test_a_surrogate_is_trained_by_one_command(tmp_path: Path) -> None:
    file = tmp_path / "made.npz"
    result = policy("train", "--systems", "120", "--output", str(file))
    assert result.exit_code == 0, result.output
    made = surrogate.load(file)
    rows = [line.split() for line in result.stdout.splitlines()[1:4]]
    assert rows == [
        [name, str(made.about[f"{name}_mean"]), str(made.about[f"{name}_q99"])]
        for name in ("network", "trees", "both")
    ]
    assert "patterns of 120 systems" in result.stdout
    assert [one.name for one in tmp_path.glob("*made*")] == ["made.npz"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--systems", "9"), "It takes 100 systems or more"),
        (("--systems", "100", "--output", "no/such/made.npz"), "no file in a folder"),
    ],
)
def test_training_that_cannot_end_well_does_not_begin(
    arguments: tuple[str, ...], message: str
) -> None:
    result = policy("train", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
