"""``ckptflow diff --values`` on real stores: text, JSON, tolerances, bad arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from ckptflow.cli import app
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier

SaveState = Callable[..., Lineage]


@pytest.fixture
def store(tmp_path: Path, save_state: SaveState) -> Path:
    """Two checkpoints of exp/a, and one of another run in the same store, and one elsewhere."""
    tier = PosixTier(tmp_path / "store")
    rng = np.random.default_rng(0)
    state: dict[str, Any] = {
        "w": rng.standard_normal((50, 40)),
        "z": np.zeros(30, np.float32),
        "n": np.arange(20),
        "lr": 0.1,
    }
    save_state(tier, "exp/a", 1, state)
    state["w"][3, 7] += 1e-9
    state["z"][4] = np.nan
    save_state(tier, "exp/a", 2, state)
    state["w"][9, 1] = 100.0
    state["n"][19] = 0
    state["lr"] = 0.2
    save_state(tier, "new/b", 5, state)
    save_state(PosixTier(tmp_path / "elsewhere"), "new/b", 5, state)
    return tmp_path / "store"


@pytest.fixture
def diff(store: Path) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["diff", *arguments, "--store", str(store)])

    return run


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def rows(result: Result) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in result.stdout.splitlines()}


def test_values(diff: Callable[..., Result]) -> None:
    result = diff("exp/a@1", "exp/a", "--values")
    assert result.exit_code == 1
    shown = rows(result)
    assert shown["'w'"][:12] == [
        "'w'", "changed", "<f8[50,", "40]", "1", "of", "2000", "(0.05", "%)", "[3,", "7]",
        repr(float(np.random.default_rng(0).standard_normal((50, 40))[3, 7])),
    ]  # fmt: skip
    assert shown["'z'"][2:] == ["<f4[30]", "1", "of", "30", "(3.33", "%)", "[4]", "0.0", "nan"]
    assert "'n'" not in shown
    *_, verdict, read = result.stdout.splitlines()
    assert verdict == (
        "2 of 3 arrays differ, 0 values differ, random states of the process are the same"
    )
    assert read.startswith("read ")
    assert read.endswith(" of 31.8 KiB")


def test_values_json(diff: Callable[..., Result]) -> None:
    found = document(diff("exp/a@1", "exp/a@2", "--values", "--json"))
    assert (found["left"], found["right"]) == ("exp/a@1", "exp/a@2")
    assert (found["same"], found["identical"], found["tolerance"]) == (False, False, None)
    assert (found["values"], found["values_close"]) == ([], [])
    assert found["state_bytes"] == 2 * (50 * 40 * 8 + 30 * 4 + 20 * 8)
    assert 0 < found["read_bytes"] < found["state_bytes"]
    w, z, n = found["arrays"]
    assert (w["name"], w["change"], w["changed_elements"]) == ("w", "changed", 1)
    assert (w["first_change"]["index"], w["beyond_elements"]) == ([3, 7], None)
    assert w["max_abs_difference"] == pytest.approx(1e-9, rel=1e-3)
    assert z["first_change"]["after"] == "nan"
    assert (z["unmatched_nans"], z["max_abs_difference"]) == (1, None)
    assert (n["change"], n["changed_elements"], n["first_change"]) == ("same", 0, None)


def test_within_the_tolerance_is_the_same(save_state: SaveState, tmp_path: Path) -> None:
    tier = PosixTier(tmp_path / "s")
    save_state(tier, "exp/a", 1, {"w": np.ones(9), "lr": 0.5})
    save_state(tier, "exp/a", 2, {"w": np.ones(9) + 1e-9, "lr": 0.5 + 1e-9})
    arguments = ["diff", "exp/a@1", "exp/a@2", "--values", "--store", str(tmp_path / "s")]
    assert CliRunner().invoke(app, arguments).exit_code == 1
    for option in ("--atol", "--rtol"):
        result = CliRunner().invoke(app, [*arguments, option, "1e-6"])
        assert result.exit_code == 0
        assert rows(result)["'w'"][1] == "close"
        assert "0 of 1 arrays differ, 1 within the tolerance, 0 values differ, 1 within" in (
            result.stdout
        )
    found = document(CliRunner().invoke(app, [*arguments, "--atol", "1e-6", "--json"]))
    assert (found["same"], found["identical"]) == (True, False)
    assert found["tolerance"] == {"atol": 1e-6, "rtol": 0.0}
    assert [leaf["name"] for leaf in found["values_close"]] == ["lr"]


def test_beyond_the_tolerance(diff: Callable[..., Result]) -> None:
    result = diff("exp/a@1", "new/b", "--values", "--atol", "1e-6")
    assert result.exit_code == 1
    shown = rows(result)
    assert shown["'w'"][4:12] == ["2", "of", "2000", "(0.1", "%)", "1", "[9,", "1]"]
    assert shown["'n'"][:9] == [
        "'n'", "changed", "<i8[20]", "1", "of", "20", "(5", "%)", "[19]",
    ]  # fmt: skip
    assert "no floating-point arrays, so to the bit: 'n'" in result.stdout
    assert shown["'lr'"] == ["'lr'", "0.1", "0.2"]
    assert "3 of 3 arrays differ, 0 within the tolerance, 1 values differ" in result.stdout


def test_the_same_checkpoint(diff: Callable[..., Result]) -> None:
    result = diff("exp/a", "exp/a@2", "--values")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "0 of 3 arrays differ, 0 values differ, random states of the process are the same",
        "read 0 B of 31.8 KiB",
    ]


@pytest.mark.parametrize("values", [[], ["--values"]], ids=["plain", "values"])
def test_two_stores(diff: Callable[..., Result], store: Path, values: list[str]) -> None:
    other = str(store.with_name("elsewhere"))
    assert diff("new/b", "new/b", "--store-b", other, *values).exit_code == 0
    found = document(diff("exp/a", "new/b", "--store-b", other, "--json", *values))
    assert (found["left"], found["right"], found["same"]) == ("exp/a@2", "new/b@5", False)
    assert diff("new/b", "exp/a", "--store-b", other, *values).exit_code == 3
    assert diff("new/b", "new/b", "--store-b", "no/such", *values).exit_code == 3


def test_two_nan_are_told_apart_by_their_bits(save_state: SaveState, tmp_path: Path) -> None:
    tier = PosixTier(tmp_path / "s")
    save_state(tier, "exp/a", 1, {"w": np.array([np.nan])})
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    save_state(tier, "exp/a", 2, {"w": other})
    arguments = ["diff", "exp/a@1", "exp/a@2", "--values", "--store", str(tmp_path / "s")]
    assert "nan 0x7ff8000000000000  nan 0x7ff8000000000001" in (
        CliRunner().invoke(app, arguments).stdout
    )


def test_other_types_are_not_compared(save_state: SaveState, tmp_path: Path) -> None:
    tier = PosixTier(tmp_path / "s")
    save_state(tier, "exp/a", 1, {"w": np.ones(4), "[x]": np.zeros(1)})
    save_state(tier, "exp/a", 2, {"w": np.ones(4, np.float32), "[y]": np.zeros(1)})
    arguments = ["diff", "exp/a@1", "exp/a@2", "--values", "--store", str(tmp_path / "s")]
    result = CliRunner().invoke(app, [*arguments, "--atol", "1"])
    assert result.exit_code == 1
    shown = rows(result)
    assert shown["'w'"][1:] == ["retyped", "<f8[4]", "->", "<f4[4]", "4"]
    assert {shown[name][1] for name in shown if "x]" in name} == {"removed"}
    assert {shown[name][1] for name in shown if "y]" in name} == {"added"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--atol", "1"], "A tolerance is for values: say --values"),
        (["--values", "--atol", "-1"], "absolute tolerance has to be 0 or a positive, finite"),
        (["--values", "--rtol", "nan"], "relative tolerance has to be 0 or a positive, finite"),
        (["--values", "--atol", "inf"], "got inf"),
    ],
)
def test_tolerances_that_are_none(
    diff: Callable[..., Result], options: list[str], message: str
) -> None:
    result = diff("exp/a@1", "exp/a@2", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert document(diff("exp/a@1", "exp/a@2", *options, "--json"))["error"]["exit_code"] == 2


def test_what_is_not_there(diff: Callable[..., Result]) -> None:
    assert diff("exp/a@7", "exp/a", "--values").exit_code == 3
    assert diff("exp", "exp/a", "--values").exit_code == 2


@pytest.mark.damaged_store
def test_damage(diff: Callable[..., Result], store: Path) -> None:
    for pack in store.rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[60] ^= 1
        pack.write_bytes(data)
    result = diff("exp/a@1", "exp/a@2", "--values")
    assert result.exit_code == 4
    assert "error (corruption)" in result.stderr
    assert "does not match its digest" in result.stderr
    assert diff("exp/a@1", "exp/a@1", "--values").exit_code == 0, "nothing has to be read"
