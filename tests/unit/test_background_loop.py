"""The loop that serves threads: one for all, results and errors come back, waiting can end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from ckptflow.tiers.background_loop import call_soon, run_async


async def loop_and_thread() -> tuple[int, str]:
    return id(asyncio.get_running_loop()), threading.current_thread().name


def test_all_threads_share_one_loop() -> None:
    found = [run_async(loop_and_thread())]
    thread = threading.Thread(target=lambda: found.append(run_async(loop_and_thread())))
    thread.start()
    thread.join()
    assert found[0] == found[1]
    assert found[0][1] == "ckptflow-asyncio"


def test_errors_come_back() -> None:
    async def fail() -> None:
        raise LookupError("from inside")

    with pytest.raises(LookupError, match="from inside"):
        run_async(fail())


def test_call_soon_runs_there() -> None:
    done, where = threading.Event(), []
    run_async(asyncio.sleep(0))
    call_soon(lambda: (where.append(threading.current_thread().name), done.set()))
    assert done.wait(60)
    assert where == ["ckptflow-asyncio"]


INTERRUPTED = """\
import asyncio, signal, threading
from ckptflow.tiers.background_loop import run_async
ended = threading.Event()
async def wait():
    threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, 2)).start()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()
try:
    run_async(wait())
except KeyboardInterrupt:
    print("interrupted, and the rest cancelled:", ended.wait(60))
"""

STILL_RUNNING = """\
import asyncio, threading
from ckptflow.tiers.background_loop import run_async
async def start():
    asyncio.get_running_loop().kept = asyncio.create_task(asyncio.sleep(1e6))
run_async(start())
print("left")
"""


AT_THE_END = """\
import asyncio, atexit
from ckptflow.tiers import background_loop
atexit.register(lambda: print(background_loop.run_async(asyncio.sleep(0, "still there"))))
background_loop.run_async(asyncio.sleep(0))
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (INTERRUPTED, "interrupted, and the rest cancelled: True\n"),
        (STILL_RUNNING, "left\n"),
        (AT_THE_END, "still there\n"),
    ],
)
def test_a_process_ends_without_noise(program: str, said: str) -> None:
    result = subprocess.run(
        # What a shell starts in the background ignores interrupts, and so would this.
        ["env", "--default-signal=INT", sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, said, "")
