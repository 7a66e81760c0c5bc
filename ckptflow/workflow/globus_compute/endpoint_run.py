"""A run whose tasks go to an endpoint straight through the SDK, without Parsl's kernel.

    with ckptflow.globus_compute.run("exp-12", endpoint="6c54...", store="s3://...") as run:
        futures = [run.submit(train, seed) for seed in range(4)]   # or train(seed), as ever
        print([future.result() for future in futures])

It is a `Run` in all else: the lock, the journal, the memo, the prices of retries, the summary.
Only the arguments of a task cannot be futures of others.

``tests/process/test_globus_compute.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.site import Site, load_site
from ckptflow.site.executor import EndpointAllocation
from ckptflow.workflow.apps import App
from ckptflow.workflow.globus_compute.executor import TaskExecutor, executor_for
from ckptflow.workflow.globus_compute.launcher import Launcher, TaskFuture
from ckptflow.workflow.retry import UserHandler
from ckptflow.workflow.run import PARSL, Run


def run(
    name: str,
    *,
    endpoint: str | None = None,
    site: str | Path | Site = "globus_compute",
    store: str | Path | None = None,
    retries: int = 3,
    retry_handler: UserHandler | None = None,
    executor: TaskExecutor | None = None,
    overrides: Mapping[str, object] | None = None,
) -> GlobusRun:
    """Return a run on an endpoint of Globus Compute; tasks are submitted while it is entered.

    Args:
        name: tells runs in one store apart. The same name again is a restart.
        endpoint: id of the endpoint; the site's if not given.
        site: name or file of a site of kind ``globus_compute``.
        store: an address, or a folder that the endpoint sees by the same absolute path; the
            site's tiers if not given.
        retries: what the failed tries of a task may cost in all, see `workflow.retry`.
        retry_handler: prices errors that ckptflow has no rule for.
        executor: one's own, for a client of one's own; the site's endpoint is not used then.
        overrides: values that replace the site file's, by dotted key.

    Raises:
        ConfigError: a name or a value is wrong, or there is no endpoint. Nothing was started.
    """
    changed = dict(overrides or {})
    if endpoint is not None:
        changed["executor.allocation.endpoint"] = endpoint
    place = os.environ.get("CKPTFLOW_STORE") or store
    chosen = load_site(os.environ.get("CKPTFLOW_SITE") or site, overrides=changed)
    return GlobusRun(
        os.environ.get("CKPTFLOW_RUN") or name,
        chosen.with_store(place) if place else chosen.at(Path.cwd()),
        retries=retries,
        retry_handler=retry_handler,
        executor=executor,
    )


class GlobusRun(Run):
    """One life of a workflow on an endpoint. Made by `run`; use it as a context manager.

    Attributes:
        name: name of the run.
        site: the machine.
        folder: where the run's own files are.
        session: random name of this life.
        tasks: what becomes of its tasks.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        *,
        retries: int = 3,
        retry_handler: UserHandler | None = None,
        executor: TaskExecutor | None = None,
    ) -> None:
        allocation = site.executor.allocation
        if not isinstance(allocation, EndpointAllocation):
            raise ConfigError(
                f"Site {site.name!r} is of kind {site.executor.kind}: tasks on an endpoint "
                f"need one of kind globus_compute, or ckptflow.run for this one."
            )
        if executor is None and allocation.endpoint is None:
            raise ConfigError(
                "There is no endpoint: give endpoint=, or executor.allocation.endpoint in the "
                "site file."
            )
        super().__init__(name, site, retries=retries, retry_handler=retry_handler)
        self._own_executor, self._allocation = executor, allocation
        self._launcher: Launcher | None = None

    def submit(self, app: App, *args: Any, **kwargs: Any) -> TaskFuture:
        """Submit a task of an app; calling the app does the same.

        Raises:
            ConfigError: the run is not entered, or the app does not fit in.
        """
        if self._launcher is None:
            raise ConfigError(f"Run {self.name!r} is not active: use `with` around its tasks.")
        future = self._launcher.launch(app, args, kwargs, spec=self.tasks.spec_for(app))
        self.tasks.follow(future, app)
        self._launcher.start(future)
        return future

    def _load(self) -> Launcher:
        executor = self._own_executor or executor_for(self._allocation)
        memoizer = self._make_memoizer()
        memoizer.start(
            run_dir=str(self.folder / PARSL), config_run_dir=str(self.folder / PARSL)
        )
        self._launcher = Launcher(
            executor,
            memoizer,
            self._make_retry_handler(),
            retries=self._retries,
        )
        return self._launcher

    def _stop(self, *, in_peace: bool) -> None:
        super()._stop(in_peace=in_peace)
        self._launcher = None
