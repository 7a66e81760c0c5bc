"""What other checkpoint systems test, and which test of ours says the same.

SCR (LLNL), VELOC (ANL) and FTI (BSC) publish what they try on real machines: nodes that are
lost, caches that are erased, files that are cut. `SCENARIOS` has a row for each: tests, by node
id, or the reason why there is none. What no other file tested stands below: a *node* is a tier
of level 1 that can be taken away, *shared* one of level 3.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import RestoreError
from ckptflow.flush import copy_checkpoint
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.verify import verify
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/unit/test_scenarios.py"
_REBUILD = "tests/unit/test_redundancy_rebuild.py"
_LOST = (
    f"{_REBUILD}::test_every_loss_that_the_scheme_names_is_rebuilt",
    "tests/unit/test_redundant_tier.py::test_what_a_lost_node_had_is_restored_elsewhere",
    "tests/process/test_redundant_nodes.py::test_a_lost_node_is_rebuilt_from_the_others",
)
_LATER = "Deciding about nodes and walltime is the scheduler's side of a run, not the store's."

Row = tuple[str, ...] | str

SCENARIOS: dict[str, Row] = {
    # Of SCR, in its files TESTING.sh, TEST and testing_new_systems.rst.
    "1 a fresh run works": (
        "tests/unit/test_checkpointer.py::test_interrupted_anywhere_it_ends_with_the_same_bits",
    ),
    "2 a rerun goes on counting": (
        "tests/unit/test_catalog.py::test_attempts_count_from_one",
        "tests/process/test_parsl_threads.py::test_an_unfinished_task_goes_on_in_the_next_run",
    ),
    "3 one node's cache is lost, and rebuilt": _LOST,
    "4 the newest is lost on two nodes of a set, an older one is used": (
        f"{_REBUILD}::test_an_older_checkpoint_is_used_when_the_newest_is_lost",
    ),
    "5 all is lost: start over": (
        f"{HERE}::test_everywhere_everything_is_lost",
        f"{_REBUILD}::test_all_is_lost",
    ),
    "6 an end of run with nothing in the cache is harmless": (
        "tests/unit/test_checkpointer.py::test_a_checkpointer_that_is_not_used_leaves_no_trace",
    ),
    "7 a scavenge without a loss": (
        "tests/unit/test_checkpointer.py::test_a_stop_sends_the_last_checkpoint_to_every_tier",
    ),
    "8 a scavenge with a node that is down": (
        f"{_REBUILD}::test_a_rebuild_outward_while_a_node_is_down",
    ),
    "9 the cache is gone, and fetched from the file system": (
        f"{HERE}::test_a_lost_node_is_replaced_and_the_shared_copy_restored",
    ),
    "10 two nodes are gone: no rebuild, but a fetch": (
        f"{_REBUILD}::test_what_cannot_be_rebuilt_is_fetched_from_further_out",
        "tests/unit/test_redundant_tier.py"
        "::test_after_more_losses_an_older_checkpoint_further_out_is_used",
        f"{HERE}::test_a_lost_node_is_replaced_and_the_shared_copy_restored",
    ),
    "11 one file on the file system is damaged: an older one is used": (
        "tests/unit/test_restore.py::test_with_one_copy_an_older_checkpoint_is_found_or_none",
        "tests/unit/test_restore.py::test_damaged_files",
    ),
    "12 what is flushed already is not copied again": (
        "tests/unit/test_flush.py::test_a_copy_can_be_repeated",
    ),
    "13 conditions to halt: set, unset, listed, removed": _LATER,
    "14 an excluded node is listed with the reason": _LATER,
    "15 a node is switched off: the step ends, its task goes on elsewhere": (
        "tests/process/test_parsl_htex.py"
        "::test_a_killed_worker_s_task_resumes_at_its_newest_step",
        "tests/process/test_redundant_nodes.py"
        "::test_a_task_whose_node_is_alive_goes_on_elsewhere",
        f"{HERE}::test_a_lost_node_is_replaced_and_the_shared_copy_restored",
    ),
    "16 health of devices: write, read, delete": (
        "tests/unit/test_cli_doctor.py::test_doctor_tries_tiers_out",
        "tests/unit/test_probe.py::test_a_tier_that_is_full",
        "tests/unit/test_probe.py::test_a_tier_that_lies",
    ),
    "17 a node that comes back stays excluded": _LATER,
    "18 a watchdog on a task that sleeps": _LATER,
    "19 the index: list, add, drop": (
        "tests/unit/test_cli_reading.py::test_ls_of_one_task",
        "tests/unit/test_moving.py::test_two_stores_become_one",
        "tests/unit/test_cli_reading.py::test_prune",
    ),
    "20 which setting comes first": (
        "tests/process/test_parsl_threads.py::test_the_command_line_s_choice_comes_first",
        "tests/unit/test_site.py::test_names_are_looked_up_in_order",
        "tests/unit/test_cli_reading.py::test_the_store_may_come_from_the_environment",
    ),
    # Of VELOC, in test-async.in and the branch final_tests.
    "21 killed in the middle, scratch deleted: restart from persistent": (
        "tests/process/test_kill9.py"
        "::test_killed_at_random_moments_it_resumes_at_the_newest_commit",
        f"{HERE}::test_a_lost_node_is_replaced_and_the_shared_copy_restored",
    ),
    "22 a file of a node is lost": (
        f"{_REBUILD}::test_one_object_can_be_had_from_the_others",
        "tests/unit/test_repair.py::test_every_object_of_either_tier_is_mended_to_the_bit",
    ),
    "23 scratch and persistent are lost: it is told": (
        f"{HERE}::test_everywhere_everything_is_lost",
        "tests/unit/test_checkpointer_failures.py::test_nothing_but_damage",
    ),
    "24 the second checkpoint is lost: the first is used": (
        f"{HERE}::test_the_second_checkpoint_is_lost_everywhere",
    ),
    "25 damage on several levels at once": (
        f"{_REBUILD}::test_damaged_redundancy_costs_what_it_is_worth",
        "tests/unit/test_restore.py::test_two_damaged_copies_make_one_sound_checkpoint",
        "tests/unit/test_repair.py::test_damage_of_all_kinds_at_once_each_from_the_other",
    ),
    # Of FTI, on its page test_suites.rst.
    "FTI level 1: a loss fails": (f"{HERE}::test_everywhere_everything_is_lost",),
    "FTI level 2: survives what is not consecutive": _LOST,
    "FTI level 3: survives what is consecutive": _LOST,
    "FTI level 4: survives nodes, but not its own folder": (
        f"{HERE}::test_levels_and_what_is_done_to_them",
    ),
    "FTI erase or cut x checkpoint, node folder, global folder x full or delta": (
        f"{HERE}::test_levels_and_what_is_done_to_them",
    ),
    "FTI kinds of files for output": "There is one format, whose golden files are tests.",
    "FTI sizes that differ between ranks": "Tasks share nothing; each has its own lineage.",
    "FTI a head process, or inline": (
        "tests/unit/test_flush.py::test_submitting_does_not_wait",
        "tests/unit/test_flush.py::test_a_copy_is_restored_from_alone",
    ),
    "FTI keep the last": ("tests/unit/test_checkpointer.py::test_keep_says_what_stays",),
    "FTI what is written is what is dirty": (f"{HERE}::test_as_much_is_written_as_changed",),
    "FTI a delta cut by random bytes, five times": (
        f"{HERE}::test_a_delta_that_is_cut_anywhere_costs_one_step",
    ),
    "FTI recover from the partner, save again, damage the other": (
        f"{HERE}::test_damage_that_takes_turns",
    ),
    "FTI an older and safer one survives a newer and weaker one": (
        f"{HERE}::test_an_older_and_safer_checkpoint_survives_a_newer_and_weaker_one",
    ),
    "FTI levels 4, 3, 2, 1, the newest damaged": (
        f"{HERE}::test_the_newest_on_each_level_in_turn_is_damaged",
    ),
    "FTI initialised twice": (
        "tests/unit/test_checkpointer_failures.py::test_two_processes_on_one_task",
        "tests/unit/test_catalog.py::test_processes_never_share_an_attempt",
    ),
    "FTI recover one variable by its name": ("tests/unit/test_stored_arrays.py",),
    "FTI another number of processes": "A task is one process; a run has any number of them.",
    "FTI killed while a copy is under way": (
        "tests/unit/test_flush.py::test_a_crash_before_any_change_leaves_no_half_checkpoint",
    ),
}


def test_every_scenario_has_its_row() -> None:
    numbers = [int(name.split()[0]) for name in SCENARIOS if name[0].isdigit()]
    assert numbers == list(range(1, 26))
    assert sum(name.startswith("FTI ") for name in SCENARIOS) == 18


def test_the_tests_that_are_named_exist() -> None:
    missing = []
    for name, row in SCENARIOS.items():
        for node in row if isinstance(row, tuple) else ():
            path, _, test = node.partition("::")
            text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
            if not text or (test and not re.search(rf"^def {test}\(", text, re.MULTILINE)):
                missing.append(f"{name}: {node}")
    assert missing == []


# --- what no other file tests -----------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> PosixTier:
    return PosixTier(tmp_path / "node", name="node", level=1)


@pytest.fixture
def shared(tmp_path: Path) -> PosixTier:
    return PosixTier(tmp_path / "shared", name="shared", level=3)


def state_of(step: int) -> dict[str, Any]:
    state = {"i": step, "w": np.random.default_rng(0).standard_normal(5000)}
    for one in range(1, step + 1):
        state["w"][100 * one : 100 * one + 60] = one
    return state


def work(tiers: list[Tier], steps: range, *, level: int | None = 3, **options: Any) -> None:
    """Save some steps; each is durable at a level before the next."""
    options = {"keep": "all", **options}
    with Checkpointer(tiers, run="exp", task="t", rng=False, **options) as ckpt:
        ckpt.restore(state_of(0))
        for step in steps:
            ckpt.save(step, state_of(step)).wait(level)


def look(tiers: list[Tier]) -> int:
    """Restore as the next attempt would; return the step, whose bits must be right."""
    ckpt = Checkpointer(tiers, run="exp", task="t", rng=False)
    state = ckpt.restore(state_of(0))
    assert state["w"].tobytes() == state_of(state["i"])["w"].tobytes()
    ckpt.shut()
    return int(state["i"])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def newest(tier: PosixTier, kind: str) -> Path:
    return max((tier.root / "lineages/exp/t" / kind).iterdir())


def test_a_lost_node_is_replaced_and_the_shared_copy_restored(
    node: PosixTier, shared: PosixTier, tmp_path: Path
) -> None:
    work([node, shared], range(1, 4))
    shutil.rmtree(node.root)
    other = PosixTier(tmp_path / "spare-node", name="node", level=1)
    assert look([other, shared]) == 3
    work([other, shared], range(4, 6))
    shutil.rmtree(other.root)
    assert look([node, shared]) == 5


def test_everywhere_everything_is_lost(node: PosixTier, shared: PosixTier) -> None:
    work([node, shared], range(1, 4))
    for tier in (node, shared):
        for path in (tier.root / "lineages/exp/t/packs").iterdir():
            path.write_bytes(b"")
    with pytest.raises(RestoreError, match="None of the 3 checkpoints") as told:
        look([node, shared])
    assert len([text for text in told.value.__notes__ if text.startswith("step")]) == 3
    for tier in (node, shared):
        shutil.rmtree(tier.root)
    assert look([node, shared]) == 0


@pytest.mark.damaged_store
def test_the_second_checkpoint_is_lost_everywhere(node: PosixTier, shared: PosixTier) -> None:
    work([node, shared], range(1, 3))
    for tier in (node, shared):
        newest(tier, "packs").unlink()
    with pytest.warns(CheckpointWarning, match="step 2 .* was skipped"):
        assert look([node, shared]) == 1


@pytest.mark.damaged_store
@pytest.mark.parametrize("packing", ["auto", "small"])
@pytest.mark.parametrize(
    ("erased", "step"),
    [
        ("node pack", 3),
        ("node pack cut", 3),
        ("node manifest", 3),
        ("node folder", 3),
        ("shared pack", 3),
        ("shared folder", 3),
        ("node folder, shared pack", 2),
        ("node folder, shared manifest cut", 2),
        ("node folder, shared folder", 0),
    ],
)
def test_levels_and_what_is_done_to_them(
    node: PosixTier, shared: PosixTier, packing: str, erased: str, step: int
) -> None:
    """The first checkpoint is full, the newest a delta."""
    work([node, shared], range(1, 4), packing=packing)
    tiers = {"node": node, "shared": shared}
    for victim in erased.split(", "):
        name, what, *cut = victim.split()
        if what == "folder":
            shutil.rmtree(tiers[name].root)
            continue
        path = newest(tiers[name], f"{what}s")
        data = path.read_bytes()
        path.unlink()
        if cut:
            path.write_bytes(data[: len(data) // 2])
    if step == 2:
        with pytest.warns(CheckpointWarning, match="was skipped"):
            assert look([node, shared]) == step
    else:
        assert look([node, shared]) == step


def test_as_much_is_written_as_changed(node: PosixTier) -> None:
    """Within two points of what is dirty, for any share of it."""
    size, chunk = 8 << 20, 4096
    rng = np.random.default_rng(3)
    data = rng.integers(0, 1 << 62, size // 8)
    with Checkpointer(node, run="exp", task="t", rng=False, keep="all") as ckpt:
        ckpt.save(1, {"w": data}).wait()
        for step, share in enumerate((0.02, 0.1, 0.35), start=2):
            before = ckpt.written_bytes[1]
            dirty = rng.choice(size // chunk, int(share * size / chunk), replace=False)
            data.reshape(-1, chunk // 8)[dirty] = rng.integers(0, 1 << 62, chunk // 8)
            data.reshape(-1, chunk // 8)[dirty, 0] += np.arange(len(dirty))
            data.reshape(-1, chunk // 8)[dirty] ^= rng.integers(
                0, 1 << 62, (len(dirty), chunk // 8)
            )
            ckpt.save(step, {"w": data}).wait()
            written = (ckpt.written_bytes[1] - before) / size
            assert abs(written - share) < 0.02


@pytest.mark.damaged_store
@pytest.mark.parametrize("seed", range(5))
def test_a_delta_that_is_cut_anywhere_costs_one_step(node: PosixTier, seed: int) -> None:
    work([node], range(1, 5), level=None)
    path = newest(node, "packs")
    data = path.read_bytes()
    path.write_bytes(data[: int(np.random.default_rng(seed).integers(len(data)))])
    with pytest.warns(CheckpointWarning, match="step 4 .* was skipped"):
        assert look([node]) == 3


@pytest.mark.damaged_store
def test_damage_that_takes_turns(node: PosixTier, shared: PosixTier) -> None:
    work([node, shared], range(1, 3))
    flip(newest(node, "packs"))
    assert look([node, shared]) == 2
    work([node, shared], range(3, 4))
    alone = Lineage([node], LineageId("exp", "t"))  # Nothing is built upon what is damaged.
    assert verify(alone, alone.checkpoints()[0])[0].sound
    newest(shared, "packs").write_bytes(b"damaged")
    assert look([node, shared]) == 3
    work([node, shared], range(4, 5))
    newest(node, "packs").write_bytes(b"damaged")
    assert look([node, shared]) == 4


def test_an_older_and_safer_checkpoint_survives_a_newer_and_weaker_one(
    node: PosixTier, shared: PosixTier
) -> None:
    """Newer ones are on the node only; to prune there takes nothing away elsewhere."""
    work([node, shared], range(1, 3), keep=1)
    work([node, shared], range(3, 7), level=1, keep=1, flush_every={"shared": 1000})
    assert look([node, shared]) == 6
    shutil.rmtree(node.root)
    assert look([node, shared]) >= 2


def test_the_newest_on_each_level_in_turn_is_damaged(tmp_path: Path) -> None:
    """Each checkpoint lies on one level more than the one after it."""
    tiers = [PosixTier(tmp_path / f"l{n}", name=f"l{n}", level=n) for n in (1, 2, 3, 4)]
    work([*tiers[:1]], range(1, 5), level=None)
    with Checkpointer([*tiers], run="exp", task="t", rng=False) as ckpt:
        found = ckpt.lineage.checkpoints()
        for step, outer in ((1, tiers[1:]), (2, tiers[1:3]), (3, tiers[1:2])):
            (one,) = (one for one in found if one.id.step == step)
            for tier in outer:
                manifest = ckpt.lineage.manifest(one)
                copy_checkpoint([tiers[0]], tier, ckpt.lineage.id, manifest)
    for step, tier in zip((4, 3, 2, 1), tiers, strict=True):
        assert look([*tiers]) == step
        shutil.rmtree(tier.root)
    assert look([*tiers]) == 0
