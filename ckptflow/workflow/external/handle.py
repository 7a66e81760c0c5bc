"""What the function of a bash app with ``watch=`` gets as ``ckpt``.

It has no state to save: the code saves by itself. It says where to go on, and notices whether
anybody asked. ``tests/unit/test_external_handle.py``.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from ckptflow.errors import ConfigError
from ckptflow.workflow.external.options import check_template

RESTART, RESTART_ARG, STEP, STOP_FILE = (
    "CKPTFLOW_RESTART",
    "CKPTFLOW_RESTART_ARG",
    "CKPTFLOW_STEP",
    "CKPTFLOW_STOP_FILE",
)


class CodeTask:
    """One attempt of a task whose code writes restart files of its own.

    Attributes:
        run: name of the run.
        task: name of the task.
        attempt: number of this attempt.
        folder: where the command runs.
        step: step of the restart file to go on from; ``None`` at the very beginning.
    """

    def __init__(
        self,
        *,
        run: str,
        task: str,
        attempt: int,
        folder: Path,
        name: str | None,
        step: int | None,
        template: str | None,
    ) -> None:
        self.run, self.task, self.attempt = run, task, attempt
        self.folder, self.step = folder, step
        self._name, self._template = name, template
        self._was_asked = False

    def __repr__(self) -> str:
        start = "the beginning" if self._name is None else self._name
        return f"<CodeTask {self.run}/{self.task}, attempt {self.attempt} from {start}>"

    @property
    def restart(self) -> str | None:
        """Path of the restart file to go on from, in place; ``None`` at the very beginning."""
        self._was_asked = True
        return None if self._name is None else str(self.folder / self._name)

    def restart_arg(self, template: str | None = None) -> str:
        """Return the argument with which the code goes on; nothing at the very beginning.

        Args:
            template: as ``"-r {path}"``; ``restart_arg=`` of the app if left out. ``{path}``
                is the whole path, quoted for the shell, ``{name}`` the path within the
                folder, ``{step}`` the step.

        Raises:
            ConfigError: there is no template, or it has other fields.
        """
        self._was_asked = True
        chosen = self._template if template is None else template
        if chosen is None:
            raise ConfigError(
                "restart_arg() needs a template: ckpt.restart_arg('-r {path}'), or "
                "bash_app(restart_arg='-r {path}')."
            )
        check_template("restart_arg", chosen)
        return self._filled(chosen)

    def variables(self, stop_file: str | None) -> dict[str, str]:
        """Return what the command finds in its environment."""
        restart = "" if self._name is None else str(self.folder / self._name)
        argument = "" if self._template is None else self._filled(self._template)
        stop = {} if stop_file is None else {STOP_FILE: str(self.folder / stop_file)}
        step = "" if self.step is None else str(self.step)
        return {RESTART: restart, RESTART_ARG: argument, STEP: step, **stop}

    def check_used(self, command: str) -> None:
        """Make sure that a command goes on, where there is something to go on from.

        Raises:
            ConfigError: nothing in it tells the code so: it would start from zero.
        """
        if self._name is None or self._was_asked:
            return
        if RESTART in command or self._name in command:  # RESTART_ARG begins with RESTART.
            return
        if self._template == "":  # The code finds its file by itself.
            return
        raise ConfigError(
            f"{self.task} has the restart file {self._name} of step {self.step}, but its "
            f"command does not use it and would start from zero. Use "
            f"ckpt.restart_arg('-r {{path}}'), or say restart_arg='' if the code finds the "
            f"file by itself."
        )

    def _filled(self, template: str) -> str:
        if self._name is None:
            return ""
        return filled(template, folder=self.folder, name=self._name, step=self.step)


def filled(template: str, *, folder: Path, name: str, step: int | None) -> str:
    """Return a template with what it says of a restart file; paths are quoted for the shell."""
    return template.format(
        path=shlex.quote(str(folder / name)),
        name=shlex.quote(name),
        step="" if step is None else step,
    )
