"""``torch.distributed.checkpoint`` over our store with several ranks, which are real processes.

What is saved by two ranks is loaded by three, and so on, each tensor cut otherwise than it was
saved. `dcp_ranks.py` compares every value.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckptflow import PosixTier
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("dcp_ranks.py")


def ranks(folder: Path, *words: str) -> list[list[str]]:
    """Return what the ranks of each word said."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *words],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: list[list[str]] = [[] for _ in words]
    for line in sorted(done.stdout.splitlines()):
        number, _rank, what = line.split(" ", 2)
        said[int(number)].append(what)
    return said


def written(folder: Path) -> dict[int, int]:
    lineage = Lineage([PosixTier(folder / "store")], LineageId("default", "main"))
    return {found.id.step: lineage.manifest(found).written_bytes for found in lineage.valid()}


def test_what_two_ranks_save_three_load_and_so_on(tmp_path: Path) -> None:
    said = ranks(
        tmp_path, "2:save:1", "3:load", "3:save:2", "1:load", "1:load:1", "2:save-cached:3",
        "1:load", "2:async:6", "3:load",
    )  # fmt: skip
    assert said == [
        ["saved"] * 2, ["loaded {1: 1}"] * 3, ["saved"] * 3, ["loaded {2: 2}"],
        ["loaded {1: 1}"], ["saved"] * 2, ["loaded {5: 5}"], ["saved"] * 2,
        ["loaded {6: 6}"] * 3,
    ]  # fmt: skip
    sizes = written(tmp_path)
    assert (
        sizes[3] > 1_600_000
    )  # The first of a process; then only a row of one tensor changes.
    assert max(sizes[4], sizes[5]) < 60_000


def test_a_rank_that_dies_in_a_save_ends_it_and_nothing_of_it_is_seen(tmp_path: Path) -> None:
    _, died, loaded, saved, again = ranks(
        tmp_path, "2:save:1", "2:die:2", "2:load", "2:save:2", "2:load"
    )
    assert len(died) == 1  # The other one said that the group was broken.
    assert died[0].startswith("broken RuntimeError")
    assert loaded == ["loaded {1: 1}"] * 2
    assert saved == ["saved"] * 2
    assert again == ["loaded {2: 2}"] * 2


def test_saves_by_a_process_of_its_own_store_the_values_of_the_call(tmp_path: Path) -> None:
    saved, loaded = ranks(tmp_path, "2:async-process:1", "2:load")
    assert saved == ["saved"] * 2
    assert loaded == ["loaded {1: 1}"] * 2
