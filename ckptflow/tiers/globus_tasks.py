"""Tasks of Globus: submitted under an id that was written down, then polled until they end.

``tests/conformance/test_globus_tier.py`` and ``tests/unit/test_globus_tier.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ckptflow.errors import TierUnavailable
from ckptflow.tiers.globus_errors import needs_person, passes, task_error

_POLL_FIRST_S, _POLL_MOST_S, _POLL_GROWTH = 1.0, 30.0, 1.5
_EVENTS = 10  # So many of the newest events are looked at for the reason of a fault.


@dataclass(frozen=True)
class Polling:
    """How one waits for a task.

    Attributes:
        deadline_s: so long at most; the task goes on, and a later call takes it up.
        first_s: time to the second look; it grows to half a minute.
        pause: sleeps.
        clock_s: tells the time.
    """

    deadline_s: float
    first_s: float = _POLL_FIRST_S
    pause: Callable[[float], None] = time.sleep
    clock_s: Callable[[], float] = time.monotonic


class GlobusTasks:
    """Submits tasks with a ``globus_sdk.TransferClient``, and waits for them."""

    def __init__(self, client: Any, polling: Polling) -> None:
        self._client, self._polling = client, polling

    def new_submission_id(self) -> str:
        """Return an id under which one task can be submitted, however often it is tried."""
        return str(self._client.get_submission_id()["value"])

    def submit_transfer(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        *,
        submission_id: str,
        label: str,
    ) -> str:
        """Ask for one file to be copied, both given as (collection, path); return the task.

        Globus compares checksums after the copy, and mails nobody.
        """
        import globus_sdk

        data = globus_sdk.TransferData(
            source[0],
            target[0],
            label=label,
            submission_id=submission_id,
            sync_level="checksum",
            verify_checksum=True,
            fail_on_quota_errors=True,
            notify_on_succeeded=False,
            notify_on_failed=False,
            notify_on_inactive=False,
        )
        data.add_item(source[1], target[1])
        return str(self._client.submit_transfer(data)["task_id"])

    def delete(self, collection: str, path: str, *, what: str) -> None:
        """Delete one file, which may be absent, and wait until it is gone."""
        import globus_sdk

        data = globus_sdk.DeleteData(
            collection,
            label="ckptflow",
            ignore_missing=True,
            notify_on_succeeded=False,
            notify_on_failed=False,
            notify_on_inactive=False,
        )
        data.add_item(path)
        self.wait(str(self._client.submit_delete(data)["task_id"]), what=what)

    def wait(self, task_id: str, *, what: str) -> None:
        """Return when a task has succeeded.

        Args:
            task_id: of Globus.
            what: what it is for, in messages.

        Raises:
            TierFull: there is no room or quota at its target.
            TierDenied: rights or a login are missing.
            TierUnavailable: it failed otherwise, or is not at its end in time.
        """
        began_s, delay_s = self._polling.clock_s(), self._polling.first_s
        while True:
            task = self._look(task_id)
            if task["status"] == "SUCCEEDED":
                return
            if task["status"] == "FAILED" or needs_person(task):
                raise task_error(what, task, self._events(task_id))
            left_s = self._polling.deadline_s - (self._polling.clock_s() - began_s)
            if left_s <= 0:
                late = task_error(what, task, self._events(task_id))
                raise TierUnavailable(
                    f"{late} It is not at its end after {self._polling.deadline_s:.0f} s; it "
                    f"goes on, and the next attempt takes it up."
                )
            self._polling.pause(min(delay_s, left_s))
            delay_s = min(delay_s * _POLL_GROWTH, _POLL_MOST_S)

    def has_failed(self, task_id: str) -> bool:
        """Tell whether a task has come to a bad end, so that waiting for it is in vain."""
        return bool(self._look(task_id)["status"] == "FAILED")

    def cancel(self, task_id: str) -> None:
        """End a task if it has not ended; that it cannot be reached is no reason to fail."""
        import globus_sdk

        try:
            self._client.cancel_task(task_id)
        except globus_sdk.GlobusError:
            return  # It ends by its own deadline.

    def _look(self, task_id: str) -> Mapping[str, Any]:
        import globus_sdk

        try:
            task: Mapping[str, Any] = self._client.get_task(task_id).data
        except (globus_sdk.GlobusAPIError, globus_sdk.NetworkError) as error:
            if getattr(error, "http_status", None) == 404:  # Globus forgets old tasks.
                return {"task_id": task_id, "status": "FAILED", "nice_status": error.code}
            if not passes(error):
                raise
            # That nobody answers now says nothing about the task.
            return {"task_id": task_id, "status": "UNKNOWN", "nice_status_details": str(error)}
        return task

    def _events(self, task_id: str) -> list[Mapping[str, Any]]:
        import globus_sdk

        try:
            return list(self._client.task_event_list(task_id, limit=_EVENTS))
        except globus_sdk.GlobusError:
            return []  # They would only have explained what is raised anyway.
