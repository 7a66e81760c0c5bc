"""Processes that use one arena, for `test_shared_memory.py`: some are killed, some tell.

``writer ARENA SEED``: puts and deletes values of its own for ever, until it is killed.
``task ARENA DISK STEPS``: a task with checkpoints in memory, and now and then on disk.
``put ARENA KEY SIZE``: puts one value.
``maker ARENA``: makes a large arena, and waits.
``few_files ARENA COUNT``: puts and reads values, with few files allowed.
``forker ARENA``: dies while it writes, with a forked child that puts a value when told to.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import NotFoundError, TierFull
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.units import MIB

SIZE_BYTES_MAX = 100_000


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def opened(arena: str) -> SharedMemoryTier:
    return SharedMemoryTier("shm", arena=arena, capacity_bytes=8 * MIB)


def value(key: str, size_bytes: int) -> bytes:
    """Return bytes that tell for which key and in which length they were written."""
    head = f"{key} {size_bytes} ".encode()
    return (head * (size_bytes // len(head) + 1))[:size_bytes]


def is_value(key: str, data: bytes) -> bool:
    return data == value(key, len(data))


def writer(arena: str, seed: str) -> None:
    """Change an arena that others change too, and read what is theirs, as fast as it goes."""
    tier, rng = opened(arena), random.Random(int(seed))
    say("begun")
    while True:
        key = f"values/{rng.randrange(12)}"
        try:
            match rng.randrange(4):
                case 0 | 1:
                    tier.put(key, [value(key, rng.randrange(len(key) + 8, SIZE_BYTES_MAX))])
                case 2:
                    tier.delete(key)
                case 3:
                    assert is_value(key, tier.get(key)), key
        except (NotFoundError, TierFull):
            pass


def put(arena: str, key: str, size_bytes: str) -> None:
    opened(arena).put(key, [value(key, int(size_bytes))])


def task(arena: str, disk: str, steps: str) -> None:
    tiers = [opened(arena), PosixTier(Path(disk), name="disk", level=3)]
    with Checkpointer(tiers, every=1, flush_every={"disk": 100}, keep=2) as ckpt:
        state: dict[str, Any] = ckpt.restore({"i": 0, "field": np.zeros(50_000)})
        say("resumed", ckpt.restored_step)
        while state["i"] < int(steps):
            state["i"] += 1
            state["field"] += state["i"]
            ticket = ckpt.save(state["i"], state)
            ticket.wait(0)
            say("durable", state["i"])
            if state["i"] % 7 == 0:
                sys.stdin.readline()  # Killed while it waits.
    say("final", float(state["field"].sum()))


def maker(arena: str) -> None:
    """Make a large arena, which takes a while."""
    tier = SharedMemoryTier("shm", arena=arena, capacity_bytes=256 * MIB)
    say("begun")
    tier.put("made", [b"by maker"])
    say("made")
    sys.stdin.readline()


def few_files(arena: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    tier = opened(arena)
    for number in range(int(count)):
        tier.put(f"values/{number}", [value(f"values/{number}", 1000)])
    keys = list(tier.iter_keys("values"))
    assert len(keys) == int(count)
    assert all(is_value(key, tier.get(key)) for key in keys)
    say("final", len(keys))


def forker(arena: str) -> None:
    tier = opened(arena)
    tier.put("parent", [b"value"])
    mapped = tier._open()
    assert mapped is not None
    mapped.arena.reserve("half", 1000)
    if os.fork() == 0:
        say("child lives")
        sys.stdin.readline()
        put(arena, "child", "20")
        assert tier.get("parent") == b"value"
        os._exit(0)
    time.sleep(3600)


if __name__ == "__main__":
    modes = {one.__name__: one for one in (writer, task, put, maker, few_files, forker)}
    modes[sys.argv[1]](*sys.argv[2:])
