"""Takes files of a code in: finds the newest complete one, checks it, saves it.

Newest first: what is older than the last checkpoint is of no use to a restart. A file that
was refused is not looked at again until it changes. One call of `Intake.look` takes in one
checkpoint at the most, and waits until it is durable. ``tests/unit/test_external_intake.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import CaptureError, CheckpointError, ConfigError, FencedError
from ckptflow.model import CheckpointId
from ckptflow.workflow.external.check import Check
from ckptflow.workflow.external.folder import OURS, Left, WorkFolder
from ckptflow.workflow.external.image import (
    Images,
    Sight,
    look,
    matching,
    read_image,
    state_of_images,
)
from ckptflow.workflow.external.judge import Ending, Finding, Observed, Verdict, judge
from ckptflow.workflow.external.names import (
    digits_of,
    has_step_field,
    is_glob,
    with_step,
)
from ckptflow.workflow.external.notices import Happened
from ckptflow.workflow.external.options import Code
from ckptflow.workflow.external.processes import is_written_by, mark_of

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may be taken in.

    Attributes:
        step: that its name tells, or that it would get.
        name: relative to the folder.
        sight: what it looks like.
    """

    step: int
    name: str
    sight: Sight


class NotReady(CaptureError):
    """What belongs to a restart file is not there yet, or not complete."""


class Intake:
    """The files of one folder, on their way into the lineage of its task.

    Args:
        code: what the app says of its code.
        checkpointer: of the attempt.
        folder: of the attempt.
        left: the folder to look into, if it is that of the attempt before, and what was known.

    Attributes:
        refused: why the newest file was not taken in, if one was refused and none came since.
        failures: what else went wrong, in sentences.
        taken: how many were.
    """

    def __init__(
        self,
        code: Code,
        checkpointer: Checkpointer,
        folder: WorkFolder,
        *,
        left: Left | None = None,
    ) -> None:
        self._code, self._watched = code, code.watched
        self._checkpointer, self._folder = checkpointer, folder
        self._path = folder.path if left is None else left.path
        self._left = left
        self._check = Check(code, self._path, folder.own)
        self._mark = mark_of(folder.path, folder.attempt)
        self._since: dict[str, tuple[Sight, float]] = {}
        self._renamed: dict[str, Sight] = {}
        self._closed: dict[str, Sight] = {}
        self._bad: dict[str, Sight] = {}
        self._not_due: Candidate | None = None
        self._told: set[str] = set()
        self._last_images: tuple[str, Images] | None = None
        self.refused: str | None = None
        self._refused_step = 0
        self.failures: list[str] = []
        self.taken = 0

    def note(self, happened: Happened) -> None:
        """Remember what happened to files, as they look now."""
        for names, known in (
            (happened.renamed, self._renamed),
            (happened.closed, self._closed),
        ):
            for name in names:
                if self._watched.step_of(name) is not None:
                    path = self._watched.path_of(name)
                    sight = self._look(path)
                    if sight is not None:
                        known[path] = sight

    def look(self, ending: Ending, *, keep: bool = False) -> Candidate | None:
        """Take in the newest complete file that is newer than the last checkpoint.

        Args:
            ending: where the code is.
            keep: keep what was read, for `last_images`.

        Returns:
            What was taken in and is durable; ``None`` if nothing was.

        Raises:
            FencedError: a newer attempt has taken over.
        """
        begun_ns = self._newest_ns()
        for one in self.candidates():
            followed = self._watched.has_step and one.sight.mtime_ns < begun_ns
            verdict = self._judged(one, ending, followed=followed)
            if verdict.finding is Finding.WAIT:
                continue
            if verdict.finding is Finding.TORN:
                self._refuse(one, verdict.reason)
                continue
            if ending is Ending.RUNNING and not self._is_due(one):
                return None
            try:
                images = self._images(one, ending)
            except NotReady as error:
                if ending is not Ending.RUNNING:
                    self._refuse(one, str(error))
                continue
            except (CaptureError, ConfigError, OSError) as error:
                self._refuse(one, str(error))
                continue
            if keep:
                self._last_images = one.name, images
            return one if self._save(one, images) else None
        return None

    def last_images(self) -> Images | None:
        """Return, once, what the last `look` has read and kept."""
        kept, self._last_images = self._last_images, None
        return None if kept is None else kept[1]

    def candidates(self) -> list[Candidate]:
        """Return the files that are newer than the last checkpoint, the newest first."""
        last = self._checkpointer.last_step
        last_step = -1 if last is None else last
        found = []
        for name, named_step in self.listed():
            path = self._watched.path_of(name)
            step = named_step if self._watched.has_step else max(last_step, 0) + 1
            if step <= last_step:
                continue
            sight = self._look(path)
            if sight is None or self._bad.get(path) == sight:
                continue
            if not self._watched.has_step:
                record = self._folder.record if self._left is None else self._left.record
                if record.has_taken(path, sight):
                    continue
            found.append(Candidate(step, path, sight))
        return sorted(found, key=lambda one: (one.step, one.sight.mtime_ns), reverse=True)

    def listed(self) -> Iterator[tuple[str, int]]:
        """Yield name and step of each restart file, complete or not."""
        place = self._path / self._watched.folder
        try:
            names = [path.name for path in place.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            step = self._watched.step_of(name)
            if step is not None:
                yield name, step
            elif self._watched.is_near(name):
                self._tell(f"{name} has no step where watch={self._code.watch!r} has its star")

    # --- one file ---

    def _is_due(self, one: Candidate) -> bool:
        """Tell whether a file is worth taking in; each is asked about once."""
        if not self._code.is_thinned:
            return True
        if self._not_due != one and self._checkpointer.due(one.step):
            return True
        self._not_due = one
        return False

    def _newest_ns(self) -> int:
        """Return when the newest of all restart files was last written to."""
        sights = (self._look(self._watched.path_of(name)) for name, _ in self.listed())
        return max((sight.mtime_ns for sight in sights if sight is not None), default=0)

    def _judged(self, one: Candidate, ending: Ending, *, followed: bool = False) -> Verdict:
        now_s = time.monotonic()
        before = self._since.get(one.name)
        if before is None or before[0] != one.sight:
            before = self._since[one.name] = one.sight, now_s
        seen = Observed(
            one.sight.size_bytes,
            now_s - before[1],
            renamed=self._renamed.get(one.name) == one.sight,
            closed=self._closed.get(one.name) == one.sight,
            followed=followed,
        )
        code = self._code
        verdict = judge(seen, ending, stable_s=code.stable_s, is_checked=code.is_checked)
        if verdict.finding is Finding.COMPLETE and ending is Ending.RUNNING:
            # Asked last: it looks at every process of the command.
            held = is_written_by(self._mark, one.sight.device, one.sight.inode)
            seen = replace(seen, held_open=held)
            verdict = judge(seen, ending, stable_s=code.stable_s, is_checked=code.is_checked)
        return verdict

    def _images(self, one: Candidate, ending: Ending) -> Images:
        """Read a restart file and what belongs to it; what is returned was checked.

        Raises:
            CaptureError: it is not sound, or changed meanwhile.
            NotReady: something that belongs to it is missing.
        """
        digits = digits_of(self._watched, one.name.rpartition("/")[2])
        parts: dict[str, Candidate] = {}
        appended: dict[str, Candidate] = {}
        for key in self._code.with_files:
            if is_glob(key):
                for name in matching(self._path, key):
                    if self._belongs(name):
                        appended[name] = self._required(one.step, name)
            elif has_step_field(key):
                part = parts[key] = self._required(one.step, with_step(key, digits))
                verdict = self._judged(part, ending)
                if verdict.finding is not Finding.COMPLETE:
                    raise NotReady(f"{part.name} belongs to it: {verdict.reason}")
            else:
                appended[key] = self._required(one.step, key)
        self._check.by_command(one.name, one.step)
        restart = read_image(self._path, one.name, one.sight)
        self._check.by_end(one.name, restart.data)
        others = {
            key: read_image(self._path, part.name, part.sight) for key, part in parts.items()
        }
        for key, part in appended.items():
            others[key] = read_image(self._path, part.name, part.sight, appended=True)
        # What was checked by name, what was read, and what is there now are the same file.
        for checked in (one, *parts.values()):
            if look(self._path, checked.name) != checked.sight:
                raise CaptureError(f"{checked.name} was written to while it was taken in.")
        return Images(restart, others)

    def _required(self, step: int, name: str) -> Candidate:
        sight = look(self._path, name)
        if sight is None:
            raise NotReady(f"{name} belongs to it and is missing")
        return Candidate(step, name, sight)

    def _belongs(self, name: str) -> bool:
        """Tell whether a file that a pattern found is none of the restart files, or of ours."""
        place, _, last = name.rpartition("/")
        is_restart = place == self._watched.folder and self._watched.step_of(last) is not None
        return (
            not is_restart and name.partition("/")[0] != OURS and name != self._code.stop_file
        )

    def _save(self, one: Candidate, images: Images) -> bool:
        """Save and wait; return whether it is durable."""
        try:
            self._checkpointer.save(one.step, state_of_images(images)).wait()
        except FencedError:
            raise
        except CheckpointError as error:
            # The checkpointer has it among its failures, which end in the run's summary.
            _log.warning("%s was not saved: %s", one.name, error)
            self._bad[one.name] = one.sight
            return False
        self.taken += 1
        self.refused = None
        _log.info("%s: %s was taken in as step %d", self._checkpointer.task, one.name, one.step)
        checkpoint = CheckpointId(one.step, self._checkpointer.attempt)
        self._remember(checkpoint, one)
        return True

    def _remember(self, checkpoint: CheckpointId, one: Candidate) -> None:
        """Write into the record what is safe now, and tidy up if the app asks for it."""
        try:
            record = self._folder.record.with_taken(checkpoint, one.name, one.sight)
            self._folder.write(record)
            if self._code.tidy is not None:
                self._tidy(self._code.tidy, checkpoint.step)
        except OSError as error:
            self.fail(f"The record of {self._folder.path} was not kept: {error}")

    def _tidy(self, stay: int, newest_step: int) -> None:
        """Delete restart files that are safe in the store, but for the newest ones."""
        if not self._watched.has_step or self._path != self._folder.path:
            return
        safe = []
        for name, step in self.listed():
            path = self._watched.path_of(name)
            sight = self._look(path)
            if sight is not None and self._folder.record.has_taken(path, sight):
                safe.append((step, path))
        for step, path in sorted(safe, reverse=True)[stay:]:
            if step < newest_step:
                (self._path / path).unlink(missing_ok=True)

    def _look(self, path: str) -> Sight | None:
        """Return what a file looks like; ``None`` also for what is none, of which it tells."""
        try:
            return look(self._path, path)
        except (CaptureError, ConfigError, OSError) as error:
            self._tell(str(error))
            return None

    def _refuse(self, one: Candidate, reason: str) -> None:
        self._bad[one.name] = one.sight
        text = f"{one.name} was not taken in: {reason}"
        _log.warning("%s: %s", self._checkpointer.task, text)
        if self.refused is None or one.step >= self._refused_step:
            self.refused, self._refused_step = text, one.step

    def fail(self, text: str) -> None:
        """Note a failure that nobody else would hear of."""
        self.failures.append(text)
        _log.warning("%s", text)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s: %s", self._checkpointer.task, text)
