"""``kill -9`` at random moments: never a wrong or unloadable restore, never a lost commit.

A task runs in processes of its own, one after another, and each is killed. How long it may live
is drawn from a seeded generator, as a part of what an undisturbed run takes, so that kills fall
into everything: start, claim, restore, computing, packs, commits, prunes. Nothing that is
asserted depends on when exactly they come: after every kill the store says which commit is the
newest, and the next process must resume there; and whenever the task comes to its end, its
bits are those of the undisturbed run.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier

PROGRAM = Path(__file__).with_name("killed_task.py")
STEPS = 120
KILLS_MIN = 15
LONGEST_S = 120.0


class Run:
    """One process of the task, and what it has said."""

    def __init__(self, store: Path, every: int, steps: int) -> None:
        arguments = [str(PROGRAM), str(store), str(every), str(steps)]
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", *arguments], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.pipe, self.said = self.process.stdout, b""

    def listen(self, until: str | None = None, for_s: float = LONGEST_S) -> bool:
        """Read what it says, to its end, or a word, or for a time; tell if it goes on."""
        end_s = time.monotonic() + (0 if self.pipe.closed else for_s)
        while (left_s := end_s - time.monotonic()) > 0:
            if until is not None and until.encode() in self.said:
                return True
            if select.select([self.pipe], [], [], left_s)[0]:
                piece = os.read(self.pipe.fileno(), 1 << 16)
                self.said += piece
                if not piece:
                    self.pipe.close()
                    assert self.process.wait() == 0
                    break
        return not self.pipe.closed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        with self.pipe:
            self.said += self.pipe.read()

    def words(self, name: str) -> list[str]:
        lines = self.said.decode().split("\n")[:-1]  # The last may be cut.
        return [line.split()[1] for line in lines if line.startswith(name)]


def newest(store: Path) -> int:
    """Return the step of the newest commit, as a listing of the store tells it."""
    lineage = Lineage([PosixTier(store)], LineageId("default", "main"))
    return max((found.id.step for found in lineage.valid()), default=0)


def test_killed_at_random_moments_it_resumes_at_the_newest_commit(
    tmp_path: Path,
) -> None:
    rng = random.Random(9)
    undisturbed = Run(tmp_path / "undisturbed", 1, STEPS)
    undisturbed.listen(until="resumed")
    start_s = time.monotonic() - undisturbed.began_s
    assert not undisturbed.listen()
    work_s = time.monotonic() - undisturbed.began_s - start_s
    (expected,) = undisturbed.words("final")

    kills, ends, resumed_at, store = 0, 0, 0, tmp_path / "0"
    while kills < KILLS_MIN or ends == 0:
        run = Run(store, rng.choice([1, 2, 3]), STEPS)
        # Now and then while it starts, else within a part of the work, so that many kills fit.
        moment_s = start_s + work_s / 8 * rng.random() if rng.random() < 0.9 else 0.0
        if kills < KILLS_MIN and run.listen(for_s=moment_s or start_s * rng.random()):
            run.kill()
            kills += 1
            assert run.words("resumed") in ([], [str(resumed_at)])
            before, resumed_at = resumed_at, newest(store)
            assert resumed_at >= max([before, *map(int, run.words("durable"))])
        else:
            assert not run.listen()
            assert run.words("resumed") == [str(resumed_at)]
            assert run.words("final") == [expected]
            ends, resumed_at, store = ends + 1, 0, tmp_path / str(ends + 1)
