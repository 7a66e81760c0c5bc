"""Clear away what dead sessions of a run have left: processes, blocks, and small files.

A restart does the same for itself; this is for a run that will not be started again, and for
processes on a host on which it will not. ``tests/process/test_ending.py``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from ckptflow.errors import NotFoundError
from ckptflow.site import Site
from ckptflow.tiers import durable
from ckptflow.workflow import journal
from ckptflow.workflow.blocks.abandoned import (
    CLEARED,
    AbandonedBlock,
    cancel_blocks,
    find_blocks,
)
from ckptflow.workflow.blocks.board import abandoned_boards
from ckptflow.workflow.leftovers import (
    STOP_GRACE_S,
    Leftover,
    end_leftovers,
    find_leftovers,
)
from ckptflow.workflow.lock import RunLock
from ckptflow.workflow.run import JOURNAL, LOCK


@dataclass(frozen=True, slots=True)
class CleanUp:
    """What was found, and ended or removed unless it was only looked for.

    Attributes:
        processes: of dead sessions, on this host.
        blocks: of dead sessions, in a batch system.
        files: that a killed process has left.
        problems: a sentence for each thing that could not be done, or not be known.
    """

    processes: tuple[Leftover, ...]
    blocks: tuple[AbandonedBlock, ...]
    files: tuple[Path, ...]
    problems: tuple[str, ...]


def clean_up(site: Site, run: str, *, dry_run: bool = False) -> CleanUp:
    """Clear away what is left of the dead sessions of a run.

    Args:
        site: as the run sees it.
        run: its name.
        dry_run: only look.

    Raises:
        NotFoundError: there is no such run.
        RunLocked: it is running.
    """
    folder = site.runs_folder / run
    if not (folder / JOURNAL).exists():
        raise NotFoundError(f"There is no run {run!r} in {site.runs_folder}.")
    session = secrets.token_hex(8)
    lock = RunLock(folder / LOCK, run=run, session=session)
    if dry_run:
        lock.check()
        return _clean_up(folder, session, dry_run=True)
    lock.acquire()
    try:
        return _clean_up(folder, session, dry_run=False)
    finally:
        lock.release()


def _clean_up(folder: Path, session: str, *, dry_run: bool) -> CleanUp:
    def is_over(other: str) -> bool:
        return other != session

    events = list(journal.read(folder / JOURNAL))
    blocks, problems, asked = find_blocks(events, is_over)
    if not dry_run:
        problems += cancel_blocks(blocks)
    if dry_run:
        processes = find_leftovers(folder, is_over)
    else:
        processes = end_leftovers(folder, is_over, grace_s=STOP_GRACE_S)
    files = _left_files(folder)
    if not dry_run:
        for path in files:
            _remove(path)
        with journal.Journal(folder / JOURNAL) as notes:
            for left in processes:
                notes.add("leftover-ended", pid=left.pid, name=left.name, session=left.session)
            for block in blocks:
                notes.add("block-ended", **{**block.as_event(), "state": "CANCELLED"})
            if asked and not problems:
                notes.add(CLEARED)
    return CleanUp(tuple(processes), tuple(blocks), tuple(files), tuple(problems))


def _left_files(folder: Path) -> list[Path]:
    """Return files that somebody was about to rename, and boards whose leader is dead."""
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and (durable.is_partial(path.name) or path.name.startswith(".probe-"))
    ]
    found += (folder / "blocks").glob("ends-*.json")  # Of blocks that are gone now.
    found += abandoned_boards()
    return sorted(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for one in sorted(path.rglob("*"), reverse=True):
            one.rmdir() if one.is_dir() else one.unlink(missing_ok=True)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
