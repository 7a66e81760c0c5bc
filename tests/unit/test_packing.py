"""The short form of how to store, and what makes no sense in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.errors import ConfigError
from ckptflow.store.packing import Packing, parse_packing
from ckptflow.tiers.memory import MemoryTier


@pytest.mark.parametrize(
    ("text", "packing"),
    [
        (None, Packing()),
        ("auto", Packing()),
        ("small", Packing(goal="small")),
        ("cell=256", Packing(cell_bytes=256)),
        (
            " small , cell=64, chunk=8192 ",
            Packing(goal="small", cell_bytes=64, chunk_bytes=8192),
        ),
        ("deltas=yes,verify=all", Packing(deltas=True, verify="all")),
        ("small,deltas=no", Packing(goal="small", deltas=False)),
        ("cell=65536", Packing(cell_bytes=65536)),
        (Packing(verify="sample"), Packing(verify="sample")),
    ],
)
def test_the_short_form(text: Any, packing: Packing) -> None:
    assert parse_packing(text) == packing
    assert parse_packing(str(packing)) == packing  # As it travels to a worker.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiny", "'tiny' does not say how to store checkpoints"),
        ("", "'' does not say"),
        ("cell=", "'cell=' does not say"),
        ("cell=many", "'cell=many' does not say"),
        ("cell=-64", "'cell=-64' does not say"),
        ("deltas=maybe", "'deltas=maybe' does not say"),
        ("verify=some", "verify is one of off, sample, all, not 'some'"),
        ("chunk=0", "chunk_bytes is a multiple of 8, at least 16, not 0"),
        ("chunk=4095", "chunk_bytes is a multiple of 8, at least 16, not 4095"),
        ("cell=0", "cell_bytes is a multiple of 8, at least 16"),
        ("cell=24", r"divides chunk_bytes \(4096\) or is a multiple of it, not 24"),
        ("cell=131072", "cell_bytes is at most 65536, not 131072"),
    ],
)
def test_what_makes_no_sense(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_packing(text)


def test_an_app_refuses_it_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="'tiny' does not say"):

        @cf.python_app(packing="tiny")
        def task() -> None:
            """Do nothing."""


def test_an_app_refuses_a_mode_of_capture_that_is_none() -> None:
    with pytest.raises(ConfigError, match="capture is one of auto, copy, diff-first, lazy"):

        @cf.python_app(capture="fast")
        def task() -> None:
            """Do nothing."""


@pytest.mark.parametrize(("packing", "kept"), [("small", True), ("auto", False)])
def test_only_a_small_goal_keeps_the_last_snapshot(packing: str, *, kept: bool) -> None:
    """And then what changes a little everywhere is stored as a delta."""
    state = {"w": np.random.default_rng(0).standard_normal(200_000)}
    with cf.Checkpointer(MemoryTier(), packing=packing, every="never", keep="all") as ckpt:
        ckpt.restore(state)
        for step in range(3):
            ckpt.save(step, state).wait()
            state["w"] *= 1 + 1e-12
        found = ckpt.lineage.valid()[0]
        assert bool(ckpt.lineage.manifest(found).regions[0].deltas) is kept


def test_a_save_that_needs_room_takes_that_of_the_last_snapshot(tmp_path: Path) -> None:
    """The budget holds one snapshot only: nothing may wait for the one that is kept."""
    state = {"w": np.arange(100_000.0)}
    budget_bytes = int(state["w"].nbytes * 1.5)
    with cf.Checkpointer(
        tmp_path, packing="small", budget_bytes=budget_bytes, every="never"
    ) as ckpt:
        ckpt.restore(state)
        for step in range(4):
            ckpt.save(step, state)
            state["w"] += 1
        ckpt.wait()
    with cf.Checkpointer(tmp_path) as again:
        assert again.restore()["w"][5] == 5.0 + 3
