"""Parsl's own monitoring, where a site asks for it: a database of tasks, tries and resources.

It lies beside Parsl's logs in the run's folder, as ``monitoring.db``, and `report` and `why`
join it by the hash of a task. Parsl writes it from a process that would live on for ever after
its parent was killed. So that one carries the marks of the run, like all that a run starts, and
the next start ends it. ``tests/process/test_monitoring.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing import resource_tracker
from typing import Any

from parsl.errors import OptionalModuleMissing
from parsl.monitoring import MonitoringHub

from ckptflow.errors import ConfigError
from ckptflow.site.executor import ExecutorModel


class MarkedMonitoringHub(MonitoringHub):  # type: ignore[misc]
    """A monitoring hub whose process has some variables in its environment.

    Args:
        environment: the variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        super().__init__()

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the process; called by Parsl."""
        # The tracker of this process would have the marks as well, and be ended with the run.
        resource_tracker.ensure_running()
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            super().start(*args, **kwargs)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def monitoring_of(
    executor: ExecutorModel, environment: Mapping[str, str]
) -> MarkedMonitoringHub | None:
    """Return the monitoring that a site asks for, or ``None``.

    Raises:
        ConfigError: Parsl's monitoring is not installed.
    """
    if not executor.monitoring:
        return None
    try:
        return MarkedMonitoringHub(environment)
    except OptionalModuleMissing as error:
        raise ConfigError(
            "The site asks for Parsl's monitoring, which is not installed here: "
            "pip install 'parsl[monitoring]', or set monitoring = false in [executor]."
        ) from error
