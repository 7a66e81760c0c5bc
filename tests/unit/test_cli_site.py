"""``ckptflow site``: what is printed, and with which status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ckptflow.cli import app
from ckptflow.site.layers import user_file


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def site(*words: str) -> Result:
    return CliRunner().invoke(app, ["site", *words])


def test_the_list_names_machines_and_who_gives_their_nodes() -> None:
    lines = {line.split()[0]: line for line in site("list").stdout.splitlines()}
    assert " slurm " in lines["perlmutter"]
    assert " pbs " in lines["aurora"]
    found = json.loads(site("list", "--json").stdout)
    assert {"lumi", "local"} <= {one["name"] for one in found}


def test_show_tells_where_values_stand_and_what_is_needed() -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text("[perlmutter.executor]\nworkers = 2\n")
    result = site("show", "perlmutter", "--set", "policy.keep=9", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    values = {one["key"]: (one["value"], one["origin"]) for one in document["values"]}
    assert values["executor.workers"] == (2, f"{user_file()}:2")
    assert values["policy.keep"] == (9, "setting policy.keep")
    value, origin = values["tiers.scratch.path"]
    assert value == "$PSCRATCH/ckptflow"
    file, line = origin.rsplit(":", 1)
    assert "$PSCRATCH" in Path(file).read_text().splitlines()[int(line) - 1]
    assert list(document["needed"]) == ["executor.allocation.account"]
    text = site("show", "perlmutter").stdout
    assert "needed from you: your project" in text


def test_show_prints_the_script_and_the_configuration_of_parsl() -> None:
    account = ("--set", "executor.allocation.account=m1_g")
    script = site("show", "perlmutter", "--script", *account).stdout
    assert script.startswith("#!/bin/bash")
    assert "#SBATCH --account=m1_g" in script
    assert "ckptflow.workflow.blocks.pool" in script
    assert "heartbeat_threshold=5," in site("show", "local", "--parsl").stdout
    assert site("show", "local", "--parsl", "--script").exit_code == 2


def test_a_mistake_ends_with_file_and_line() -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text("[local.executor]\nwrkers = 2\n")
    result = site("show", "local")
    assert result.exit_code == 2
    assert f"{user_file()}:2: executor.wrkers: unknown key" in result.stderr


def test_check_ends_with_one_when_something_failed(tmp_path: Path) -> None:
    assert site("check", "local").exit_code == 0
    (tmp_path / "file").write_text("")
    result = site("check", "local", "--set", f"tiers.disk.path={tmp_path}/file/x", "--json")
    assert result.exit_code == 1
    verdicts = {one["what"]: one["verdict"] for one in json.loads(result.stdout)}
    assert verdicts["tier 'disk'"] == "failed"
    assert site("check", "perlmutter").exit_code == 2, "what it needs was not said"


def test_check_there_goes_all_the_way() -> None:
    result = site("check", "local_threads", "--there", "--timeout", "1min", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert "workers" in {one["what"] for one in found}
    assert {one["verdict"] for one in found} == {"ok"}


def test_init_begins_a_section_or_a_site_and_overwrites_nothing(tmp_path: Path) -> None:
    assert site("init", "frontier").exit_code == 0
    assert "[frontier.executor.allocation]" in user_file().read_text()
    assert site("init", "frontier").exit_code == 2
    mine = tmp_path / "mine.toml"
    assert site("init", "frontier", "--user", str(mine)).exit_code == 0
    assert "[frontier" in mine.read_text()
    assert site("init", "own", "--from", "slurm").exit_code == 0
    assert site("show", "own").exit_code == 0
    assert site("init", "own", "--from", "slurm").exit_code == 2
