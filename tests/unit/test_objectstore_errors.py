"""What object stores answer becomes the right error, and nothing secret is repeated."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from ckptflow.errors import TierDenied, TierError, TierFull, TierUnavailable
from ckptflow.tiers.objectstore_errors import class_of, reason_of

SIGNED = "https://acct.blob.core.windows.net/c/key?sv=2024&sig=c2VjcmV0"
BEGIN = f"Generic S3 error: Error performing PUT {SIGNED} in 1ms, after 2 retries - "


def answer(status: str, code: str = "", message: str = "") -> GenericError:
    body = f"<?xml?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return GenericError(f"{BEGIN}Server returned non-2xx status code: {status}: {body}")


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (answer("503 Service Unavailable", "SlowDown", "Reduce"), TierUnavailable, "SlowDown"),
        (answer("500 Internal Server Error"), TierUnavailable, "500 Internal Server Error"),
        (answer("429 Too Many Requests"), TierUnavailable, "429"),
        (answer("409 Conflict", "ConditionalRequestConflict"), TierUnavailable, "409"),
        (answer("403 Forbidden", "QuotaExceeded"), TierFull, "QuotaExceeded"),
        (answer("507 Insufficient Storage"), TierFull, "507"),
        (answer("500 Internal", "InternalError", "no free volumes left"), TierFull, "no free"),
        (answer("507 Insufficient Storage", "XMinioStorageFull"), TierFull, "XMinioStorage"),
        (answer("400 Bad Request", "ExpiredToken", "It has expired"), TierDenied, "expired"),
        (answer("403 Forbidden", "RequestTimeTooSkewed"), TierDenied, "TooSkewed"),
        (answer("404 Not Found", "NoSuchBucket"), TierDenied, "NoSuchBucket"),
        (answer("301 Moved Permanently", "PermanentRedirect"), TierDenied, "Redirect"),
        (PermissionDeniedError("no body at all"), TierDenied, "PermissionDeniedError"),
        (
            UnauthenticatedError("path External AWS credential provider: token s3cr3t"),
            TierDenied,
            "no credentials could be had",
        ),
        (
            GenericError(BEGIN + 'HTTP error\n kind: Connect, "Connection refused"'),
            TierUnavailable,
            "no connection: Connection refused",
        ),
        (GenericError(BEGIN + "HTTP error\n kind: Timeout,"), TierUnavailable, "in time"),
        (GenericError(BEGIN + "HTTP error\n kind: Decode,"), TierUnavailable, "broke off"),
        (GenericError(BEGIN), TierUnavailable, "GenericError"),
    ],
)
def test_an_answer_becomes_what_the_caller_should_do(
    error: Exception, kind: type[TierError], reason: str
) -> None:
    assert class_of(error) is kind
    assert reason in reason_of(error)
    assert "sig=" not in reason_of(error)
    assert "s3cr3t" not in reason_of(error)


def test_a_long_message_is_cut() -> None:
    assert len(reason_of(answer("500 Internal Server Error", "Odd", "x" * 10_000))) < 300
