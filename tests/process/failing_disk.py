"""Saves to two tiers while system calls fail. `test_failing_disks.py` runs this, under strace.

Saves eight steps, each to the nearest tier that takes it, and prints one JSON object: what was
durable and what was told. Given a step, it says "paused" before that one and waits for a line.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from disk_trouble import blank, look, state_of

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

STEPS = 8


def tiers(folder: Path) -> list[Tier]:
    far = PosixTier(folder / "far", name="far", level=3)
    return [PosixTier(folder / "near", name="near"), far]


def main(folder: Path, pause_before: int) -> None:
    durable, lost = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        ckpt = Checkpointer(tiers(folder), keep="all", rng=False, flush_every={"far": 1000})
        ckpt.restore(blank())
        for step in range(1, STEPS + 1):
            if step == pause_before:
                print("paused", flush=True)
                sys.stdin.readline()
            ticket = ckpt.save(step, state_of(step))
            ticket.wait_written()
            (durable if ticket.durable else lost).append(step)
        ckpt.shut()
    report = {
        "durable": durable,
        "lost": lost,
        "told": [str(one.message) for one in caught],
        "troubles": ckpt.health.report(),
    }
    sys.stdout.write(json.dumps(report) + "\n")


def find(folder: Path) -> None:
    """Print what the next attempt finds, and what was left behind."""
    partial = [str(path) for path in folder.rglob("*.partial")]
    near = Lineage(tiers(folder)[:1], LineageId("default", "main")).valid()
    found = {"near": [one.id.step for one in near], "partial": partial, **look(tiers(folder))}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "save":
        main(Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0)
    else:
        find(Path(sys.argv[2]))
