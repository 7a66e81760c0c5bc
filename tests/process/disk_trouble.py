"""Saves that are killed, lose their power, or find no room. `test_durability.py` runs this.

It is a program of its own because it dies often: each trial is a fork of a process that has
imported everything and has no threads. Before its n-th change of the file system (an open that
creates, mkdir, writev, fsync, link, rename, unlink) a trial kills itself, or cuts the power of
the ext4 file system below it, which then forgets what was not synced. Prints one JSON object
for each trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import TierFull
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

EXT4_IOC_SHUTDOWN = 0x8004587D
NOLOGFLUSH = struct.pack("I", 2)  # Without writing the journal first: a power cut.
CHANGES = ("open", "mkdir", "writev", "fsync", "link", "rename", "unlink")


def state_of(step: int) -> dict[str, Any]:
    state = {"i": step, "w": np.random.default_rng(0).standard_normal(3000)}
    state["w"][: 100 * step] = np.random.default_rng(step).standard_normal(100 * step)
    return state


def blank() -> dict[str, Any]:
    return {"i": 0, "w": np.zeros(3000)}


def work(store: Path) -> int:
    """Resume, take one step, save it; return the step that is durable."""
    with Checkpointer(store, keep=2, rng=False) as ckpt:
        step = ckpt.restore(blank())["i"] + 1
        ckpt.save(step, state_of(step)).wait()
    return step


def both(store: Path) -> list[Tier]:
    """A tier of the node and one of all nodes, on one disk."""
    far = PosixTier(store / "far", name="far", level=3)
    return [PosixTier(store / "near", name="near"), far]


def work_on_both(store: Path) -> int:
    """Resume, save, flush outward, prune on both; return the step that is durable there."""
    with Checkpointer(both(store), keep=2, rng=False) as ckpt:
        step = ckpt.restore(blank())["i"] + 1
        ckpt.save(step, state_of(step)).wait(3)
    return step


def look_at_both(store: Path) -> dict[str, Any]:
    """See `look`; and what there is if the node is lost."""
    return {**look(both(store)), "far": look(both(store)[1:])}


def look(store: Path | list[Tier]) -> dict[str, Any]:
    """Restore as the next attempt would; tell which step that is, and whether all bits are."""
    ckpt = Checkpointer(store, rng=False)
    found = [one.id.step for one in ckpt.lineage.valid()]
    state = ckpt.restore(blank())
    expected = state_of(state["i"]) if state["i"] else blank()
    right = state["w"].tobytes() == expected["w"].tobytes()
    return {"restored": state["i"], "newest": max(found, default=0), "bits": right}


def arm(at: int, act: Callable[[str], None]) -> None:
    """Call ``act`` before the ``at``-th change of the file system, counted from 0."""
    counter = itertools.count()

    def wrapped(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def change(*args: Any, **kwargs: Any) -> Any:
            if (name != "open" or args[1] & os.O_CREAT) and next(counter) == at:
                act(name)
            return original(*args, **kwargs)

        return change

    for name in CHANGES:
        setattr(os, name, wrapped(name))


def forked(task: Callable[[], Any]) -> tuple[int, list[Any]]:
    """Run ``task`` in a fork; return its exit status and what it yielded before its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.close(reading)
            said = task()
            os.write(writing, json.dumps(said).encode() + b"\n")
            status = 0
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = [json.loads(line) for line in pipe]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


# --- killed ---


def kills(
    folder: Path,
    saves_before: int,
    *,
    work: Callable[[Path], int] = work,
    look: Callable[[Path], dict[str, Any]] = look,
    stride: int = 1,
) -> None:
    """Kill a save before each of its changes, and look; then let another attempt go on."""
    base, store = folder / "base", folder / "store"
    base.mkdir()
    for _ in range(saves_before):
        forked(lambda: work(base))
    for at in itertools.count(step=stride):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(base, store)
        log = folder / "call"

        def die(name: str, log: Path = log) -> None:
            log.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

        def trial(at: int = at) -> int:
            arm(at, die)
            return work(store)

        status, durable = forked(trial)
        _, (seen,) = forked(lambda: look(store))
        _, (later,) = forked(lambda: work(store))
        _, (end,) = forked(lambda: look(store))
        call = log.read_text() if status else ""
        tell(at=at, status=status, call=call, durable=durable, **seen, later=later, end=end)
        if status == 0:
            return


# --- without power ---


class Disk:
    """An ext4 file system in a file, in a mount namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self.image, self.base = folder / "disk.img", folder / "base.img"
        self.mount_point = folder / "mnt"
        self.mount_point.mkdir()
        with self.image.open("wb") as file:
            file.truncate(16 << 20)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", str(self.image))

    @property
    def store(self) -> Path:
        return self.mount_point / "store"

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.mount_point))

    def unmount(self) -> None:
        run("umount", str(self.mount_point))

    def cut_power(self) -> None:
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, NOLOGFLUSH)
        os.close(descriptor)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tell(skip=f"{' '.join(command[:1])}: {done.stderr.strip() or done.returncode}")
        sys.exit(0)


def cuts(
    folder: Path,
    saves_before: int,
    *,
    first: int = 0,
    sync: bool = True,
    work: Callable[[Path], int] = work,
    look: Callable[[Path], dict[str, Any]] = look,
    stride: int = 1,
) -> None:
    """Cut the power before each change of a save from ``first`` on, and after its end."""
    disk = Disk(folder)
    disk.mount()
    for _ in range(saves_before):
        forked(lambda: work(disk.store))
    disk.unmount()
    shutil.copy(disk.image, disk.base)
    for at in itertools.count(first, stride):
        shutil.copy(disk.base, disk.image)
        disk.mount()

        def die(_name: str) -> None:
            disk.cut_power()
            os.kill(os.getpid(), signal.SIGKILL)

        def trial(at: int = at) -> int:
            if not sync:
                os.fsync = lambda _descriptor: None
            arm(at, die)
            return work(disk.store)

        status, durable = forked(trial)
        if status == 0:
            disk.cut_power()  # Just after the save was called durable.
        disk.unmount()
        disk.mount()
        _, seen = forked(lambda: look(disk.store))
        disk.unmount()
        fields = seen[0] if seen else {"restored": None}
        tell(at=at, status=status, durable=durable, **fields)
        if status == 0:
            return


# --- without room ---


def full(folder: Path, *, blocks: bool) -> None:
    """Let a disk run full in the middle of a task, by bytes or by files; then free some."""
    folder.mkdir(exist_ok=True)
    size = "size=256k" if blocks else "nr_inodes=40"
    run("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder))
    _, (said,) = forked(lambda: fill(folder, blocks=blocks))
    tell(**said)


def fill(folder: Path, *, blocks: bool) -> dict[str, Any]:
    store, ballast = folder / "store", folder / "ballast"
    ballast.mkdir()
    errors, durable = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        ckpt = Checkpointer(store, keep=2, rng=False)
        ckpt.restore(blank())
        for step in range(1, 9):
            if step == 4:
                occupy(ballast, blocks=blocks)
            if step == 6:
                shutil.rmtree(ballast)
            ticket = ckpt.save(step, state_of(step))
            ticket.wait_written()
            (errors if ticket.error else durable).append(step)
        ckpt.close()
    kinds = {type(failure).__name__ for failure in ckpt.failures}
    partial = [str(path) for path in store.rglob(".*")]
    return {
        "durable": durable,
        "errors": errors,
        "kinds": sorted(kinds),
        "partial": partial,
        "texts": [str(one.message) for one in caught],
        **look(store),
    }


def occupy(ballast: Path, *, blocks: bool) -> None:
    """Take all the room that is left."""
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (ballast / str(number)).write_bytes(bytes(4096 if blocks else 0))


def limited(folder: Path) -> None:
    """What may be had without mounting: a limit on the size of a file."""
    import resource

    store = folder / "store"
    work(store)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    ckpt = Checkpointer(store, rng=False)
    ckpt.restore(blank())
    message = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        try:
            ckpt.save(2, {"i": 2, "w": np.random.default_rng(9).standard_normal(3000)}).wait()
        except TierFull as error:
            message = str(error)
        ckpt.close()
    partial = [str(path) for path in store.rglob(".*")]
    tell(message=message, partial=partial, **look(store))


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if sys.argv[1] == "kills":
        kills(place, int(sys.argv[3]))
    elif sys.argv[1] == "cuts":
        cuts(place, int(sys.argv[3]))
    elif sys.argv[1] == "kills-on-both":
        kills(place, 3, work=work_on_both, look=look_at_both, stride=int(sys.argv[3]))
    elif sys.argv[1] == "cuts-on-both":
        cuts(place, 3, work=work_on_both, look=look_at_both, stride=int(sys.argv[3]))
    elif sys.argv[1] == "unsynced":
        cuts(place, 2, first=1000, sync=False)
    elif sys.argv[1] == "full":
        full(place, blocks=sys.argv[3] == "blocks")
    else:
        limited(place)
