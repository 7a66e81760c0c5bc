"""Says of each task what it is made of: its code, its arguments, its input files.

The code of an app is read once, when its first task is submitted, and goes to the journal; so
do digests of input files. ``tests/process/test_changes.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parsl.dataflow.taskrecord import TaskRecord

from ckptflow.workflow.changes import Earlier
from ckptflow.workflow.definition import AUTO_VERSION, Definition, argument_texts
from ckptflow.workflow.input_files import FileDigests, input_files
from ckptflow.workflow.memo import Facts
from ckptflow.workflow.sources import Code, code_of

if TYPE_CHECKING:
    from ckptflow.workflow.apps import App

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class _Described:
    app: App
    code: Code
    digest: str | None
    version: str | None


class Describing:
    """Describes the tasks of one life of a run.

    Args:
        before: what earlier lives know of input files.
        note: adds an event to the journal.
    """

    def __init__(self, before: Earlier, note: Callable[..., None]) -> None:
        self._note = note
        self._apps: dict[str, _Described] = {}
        self._digests = FileDigests(
            before.files,
            told=lambda path, stamp, digest: note(
                "file-digested", path=path, stamp=stamp, digest=digest
            ),
        )

    def add(self, app: App) -> None:
        """Read the code of an app."""
        name, code = app.function.name, code_of(app.function.source)
        digest, version = code.digest, app.version
        if version == AUTO_VERSION:
            if digest is None:
                _log.warning(
                    "The source of %s() is not to be had, so version='auto' is none.", name
                )
            version = None if digest is None else f"{AUTO_VERSION}:{digest}"
        self._apps[name] = _Described(app, code, digest, version)
        self._note(
            "app-defined",
            app=name,
            code=digest,
            version=version,
            parts=dict(code.parts),
            file=code.file,
            name=code.name,
            folder=code.folder,
        )

    def facts(self, record: TaskRecord, app: str, task: str) -> Facts:
        """Return what is known of a task of one of our apps.

        Raises:
            ConfigError: an input file is missing.
        """
        known = self._apps[app]
        by_content = known.app.files_by == "content"
        try:
            arguments = known.app.function.arguments(tuple(record["args"]), record["kwargs"])
        except TypeError:
            return Facts(task, needs_outputs=by_content)  # The worker says what is wrong.
        files = self._files(arguments, known.app.files, task) if by_content else {}
        key = known.app.function.identity.key
        texts = argument_texts(arguments, key=arguments if key is None else key, files=files)
        definition = Definition(texts, known.digest, known.code.parts, known.version)
        return Facts(task, definition, files, needs_outputs=by_content)

    def foreign(self, record: TaskRecord) -> Facts:
        """Return what is known of a task of one of Parsl's own apps.

        Raises:
            ConfigError: an input file is missing.
        """
        name = str(record["func_name"])
        arguments = {str(number): one for number, one in enumerate(record["args"])}
        return Facts(name, files=self._files({**arguments, **record["kwargs"]}, (), name))

    def _files(
        self, arguments: Mapping[str, Any], names: tuple[str, ...], task: str
    ) -> dict[str, str]:
        found: list[tuple[str, Path]] = list(input_files(arguments, names))
        return {where: self._digests.of(path, task=task) for where, path in found}
