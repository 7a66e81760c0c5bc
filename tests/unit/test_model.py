"""Names and keys: what may be one, what is read back from one, and how they sort."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.model import (
    FILL,
    NAME_MAX,
    CheckpointId,
    ExtentTable,
    LineageId,
    attempt_key,
    parse_attempt_key,
)
from ckptflow.tiers.tier import check_key

GOOD_NAMES = ["a", "A-Z_0.9", "seed=1+x", "-", "x" * NAME_MAX]
BAD_NAMES = ["", ".hidden", "a/b", "a b", "ä", "a\n", "x" * (NAME_MAX + 1), "..", "a\0"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_names_that_are_allowed_make_keys_that_tiers_take(name: str) -> None:
    lineage = LineageId(name, name)
    key = CheckpointId(1, 2).manifest_key
    assert check_key(f"{lineage.prefix}/{key}") == f"lineages/{name}/{name}/{key}"


@pytest.mark.parametrize("name", BAD_NAMES)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a run"):
        LineageId(name, "task")
    with pytest.raises(ConfigError, match="cannot be the name of a task"):
        LineageId("run", name)


@pytest.mark.parametrize(
    "checkpoint", [CheckpointId(0, 1), CheckpointId(12, 3), CheckpointId(10**12 - 1, 10**8 - 1)]
)
def test_keys_tell_whose_they_are(checkpoint: CheckpointId) -> None:
    assert CheckpointId.of_manifest(checkpoint.manifest_key) == checkpoint
    assert CheckpointId.of_pack(checkpoint.pack_key(7, "00ff00ff")) == checkpoint
    assert CheckpointId.of_pack(checkpoint.manifest_key) is None
    assert CheckpointId.of_manifest(checkpoint.pack_key(7, "00ff00ff")) is None


def test_keys_sort_as_checkpoints_do() -> None:
    numbers = [(0, 1), (9, 12), (10, 2), (10, 11), (999, 1), (1000, 1), (10**11, 1)]
    checkpoints = [CheckpointId(step, attempt) for step, attempt in numbers]
    assert sorted(checkpoints) == checkpoints
    keys = [checkpoint.manifest_key for checkpoint in checkpoints]
    assert sorted(keys) == keys


@pytest.mark.parametrize(
    "key",
    [
        "manifests/000000000001.00000001.ckpt.partial",
        "manifests/1.1.ckpt",
        "manifests/000000000001.00000001.CKPT",
        "manifests/x000000000001.00000001.ckpt",
        "manifests/sub/000000000001.00000001.ckpt",
        "manifests/000000000001.00000001.ckpt\n",
        "packs/000000000001.00000001.0000.0123ABCD.pack",
        "packs/000000000001.00000001.0000.pack",
        "notes.txt",
        "",
    ],
)
def test_other_keys_are_nobodys(key: str) -> None:
    assert CheckpointId.of_manifest(key) is None
    assert CheckpointId.of_pack(key) is None
    assert parse_attempt_key(key) is None


@pytest.mark.parametrize("what", ["claim", "resume", "end"])
def test_attempt_keys(what: str) -> None:
    assert parse_attempt_key(attempt_key(17, what)) == (17, what)
    assert parse_attempt_key(f"attempts/00000017.{what}x") is None


def test_extent_tables_compare_by_their_rows() -> None:
    def table(pack: int) -> ExtentTable:
        return ExtentTable(
            np.array([8, 8], np.uint64),
            np.array([0, 1], np.uint64),
            np.array([0, pack], np.uint32),
        )

    assert table(FILL) == table(FILL)
    assert table(FILL) != table(1)
    assert table(1) != table(1).rows(0, 1)
    assert ExtentTable.of([table(1).rows(0, 1), table(1).rows(1, 2)]) == table(1)
    assert len(ExtentTable.of([])) == 0
