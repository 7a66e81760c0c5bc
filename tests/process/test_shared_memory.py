"""Shared memory whose users are killed: nothing wrong, nothing lost, no leak.

What is killed are processes that were seen to use the arena. When exactly the signal comes does
not matter to anything that is asserted.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import NotFoundError, TierUnavailable
from ckptflow.tiers import arena_file, shared_memory
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.units import MIB

PROGRAM = Path(__file__).with_name("shared_memory_user.py")
PATIENCE_S = 120.0


@pytest.fixture
def arena() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    opened(name).remove()


def opened(arena: str) -> SharedMemoryTier:
    return SharedMemoryTier("shm", arena=arena, capacity_bytes=8 * MIB)


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return out


def kill(process: subprocess.Popen[str]) -> None:
    """Kill it, and see that it had not come to an end of its own, by an error."""
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL


def listen(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise AssertionError(f"it ended without saying {word!r}")


def leftovers(tier: SharedMemoryTier) -> int:
    """Return the bytes of the arena that belong to no key, once dead writers are known."""
    tier.sweep()
    mapped = tier._open()
    assert mapped is not None
    arena, extents = mapped.arena, 0
    for key in tier.iter_keys(""):
        extents += -(-len(key) // 64) * 64 + -(-tier.size(key) // 64) * 64
    return arena.used_bytes() - arena._first_bytes - extents


def test_a_killed_tasks_last_capture_is_restored_from_memory(
    arena: str, tmp_path: Path
) -> None:
    for attempt in range(3):
        process = start("task", arena, tmp_path, 100)
        assert listen(process, "resumed") == str(7 * attempt or None)
        listen(process, f"durable {7 * (attempt + 1)}")
        kill(process)
    disk = PosixTier(tmp_path, name="disk", level=3)
    with Checkpointer([opened(arena), disk]) as ckpt:
        state = ckpt.restore({"i": 0, "field": np.zeros(50_000)})
        assert ckpt.restored_step == 21
        assert (state["field"] == sum(range(22))).all()
    with Checkpointer(disk) as ckpt:  # It is not there because the disk had it.
        ckpt.restore({"i": 0, "field": np.zeros(50_000)})
        assert (ckpt.restored_step or 0) < 21


def test_a_killed_worker_goes_on_from_memory(tmp_path: Path) -> None:
    script = PROGRAM.with_name("shared_memory_workflow.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2]), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    attempt, resumed, total = told["result"]
    assert (attempt, resumed) == (2, 3)
    assert total == pytest.approx(100 * 1.5**6)
    steps = {int(key.rpartition("/")[2].split(".")[0]) for key in told["on_disk"]}
    assert 3 not in steps, "it was on disk, and says nothing about memory"


def test_what_one_process_puts_another_one_has(arena: str) -> None:
    finish(start("put", arena, "a/b", 70_000))
    tier = opened(arena)
    assert tier.size("a/b") == 70_000
    assert tier.get("a/b").startswith(b"a/b 70000 a/b 70000 ")
    finish(start("put", arena, "a/b", 10))
    assert tier.get("a/b") == b"a/b 10 a/b"


def churn(arena: str, kills: int) -> None:
    rng = random.Random(5)
    writers = [start("writer", arena, seed) for seed in range(3)]
    try:
        for writer in writers:
            listen(writer, "begun")
        tier = opened(arena)
        for number in range(kills):
            time.sleep(rng.random() * 0.05)  # So that they are killed at different places.
            kill(writers.pop(0))
            check_values(tier)
            writers.append(start("writer", arena, 3 + number))
            listen(writers[-1], "begun")
    finally:
        for writer in writers:
            kill(writer)
    check_values(tier)
    assert leftovers(tier) == 0
    assert leftovers(opened(arena)) == 0


def check_values(tier: SharedMemoryTier) -> None:
    for key in tier.iter_keys(""):
        try:
            data = tier.get(key)
        except NotFoundError:  # The others go on.
            continue
        head = f"{key} {len(data)} ".encode()
        assert data == (head * (len(data) // len(head) + 1))[: len(data)], key


def test_killed_writers_leave_only_whole_values(arena: str) -> None:
    churn(arena, kills=4)


@pytest.mark.slow
def test_twenty_more_killed_writers_leave_only_whole_values(arena: str) -> None:
    churn(arena, kills=20)


@pytest.mark.slow
def test_a_maker_killed_at_any_moment_leaves_an_arena_or_none(arena: str) -> None:
    rng = random.Random(11)
    undisturbed = start("maker", arena)
    listen(undisturbed, "begun")
    began_s = time.monotonic()
    listen(undisturbed, "made")
    takes_s = time.monotonic() - began_s
    kill(undisturbed)
    for _ in range(12):
        opened(arena).remove()
        maker = start("maker", arena)
        listen(maker, "begun")
        time.sleep(takes_s * rng.random())  # So that they are killed at different places.
        kill(maker)
        tier = opened(arena)
        there = list(tier.iter_keys(""))
        assert there in ([], ["made"])
        tier.put("other", [b"value"])
        assert list(opened(arena).iter_keys("")) == [*there, "other"]


def test_a_thousand_values_need_few_files(arena: str) -> None:
    assert finish(start("few_files", arena, 1000)) == "final 1000\n"


def test_a_stopped_process_does_not_stop_the_others_for_ever(
    arena: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(arena)
    tier.put("key", [b"value"])
    other = opened(arena)
    mapped = other._open()
    assert mapped is not None
    monkeypatch.setattr("ckptflow.tiers.arena.LOCK_WAIT_S", 0.01)
    with mapped.arena._locked(), pytest.raises(TierUnavailable, match=r"'key'.*stopped\?"):
        tier.get("key")
    assert tier.get("key") == b"value"


def test_a_forked_child_does_not_keep_the_locks_of_its_dead_parent(arena: str) -> None:
    """The parent dies while it writes; its child, forked before, lives on."""
    process = start("forker", arena)
    listen(process, "child lives")
    process.kill()
    process.wait(PATIENCE_S)
    tier = opened(arena)
    assert tier.sweep() == 1
    assert leftovers(tier) == 0
    process.communicate("go on\n", timeout=PATIENCE_S)
    assert tier.get("child") == b"child 20 child 20 ch"


def test_a_removed_arena_is_unavailable_and_then_new(arena: str) -> None:
    spec = opened(arena).spec
    tier = SharedMemoryTier.from_spec(spec)
    tier.put("key", [b"value"])
    assert SharedMemoryTier.from_spec(spec) is tier
    tier.remove()
    for use in (lambda: tier.put("other", [b"x"]), lambda: tier.get("key")):
        with pytest.raises(TierUnavailable, match="was removed while it was in use"):
            use()
    again = SharedMemoryTier.from_spec(spec)
    assert list(again.iter_keys("")) == []
    again.put("key", [b"new"])
    assert opened(arena).get("key") == b"new"
    assert shared_memory._opened
    assert again.file.parent == arena_file.own_folder(arena_file.SHARED_MEMORY)
