"""What Parsl's monitoring database knows of the tasks of a run, found by their hash.

The database is SQLite, written by Parsl while the run goes on (`monitoring.db`). It is opened
read-only. A task has the same hash in the journal and there, in every start of the script; rows
of one start are also found by Parsl's name of that start and the task's number in it.
``tests/process/test_monitoring.py`` has Parsl write a real one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ckptflow.errors import ConfigError, NotFoundError
from ckptflow.workflow.seeing.model import RunStory, Task

_TIMEOUT_S = 5.0  # While Parsl writes.
_AT_ONCE = 500  # Hashes in one question.

_TRIES = """
select t.task_hashsum as hash, t.run_id, t.task_id, t.task_func_name as app,
       y.try_id, y.block_id, y.hostname as host, y.task_executor as executor,
       y.task_try_time_launched as launched, y.task_try_time_running as running,
       y.task_try_time_returned as returned, y.task_fail_history as failed
from task t join try y on y.task_id = t.task_id and y.run_id = t.run_id
where {condition}
order by launched, y.try_id
"""
_RESOURCES = """
select task_id, try_id, max(psutil_process_memory_resident) as memory_bytes,
       max(psutil_process_time_user + psutil_process_time_system) as cpu_s
from resource where run_id = ? group by task_id, try_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredTry:
    """One try of a task as Parsl's monitoring has it.

    Attributes:
        task: ckptflow's name of the task.
        run_id: Parsl's name of the start.
        task_id: Parsl's number of the task in it.
        try_id: number of the try, from 0.
        executor: label of the executor.
        block: block it ran in.
        host: host it ran on.
        launched: when, as Parsl wrote it (local time).
        running: when its worker began.
        returned: when it ended.
        failed: what went wrong.
        memory_bytes: greatest resident memory that was seen.
        cpu_s: processor time that was seen.
    """

    task: str
    run_id: str
    task_id: int
    try_id: int
    executor: str | None
    block: str | None
    host: str | None
    launched: str | None
    running: str | None
    returned: str | None
    failed: str | None
    memory_bytes: int | None
    cpu_s: float | None


def find_database(folder: Path, given: Path | None = None) -> Path | None:
    """Return the monitoring database of a run, if there is one.

    Args:
        folder: the run's folder; Parsl puts it beside its logs there.
        given: a file that was named instead.

    Raises:
        NotFoundError: the file that was named does not exist.
    """
    if given is not None:
        if not given.is_file():
            raise NotFoundError(f"There is no monitoring database {given}.")
        return given
    usual = folder / "parsl" / "monitoring.db"
    return usual if usual.is_file() else None


def monitored(path: Path, story: RunStory, tasks: Sequence[Task]) -> list[MonitoredTry]:
    """Return what a monitoring database knows of tasks, the oldest first.

    Raises:
        ConfigError: the file is no monitoring database of Parsl, or cannot be read.
    """
    try:
        with closing(_opened(path)) as database:
            return list(_found(database, story, tasks))
    except sqlite3.Error as error:
        raise ConfigError(
            f"{path} cannot be read as Parsl's monitoring database: {error}"
        ) from error


def _opened(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    database = sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S)
    database.row_factory = sqlite3.Row
    return database


def _found(
    database: sqlite3.Connection, story: RunStory, tasks: Sequence[Task]
) -> Iterator[MonitoredTry]:
    by_hash = {one.hash: task.name for task in tasks for one in task.tries if one.hash}
    ids = [life.parsl_run_id for life in story.lives]
    by_number: dict[tuple[str | None, int | None], str] = {
        (ids[one.life], one.task_id): task.name
        for task in tasks
        for one in task.tries
        if one.life < len(ids) and ids[one.life] is not None and one.task_id is not None
    }
    used: dict[str, dict[tuple[int, int], sqlite3.Row]] = {}
    seen: set[tuple[Any, ...]] = set()
    for row in [*_by_hash(database, list(by_hash)), *_by_start(database, by_number)]:
        run_id = row["run_id"]
        key = (run_id, row["task_id"], row["try_id"])
        name = by_hash.get(row["hash"]) or by_number.get(key[:2])
        if name is None or key in seen:
            continue
        seen.add(key)
        if run_id not in used:
            used[run_id] = {
                (one["task_id"], one["try_id"]): one
                for one in database.execute(_RESOURCES, (run_id,))
            }
        yield _one(row, name, used[run_id].get(key[1:]))


def _by_hash(database: sqlite3.Connection, hashes: Sequence[str]) -> Iterator[sqlite3.Row]:
    for begin in range(0, len(hashes), _AT_ONCE):
        some = hashes[begin : begin + _AT_ONCE]
        marks = ",".join("?" * len(some))
        yield from database.execute(
            _TRIES.format(condition=f"t.task_hashsum in ({marks})"), some
        )


def _by_start(
    database: sqlite3.Connection, by_number: Mapping[tuple[str | None, int | None], str]
) -> Iterator[sqlite3.Row]:
    for run_id in sorted({str(run_id) for run_id, _ in by_number}):
        yield from database.execute(_TRIES.format(condition="t.run_id = ?"), (run_id,))


def _one(row: sqlite3.Row, name: str, used: sqlite3.Row | None) -> MonitoredTry:
    return MonitoredTry(
        task=name,
        run_id=row["run_id"],
        task_id=row["task_id"],
        try_id=row["try_id"],
        executor=row["executor"],
        block=row["block_id"],
        host=row["host"],
        launched=row["launched"],
        running=row["running"],
        returned=row["returned"],
        failed=row["failed"] or None,
        memory_bytes=None if used is None else int(used["memory_bytes"] or 0) or None,
        cpu_s=None if used is None else used["cpu_s"],
    )
