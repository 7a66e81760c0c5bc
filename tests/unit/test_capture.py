"""What a save copies, how much memory that takes, and what is there before the first."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ckptflow as cf
from ckptflow.checkpointer import Checkpointer
from ckptflow.checkpointer.arena import ArenaPool
from ckptflow.errors import ConfigError
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.units import MIB
from tests.unit.test_arena import resident_bytes

CHUNK = 4096
COUNT = 1 << 20  # Of float64: 8 MiB.


class Gate:
    """Lets nothing be put while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()

    def __call__(self, operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            assert self.open.wait(60)


def begun(tier: Any, **options: Any) -> Checkpointer:
    given = {"every": "never", "rng": False, "keep": 1} | options
    return Checkpointer(tier, **given)


def pool_of(ckpt: Checkpointer) -> ArenaPool:
    return ckpt._capturing.capturer.arenas


def arena_bytes(ckpt: Checkpointer) -> int:
    """Memory that all arenas take, lent out or not."""
    pool = pool_of(ckpt)
    return sum(resident_bytes(one) for one in (*pool._lent, *pool._aside, *pool._free))


@pytest.mark.parametrize(
    ("mode", "first", "then"),
    [("copy", 1.05, 1.05), ("diff-first", 1.05, 0.2), ("lazy", 1.05, 0.2), ("auto", 1.05, 0.2)],
)
def test_memory_for_snapshots(tmp_path: Path, mode: str, first: float, then: float) -> None:
    """All of a state once, then what changed; after the save nothing, or what is used again."""
    u, gate = np.random.default_rng(0).random(COUNT), Gate()
    tier = FaultyTier(cf.PosixTier(tmp_path, name="disk"), gate)
    with begun(tier, capture=mode, u=u) as ckpt:
        for step in range(8):
            ckpt.wait_captured()
            u[step * 100 : step * 100 + 20_000] += 1
            gate.open.clear()
            ticket = ckpt.save(step)
            ticket.wait_captured()
            peak = arena_bytes(ckpt)
            gate.open.set()
            ticket.wait()
            ckpt._writer.settle()
            wanted = all(not choice.whole for choice in ticket.modes.values())
            assert peak <= (then if wanted else first) * u.nbytes
            if mode != "copy":
                assert arena_bytes(ckpt) == 0
                assert wanted or step == 0, ticket.modes
            assert pool_of(ckpt).counted_bytes == 0


def saves_do_not_grow(folder: Path, saves: int, count: int, mode: str) -> None:
    u = np.random.default_rng(0).random(count)
    process, sizes = psutil.Process(), []
    with begun(folder, capture=mode, u=u) as ckpt:
        for step in range(saves):
            ckpt.wait_captured()
            u[step * 7 % (count - 100) :][:100] += 1
            ckpt.save(step).wait()
            if step >= saves // 4:
                sizes.append(process.memory_info().rss)
        assert len(pool_of(ckpt)._free) <= 1
    half = len(sizes) // 2
    assert min(sizes[half:]) <= min(sizes[:half]) + 0.5 * u.nbytes


@pytest.mark.parametrize("mode", ["copy", "lazy"])
def test_memory_is_flat(tmp_path: Path, mode: str) -> None:
    saves_do_not_grow(tmp_path, 30, COUNT, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["copy", "diff-first", "lazy"])
def test_memory_is_flat_over_many_saves(tmp_path: Path, mode: str) -> None:
    saves_do_not_grow(tmp_path, 200, COUNT, mode)


MANY_ARRAYS = """
import resource, sys
import numpy as np
import ckptflow as cf
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
state = [np.full(1200, n) for n in range(500)]
for mode in ("auto", "lazy"):
    with cf.Checkpointer(sys.argv[1], run=mode, capture=mode, every="never", rng=False) as ckpt:
        for step in range(2):
            ckpt.wait_captured()
            state[step * 100] += 1
            ckpt.save(step, state)
    with cf.Checkpointer(sys.argv[1], run=mode, every="never", rng=False) as ckpt:
        found = ckpt.restore()
    assert all(np.array_equal(a, b) for a, b in zip(found, state, strict=True)), mode
"""


def test_no_array_takes_a_file_descriptor(tmp_path: Path) -> None:
    program = [sys.executable, "-c", MANY_ARRAYS, str(tmp_path)]
    subprocess.run(program, check=True, timeout=300)


def test_memory_and_the_thread_are_there_before_the_first_save() -> None:
    u = np.zeros(COUNT)
    with begun(MemoryTier(), u=u) as ckpt:
        ckpt.restore()
        pool = pool_of(ckpt)
        with pool._changed:
            pool._changed.wait_for(lambda: pool._free, 60)
        assert resident_bytes(pool._free[0]) >= u.nbytes
        assert "ckptflow-capture" in {thread.name for thread in threading.enumerate()}
        arena = pool._free[0]
        ckpt.save(1)
        assert arena in [*pool._lent, *pool._free]


def test_whoever_writes_a_state_of_its_own_is_not_looked_at_before_it_is_saved() -> None:
    """Its ``state_dict`` may not be ready yet."""

    class Later:
        ready = False

        def state_dict(self) -> dict[str, Any]:
            assert self.ready
            return {"w": np.zeros(5)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state

    thing = Later()
    with begun(MemoryTier(), deep=[{"thing": thing}]) as ckpt:
        thing.ready = True
        ckpt.save(1)


def test_the_first_save_after_a_restore_knows_what_changed() -> None:
    disk, u = MemoryTier(), np.random.default_rng(0).random(COUNT)
    with begun(disk, u=u) as ckpt:
        ckpt.save(1)
    with begun(disk, u=u) as ckpt:
        ckpt.resume()
        u[5] += 1
        ticket = ckpt.save(2)
        assert not ticket.modes["u"].whole
        ticket.wait()
        assert 0 < ckpt.written_bytes[1] < 2 * CHUNK
    expected, u[:] = u.copy(), 0
    with begun(disk, u=u) as ckpt:
        ckpt.resume()
    assert np.array_equal(u, expected)


def test_each_region_says_how_it_was_captured() -> None:
    state = {
        "small": np.zeros(5),
        "large": np.zeros(COUNT // 8),
        "gathered": np.zeros((COUNT // 8, 2))[:, 0],
        "model": {"a.weight": np.zeros(9000), "a.bias": np.zeros(9000)},
    }
    rules = {"model/*.weight": "lazy", "model/*": "diff-first"}
    with begun(MemoryTier(), capture=rules) as ckpt:
        modes = ckpt.save(1, state).modes
        assert {name: str(choice.mode) for name, choice in modes.items()} == {
            "small": "copy",
            "large": "copy",
            "gathered": "copy",
            "model/a.weight": "lazy",
            "model/a.bias": "diff-first",
        }
        assert str(modes["small"]) == "copy: small"
        ckpt.wait()
        state["large"][0] = 1
        ticket = ckpt.save(2, state)
        assert str(ticket.modes["large"]) == "diff-first: little may have changed"
        ticket.wait()
        state["large"][:] = np.random.default_rng(0).random(COUNT // 8)
        ckpt.save(3, state).wait()
        dense = ckpt.save(4, state)
        assert str(dense.modes["large"]) == "copy: 100% of it changed last time"
        dense.wait()
        again = ckpt.save(5, state)
        assert str(again.modes["large"]) == "diff-first: little may have changed, 0% last time"


@pytest.mark.parametrize("cell", [None, 64, 16384])
def test_cells_of_every_size_are_there_when_they_are_written(cell: int | None) -> None:
    """Cells larger than a chunk are written as a whole: so they are held as a whole."""
    disk, u, expected = MemoryTier(), np.random.default_rng(0).random(COUNT // 4), []
    packing = cf.Packing(cell_bytes=cell)
    with begun(disk, capture="diff-first", packing=packing, keep="all", u=u) as ckpt:
        for step in range(9):
            u[step * 1000 :: 20_000] += 1
            expected.append(u.copy())
            ckpt.save(step).wait()
        written = ckpt.written_bytes[1]
    assert written < 2.5 * u.nbytes
    for step, wanted in enumerate(expected):
        with Checkpointer(disk, rng=False, every="never") as again:
            assert np.array_equal(again.restore(step=step)["u"], wanted)


def test_deltas_on_the_last_snapshot_need_all_of_it() -> None:
    u = np.random.default_rng(0).standard_normal(COUNT // 8)
    with begun(MemoryTier(), packing="small", capture="lazy", keep="all", u=u) as ckpt:
        for step in range(3):
            u *= 1 + 1e-12
            ticket = ckpt.save(step)
            assert str(ticket.modes["u"]) == "copy: its bytes are kept for deltas"
            ticket.wait()
        found = ckpt.lineage.valid()[0]
        assert ckpt.lineage.manifest(found).regions[0].deltas


def test_other_words_are_refused_before_anything_is_touched() -> None:
    with pytest.raises(ConfigError, match="capture is one of auto, copy, diff-first, lazy"):
        Checkpointer(MemoryTier(), capture="fast")


def test_a_state_larger_than_the_budget_is_left_out_where_it_did_not_change() -> None:
    """The first save waits until it is written; then what changed has room."""
    u = np.random.default_rng(0).random(COUNT)
    with begun(MemoryTier(), budget_bytes=4 * MIB, u=u) as ckpt:
        first = ckpt.save(1)
        assert first.durable
        u[5] += 1
        second = ckpt.save(2)
        assert not second.modes["u"].whole
        second.wait()
        u += 1
        third = ckpt.save(3)  # More changed than there is room for.
        assert third.durable
    expected, u[:] = u.copy(), 0
    assert np.array_equal(ckpt.restore(step=3)["u"], expected)
