"""Where an attempt of a code goes on, and its folder made ready for that.

The newest of two: the checkpoint of the store, and a file that the code wrote before the worker
died and that nobody took in. Such a file is checked, and saved first. It counts only if
the folder is that of the attempt just before, and the store has not gone back since: who
gives checkpoints up must not find them again in a folder.

Then the files of the checkpoint are put back. What is newer or differs is moved aside, so that
a code which looks for its newest file by itself finds the right one. Nothing is deleted.
``tests/unit/test_external_starting.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, NotFoundError, StateError
from ckptflow.model import CheckpointId
from ckptflow.workflow.external.folder import OURS, Left, WorkFolder
from ckptflow.workflow.external.image import (
    Image,
    Images,
    holds,
    images_of_state,
    look,
    matching,
    put_back,
)
from ckptflow.workflow.external.intake import Intake
from ckptflow.workflow.external.judge import Ending
from ckptflow.workflow.external.names import has_step_field, is_glob
from ckptflow.workflow.external.options import Code

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins.

    Attributes:
        name: the restart file, relative to the folder; ``None`` at the very beginning.
        step: its step.
        failures: what went wrong on the way, in sentences.
    """

    name: str | None = None
    step: int | None = None
    failures: tuple[str, ...] = ()


def make_ready(code: Code, checkpointer: Checkpointer, folder: WorkFolder) -> Start:
    """Restore the newest files into the folder; return where the command has to begin.

    Raises:
        ConfigError: the folder has restart files of somebody else.
        RestoreError: there are checkpoints, but none could be restored.
        StateError: the checkpoints are none of files.
        OSError: the files could not be put back.
    """
    _remove_stop_file(code, folder)
    newest = checkpointer.lineage.newest()
    images = _restored(code, checkpointer)
    found = None if newest is None else newest.id
    failures: tuple[str, ...] = ()
    if folder.left is not None and _goes_on(folder.left, folder.attempt, found):
        intake = Intake(code, checkpointer, folder, left=folder.left)
        saved = intake.look(Ending.UNKNOWN, keep=True)
        failures = tuple(intake.failures)
        if saved is not None:
            images = intake.last_images()
            _log.info("%s: goes on from %s, which nobody had saved", folder.path, saved.name)
    step = checkpointer.last_step if images is not None else None
    if folder.left is None and images is None:
        _refuse_foreign(code, folder)
        held = set()
    else:
        held = _clear(code, folder, images, step)
    if images is None or step is None:
        aside = sorted(
            path.name for path in (folder.own / "aside").rglob("*") if path.is_file()
        )
        if aside:
            failures += (
                f"{checkpointer.task} begins at zero again, although attempts before have "
                f"written {', '.join(aside[:5])}: nothing shows that they are whole. They are "
                f"in {folder.own / 'aside'}.",
            )
        return Start(failures=failures)
    for image in images.all:
        if image.name not in held:
            put_back(folder.path, image)
    _remember(folder, checkpointer, images.restart, step)
    return Start(images.restart.name, step, failures)


def _restored(code: Code, checkpointer: Checkpointer) -> Images | None:
    try:
        state: Any = checkpointer.restore(None)
    except NotFoundError:
        return None
    images = images_of_state(state)
    watched, (place, _, name) = code.watched, images.restart.name.rpartition("/")
    if place != watched.folder or watched.step_of(name) is None:
        raise StateError(
            f"{checkpointer.task} has checkpoints of the file {images.restart.name!r}, which "
            f"watch={code.watch!r} does not mean. Put the old watch= back, or use another name "
            f"for the app or the run to begin anew."
        )
    for image in images.all:
        if image.name.partition("/")[0] == OURS or image.name == code.stop_file:
            raise StateError(
                f"The checkpoint is not used: {image.name!r} is no file of a code."
            )
    return images


def _goes_on(left: Left, attempt: int, newest: CheckpointId | None) -> bool:
    """Tell whether what lies in a folder continues what the store has."""
    if left.record.attempt != attempt - 1:
        return False
    if newest is None or left.record.newest is None:
        known = left.record.newest is None
        return known and (newest is None or newest.attempt == left.record.attempt)
    known_id = CheckpointId(left.record.newest[1], left.record.newest[0])
    # It may have committed one more before it could write its record.
    return newest == known_id or (newest.attempt == left.record.attempt and newest > known_id)


def _refuse_foreign(code: Code, folder: WorkFolder) -> None:
    """Raise if restart files are there before the first attempt: whose are they?"""
    watched, place = code.watched, folder.path / code.watched.folder
    names = sorted(
        path.name for path in place.glob("*") if watched.step_of(path.name) is not None
    )
    if names:
        raise ConfigError(
            f"{folder.path} has restart files that no attempt of this task has written: "
            f"{', '.join(names[:5])}. They would be taken for its own: move them, or begin in "
            f"another folder."
        )


def _clear(code: Code, folder: WorkFolder, images: Images | None, step: int | None) -> set[str]:
    """Move aside what does not belong to the checkpoint, or is not as it was then.

    Returns:
        The names of files that are as they were.
    """
    held: set[str] = set()
    chosen = {} if images is None else {image.name: image for image in images.all}
    for name in list(_there(code, folder, step)):
        image = chosen.get(name)
        if image is not None and holds(folder.path, image):
            held.add(name)
            continue
        where = folder.set_aside(name)
        _log.warning(
            "%s was moved aside to %s: %s",
            name,
            where,
            "it is not what the checkpoint has"
            if image is not None
            else "no checkpoint vouches for it",
        )
    for name in chosen:
        path = folder.path / name
        if path.is_symlink() or path.is_dir():
            _log.warning("%s was moved aside to %s", name, folder.set_aside(name))
    return held


def _there(code: Code, folder: WorkFolder, step: int | None) -> Iterator[str]:
    """Yield the files of the folder that a code might take for those of the checkpoint."""
    watched = code.watched
    for path in sorted((folder.path / watched.folder).glob("*")):
        found = watched.step_of(path.name)
        if found is None:
            continue
        if not watched.has_step or step is None or found >= step:
            yield watched.path_of(path.name)
    for key in code.with_files:
        if is_glob(key):
            for name in matching(folder.path, key):
                place, _, last = name.rpartition("/")
                restart = place == watched.folder and watched.step_of(last) is not None
                if not restart and name.partition("/")[0] != OURS:
                    yield name
        elif not has_step_field(key) and (folder.path / key).is_file():
            yield key


def _remember(
    folder: WorkFolder, checkpointer: Checkpointer, restart: Image, step: int
) -> None:
    sight = look(folder.path, restart.name)
    if sight is None:
        raise FileNotFoundError(f"{restart.name} was put back into {folder.path} and is gone.")
    found = checkpointer.lineage.valid_of_step(step)
    attempt = found[0].id.attempt if found else folder.attempt
    record = folder.record.with_taken(CheckpointId(step, attempt), restart.name, sight)
    folder.write(record)


def _remove_stop_file(code: Code, folder: WorkFolder) -> None:
    """Remove what asked the attempt before to end."""
    if code.stop_file is not None:
        (folder.path / code.stop_file).unlink(missing_ok=True)
