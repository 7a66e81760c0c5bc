"""What Globus says about requests and tasks, as errors of tiers.

A task of Globus seldom fails at once: it meets *faults*, says so in its events, and tries again
until its deadline, days later. A fault that only a person can mend ends our waiting; all are
shown in the words of Globus.

``tests/unit/test_globus_errors.py``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptflow.errors import TierDenied, TierError, TierFull, TierUnavailable
from ckptflow.tiers.foreign_errors import os_error

LOG_IN = (
    "Log in again: python -c 'from ckptflow.tiers.globus_auth import log_in; log_in()', "
    "with the ids of the collections that ask for a consent of their own as arguments"
)

_FULL = re.compile(r"(?i)quota|no[ _]space|disk full|ENOSPC|EDQUOT|storage limit")
_LOGIN = re.compile(r"(?i)consent|authenticat|activation|credential|unauthorized|login")
_DENIED = re.compile(r"(?i)permission[ _]?denied|forbidden|not[ _]allowed|read-?only|EACCES")
_TEXT_CHARS = 600  # Details of a fault may be a page long.


@contextlib.contextmanager
def translated(verb: str, key: str, where: str) -> Iterator[None]:
    """Raise what goes wrong with a request as an error of a tier.

    Args:
        verb: what is tried.
        key: the key or folder that it is tried on.
        where: the tier, as messages show it.
    """
    import globus_sdk
    from globus_sdk.token_storage import TokenValidationError

    what = f"{verb} {key!r} on {where}"
    try:
        yield
    except globus_sdk.GlobusAPIError as error:
        raise _request_error(what, error) from error
    except TokenValidationError as error:
        raise TierDenied(f"May not {what}: {error}. {LOG_IN}.") from error
    except globus_sdk.GlobusError as error:
        raise TierUnavailable(f"Cannot {what}: {type(error).__name__}: {error}.") from error
    except OSError as error:
        raise os_error(f"{what} (its staging folder)", error) from error


def passes(error: Any) -> bool:
    """Tell whether a request that failed so may work when it is sent again soon."""
    status = getattr(error, "http_status", None)
    return status is None or status == 429 or status >= 500


def is_absent(error: Any) -> bool:
    """Tell whether a request failed because there is no such file or folder."""
    code = f"{error.code}"
    return (
        error.http_status == 404 or "NotFound" in code or "NotDirectory" in code
    ) and "Endpoint" not in code


def needs_person(task: Mapping[str, Any]) -> bool:
    """Tell whether a task waits for somebody: rights, room, or a login.

    A paused one does not: who paused it will go on.
    """
    if task.get("is_paused"):
        return False
    status = f"{task.get('nice_status')}"
    return task["status"] == "INACTIVE" or any(
        pattern.search(status) for pattern in (_DENIED, _FULL, _LOGIN)
    )


def task_error(
    what: str, task: Mapping[str, Any], events: Iterable[Mapping[str, Any]]
) -> TierError:
    """Return the error that a task of Globus has come to, told in its own words."""
    said = _said(task, events)
    told = f"{what}: task {task['task_id']} of Globus is {task['status']}: {said}"
    if _FULL.search(said):
        return TierFull(f"No room to {told}. Prune the tier or free space.")
    if _LOGIN.search(said):
        return TierDenied(f"May not {told}. {LOG_IN}.")
    if _DENIED.search(said):
        return TierDenied(f"May not {told}. Mend the rights on the collection.")
    return TierUnavailable(f"Cannot {told}.")


def _said(task: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    fatal = task.get("fatal_error") or {}
    faults = [event for event in events if event.get("is_error")]
    said = [
        fatal.get("code"),
        fatal.get("description"),
        task.get("nice_status"),
        task.get("nice_status_short_description"),
        task.get("nice_status_details"),
        *(f"{event.get('code')}: {event.get('description')}" for event in faults),
        *(event.get("details") for event in faults),
    ]
    unique = dict.fromkeys(f"{one}".strip() for one in said if one)
    text = re.sub(r"\s+", " ", "; ".join(unique)) or "no reason is given"
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}…"


def _request_error(what: str, error: Any) -> TierError:
    said = re.sub(r"\s+", " ", f"{error.code}: {error.message}")[:_TEXT_CHARS]
    if _FULL.search(said):
        return TierFull(f"No room to {what}: {said}. Prune the tier or free space.")
    if (
        error.http_status == 401
        or error.info.consent_required
        or _LOGIN.search(f"{error.code}")
    ):
        return TierDenied(f"May not {what}: {said}. {LOG_IN}.")
    if error.http_status == 403 or _DENIED.search(said):
        return TierDenied(f"May not {what}: {said}. Mend the rights on the collection.")
    if "EndpointNotFound" in f"{error.code}":
        return TierDenied(f"May not {what}: {said}. Is the id of the collection right?")
    return TierUnavailable(f"Cannot {what}: {said} (HTTP {error.http_status}).")
