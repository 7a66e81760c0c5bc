"""Sets of shards, read by the program that was written from the format page alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from independent_reader import Refused, newest, read_manifest, read_set, sets

import ckptflow as cf
from ckptflow.errors import RestoreError

WORLD = 3


def state(rank: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(400, 1001))
    whole = np.arange(35.0).reshape(7, 5)
    rows = slice(7 * rank // WORLD, 7 * (rank + 1) // WORLD)
    return {
        "table": table,
        "column": table[:, 3],
        "strided": rng.normal(size=(30, 8))[::2, ::3],
        "many": [rng.normal(size=n) for n in range(50)],
        "lr": 0.5,
        "mine": np.full(rank + 1, rank),
        "field": cf.Box(whole[rows], (rows.start, 0), whole.shape),
    }


def save(store: Path, **options: Any) -> None:
    with ExitStack() as stack:
        for rank in range(WORLD):
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    store, rank=rank, world=WORLD, launch="a", every="never",
                    replicated=lambda name: name != "mine", **options,
                )
            )  # fmt: skip
            one.restore({})
            one.save(4, state(rank))


def test_the_state_of_each_rank(tmp_path: Path) -> None:
    save(tmp_path)
    (shards,) = sets(tmp_path, "default", "main")
    for rank in range(WORLD):
        found, expected = read_set(shards, rank), state(rank)
        for name in ("table", "column", "strided", "mine"):
            assert found[name].tobytes() == expected[name].tobytes()
        assert [one.tobytes() for one in found["many"]] == [
            one.tobytes() for one in expected["many"]
        ]
        assert found["lr"] == 0.5
        assert (found["field"] == np.arange(35.0).reshape(7, 5)).all()


def test_a_reader_that_does_not_know_shards_refuses_them(tmp_path: Path) -> None:
    save(tmp_path)
    with cf.Checkpointer(tmp_path, task="plain") as one:
        one.save(1, {"x": np.ones(3)})
    shard, plain = (
        read_manifest(newest(tmp_path, "default", task))[0]
        for task in ("main+00000of00003", "plain")
    )
    assert "shards" in shard["features"]
    assert "shards" not in plain["features"]


@pytest.mark.damaged_store
def test_a_set_of_ranks_that_differed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the records of what ranks have seen had been lost."""
    monkeypatch.setattr(cf.ShardedCheckpointer, "_before_commit", lambda *_: None)
    with ExitStack() as stack:
        for rank in range(2):
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    tmp_path, rank=rank, world=2, launch="a", every="never", replicated="*"
                )
            )
            one.restore({})
            one.save(1, {"x": np.arange(9) + rank})
    (shards,) = sets(tmp_path, "default", "main")
    with pytest.raises(Refused, match="different replicated arrays"):
        read_set(shards)
    refused = pytest.raises(RestoreError, match="could restore none of 1 complete")
    with cf.ShardedCheckpointer(tmp_path, rank=0, world=1, launch="b") as last, refused:
        last.restore({})
