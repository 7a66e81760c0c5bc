"""Execute a workflow script as ``python script.py`` would, and execute it again.

The script runs in this process, so that what became of its run can be asked afterwards. Names
given on the command line reach `ckptflow.run` through the environment and come before what
the script says. A restart takes the script, its arguments and its folder from the journal.
``tests/unit/test_script.py``, ``tests/process/test_cli_runs.py``.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ckptflow.errors import ConfigError
from ckptflow.site import Site, load_site
from ckptflow.site.layers import SET_VARIABLE, USER_VARIABLE, parse_setting, settings_in
from ckptflow.site.tiers import place_of
from ckptflow.workflow.run import last_run
from ckptflow.workflow.summary import RunSummary

RUN_VARIABLE, SITE_VARIABLE, STORE_VARIABLE = "CKPTFLOW_RUN", "CKPTFLOW_SITE", "CKPTFLOW_STORE"
CHANGE_VARIABLE = "CKPTFLOW_ON_CHANGE"


@dataclass(frozen=True, slots=True)
class UserLayer:
    """What is laid on top of a site for one start.

    Attributes:
        file: the user's own file, if another one than the usual.
        settings: each ``KEY=VALUE``.
    """

    file: str | Path | None = None
    settings: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str | None]:
        """The same as the environment says it to `ckptflow.run`."""
        for setting in self.settings:
            parse_setting(setting)
        file = None if self.file is None else str(Path(self.file).expanduser().absolute())
        return {USER_VARIABLE: file, SET_VARIABLE: "\n".join(self.settings) or None}


AS_IT_IS = UserLayer()

_NO_SCRIPTS = frozenset({"ipykernel_launcher.py", "colab_kernel_launcher.py"})


@dataclass(frozen=True, slots=True)
class Launch:
    """How a workflow is started: a script, its arguments, and the folder to be in.

    Attributes:
        script: the file, absolute.
        arguments: what comes after it.
        folder: the current folder of the script, absolute.
    """

    script: Path
    arguments: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a script.

    Attributes:
        status: the exit status that the script asked for.
        message: what it gave to ``sys.exit`` instead of a number; the status is 1 then.
        summary: what became of the last run in it; ``None`` if it had none.
    """

    status: int
    message: str | None
    summary: RunSummary | None


def execute(
    launch: Launch,
    *,
    name: str | None = None,
    site: str | None = None,
    store: str | Path | None = None,
    layer: UserLayer = AS_IT_IS,
    on_change: str | None = None,
    on_summary: Callable[[RunSummary], None] = lambda _summary: None,
) -> Outcome:
    """Execute a script in this process and return what became of it.

    What it raises goes through, except for `SystemExit`.

    Args:
        launch: the script.
        name: name of the run, instead of the script's.
        site: name or file of a site, instead of the script's.
        store: folder or address for checkpoints, instead of the script's.
        layer: what is laid on top of the site.
        on_change: what to do with changed tasks, instead of what the script says.
        on_summary: told what became of the last run in it, also if the script raises.

    Raises:
        ConfigError: there is no such script, or a setting sets nothing.
    """
    if not launch.script.is_file():
        raise ConfigError(f"There is no script {launch.script}.")
    variables = {
        RUN_VARIABLE: name,
        SITE_VARIABLE: site,
        STORE_VARIABLE: None if store is None else place_of(store),
        **layer.variables,
        CHANGE_VARIABLE: on_change,
    }
    before = last_run()
    summary: RunSummary | None = None
    status, message = 0, None
    try:
        with _stage(launch, {key: value for key, value in variables.items() if value}):
            runpy.run_path(str(launch.script), run_name="__main__")
    except SystemExit as leaving:
        status, message = _status(leaving.code)
    finally:
        run = last_run()
        if run is not None and run is not before:
            summary = run.summary()
            on_summary(summary)
    return Outcome(status, message, summary)


def last_start(events: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return what the journal says of the last start; nothing if it does not."""
    return next((one for one in reversed(events) if one["event"] == "run-started"), {})


def last_launch(events: Sequence[Mapping[str, object]], name: str) -> Launch:
    """Return how a run was started the last time.

    Raises:
        ConfigError: not from a script that could be started again.
    """
    started = last_start(events)
    match started.get("argv"), started.get("folder"):
        case [str(first), *rest], str(folder):
            script = Path(folder, first)
            if script.is_file() and script.name not in _NO_SCRIPTS:
                return Launch(script, tuple(map(str, rest)), Path(folder))
    raise ConfigError(
        f"Run {name!r} was started as {started.get('argv')!r} in {started.get('folder')!r}, "
        f"which is no script that could be started again. Start it in its own way: that is the "
        f"restart."
    )


def site_of(site: str | None, store: str | Path | None, layer: UserLayer = AS_IT_IS) -> Site:
    """Return the site as `ckptflow.run` will see it."""
    folder = store or os.environ.get(STORE_VARIABLE)
    said = {**os.environ, **{key: value for key, value in layer.variables.items() if value}}
    chosen = load_site(
        site or said.get(SITE_VARIABLE) or "local",
        user=said.get(USER_VARIABLE),
        overrides=settings_in(said),
        purpose="show" if folder else "tiers",  # The run itself asks for more.
    )
    return chosen.with_store(folder) if folder else chosen.at(Path.cwd())


def _status(code: object) -> tuple[int, str | None]:
    """Return what Python makes of the argument of ``sys.exit``."""
    if code is None:
        return 0, None
    return (code, None) if isinstance(code, int) else (1, str(code))


@contextmanager
def _stage(launch: Launch, variables: Mapping[str, str]) -> Iterator[None]:
    """Set the scene that a script expects, and put everything back afterwards."""
    argv, path, folder = sys.argv, sys.path, Path.cwd()
    saved = {name: os.environ.get(name) for name in variables}
    sys.argv = [str(launch.script), *launch.arguments]
    sys.path = [str(launch.script.parent), *path]
    os.environ.update(variables)
    os.chdir(launch.folder)
    try:
        yield
    finally:
        os.chdir(folder)
        sys.argv, sys.path = argv, path
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
