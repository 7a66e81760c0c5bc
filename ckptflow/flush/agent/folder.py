"""The private folder of an agent, which holds its socket, its lock and what it was asked for.

It lies in ``$XDG_RUNTIME_DIR/ckptflow``, or else in ``/tmp/ckptflow-UID``. Everybody may write
to ``/tmp``, so a folder that somebody else has put there, or that others can look into, or a
link, is refused. ``tests/unit/test_agent_folder.py``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError, TierDenied
from ckptflow.model import CheckpointId, LineageId

SOCKET, LOCK, LOG = "socket", "lock", "log"
LEASES = "leases"

_log = logging.getLogger("ckptflow")

_FALLBACK = "/tmp/ckptflow-{uid}"  # noqa: S108  Its owner and mode are checked.
_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0


def base_folder() -> Path:
    """Return where the folders of all agents of this user on this node are."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and Path(runtime).is_dir():
        return Path(runtime) / "ckptflow"
    return Path(_FALLBACK.format(uid=os.geteuid()))


def agent_folder(specs: Sequence[Mapping[str, Any]]) -> Path:
    """Return where the folder of the agent for these tiers is, whether or not it exists."""
    text = json.dumps([dict(spec) for spec in specs], sort_keys=True)
    return base_folder() / short(text)


def make_private(folder: Path) -> Path:
    """Make a folder that only this user can look into, or check that it is one.

    Raises:
        TierDenied: it is somebody else's, or others have rights in it, or it is no folder.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise TierDenied(f"The folder {folder} cannot be made: {error}.") from error
    check_private(folder)
    return folder


def check_private(folder: Path) -> None:
    """Raise unless ``folder`` is one that only this user can look into.

    Raises:
        TierDenied: it is not.
    """
    try:
        found = folder.lstat()
    except OSError as error:
        raise TierDenied(f"The folder {folder} cannot be looked at: {error}.") from error
    problems = [
        "is no folder" if not stat.S_ISDIR(found.st_mode) else "",
        f"belongs to user {found.st_uid}" if found.st_uid != os.geteuid() else "",
        f"has mode {stat.S_IMODE(found.st_mode):o}, not 700" if found.st_mode & 0o077 else "",
    ]
    if wrong := " and ".join(problem for problem in problems if problem):
        raise TierDenied(
            f"{folder} {wrong}: it is not used, since somebody else may have put it there. "
            f"Remove it, or set XDG_RUNTIME_DIR to a folder of your own."
        )


def make_agent_folder(specs: Sequence[Mapping[str, Any]]) -> Path:
    """Return the folder of the agent for these tiers, made and checked.

    Raises:
        TierDenied: it is not safe to use, or cannot be made.
        ConfigError: a spec is no plain data.
    """
    try:
        folder = agent_folder(specs)
    except TypeError as error:
        raise ConfigError(f"A tier cannot be opened elsewhere by its spec: {error}.") from error
    make_private(folder.parent)
    make_private(folder)
    make_private(folder / LEASES)
    return folder


def lease_path(folder: Path, lineage: LineageId, checkpoint: CheckpointId, tier: str) -> Path:
    """Return the lock that whoever copies a checkpoint to a tier holds."""
    return folder / LEASES / f"copy-{short(f'{lineage} {checkpoint} {tier}')}"


def prune_lock_path(folder: Path, lineage: LineageId, tier: str) -> Path:
    """Return the lock that a prune of a tier, and a save to it, hold."""
    return folder / LEASES / f"prune-{short(f'{lineage} {tier}')}"


def short(text: str) -> str:
    """Return 16 characters that stand for a text in the name of a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _never() -> bool:
    return False


@contextmanager
def held(
    path: Path,
    *,
    pause: Callable[[float], object] = time.sleep,
    until: Callable[[], bool] = _never,
) -> Iterator[None]:
    """Hold the lock file ``path``, alone among all processes, while entered.

    It goes with the process that holds it, however that ends. The file is gone afterwards.

    Args:
        path: of the file.
        pause: waits so many seconds between two tries.
        until: tells whether to go on without the lock, since nothing will be done.
    """
    descriptor = _locked(path, pause, until)
    try:
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)  # Whoever waits for it notices, and makes a new one.
            os.close(descriptor)


def _locked(
    path: Path, pause: Callable[[float], object], until: Callable[[], bool]
) -> int | None:
    pause_s = _FIRST_PAUSE_S
    while not until():
        try:
            descriptor = try_lock(path)
        except OSError as error:
            # Somebody has cleaned up: the agent, if there is one, cannot lock either.
            _log.warning("Going on without the lock %s: %s", path, error)
            return None
        if descriptor is not None:
            return descriptor
        pause(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    return None


def try_lock(path: Path) -> int | None:
    """Lock a file, made if need be; return its descriptor, or ``None`` if it is taken."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def sweep_leases(folder: Path) -> None:
    """Remove the lock files that killed processes have left."""
    for path in (folder / LEASES).iterdir():
        if (descriptor := try_lock(path)) is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds a lock file now. Nothing is made."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_at(path: Path, descriptor: int) -> bool:
    """Tell whether the name still means the file that was opened."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
