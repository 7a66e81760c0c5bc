"""Flushing: how fast checkpoints go outward, and what the computation feels of it.

Copies of 1, 4 and 16 lineages from one folder to another, against plain copies of the same
files with an fsync each, in turn. Then a loop of NumPy and Python work, alone and beside a
flush that never ends; and what a flusher takes of a core while there is nothing to do.
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
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import CheckpointError
from ckptflow.flush import Flusher, FlushRequest
from ckptflow.model import LineageId, Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier

LINEAGES = (1, 4, 16)
IDLE_S = 3.0


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
        loops = 20 if args.quick else 60
        slowdown = beside(found, loops)
        rows.append({"what": "loop beside a flush / alone", "value": slowdown, "unit": "ratio"})
        idle = idle_share(found)
        rows.append({"what": "idle flusher", "value": 100 * idle, "unit": "% of a core"})
    claims.append(Claim("loop_slowdown_by_flush", slowdown, "<=", 1.03))
    claims.append(Claim("idle_flusher_share_of_a_core", idle, "<=", 0.05))
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

    def flush(self, target: PosixTier) -> None:
        """Copy all checkpoints, and wait for them."""
        failures: list[CheckpointError] = []
        left = threading.Semaphore(0)

        def done(error: CheckpointError | None) -> None:
            failures.extend([error] if error else [])
            left.release()

        flusher = Flusher([self.source, target])
        for manifest in self.manifests:
            flusher.submit(FlushRequest(manifest, target, done))
        for _ in self.manifests:
            left.acquire()
        flusher.close()
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


def beside(store: Store, loops: int) -> float:
    """Return how much longer a loop takes beside a flush that begins again and again."""
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((256, 256))

    def work() -> float:
        began = time.perf_counter()
        for _ in range(20):
            np.tanh(matrix).sum()
            sum(number * number for number in range(5000))
        return time.perf_counter() - began

    alone, together = [], []
    stop = threading.Event()

    def flush_on() -> None:
        while not stop.is_set():
            with store.target() as target:
                store.flush(target)

    for _ in range(loops):
        alone.append(work())
        flushing = threading.Thread(target=flush_on)
        stop.clear()
        flushing.start()
        together.append(work())
        stop.set()
        flushing.join()
        os.sync()
    return statistics.median(together) / statistics.median(alone)


def idle_share(store: Store) -> float:
    """Return what a flusher takes of a core after its work is done."""
    with store.target() as target:
        flusher = Flusher([store.source, target])
        finished = threading.Event()
        flusher.submit(FlushRequest(store.manifests[0], target, lambda _error: finished.set()))
        finished.wait()
        process = psutil.Process()
        before = process.cpu_times()
        time.sleep(IDLE_S)
        after = process.cpu_times()
        flusher.close()
    return (after.user + after.system - before.user - before.system) / IDLE_S


if __name__ == "__main__":
    main()
