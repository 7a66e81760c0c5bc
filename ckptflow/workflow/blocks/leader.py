"""The leader of a node: the process that the batch system knows, and what it does at the end.

    exec python -m ckptflow.workflow.blocks.leader [OPTIONS] -- COMMAND...

It starts the pool of workers and ends with its exit code. Under Slurm's ``proctrack/cgroup``
only the first process of a step hears a warning, and all others are killed when it ends; so it
is the one that hears, tells the tasks, and stays until what can be saved is saved:

* the pool ignores stop signals, so that results can still be delivered;
* a stop signal is posted on the node's board and sent on to processes that run tasks, if they
  handle it; a task saves at the end of its step and raises `Preempted`;
* when nobody is busy any more the pool is ended, so that the block takes no more tasks and the
  allocation is not burnt. The same when the pool has lost its own first process;
* then what lies on this node only is copied outward, by `ckptflow.workflow.blocks.rescue`,
  for as long as there is time;
* with nothing to save it ends at once;
* when the pool has lost the process that keeps its queues, the pool is ended, too: it would
  take no results and no tasks any more, and still say to the workflow that it is well.

It also learns when the block ends (`clock`) and posts that. Everything is done by one thread
in one loop, which nothing holds up: questions and copies are processes of their own.
``tests/unit/test_leader.py``, ``tests/process/test_ending.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

from ckptflow.workflow.blocks.board import BOARD, HEARS, IDLE, Entry, is_alive, make_board
from ckptflow.workflow.blocks.clock import Clock
from ckptflow.workflow.blocks.processes import (
    adopt_orphans,
    deaf_child,
    descendants,
    handles,
    is_agent,
    kill,
    oldest_spawned,
)
from ckptflow.workflow.blocks.time_left import KILL_WAIT_S

RESULTS_S = 1.0  # What results may take from a worker to the workflow, once a task is over.
LOOK_S, IDLE_LOOK_S = 0.1, 2.0  # How often to look at the board: near an end, and before.
RESCUE_PART = 0.5  # Of the time between TERM and KILL: what copies get if tasks are slow.
KILL_RESERVE_S = 0.3  # So long before KILL copies are over.
END_RESERVE_S = 5.0  # The same before the end of the block: batch systems are not exact.
RESCUES_MAX = 3
QUEUES_GONE_S = 3.0  # A pool that ends by itself is gone so soon after its queues.
USELESS_S = (
    120.0  # A block that closed so soon, before any task ran, counts as one that failed.
)

_SOON_KILLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HEARD = (*_SOON_KILLED, signal.SIGUSR1, signal.SIGUSR2)


class Leader:
    """One leader, from start to end.

    Args:
        options: what it was told, see `parse`.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        names = options.stop_signals.split(",")
        self._stop_signals = {signal.Signals[f"SIG{name}"] for name in names}
        self._board = make_board()
        self._clock = Clock(self._board, options.kill_wait_s)
        self._wake_reader, self._wake_writer = os.pipe()
        self._heard: list[int] = []
        self._told: set[tuple[int, int]] = set()  # Processes, and the signals they were sent.
        self._pool: subprocess.Popen[bytes] | None = None
        self._queues: int | None = None  # The process that keeps them for the pool.
        self._queues_seen_s = 0.0  # When that was last there.
        self._status: int | None = None  # Of the pool; 0 if we have ended it.
        self._began_s, self._worked = time.monotonic(), False
        self._stopping_s: float | None = None  # When tasks were told to stop.
        self._kill_at_s: float | None = None
        self._quiet_since_s: float | None = None  # For the end of the pool.
        self._rescue: subprocess.Popen[bytes] | None = None
        self._rescuing, self._alone, self._rescues = False, False, 0
        self._safe = not options.rescue

    def run(self) -> int:
        """Start the pool; return its exit code when all is over."""
        for descriptor in (self._wake_reader, self._wake_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in (*_HEARD, signal.SIGCHLD):
            signal.signal(number, self._note)
        adopt_orphans()
        try:
            self._pool = self._start(self._options.command)
            while not self._is_over():
                self._wait()
                while self._heard:
                    self._hear(signal.Signals(self._heard.pop(0)))
                self._reap()
                self._clock.look()
                self._look()
        finally:
            for number in _HEARD:  # Python would make them deadly when it ends.
                signal.signal(number, signal.SIG_IGN)
            kill(pid for pid in descendants(os.getpid()) if not is_agent(pid))
            self._board.remove()
        return self._status or 0

    def _start(self, command: Sequence[str], **streams: int) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            env={**os.environ, BOARD: str(self._board.folder)},
            preexec_fn=deaf_child(_HEARD),  # noqa: PLW1509  There is one thread.
            **streams,  # type: ignore[call-overload]
        )
        return process

    # --- what happens ---

    def _note(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._heard.append(number)

    def _wait(self) -> None:
        near = self._stopping_s or self._status is not None or self._quiet_since_s is not None
        pause_s = min(LOOK_S if near else IDLE_LOOK_S, max(0.0, self._clock.pause_s()))
        select.select([self._wake_reader], [], [], pause_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)

    def _hear(self, number: signal.Signals) -> None:
        """Act on a signal. The same one twice is one: Slurm sends TERM twice at the end."""
        if number in _SOON_KILLED and self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + self._clock.kill_wait_s
            if self._rescuing:
                self._tell_rescue()  # Now it has to make haste.
        if number in self._stop_signals or number in _SOON_KILLED:
            self._stop(f"the block got {number.name}")
        self._send_on(number)

    def _stop(self, reason: str) -> None:
        """Tell the tasks of this node to save and stop."""
        if self._stopping_s is not None:
            return
        self._stopping_s = time.monotonic()
        self._board.post_stop(reason)
        if any(entry.state != IDLE for entry in self._board.entries()):
            say(f"{reason}: tasks are told to save and stop")
            self._quiet_since_s = self._stopping_s
        else:
            self._quiet_since_s = float("-inf")
        if self._options.rescue:
            self._prepare_rescue()

    def _send_on(self, number: signal.Signals) -> None:
        """Send a signal to those that run tasks and have a handler for it, once to each."""
        for entry in self._board.entries():
            told = (entry.pid, int(number))
            if entry.state != IDLE and told not in self._told and handles(entry.pid, number):
                self._told.add(told)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(entry.pid, number)

    def _reap(self) -> None:
        """Notice who has ended; orphans of the pool are ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            if self._pool is not None and pid == self._pool.pid:
                self._pool.returncode = code
                if self._status is None:
                    self._lose_pool(code)
            elif self._rescue is not None and pid == self._rescue.pid:
                self._rescue.returncode = code
            else:
                self._clock.ended(pid)

    def _lose_pool(self, code: int) -> None:
        """The pool has ended by itself: its results cannot be delivered any more."""
        self._status = code
        saving = self._saving()
        if saving:
            self._stop(f"the pool of workers ended with {code}")
            self._send_on(signal.SIGTERM)
        self._end_all_but(saving)

    # --- what follows from it ---

    def _look(self) -> None:
        """End the pool when nobody is busy; copy when all is saved, or time is up."""
        saving = self._saving()
        self._worked = self._worked or self._board.has_worked()
        if self._clock.left_s() <= 2 * self._options.margin_s:
            self._board.post_closed("the block is about to end")
        if self._status is None:
            self._look_at_queues()
        if self._status is None:
            self._look_at_pool()
        elif self._orphans_are_late():
            say("tasks without a pool did not stop in time and are ended")
            self._end_all_but(saving := [])
        if self._options.rescue and not self._safe:
            self._look_at_rescue(saving)

    def _look_at_queues(self) -> None:
        assert self._pool is not None
        if self._queues is None:
            if not self._worked:
                self._queues = oldest_spawned(self._pool.pid)
                self._queues_seen_s = time.monotonic()
                if self._queues is not None:
                    say(f"process {self._queues} keeps the queues of the pool")
        elif is_alive(self._queues):
            self._queues_seen_s = time.monotonic()
        elif time.monotonic() - self._queues_seen_s >= QUEUES_GONE_S:
            say("the pool has lost the process that keeps its queues, and is ended")
            self._lose_pool(1)

    def _look_at_pool(self) -> None:
        closed = self._board.closed()
        if closed is None:
            return
        now_s = time.monotonic()
        if self._quiet_since_s is None or self._is_busy():
            self._quiet_since_s = now_s
        if now_s - self._quiet_since_s >= RESULTS_S:
            say(f"{closed}; no task is running: the pool of workers is ended")
            self._status = int(self._was_useless())
            self._end_all_but([])

    def _was_useless(self) -> bool:
        """Tell whether the next block would be no better; Parsl gives up after some."""
        soon = time.monotonic() - self._began_s < USELESS_S
        if self._worked or self._stopping_s is not None or not soon:
            return False
        say(
            "no task could be started before that: walltime has to be longer, or margin shorter"
        )
        return True

    def _saving(self) -> list[Entry]:
        """Return who runs a task that saves, and has not stopped yet."""
        return [entry for entry in self._board.entries() if entry.state == HEARS]

    def _is_busy(self) -> bool:
        """Tell whether the pool has to stay; once KILL is near, only for those who save."""
        busy = [entry for entry in self._board.entries() if entry.state != IDLE]
        return any(self._kill_at_s is None or entry.state == HEARS for entry in busy)

    def _orphans_are_late(self) -> bool:
        if self._stopping_s is None or self._status is None or not self._saving():
            return False
        late: bool = time.monotonic() - self._stopping_s >= self._options.orphans_s
        return late

    def _end_all_but(self, kept: Iterable[Entry]) -> None:
        """End what the pool has started, but not those that still save, nor copies."""
        spared = {entry.pid for entry in kept}
        if self._rescue is not None:
            spared.add(self._rescue.pid)
        if self._clock.pid is not None:
            spared.add(self._clock.pid)
        for pid in list(spared):
            spared.update(descendants(pid))
        pids = [pid for pid in descendants(os.getpid()) if pid not in spared]
        kill(pid for pid in pids if not is_agent(pid))

    def _is_over(self) -> bool:
        pool_is_gone = self._pool is not None and self._pool.returncode is not None
        return pool_is_gone and self._safe and not self._saving()

    # --- copies of what lies on this node only ---

    def _look_at_rescue(self, saving: Sequence[Entry]) -> None:
        if self._rescue is not None and self._rescue.returncode is not None:
            # One that began while tasks were saving may have missed what they saved.
            done = self._rescuing and self._rescue.returncode == 0 and not saving
            self._safe = (done and self._alone) or self._rescues >= RESCUES_MAX
            self._rescue, self._rescuing = None, False
        elif not self._rescuing and self._may_rescue(saving):
            self._prepare_rescue()
            self._rescuing, self._alone = True, not saving
            self._tell_rescue()

    def _may_rescue(self, saving: Sequence[Entry]) -> bool:
        if self._status is not None and not saving:
            return True
        if self._kill_at_s is None:
            return False
        left_s = self._kill_at_s - time.monotonic()
        return left_s <= RESCUE_PART * self._clock.kill_wait_s and self._rescues <= 1

    def _prepare_rescue(self) -> None:
        """Start the process that copies; it loads what it needs, and waits to be told."""
        if self._rescue is None:
            command = [sys.executable, "-m", "ckptflow.workflow.blocks.rescue"]
            self._rescues += 1
            self._rescue = self._start(command, stdin=subprocess.PIPE)

    def _tell_rescue(self) -> None:
        """Say for how long to copy: until KILL, or until the block ends."""
        within_s = self._clock.left_s() - END_RESERVE_S
        if self._kill_at_s is not None:
            left_s = self._kill_at_s - time.monotonic() - KILL_RESERVE_S
            within_s = min(within_s, left_s) if within_s > 0 else left_s
        haste = self._kill_at_s is not None
        assert self._rescue is not None
        assert self._rescue.stdin is not None
        line = f"{'haste' if haste else 'wait'} {max(0.0, within_s):.3f}\n"
        with contextlib.suppress(OSError):  # It has ended, and all is said.
            self._rescue.stdin.write(line.encode())
            self._rescue.stdin.flush()


def say(text: str) -> None:
    """Write a line into the log of the block."""
    clock = time.strftime("%H:%M:%S")
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{clock} ckptflow leader {os.getpid()}: {text}\n")
        sys.stderr.flush()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options that are given before ``--``, and the command after it."""
    parser = argparse.ArgumentParser(prog="ckptflow.workflow.blocks.leader")
    parser.add_argument(
        "--stop-signals", default="TERM,USR1,USR2", help="those that tasks are told of"
    )
    parser.add_argument(
        "--margin-s", type=float, default=0.0, help="tasks stop so long before the end"
    )
    parser.add_argument(
        "--orphans-s", type=float, default=30.0, help="to save in when the pool has died"
    )
    parser.add_argument(
        "--kill-wait-s", type=float, default=KILL_WAIT_S, help="from TERM to KILL, if unknown"
    )
    parser.add_argument(
        "--rescue", action="store_true", help="copy outward what lies on this node only"
    )
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(Leader(parse(sys.argv[1:])).run())
