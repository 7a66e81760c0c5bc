"""The folder in which a code works: its own for each task, and kept from attempt to attempt.

    <folder of the run>/work/<task>/                 what the code reads and writes
    <folder of the run>/work/<task>/ckptflow/        record.json, and a folder for each attempt:
                            attempt-3/command.sh, stdout, stderr, aside/...

An attempt takes the folder over if nobody can be writing to it any more: the one before has
said that it is over, or its processes were on this node and are ended first. One that may live
on elsewhere (a node that does not answer, and may come back) keeps its folder, and the new
attempt gets ``<task>~3``, where the files are put back.

The record says which files are safe in the store, and since which checkpoint. So a file
that the code wrote but nobody took in is told from one of a past that was given up.
``tests/unit/test_external_folder.py``.
"""

from __future__ import annotations

import glob
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ckptflow.errors import ConfigError
from ckptflow.model import CheckpointId
from ckptflow.tiers import durable
from ckptflow.workflow.external import processes
from ckptflow.workflow.external.image import Sight

OURS = "ckptflow"  # Nothing that a checkpoint holds is put back below it.

_RECORD = "record.json"
_RECORD_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of a folder.

    Attributes:
        lineage: the run and the task that it belongs to.
        attempt: the newest one that worked in it.
        node: where that was; see `this_node`.
        ended: whether it said that nothing of it runs any more.
        newest: attempt and step of the newest checkpoint that was known to be safe.
        taken: size and time of the files that are safe in the store, by name.
    """

    lineage: str
    attempt: int
    node: str
    ended: bool = False
    newest: tuple[int, int] | None = None
    taken: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def with_taken(self, newest: CheckpointId, name: str, sight: Sight) -> Record:
        """Return it with one more file that is safe."""
        taken = {**self.taken, name: (sight.size_bytes, sight.mtime_ns)}
        return replace(self, newest=(newest.attempt, newest.step), taken=taken)

    def has_taken(self, name: str, sight: Sight) -> bool:
        """Tell whether this content of a file is safe in the store."""
        return self.taken.get(name) == (sight.size_bytes, sight.mtime_ns)


@dataclass(frozen=True, slots=True)
class Left:
    """The folder of the attempt before, and what was known of it."""

    path: Path
    record: Record


@dataclass(slots=True)
class WorkFolder:
    """The folder of an attempt.

    Attributes:
        path: where the code works.
        attempt: which attempt works there.
        record: what is known of it.
        left: the folder of the attempt before: this one, or another; ``None`` at first.
    """

    path: Path
    attempt: int
    record: Record
    left: Left | None

    @property
    def own(self) -> Path:
        """Where command, output and what was moved aside of this attempt are."""
        return self.path / OURS / f"attempt-{self.attempt}"

    def write(self, record: Record) -> None:
        """Keep a record; what it says of files that are no longer there is dropped."""
        taken = {name: sight for name, sight in record.taken.items() if self._has(name)}
        self.record = replace(record, taken=taken)
        text = json.dumps(asdict(self.record), sort_keys=True)
        durable.write_atomic(self.path / OURS / _RECORD, [text.encode()])

    def set_aside(self, name: str) -> Path:
        """Move a file of the folder out of the way of the code; return where it is."""
        goal = self.own / "aside" / name
        durable.make_folders(goal.parent)
        number = 1
        while goal.exists() or goal.is_symlink():
            number += 1
            goal = self.own / "aside" / f"{name}.{number}"
        (self.path / name).rename(goal)
        return goal

    def _has(self, name: str) -> bool:
        return (self.path / name).is_file()


def take_over(path: Path, lineage: str, attempt: int) -> WorkFolder:
    """Return the folder in which an attempt works; nothing else writes to it then.

    Args:
        path: where the folder is, or will be.
        lineage: the run and the task.
        attempt: number of this attempt.

    Raises:
        ConfigError: the folder cannot be made here, or belongs to another task.
        TimeoutError: processes of an earlier attempt on this node cannot be ended.
    """
    spare = path.with_name(f"{path.name}~{attempt}")
    left, unreadable = _left(path, lineage)
    node = this_node()
    fresh = Record(lineage=lineage, attempt=attempt, node=node)
    if left is None:
        chosen, record = spare if unreadable else path, fresh
    elif left.record.ended or left.record.node == node:
        _end_earlier(left.path, attempt)
        chosen = left.path
        record = replace(left.record, attempt=attempt, node=node, ended=False)
    else:
        chosen, record = spare, fresh
    folder = WorkFolder(chosen, attempt, record, left)
    try:
        durable.make_folders(folder.own)
        folder.write(record)
    except OSError as error:
        raise ConfigError(
            f"The folder {chosen} of task {lineage} cannot be used on {socket.gethostname()}: "
            f"{error}. Say by folder= where the code works: folder='$TMPDIR/{{run}}/{{task}}'."
        ) from error
    return folder


def this_node() -> str:
    """Return what tells this node since it was booted, or this container, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  It is no path.
    except OSError:
        boot, space = "", ""
    return f"{socket.gethostname()} {boot} {space}"


def _left(path: Path, lineage: str) -> tuple[Left | None, bool]:
    """Return what the newest attempt has left, and whether a record cannot be read.

    Raises:
        ConfigError: the folder is that of another task.
    """
    folders = [path, *path.parent.glob(f"{glob.escape(path.name)}~*")]
    left: list[Left] = []
    unreadable = False
    for folder in folders:
        file = folder / OURS / _RECORD
        record = _read(file)
        if record is not None and record.lineage != lineage:
            raise ConfigError(
                f"The folder {folder} belongs to task {record.lineage}, not to {lineage}. Put "
                f"{{run}} and {{task}} into folder=."
            )
        if record is not None:
            left.append(Left(folder, record))
        unreadable = unreadable or (record is None and file.exists())
    return max(left, key=lambda one: one.record.attempt, default=None), unreadable


def _read(path: Path) -> Record | None:
    """Return a record; a broken one counts as none, and then nothing is known of its files."""
    try:
        if path.stat().st_size > _RECORD_BYTES_MAX:
            return None
        fields = json.loads(path.read_bytes())
        newest = fields["newest"]
        return Record(
            lineage=str(fields["lineage"]),
            attempt=int(fields["attempt"]),
            node=str(fields["node"]),
            ended=bool(fields["ended"]),
            newest=None if newest is None else (int(newest[0]), int(newest[1])),
            taken={
                str(name): (int(sight[0]), int(sight[1]))
                for name, sight in fields["taken"].items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _end_earlier(path: Path, attempt: int) -> None:
    """End what earlier attempts have left running in a folder, on this node."""

    def is_earlier(mark: str) -> bool:
        number, _, folder = mark.partition(":")
        return folder == str(path) and number.isdecimal() and int(number) < attempt

    processes.end(is_earlier)
