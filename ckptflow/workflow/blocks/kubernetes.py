"""Blocks as pods of Kubernetes. ``tests/unit/test_kubernetes_provider.py``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client import ApiException
from parsl.jobs.states import JobState
from parsl.providers import KubernetesProvider
from urllib3.exceptions import HTTPError

from ckptflow.workflow.blocks.ends import BlockStatus

PHASES = {
    "Pending": JobState.PENDING,
    "Running": JobState.RUNNING,
    "Succeeded": JobState.COMPLETED,
    "Failed": JobState.FAILED,
}
# Reasons of a failure that are none of the workers: their node was wanted or lost.
LOST = frozenset(
    {"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "Shutdown"}
)

_NOT_FOUND = 404
_log = logging.getLogger("ckptflow")


class PodBlocks(KubernetesProvider):  # type: ignore[misc]
    """Parsl's provider, which notices pods that are gone, and has none started again.

    A pod that Kubernetes starts again would be a block that has ended, under the same number.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, *, poll_s: float, **options: Any) -> None:
        self.poll_s = poll_s
        super().__init__(**options)
        self.kube_client: Any = _StartedOnce(self.kube_client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(image={self.image!r}, pods={len(self.resources)})"

    @property
    def status_polling_interval(self) -> float:
        """Seconds between two questions."""
        return self.poll_s

    def _status(self) -> None:
        for record in self.resources.values():
            if record["status"].terminal:
                continue
            try:
                pod = self.kube_client.read_namespaced_pod(
                    name=record["pod_name"], namespace=self.namespace
                )
            except ApiException as error:
                if error.status == _NOT_FOUND:
                    self._update(record, JobState.TIMEOUT, "the pod is gone", lost=True)
                    continue
                _log.warning("Kubernetes does not tell how pods are: %s", error.reason)
                return
            except (HTTPError, OSError) as error:
                _log.warning("Kubernetes does not tell how pods are: %s", error)
                return
            phase, reason = pod.status.phase, pod.status.reason or ""
            if phase in PHASES:
                self._update(record, PHASES[phase], f"{phase} {reason}", lost=reason in LOST)

    def _update(
        self, record: dict[str, Any], state: JobState, said: str, *, lost: bool = False
    ) -> None:
        now_s = self.clock()
        if state == JobState.RUNNING:
            record.setdefault("running_since_s", now_s)
        since_s = record.get("running_since_s")
        record["status"] = BlockStatus(
            state,
            f"pod {record['pod_name']}: {said.strip()}",
            lasted_s=None if since_s is None else now_s - since_s,
            lost=lost,
        )


class _StartedOnce:
    """The client of Kubernetes, whose pods are not started again when they end."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def create_namespaced_pod(self, *, namespace: str, body: Any) -> Any:
        body.spec.restart_policy = "Never"
        return self._client.create_namespaced_pod(namespace=namespace, body=body)
