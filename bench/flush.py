"""Flushing: how fast checkpoints go outward, and what the computation feels of it.

Copies of 1, 4 and 16 lineages from one folder to another, against plain copies of the same
files with an fsync each, in turn. Then a loop of NumPy and Python work, alone and beside
flushes that follow each other without a pause, by a flusher of the same process and by an
agent: seconds of each in turn, compared pair by pair. And what a flusher and an agent take of a
core while there is nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import CheckpointError
from ckptflow.flush import Flusher, Flushing, FlushRequest
from ckptflow.flush.agent.asking import ask
from ckptflow.flush.agent.client import AgentFlusher
from ckptflow.flush.limits import step_back
from ckptflow.model import LineageId, Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier

LINEAGES = (1, 4, 16)
IDLE_S = 3.0
LOOP_S = 2.0


def main() -> None:
    args = arguments(__doc__)
    size_bytes = (128 if args.quick else 512) << 20
    rounds = 3 if args.quick else 5
    rows: list[Row] = []
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as name:
        for count in LINEAGES:
            found = make_lineages(Path(name) / str(count), count, size_bytes // count)
            rows.append(throughput(found, size_bytes, rounds))
        found = make_lineages(Path(name) / "beside", 4, size_bytes // 4)
        with runtime_folder(Path(name)), found.target() as target:
            for who, flusher in found.flushers(target):
                slowed = beside(found, target, flusher, 4 if args.quick else 8)
                unit = f"ratio, {slowed.spread}; {slowed.bytes_per_s / 1e6:.0f} MB/s meanwhile"
                what = f"loop beside {who} / alone"
                rows.append({"what": what, "value": slowed.in_all, "unit": unit})
                what += ", but for waits for a core"
                rows.append({"what": what, "value": slowed.but_for_waits, "unit": "ratio"})
                idle = idle_share(agent_of(flusher) or psutil.Process())
                rows.append({"what": f"idle {who}", "value": 100 * idle, "unit": "% of a core"})
                claims.append(Claim(f"loop_slowdown_by_{who}", slowed.in_all, "<=", 1.03))
                claims.append(Claim(f"idle_{who}_share_of_a_core", idle, "<=", 0.05))
                end(flusher)
    finish(f"flush, {size_bytes >> 20} MiB of packs", rows, claims, args.json_path)


class Store:
    """Lineages on one tier, and where they are to go."""

    def __init__(self, folder: Path, manifests: Sequence[Manifest]) -> None:
        self.folder, self.manifests = folder, manifests
        self.source = PosixTier(folder / "inner", name="inner")

    @contextlib.contextmanager
    def target(self) -> Iterator[PosixTier]:
        """Yield an empty outer tier."""
        shutil.rmtree(self.folder / "outer", ignore_errors=True)
        yield PosixTier(self.folder / "outer", name="outer", level=3)

    def flushers(self, target: PosixTier) -> Iterator[tuple[str, Flusher | AgentFlusher]]:
        """Yield a flusher of this process, then an agent, each with its name."""
        tiers = [self.source, target]
        yield "flusher", Flusher(tiers)
        options = Flushing(agent=True)
        yield "agent", AgentFlusher(tiers, options=options, own=partial(Flusher, tiers))

    def flush(self, target: PosixTier, flusher: Flusher | AgentFlusher | None = None) -> None:
        """Copy all checkpoints, and wait for them."""
        failures: list[CheckpointError] = []
        left = threading.Semaphore(0)

        def done(error: CheckpointError | None) -> None:
            failures.extend([error] if error else [])
            left.release()

        used = flusher or Flusher([self.source, target], options=Flushing(nice=0))
        for manifest in self.manifests:
            used.submit(FlushRequest(manifest, target, done))
        for _ in self.manifests:
            left.acquire()
        if flusher is None:
            used.close()
        require(not failures, f"all are copied: {failures}")

    def copy_files(self, target: PosixTier) -> None:
        """Copy the same files as anybody would who wants them to last."""
        for path in sorted(self.source.root.rglob("*")):
            to = target.root / path.relative_to(self.source.root)
            if path.is_dir():
                to.mkdir(parents=True, exist_ok=True)
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            with to.open("rb") as file:
                os.fsync(file.fileno())


def make_lineages(folder: Path, count: int, size_bytes: int) -> Store:
    """Save one checkpoint of each of ``count`` tasks."""
    rng = np.random.default_rng(0)
    manifests = []
    for number in range(count):
        task = f"task{number}"
        state = {"w": rng.integers(0, 255, size_bytes, np.uint8)}
        with Checkpointer(folder / "inner", task=task, rng=False) as ckpt:
            ckpt.save(1, state).wait()
        lineage = Lineage([PosixTier(folder / "inner")], LineageId("default", task))
        manifests.append(lineage.manifest(lineage.checkpoints()[0]))
    return Store(folder, manifests)


def throughput(store: Store, size_bytes: int, rounds: int) -> Row:
    """Flush, and copy plainly, in turn."""
    flushes, copies = [], []
    for number in range(rounds + 1):
        for seconds, action in ((flushes, store.flush), (copies, store.copy_files)):
            with store.target() as target:
                began = time.perf_counter()
                action(target)
                if number:
                    seconds.append(time.perf_counter() - began)
            os.sync()
    with store.target() as target:
        store.flush(target)
        for manifest in store.manifests:
            there = Lineage([target], manifest.lineage).manifest_on(target, manifest.id)
            require(there.root == manifest.root, "what arrived is what was saved")
    rate = size_bytes / statistics.median(flushes) / 1e6
    return {
        "what": f"{len(store.manifests)} lineages, flush",
        "value": rate,
        "unit": f"MB/s; {ratio(copies, flushes):.2f} x the rate of plain copies",
    }


@contextlib.contextmanager
def runtime_folder(folder: Path) -> Iterator[None]:
    """Keep the agent apart from those of the user."""
    (folder / "run").mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
    try:
        yield
    finally:
        os.environ.pop("XDG_RUNTIME_DIR")
        if before is not None:
            os.environ["XDG_RUNTIME_DIR"] = before


def agent_of(flusher: Flusher | AgentFlusher) -> psutil.Process | None:
    """Return the process that copies, if it is another one."""
    if isinstance(flusher, Flusher):
        return None
    return psutil.Process(ask(flusher.folder, "status")["pid"])


def end(flusher: Flusher | AgentFlusher) -> None:
    """End whoever copies."""
    agent = agent_of(flusher)
    flusher.close()
    if agent is not None:
        agent.terminate()
        agent.wait()


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer the loop took: in all; but for waits for a core; and beside what."""

    in_all: float
    but_for_waits: float
    spread: str
    bytes_per_s: float


def beside(
    store: Store, target: PosixTier, flusher: Flusher | AgentFlusher, rounds: int
) -> Slowdown:
    """Return how much longer a loop takes beside flushes that follow each other."""
    matrix = np.random.default_rng(1).standard_normal((256, 256))
    size_bytes = sum(pack.size_bytes for one in store.manifests for pack in one.packs)

    def pace() -> NDArray[np.float64]:
        """Return seconds for one turn of the loop, over `LOOP_S`; all, and but for waits."""
        began, waited_s, turns = time.perf_counter(), core_wait_s(), 0
        while time.perf_counter() - began < LOOP_S:
            np.tanh(matrix).sum()
            sum(number * number for number in range(5000))
            turns += 1
        passed_s = time.perf_counter() - began
        return np.array([passed_s, passed_s - core_wait_s() + waited_s]) / turns

    stop, flushed_bytes = threading.Event(), [0]

    def flush_on() -> None:
        step_back(Flushing().nice)  # To remove what was copied is no part of it.
        while not stop.is_set():
            shutil.rmtree(target.root / "lineages", ignore_errors=True)
            store.flush(target, flusher)
            flushed_bytes[0] += size_bytes

    ratios, flushed_s = list[NDArray[np.float64]](), 0.0
    for _ in range(rounds):
        alone = pace()
        stop.clear()
        flushing = threading.Thread(target=flush_on)
        began = time.perf_counter()
        flushing.start()
        together = pace()
        stop.set()
        flushing.join()
        flushed_s += time.perf_counter() - began
        os.sync()
        ratios.append(together / (0.5 * (alone + pace())))
    in_all, but_for_waits = np.median(ratios, axis=0)
    spread = f"{np.min(ratios, axis=0)[0]:.3f} to {np.max(ratios, axis=0)[0]:.3f}"
    return Slowdown(in_all, but_for_waits, spread, flushed_bytes[0] / flushed_s)


def core_wait_s() -> float:
    """Return for how long this thread has waited for a core: others may be at work here."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    except OSError:  # Not every system tells.
        return 0.0
    return int(text.split()[1]) / 1e9


def idle_share(process: psutil.Process) -> float:
    """Return what a process takes of a core after its work is done."""
    before = process.cpu_times()
    time.sleep(IDLE_S)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / IDLE_S


if __name__ == "__main__":
    main()
