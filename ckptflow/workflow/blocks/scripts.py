"""What would be submitted for a block of a site, without submitting it.

``tests/unit/test_batch_scripts.py``.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.site import Site
from ckptflow.site.executor import ExecutorModel, PbsAllocation, SlurmAllocation
from ckptflow.workflow.blocks.config import launch_command, worker_init
from ckptflow.workflow.blocks.providers import provider_of

SCRIPTS_FOLDER = "/RUN/submit_scripts"
_JOB = "parsl.htex.block-0"


class _Names(dict[str, str]):
    """Stands for what is known only when a workflow runs: its name, in capitals."""

    def __missing__(self, key: str) -> str:
        return key.upper()


def batch_script(site: Site, *, command: str | None = None) -> str:
    """Return the text that would be submitted for the first block of a site.

    What is known only when a workflow runs stands there in capitals.

    Args:
        site: the site.
        command: stands for the command that starts the workers.

    Raises:
        ConfigError: nothing is submitted for its tasks.
    """
    model = site.executor
    if model.kind == "threads" or not hasattr(model.allocation, "nodes"):
        raise ConfigError(
            f"For tasks of kind {model.kind} nothing is submitted by site {site.name!r}."
        )
    started = command or launch_command(model).format_map(_Names())
    init = worker_init(model, {})
    if isinstance(model.allocation, SlurmAllocation | PbsAllocation):
        return _submitted(provider_of(model, init), started)
    return _commands(model, init, started)


def _submitted(provider: Any, command: str) -> str:
    """Have a provider write its script, and nothing of what it would do with it."""
    with tempfile.TemporaryDirectory() as folder:
        provider.script_dir = folder
        provider.execute_wait = lambda _command, _timeout=None: (0, "Submitted batch job 0", "")
        provider.submit(command, 1, _JOB)
        (script,) = Path(folder).glob(f"{_JOB}*")
        text = script.read_text(encoding="utf-8").replace(folder, SCRIPTS_FOLDER)
    return re.sub(re.escape(_JOB) + r"\.[0-9]+\.[0-9]+", _JOB, text)


def _commands(model: ExecutorModel, init: str, command: str) -> str:
    """Return what a shell does where no batch system has a script: here, or in a pod."""
    where = "in a pod" if model.allocation.provider == "kubernetes" else "on this computer"
    return f"#!/bin/bash\n# Started {where}.\n{init}\n{command}\n"
