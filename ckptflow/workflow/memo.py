"""The Parsl memo: results of finished tasks, so that a rerun does not run them again.

Parsl's own memo file is a row of pickles. Cut anywhere, by a kill or a full disk, it stops the
next run from starting, and a result whose class is gone does so too. This one checks each
record (`memo_file`), and unpickles a result only when it is asked for.

Keys never fail: where Parsl gives up (bytes, arrays, sets, dataclasses, paths), the canonical
bytes of the arguments are hashed, and with them the content of input files and the version of
the app; a task whose arguments have no such bytes is run and not remembered. A result whose
output files are gone is not used either, since somebody may need them.

``tests/unit/test_memo.py``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dill  # type: ignore[import-untyped]
from parsl.dataflow.memoization import BasicMemoizer, id_for_memo
from parsl.dataflow.taskrecord import TaskRecord

from ckptflow.errors import ConfigError
from ckptflow.workflow.canonical import encode, encode_call
from ckptflow.workflow.definition import Definition
from ckptflow.workflow.input_files import missing_outputs
from ckptflow.workflow.memo_file import MemoFile, Remembered

_KEY_DIGITS = 32

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a task.

    Attributes:
        task: its name; that of its function, if it is not of one of our apps.
        definition: what it is made of, if that is known.
        files: digest of each input file, by where it stands among the arguments.
        needs_outputs: whether a result counts only while its output files are there.
    """

    task: str
    definition: Definition | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    needs_outputs: bool = True

    @property
    def code(self) -> str | None:
        """Digest of its code."""
        return self.definition.code if self.definition else None

    @property
    def version(self) -> str | None:
        """Version of its app, which is part of the key."""
        return self.definition.version if self.definition else None


Describe = Callable[[TaskRecord], Facts]
"""Tells what is known of a task; raises `ConfigError` if it cannot run."""

Notice = Callable[[TaskRecord, Facts, Remembered | None], bool]
"""Asked before each launch, with the result that is remembered; tells whether to use it.

Raises what the task shall fail with instead.
"""


def _nothing_known(record: TaskRecord) -> Facts:
    return Facts(record["func_name"])


def _use_it(_record: TaskRecord, _facts: Facts, remembered: Remembered | None) -> bool:
    return remembered is not None


class DurableMemoizer(BasicMemoizer):  # type: ignore[misc]
    """A memo that survives kills, torn files, foreign types and vanished classes.

    Args:
        path: the memo file of the run.
        runs_folder: output files below it do not count as arguments: Parsl numbers them anew
            in every run.
        describe: tells what is known of a task.
        notice: asked before each launch; must not block for long.
        is_ours: asked before the file is written; false if another process has the run.
    """

    def __init__(
        self,
        path: Path,
        *,
        runs_folder: Path | None = None,
        describe: Describe = _nothing_known,
        notice: Notice = _use_it,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._path, self._runs_folder = path, runs_folder
        self._describe, self._notice, self._is_ours = describe, notice, is_ours
        self._file: MemoFile | None = None
        self._stored: dict[str, Remembered] = {}
        self._forgotten: frozenset[str] = frozenset()
        self._known: dict[int, Facts] = {}  # Of tasks that are on their way.
        self.failures: list[str] = []

    def start(self, *, run_dir: str, config_run_dir: str) -> None:
        """Read the file; called by Parsl."""
        super().start(run_dir=run_dir, config_run_dir=config_run_dir)
        self._file = MemoFile(self._path, failed=self._note_failure, is_ours=self._is_ours)
        self._stored, self._forgotten = self._file.results()
        _log.info("%s: %d results of finished tasks", self._path, len(self._stored))

    def close(self) -> None:
        """Close the file; called by Parsl."""
        if self._file:
            self._file.close()

    def check_memo(self, task: TaskRecord) -> Future[Any] | None:
        """Return a future with the remembered result, or ``None``; called by Parsl.

        Raises:
            ConfigError: an input file is missing, or the task may not go on as it is.
        """
        task["hashsum"] = None
        facts = self._known[task["id"]] = self._describe(task)
        if task["memoize"]:
            task["hashsum"] = self._key(task, facts)
        remembered, future = self._find(task["hashsum"], task, facts)
        if self._notice(task, facts, remembered) and future is not None:
            return future
        return None

    def update_memo_result(self, task: TaskRecord, r: Any) -> None:
        """Remember a result; called by Parsl.

        What goes wrong is noted in ``failures``: an error raised here would hang the task.
        """
        key, facts = task["hashsum"], self._known.pop(task["id"], None)
        if key is None:
            return
        # Not Parsl's own future: that would keep all that is known of the task.
        result: Future[Any] = Future()
        result.set_result(r)
        self.memo_lookup_table[key] = result
        if task["from_memo"] or self._file is None:
            return
        try:
            about = {"task": facts.task, "code": facts.code} if facts else {}
            self._file.add(key, _pickled(r), **about)
        except Exception as error:  # noqa: BLE001  Pickling runs the user's code.
            self._note_failure(
                f"The result of {task['func_name']}() will not be remembered: {error}"
            )

    def update_memo_exception(self, task: TaskRecord, e: BaseException) -> None:
        """Take note that a task has failed for good; called by Parsl."""
        self._known.pop(task["id"], None)
        super().update_memo_exception(task, e)

    def remembers(self, task: TaskRecord) -> bool:
        """Tell whether a rerun will find the result of a finished task."""
        return task["hashsum"] is not None

    def _note_failure(self, text: str) -> None:
        self.failures.append(text)
        _log.warning(text)

    def _find(
        self, key: str | None, task: TaskRecord, facts: Facts
    ) -> tuple[Remembered | None, Future[Any] | None]:
        """Return what is remembered of a task, and a future with its result."""
        if key is None:
            return None, None
        if (ours := self.memo_lookup_table.get(key)) is not None:
            return Remembered(b"", facts.task, facts.code), ours
        stored = self._stored.get(key)
        if stored is None or (stored.task is None and facts.task in self._forgotten):
            return None, None
        gone = missing_outputs(task["kwargs"].get("outputs")) if facts.needs_outputs else []
        if gone:
            _log.warning("%s runs again, since its output %s is gone.", facts.task, gone[0])
            return None, None
        future = self._recall(key, stored)
        return (stored, future) if future is not None else (None, None)

    def _recall(self, key: str, stored: Remembered) -> Future[Any] | None:
        future: Future[Any] = Future()
        try:
            future.set_result(dill.loads(stored.pickled))  # noqa: S301  Our own file.
        except Exception as error:  # noqa: BLE001  Unpickling runs the user's code.
            _log.warning("A remembered result cannot be read, its task runs again: %s", error)
            del self._stored[key]
            return None
        return future

    def _key(self, task: TaskRecord, facts: Facts) -> str | None:
        ignored = {*task["ignore_for_cache"], "walltime", "parsl_resource_specification"}
        ignored |= {
            name for name in ("stdout", "stderr") if self._is_ours_below(task["kwargs"], name)
        }
        kwargs = {name: value for name, value in task["kwargs"].items() if name not in ignored}
        function = (task["func"].__module__, task["func"].__name__)
        try:
            call = encode_call(function, task["args"], kwargs, fallback=_registered)
        except ConfigError as error:
            _log.warning("A call of %s() will not be remembered: %s", task["func_name"], error)
            return None
        if facts.version is not None or facts.files:
            call += encode((facts.version, dict(facts.files)))
        return hashlib.sha256(call).hexdigest()[:_KEY_DIGITS]

    def _is_ours_below(self, kwargs: Mapping[str, Any], name: str) -> bool:
        """Tell whether an output file lies below the runs' folder, where Parsl put it."""
        output = kwargs.get(name)
        path = output[0] if isinstance(output, tuple) else output
        if self._runs_folder is None or not isinstance(path, str | os.PathLike):
            return False
        return Path(path).absolute().is_relative_to(self._runs_folder.absolute())


def _registered(value: object) -> bytes | None:
    """Ask what the user registered with Parsl for a type; Parsl's own rules are not needed."""
    kind = type(value)
    if id_for_memo.dispatch(kind) is id_for_memo.dispatch(object):
        return None
    return bytes(id_for_memo(value))


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(dill.dumps(value))
