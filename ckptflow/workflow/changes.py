"""What to do with a task of which the code, an argument or an input file has changed.

A result or a checkpoint was made by a task as it was when it was launched. If a later start of
the run would use it for a task that differs, somebody has to decide: ``resume`` goes on all the
same and says so, ``redo`` begins the task anew, ``fail`` lets it fail before it starts. Going
on is the default: most edits before a restart mend what stopped the run, and days of work
are lost by beginning anew, while what was made can always be invalidated later.

An app that gives itself another version has decided already: its tasks begin anew.

Compared is with the last launch in an earlier start. ``tests/unit/test_changed_tasks.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ckptflow.errors import ConfigError, TaskChanged, TierError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.setback import newest_checkpoint, set_back
from ckptflow.workflow.definition import Definition, Differences, differences
from ckptflow.workflow.input_files import Stamp
from ckptflow.workflow.memo_file import Remembered

OnChange: TypeAlias = Literal["resume", "redo", "fail"]
DEFAULT: OnChange = "resume"

LAUNCHED, DEFINED, DIGESTED = "task-launched", "app-defined", "file-digested"
EVENTS = frozenset({LAUNCHED, DEFINED, DIGESTED})
"""What `earlier` reads of a journal."""

_log = logging.getLogger("ckptflow")


def parse_on_change(value: object) -> OnChange:
    """Return a policy for changed tasks.

    Raises:
        ConfigError: it is none.
    """
    for one in get_args(OnChange):
        if value == one:
            return one  # type: ignore[no-any-return]
    raise ConfigError(f"on_change is one of {', '.join(get_args(OnChange))}, not {value!r}.")


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier starts of a run have left in its journal.

    Attributes:
        tasks: the definition with which each task was launched last.
        codes: the parts of each code that was used, by its digest.
        files: digests of input files.
    """

    tasks: Mapping[str, Definition]
    codes: Mapping[str, Mapping[str, str]]
    files: Mapping[tuple[str, Stamp], str]


def earlier(events: Iterable[Mapping[str, Any]]) -> Earlier:
    """Read what `Changes` needs from a journal; what makes no sense is passed over."""
    tasks: dict[str, Definition] = {}
    codes: dict[str, dict[str, str]] = {}
    files: dict[tuple[str, Stamp], str] = {}
    for event in events:
        match event:
            case {"event": "app-defined", "code": str(code), "parts": dict(known)}:
                codes[code] = known
            case {
                "event": "file-digested",
                "path": str(path),
                "stamp": [int(device), int(inode), int(size), int(changed_ns)],
                "digest": str(content),
            }:
                files[path, (device, inode, size, changed_ns)] = content
            case {"event": "task-launched", "task": str(task), "arguments": dict(arguments)}:
                digest, version = event.get("code"), event.get("version")
                parts = codes.get(str(digest), {})
                tasks[task] = Definition(arguments, digest, parts, version)
    return Earlier(tasks, codes, files)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to a changed task.

    Attributes:
        action: go on, begin anew, or fail.
        text: a sentence for people: what has changed, and what happens.
    """

    action: OnChange
    text: str


def judge(
    task: str, changed: Differences, *, of: str, on_change: OnChange, again: str
) -> Verdict:
    """Decide what happens to a changed task, and say it.

    Args:
        task: its name.
        changed: what has changed.
        of: what there is of it: its result, or a checkpoint.
        on_change: the policy.
        again: what is done if it goes on all the same.
    """
    action: OnChange = on_change
    if changed.version and on_change == "resume":
        action = "redo"
    said = f"{task} has changed since {of} was made ({changed})"
    if action == "resume":
        return Verdict(action, f"{said}; {again} all the same")
    if action == "redo":
        why = ", as its version says" if changed.version else ""
        return Verdict(action, f"{said}; it begins anew{why}")
    return Verdict(
        action,
        f"{said}. Start the run with --on-change resume to use it all the same, or with "
        f"--on-change redo to begin the task anew.",
    )


class Changes:
    """Notices changed tasks, and does what the policy says.

    Args:
        run: name of the run.
        on_change: the policy.
        before: what earlier starts have left.
        lineage: opens the lineage of a task.
        say: told of every change and what happens: task, verdict.
    """

    def __init__(
        self,
        run: str,
        *,
        on_change: OnChange,
        before: Earlier,
        lineage: Callable[[LineageId], Lineage],
        say: Callable[[str, Verdict], None],
    ) -> None:
        self._run, self._on_change, self._before = run, on_change, before
        self._open, self._say = lineage, say

    def settle(
        self, task: str, now: Definition, remembered: Remembered | None, *, checkpoints: bool
    ) -> bool:
        """Compare a task with what there is of it, before its first launch in this life.

        Args:
            task: its name.
            now: what it is made of.
            remembered: the result that would be used.
            checkpoints: whether it uses checkpoints at all.

        Returns:
            Whether to use the result. If it has to begin anew, its lineage was set back.

        Raises:
            TaskChanged: it must not be used.
            CheckpointError: the store could not be asked.
        """
        if remembered is not None:
            before = Definition(
                now.arguments,
                remembered.code,
                self._before.codes.get(remembered.code or "", {}),
                now.version,
            )
            of, again = "its result", "the result is used"
        elif task in self._before.tasks and checkpoints:
            before, of, again = self._before.tasks[task], "its checkpoint", "it goes on from it"
        else:
            return False
        changed = differences(before, now)
        if not changed:
            return remembered is not None
        lineage = self._open(LineageId(self._run, task)) if checkpoints else None
        newest = self._newest(lineage, changed)
        if remembered is None:
            if newest is None:
                return False  # There is nothing of the old one to go on from.
            of = f"its checkpoint of step {newest.step}"
        verdict = judge(task, changed, of=of, on_change=self._on_change, again=again)
        if verdict.action == "fail":
            raise TaskChanged(verdict.text, task=task, changes=changed.texts)
        if verdict.action == "redo" and lineage is not None and newest is not None:
            set_back(lineage, None, reason=verdict.text)
        self._say(task, verdict)
        return remembered is not None and verdict.action == "resume"

    def _newest(self, lineage: Lineage | None, changed: Differences) -> CheckpointId | None:
        """Return the newest checkpoint; not to know it is in the way of nothing but redoing."""
        if lineage is None:
            return None
        try:
            return newest_checkpoint(lineage)
        except TierError as error:
            if self._on_change == "redo" or changed.version:
                raise
            _log.warning("%s: its checkpoints cannot be looked at: %s", lineage.id, error)
            return None
