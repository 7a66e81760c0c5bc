"""What Globus says is told apart by what may help, and shown in its own words.

Method: answers of the SDK's own collection of canned ones where it has them.
"""

from __future__ import annotations

import json

import globus_sdk
import pytest
import responses
from globus_sdk.testing import RegisteredResponse, get_response_set, load_response
from globus_service import client

from ckptflow.errors import TierDenied, TierError, TierFull, TierUnavailable
from ckptflow.tiers.globus_collection import Collection
from ckptflow.tiers.globus_errors import needs_person, task_error, translated

STAT = globus_sdk.TransferClient.operation_stat
COLLECTION = get_response_set(STAT).metadata["endpoint_id"]


def answered(status: int, document: dict[str, object]) -> RegisteredResponse:
    path = f"/v0.10/operation/endpoint/{COLLECTION}/stat"
    return RegisteredResponse(service="transfer", path=path, json=document, status=status)


@responses.activate
def test_what_the_sdk_knows_to_be_absent_is_absent() -> None:
    load_response(STAT, case="not_found")
    assert Collection(client(), COLLECTION).find("/a") is None


@responses.activate
def test_what_the_sdk_knows_to_be_there_is_found() -> None:
    load_response(STAT)
    found = Collection(client(), COLLECTION).find("/file1.txt")
    assert found is not None
    assert (found.size_bytes, found.is_folder) == (4, False)
    assert found.modified_s() == 1702918370.0


@responses.activate
def test_what_the_sdk_knows_to_be_denied_is_denied() -> None:
    load_response(STAT, case="permission_denied")
    with (
        pytest.raises(TierDenied, match=r"May not read 'a' on here: EndpointPermissionDenied"),
        translated("read", "a", "here"),
    ):
        Collection(client(), COLLECTION).find("/a")


CONSENT = {
    "code": "ConsentRequired",
    "message": "Missing required data_access consent",
    "required_scopes": ["urn:globus:auth:scope:transfer.api.globus.org:all"],
}


@pytest.mark.parametrize(
    ("status", "document", "expected", "told"),
    [
        (403, CONSENT, TierDenied, "ConsentRequired.*log_in"),
        (
            401,
            {"code": "AuthenticationFailed", "message": "Token expired"},
            TierDenied,
            "log_in",
        ),
        (403, {"code": "PermissionDenied", "message": "no"}, TierDenied, "rights"),
        (
            404,
            {"code": "EndpointNotFound", "message": "no"},
            TierDenied,
            "id of the collection",
        ),
        (502, {"code": "ExternalError", "message": "Disk quota exceeded"}, TierFull, "quota"),
        (409, {"code": "Conflict.GCDisconnected", "message": "off"}, TierUnavailable, "409"),
        (429, {"code": "TooManyRequests", "message": "slow"}, TierUnavailable, "429"),
        (503, {"code": "ServiceUnavailable", "message": "later"}, TierUnavailable, "503"),
    ],
)
@responses.activate
def test_requests(
    status: int, document: dict[str, object], expected: type[TierError], told: str
) -> None:
    answered(status, document).add()
    with (
        pytest.raises(TierError, match=f"(?s)read 'a' on here.*{told}") as caught,
        translated("read", "a", "here"),
    ):
        Collection(client(), COLLECTION).find("/a")
    assert type(caught.value) is expected
    assert "a-token-for-tests" not in repr(caught.value.__cause__)


@responses.activate
def test_a_network_that_is_gone() -> None:
    with (
        pytest.raises(TierUnavailable, match=r"read 'a' on here: GlobusConnectionError"),
        translated("read", "a", "here"),
    ):
        Collection(client(), COLLECTION).find("/a")


def task(**fields: object) -> dict[str, object]:
    return {"task_id": "T", "status": "ACTIVE", "nice_status": "OK", **fields}


def event(code: str, details: str = "", **fields: object) -> dict[str, object]:
    return {
        "code": code,
        "description": code.lower(),
        "details": details,
        "is_error": True,
    } | fields


@pytest.mark.parametrize(
    ("shown", "events", "expected", "told"),
    [
        (
            task(nice_status="PERMISSION_DENIED"),
            [event("PERMISSION_DENIED", "550 /x: EACCES")],
            TierDenied,
            "task T of Globus is ACTIVE.*PERMISSION_DENIED.*550 /x.*rights",
        ),
        (
            task(status="INACTIVE", nice_status="AUTH", nice_status_details="login expired"),
            [],
            TierDenied,
            "login expired.*log_in",
        ),
        (
            task(
                status="FAILED", fatal_error={"code": "QUOTA_EXCEEDED", "description": "full"}
            ),
            [],
            TierFull,
            "QUOTA_EXCEEDED; full.*Prune",
        ),
        (
            task(nice_status="ENDPOINT_ERROR"),
            [event("ENDPOINT_ERROR", "No space left on device")],
            TierFull,
            "No space left",
        ),
        (
            task(status="FAILED", fatal_error={"code": "EXPIRED", "description": "deadline"}),
            [event("CONNECT_FAILED"), event("PROGRESS", "17 files", is_error=False)],
            TierUnavailable,
            "connect_failed",
        ),
        (task(status="FAILED"), [], TierUnavailable, "is FAILED: OK"),
    ],
)
def test_tasks(
    shown: dict[str, object],
    events: list[dict[str, object]],
    expected: type[TierError],
    told: str,
) -> None:
    error = task_error("write 'a' on here", shown, events)
    assert type(error) is expected
    with pytest.raises(TierError, match=f"(?s){told}"):
        raise error
    assert "17 files" not in str(error)


def test_pages_of_details_are_cut() -> None:
    error = task_error("write 'a'", task(), [event("X", json.dumps(["long"] * 10_000))])
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (task(), False),
        (task(nice_status=None), False),
        (task(nice_status="ENDPOINT_ERROR"), False),
        (task(nice_status="PERMISSION_DENIED"), True),
        (task(nice_status="QUOTA_EXCEEDED"), True),
        (task(status="INACTIVE"), True),
        (task(status="INACTIVE", is_paused=True), False),
    ],
)
def test_what_only_a_person_can_mend(shown: dict[str, object], expected: bool) -> None:
    assert needs_person(shown) is expected
