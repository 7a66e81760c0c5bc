"""The commands that look: on real stores, as text and as JSON, with good names and bad ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import ckptflow as cf
from ckptflow.cli import app
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.verify import CopyReport, Verifier
from ckptflow.tiers.posix import PosixTier

STEPS = 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store written by the checkpointer: run exp, tasks a (4 checkpoints) and b (1)."""
    folder = tmp_path / "store"
    rng = np.random.default_rng(0)
    with cf.Checkpointer(folder, run="exp", task="a", every=1, keep="all") as ckpt:
        state = ckpt.restore({"i": 0, "w": rng.standard_normal((50, 40)), "z": np.zeros(30)})
        while state["i"] < STEPS:
            state["i"] += 1
            state["w"][state["i"]] += 1
            ckpt.step(state["i"], state, metrics={"loss": 1 / state["i"]})
    with cf.Checkpointer(folder, run="exp", task="b", every=1, rng=False) as ckpt:
        ckpt.restore({"w": np.arange(3)})
        ckpt.save(0, {"w": np.arange(3)})
    return folder


@dataclass
class Cli:
    """The command line on one store."""

    store: Path

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--store", str(self.store)])

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return json.loads(result.stdout)


@pytest.fixture
def cli(store: Path) -> Cli:
    return Cli(store)


def damage_pack(store: Path, task: str, step: int) -> None:
    (pack,) = (store / "lineages" / "exp" / task / "packs").glob(f"{step:012d}.*")
    data = bytearray(pack.read_bytes())
    data[60] ^= 1
    pack.write_bytes(data)


def fails(result: Result, code: int, message: str) -> None:
    assert result.exit_code == code, result.stdout + result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# --- ls --------------------------------------------------------------------------------


def test_ls(cli: Cli) -> None:
    result = cli("ls")
    assert result.exit_code == 0
    header, a, b = result.stdout.splitlines()
    assert header.startswith("RUN/TASK")
    assert a.split()[:2] == ["exp/a", "4"]
    assert b.split()[:2] == ["exp/b", "0"]
    assert cli("ls", "exp").stdout == result.stdout


def test_ls_json(cli: Cli, store: Path) -> None:
    a, b = cli.json("ls")["lineages"]
    assert a["lineage"] == {"run": "exp", "task": "a"}
    assert (a["checkpoints"], a["void"], a["attempts"]) == (4, 0, 1)
    assert a["newest"] == {"step": 4, "attempt": 1}
    on_disk = sum(path.stat().st_size for path in store.rglob("a/**/*") if path.is_file())
    assert a["stored_bytes"] == {"store": on_disk}
    assert b["newest"]["step"] == 0


def test_ls_of_one_task(cli: Cli) -> None:
    text = cli("ls", "exp/a").stdout
    rows = [line.split() for line in text.splitlines()]
    assert [row[:4] for row in rows if row[2:3] == ["ok"]] == [
        ["4", "1", "ok", "delta"],
        ["3", "1", "ok", "delta"],
        ["2", "1", "ok", "delta"],
        ["1", "1", "ok", "full"],
    ]
    assert "loss=0.25" in text
    assert "the beginning" in text
    found = cli.json("ls", "exp/a")
    assert [one["metrics"]["loss"] for one in found["checkpoints"]] == [1 / 4, 1 / 3, 1 / 2, 1]
    assert found["attempts"][0]["resume"]["step"] is None


@pytest.mark.damaged_store
def test_ls_shows_void_and_unreadable_ones(cli: Cli, store: Path) -> None:
    lineage = Lineage([PosixTier(store)], LineageId("exp", "a"))
    lineage.record_resume(lineage.claim(), CheckpointId(2, 1))
    (manifest,) = (store / "lineages" / "exp" / "a" / "manifests").glob("*01.00000001.ckpt")
    manifest.write_bytes(manifest.read_bytes()[:-1])
    found = {(c["step"], c["attempt"]): c for c in cli.json("ls", "exp/a")["checkpoints"]}
    assert {key: one["status"] for key, one in found.items()} == {
        (4, 1): "void",
        (3, 1): "void",
        (2, 1): "ok",
        (1, 1): "unreadable",
    }
    assert "does not match its seal" in found[1, 1]["problem"]
    text = cli("ls", "exp/a").stdout
    assert "unreadable" in text
    assert "step 2" in text


def test_ls_of_an_empty_store(tmp_path: Path) -> None:
    cf.Checkpointer(tmp_path / "empty", run="x").attempt  # noqa: B018 - claims
    result = Cli(tmp_path / "empty")("ls", "x/main")
    assert "no checkpoints" in result.stdout


# --- show ------------------------------------------------------------------------------


def test_show(cli: Cli) -> None:
    text = cli("show", "exp/a").stdout
    rows = [line.split() for line in text.splitlines()]
    assert ["step", "4"] in rows
    assert ["'w'", "<f8[50,", "40]", "16000"] in rows
    assert ["'i'", "4"] in rows
    assert ["step", "0"] in [line.split() for line in cli("show", "exp/b").stdout.splitlines()]


def test_show_json(cli: Cli) -> None:
    found = cli.json("show", "exp/a@2")
    assert (found["step"], found["attempt"], found["void"]) == (2, 1, False)
    assert found["arrays"] == [
        {"name": "w", "dtype": "<f8", "shape": [50, 40], "bytes": 16000},
        {"name": "z", "dtype": "<f8", "shape": [30], "bytes": 240},
    ]
    assert found["values"] == {"i": 2}
    assert found["metrics"] == {"loss": 0.5}
    assert len(found["root"]) == 32


def test_show_one_of_two_attempts_at_the_same_step(
    save_state: Callable[..., Lineage], tmp_path: Path
) -> None:
    tier = PosixTier(tmp_path / "s")
    save_state(tier, "exp/a", 3, {"w": np.zeros(2)})
    lineage = save_state(tier, "exp/a", 3, {"w": np.ones(2)}, attempt=2)
    lineage.record_resume(2, None)
    cli = Cli(tmp_path / "s")
    assert cli.json("show", "exp/a@3")["attempt"] == 2
    assert cli.json("show", "exp/a@3.1")["void"] is True
    assert ["void", "True"] in [
        line.split() for line in cli("show", "exp/a@3.1").stdout.splitlines()
    ]


def test_show_limits_values_on_the_terminal_only(
    save_state: Callable[..., Lineage], tmp_path: Path
) -> None:
    save_state(PosixTier(tmp_path / "s"), "exp/a", 1, {f"v{i}": i for i in range(30)})
    cli = Cli(tmp_path / "s")
    assert "and 10 more; --json has all" in cli("show", "exp/a").stdout
    assert len(cli.json("show", "exp/a")["values"]) == 30


def test_names_with_brackets_are_printed_as_they_are(
    save_state: Callable[..., Lineage], tmp_path: Path
) -> None:
    state = {"w[bold]": np.zeros(1), 3: np.zeros(2), "odd": float("nan")}
    save_state(PosixTier(tmp_path / "s"), "exp/a", 1, state, metrics={"loss": float("inf")})
    cli = Cli(tmp_path / "s")
    assert "'w[bold]'" in cli("show", "exp/a").stdout
    found = cli.json("show", "exp/a")
    assert (found["values"], found["metrics"]) == ({"odd": "nan"}, {"loss": "inf"})


# --- verify ----------------------------------------------------------------------------


def test_verify(cli: Cli) -> None:
    result = cli("verify")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith("0 damaged")
    found = cli.json("verify", "exp/a")
    assert found["sound"] is True
    assert [copy["step"] for copy in found["copies"]] == [4, 3, 2, 1]
    assert len(cli.json("verify", "exp/a@3")["copies"]) == 1
    assert found["checked_share"] == 1


def test_verify_a_sample(cli: Cli) -> None:
    found = cli.json("verify", "--sample", "10%", "--threads", "2", "--seed", "3")
    assert (found["sound"], found["sample"]) == (True, 0.1)
    assert 0 < found["checked_share"] <= 1
    assert "% of their bytes" in cli("verify", "--sample", "10%").stdout
    fails(cli("verify", "--sample", "0%"), 2, "A sample is more than 0 % and at most 100 %")
    fails(cli("verify", "--sample", "some"), 2, "'some' is no sample: write 5% or 0.05")


@pytest.mark.damaged_store
def test_verify_finds_damage_and_says_where(cli: Cli, store: Path) -> None:
    damage_pack(store, "a", 3)
    result = cli("verify", "exp")
    assert result.exit_code == 4
    assert "does not match its digest" in result.stdout
    found = cli.json("verify", "exp")
    assert found["sound"] is False
    damaged = {copy["step"] for copy in found["copies"] if copy["problems"]}
    assert {3, 4} >= damaged >= {3}
    assert cli("verify", "exp/a@1").exit_code == 0


def test_verify_passes_over_what_a_live_run_prunes(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the oldest one goes when it is about to be read."""
    real = Verifier.check
    oldest, gone = PosixTier(store), []

    def check_while_pruning(verifier: Verifier, checkpoint: CheckpointId) -> CopyReport:
        if not gone:
            gone.append(f"{LineageId('exp', 'a').prefix}/{CheckpointId(1, 1).manifest_key}")
            oldest.delete(gone[0])
        return real(verifier, checkpoint)

    monkeypatch.setattr(Verifier, "check", check_while_pruning)
    found = cli.json("verify", "exp/a")
    assert [copy["step"] for copy in found["copies"]] == [4, 3, 2]
    assert found["sound"] is True


# --- diff ------------------------------------------------------------------------------


def test_diff(cli: Cli) -> None:
    result = cli("diff", "exp/a@1", "exp/a")
    assert result.exit_code == 1
    (row,) = [line for line in result.stdout.splitlines() if "changed" in line]
    assert row.split()[:8] == ["'w'", "changed", "<f8[50,", "40]", "120", "of", "2000", "(6"]
    assert result.stdout.splitlines()[-1] == (
        "1 of 2 arrays differ, 1 values differ, random states of the process are the same"
    )


def test_diff_json(cli: Cli) -> None:
    found = cli.json("diff", "exp/a@1", "exp/a@2")
    assert (found["left"], found["right"], found["same"]) == ("exp/a@1", "exp/a@2", False)
    w, z = found["arrays"]
    assert (w["change"], w["changed_elements"]) == ("changed", 40)
    assert w["max_abs_difference"] == pytest.approx(1.0)
    assert z["change"] == "same"
    (value,) = found["values"]
    assert value == {"name": "i", "change": "changed", "before": 1, "after": 2}


def test_diff_of_the_same(cli: Cli) -> None:
    result = cli("diff", "exp/a", "exp/a@4")
    assert result.exit_code == 0
    assert result.stdout.startswith("0 of 2 arrays differ, 0 values differ")


def test_diff_sees_random_states_which_count_for_nothing(cli: Cli, store: Path) -> None:
    import random

    for task, seed in (("r1", 1), ("r2", 2)):
        random.seed(seed)
        with cf.Checkpointer(store, run="exp", task=task) as ckpt:
            ckpt.restore({"w": np.zeros(2)})
            ckpt.save(1, {"w": np.zeros(2)})
    found = cli.json("diff", "exp/r1", "exp/r2")
    assert (found["same"], found["random_states_same"]) == (True, False)
    result = cli("diff", "exp/r1", "exp/r2")
    assert result.exit_code == 0
    assert result.stdout.endswith("random states of the process differ\n")


@pytest.mark.damaged_store
def test_diff_of_damaged_bytes(cli: Cli, store: Path) -> None:
    damage_pack(store, "a", 1)
    fails(cli("diff", "exp/a@1", "exp/b"), 4, "error (corruption)")


# --- export ----------------------------------------------------------------------------


def test_export(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "out.npz"
    result = cli("export", "exp/a@2", str(target))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"exp/a@2: 2 arrays in {target}")
    assert set(np.load(target)) == {"w", "z", "ckptflow.json"}
    again = cli("export", "exp/a@2", str(target))
    fails(again, 2, "is there already; say --force")
    found = cli.json("export", "exp/a", str(target), "--force", "--only", "z")
    assert (found["source"], found["arrays"]) == ("exp/a@4", ["z"])


def test_export_chooses_the_format(cli: Cli, tmp_path: Path) -> None:
    found = cli.json("export", "exp/a", str(tmp_path / "model.bin"), "--format", "safetensors")
    assert found["format"] == "safetensors"
    fails(cli("export", "exp/a", "model.pt"), 2, "end in .npz or .safetensors")
    assert cli("export", "exp/a", "x.npz", "--format", "pickle").exit_code == 2


# --- bad names and bad stores ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ls", "nil"], 3, "There is no run 'nil' in tier 'store'; there is exp"),
        (["ls", "exp/z"], 3, "There is no exp/z in tier 'store'; there is exp/a, exp/b"),
        (["ls", "exp/a@3"], 2, "'exp/a@3' names one checkpoint; here it takes RUN or RUN/TASK"),
        (["show", "exp"], 2, "'exp' names no checkpoint; write RUN/TASK"),
        (["show", "exp/a@x"], 2, "'exp/a@x' names no checkpoint"),
        (["show", "exp/a/b"], 2, "names no checkpoint"),
        (["show", "exp/ä"], 2, "'ä' cannot be the name of a task"),
        (["show", "exp/a@7"], 3, "exp/a has no checkpoint of step 7"),
        (["show", "exp/a@4.9"], 3, "no checkpoint of step 4 by attempt 9"),
        (["diff", "exp/a", "exp/z"], 3, "There is no exp/z"),
        (["export", "exp/a", "no/such/folder/x.npz"], 2, "No such file or directory"),
        (["export", "exp/a", "x.npz", "--only", "q*"], 3, "no array whose name matches q*"),
        (["prune"], 2, "Say what stays, for example --keep 3"),
        (["prune", "--keep", "0"], 2, "newest of 1 or more, got 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    fails(cli(*arguments), code, message)
    error = cli.json(*arguments)["error"]
    assert error["exit_code"] == code
    assert message in error["message"]


def test_unknown_options_are_usage_errors(cli: Cli) -> None:
    assert cli("ls", "--colour").exit_code == 2
    assert cli("dance").exit_code == 2


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    fails(Cli(tmp_path / "nil")("ls"), 3, f"There is no store in {tmp_path / 'nil'}")
    assert not (tmp_path / "nil").exists()


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_text("miaow")
    fails(Cli(tmp_path)("ls"), 3, f"There is no store in {tmp_path}")


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    fails(Cli(tmp_path / "file")("ls"), 2, "needs a folder, but")


@pytest.mark.damaged_store
def test_a_store_of_a_newer_version(cli: Cli, store: Path) -> None:
    descriptor = {"format": "ckptflow-store", "version": 2, "store": "0" * 32}
    (store / "ckptflow-store.json").write_text(json.dumps(descriptor))
    fails(cli("ls"), 6, "Install a newer ckptflow")


def test_a_store_that_cannot_be_read(cli: Cli, store: Path) -> None:
    """A folder where a file belongs: reading it fails for every user, root too."""
    (store / "ckptflow-store.json").unlink()
    (store / "ckptflow-store.json").symlink_to(store / "ckptflow-store.json")
    fails(cli("ls"), 5, "error (tier-unavailable)")


@pytest.mark.damaged_store
def test_a_damaged_manifest(cli: Cli, store: Path) -> None:
    (manifest,) = (store / "lineages" / "exp" / "b" / "manifests").iterdir()
    data = bytearray(manifest.read_bytes())
    data[50] ^= 1
    manifest.write_bytes(data)
    result = cli("show", "exp/b")
    fails(result, 4, "error (corruption) The manifest of exp/b")
    assert "note" in result.stderr
    assert "does not match its seal" in result.stderr
    assert cli("verify", "exp/b").exit_code == 4
    assert cli.json("ls")["lineages"][1]["saved"] is None


# --- which store -------------------------------------------------------------------------


def test_the_store_may_come_from_the_environment(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFLOW_STORE", str(store))
    assert "exp/a" in CliRunner().invoke(app, ["ls"]).stdout


def test_the_default_store_is_that_of_the_local_site(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["ls"])
    fails(result, 3, "There is no store yet on the tiers of site 'local'")
    with cf.Checkpointer("ckptflow-store", run="exp") as ckpt:
        ckpt.restore({"w": np.zeros(1)})
        ckpt.save(1, {"w": np.zeros(1)})
    assert "exp/main" in CliRunner().invoke(app, ["ls"]).stdout
    assert "exp/main" in CliRunner().invoke(app, ["ls", "--site", "local"]).stdout


def test_a_store_or_a_site_but_not_both(cli: Cli) -> None:
    fails(cli("ls", "--site", "local"), 2, "Give --store or --site, not both")
    result = CliRunner().invoke(app, ["ls", "--site", "nowhere"])
    fails(result, 2, "There is no site 'nowhere'")


def test_several_tiers(cli: Cli, store: Path, tmp_path: Path) -> None:
    inner, outer = PosixTier(store, level=1), PosixTier(tmp_path / "outer", level=3)
    lineage = Lineage([inner], LineageId("exp", "b"))
    copy_checkpoint([inner], outer, lineage.id, lineage.manifest(lineage.valid()[0]))
    arguments = [
        "ls",
        "exp/b",
        "--json",
        "--store",
        str(store),
        "--store",
        str(tmp_path / "outer"),
    ]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert found["checkpoints"][0]["tiers"] == ["store1", "store2"]


# --- prune -------------------------------------------------------------------------------


def test_prune_dry_run_touches_nothing(cli: Cli, store: Path) -> None:
    before = sorted(path for path in store.rglob("*"))
    result = cli("prune", "exp/a", "--keep", "newest=1,best=loss:max", "--dry-run")
    assert result.exit_code == 0
    assert "among the newest 1" in result.stdout
    assert "the best by loss (max): 1" in result.stdout
    assert "no rule keeps it" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("would drop 2 copies, would free ")
    assert sorted(path for path in store.rglob("*")) == before


def test_prune(cli: Cli) -> None:
    found = cli.json("prune", "--keep", "1")
    assert (found["keep"], found["dry_run"]) == ("newest=1", False)
    verdicts = {
        (plan["lineage"], one["step"]): one["keep"]
        for plan in found["plans"]
        for one in plan["checkpoints"]
    }
    assert verdicts == {
        ("exp/a", 4): True,
        ("exp/a", 3): False,
        ("exp/a", 2): False,
        ("exp/a", 1): False,
        ("exp/b", 0): True,
    }
    assert [one["step"] for one in cli.json("ls", "exp/a")["checkpoints"]] == [4]
    assert cli("verify").exit_code == 0
    assert cli("prune", "--keep", "1").stdout.endswith("dropped 0 copies, freed 0 B\n")


def test_prune_takes_the_site_s_policy() -> None:
    with cf.Checkpointer("ckptflow-store", run="exp", every=1, keep="all") as ckpt:
        ckpt.restore({"w": np.zeros(1)})
        for step in range(4):
            ckpt.save(step, {"w": np.full(1, float(step))})
    result = CliRunner().invoke(app, ["prune", "--site", "local", "--dry-run"])
    assert "would drop 2 copies" in result.stdout
