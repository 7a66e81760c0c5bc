"""The run lock: one holder, dead ones are replaced, and the message says who has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from ckptflow.errors import RunLocked
from ckptflow.workflow.lock import STALE_AFTER_S, Holder, RunLock


def lock(
    folder: Path, session: str = "s", alive: Callable[[Holder], bool] = Holder.is_running
) -> RunLock:
    return RunLock(folder, run="exp", session=session, is_running=alive)


def put(folder: Path, holder: Holder, number: int = 1) -> Path:
    path = folder / f"{number:08d}.lock"
    path.write_text(json.dumps(asdict(holder)))
    return path


def test_a_live_holder_keeps_others_out(tmp_path: Path) -> None:
    first = lock(tmp_path)
    first.acquire()
    text = rf"Run 'exp' is held by process {os.getpid()} on .*, started \d{{4}}-.*it is running"
    with pytest.raises(RunLocked, match=text):
        lock(tmp_path).acquire()
    first.release()
    lock(tmp_path, "t").acquire()


def test_a_dead_holder_is_replaced_and_remembered(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = replace(Holder.of_this_process("old"), pid=child.pid)
    put(tmp_path, dead)
    mine = lock(tmp_path)
    mine.acquire()
    assert mine.dead_holders == [dead]
    assert mine.holder() == Holder.of_this_process("s")


def test_a_process_with_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    earlier = replace(Holder.of_this_process("old"), started_s=1.0)
    put(tmp_path, earlier)
    mine = lock(tmp_path)
    mine.acquire()
    assert mine.dead_holders == [earlier]


def test_a_killed_process_that_nobody_waited_for_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    me = Holder.of_this_process("x")
    holder = replace(me, pid=child.pid, started_s=psutil.Process(child.pid).create_time())
    assert holder.is_running()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # It is dead, but still listed.
    assert not holder.is_running()
    child.communicate()


def test_a_silent_holder_on_another_host_is_taken_for_dead(tmp_path: Path) -> None:
    other = replace(Holder.of_this_process("old"), host="elsewhere")
    path = put(tmp_path, other)
    with pytest.raises(RunLocked, match=r"on elsewhere, .* sign of life \d s ago"):
        lock(tmp_path).acquire()
    past = time.time() - STALE_AFTER_S - 5
    os.utime(path, (past, past))
    mine = lock(tmp_path)
    mine.acquire()
    assert mine.dead_holders == [other]
    assert not other.is_here()


def test_one_of_this_host_s_name_that_was_booted_again_is_waited_for(tmp_path: Path) -> None:
    before_boot = replace(Holder.of_this_process("old"), machine="another boot")
    put(tmp_path, before_boot)
    mine = RunLock(tmp_path, run="exp", session="s", stale_after_s=8.0)
    mine.acquire()  # After two renewals that did not come, and not after all eight.
    assert mine.dead_holders == [before_boot]


def test_one_of_this_host_s_name_that_renews_keeps_others_out(tmp_path: Path) -> None:
    twin = RunLock(tmp_path, run="exp", session="t", stale_after_s=40.0)
    twin.acquire()
    put(tmp_path, replace(Holder.of_this_process("t"), machine="a container"))
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.05):
            twin.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(RunLocked, match="sign of life"):
            RunLock(tmp_path, run="exp", session="s", stale_after_s=40.0).acquire()
    finally:
        over.set()
        thread.join()


def test_renewing_shows_life(tmp_path: Path) -> None:
    mine = lock(tmp_path)
    mine.acquire()
    path = next(tmp_path.glob("*.lock"))
    os.utime(path, (0, 0))
    mine.renew()
    assert path.stat().st_mtime > 0
    mine.release()
    mine.renew()


def test_of_many_that_find_a_dead_holder_one_wins(tmp_path: Path) -> None:
    put(tmp_path, replace(Holder.of_this_process("old"), started_s=1.0))
    results: list[str] = []
    barrier = threading.Barrier(8)

    def contend(number: int) -> None:
        barrier.wait()
        try:
            lock(tmp_path, f"s{number}").acquire()
        except RunLocked:
            results.append("locked")
        else:
            results.append("won")

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["locked"] * 7 + ["won"]


def test_numbers_only_grow_and_old_files_go(tmp_path: Path) -> None:
    for number in range(1, 5):
        one = lock(tmp_path)
        one.acquire()
        assert [path.name for path in tmp_path.glob("*.lock")] == [f"{number:08d}.lock"]
        one.release()


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"host": "x"}'])
def test_an_unreadable_lock_holds_nobody_out(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "00000003.lock").write_bytes(text)
    lock(tmp_path).acquire()
    assert (tmp_path / "00000004.lock").exists()


def test_releasing_twice_or_without_holding_is_harmless(tmp_path: Path) -> None:
    mine = lock(tmp_path)
    mine.release()
    mine.acquire()
    mine.release()
    mine.release()
    holder = mine.holder()
    assert holder is not None
    assert holder.released
