"""What an object store answered, as an error of ours: its class, and a reason without secrets.

The client's own texts are taken apart, never passed on: they quote addresses, which may be
signed, and what a source of credentials said. What is kept is the status, the store's code
and its message, or in which way the connection failed.
``tests/unit/test_objectstore_errors.py``.
"""

from __future__ import annotations

import re

from ckptflow.errors import TierDenied, TierError, TierFull, TierUnavailable

_DENIED_NAMES = ("PermissionDeniedError", "UnauthenticatedError", "NoCredentialsError")
_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "AuthorizationHeaderMalformed",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "ContainerNotFound",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "MethodNotAllowed",
        "NoSuchBucket",
        "PermanentRedirect",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UserSuspended",
    }
)
_FULL_CODES = frozenset(
    {
        "EntityTooLarge",
        "InsufficientStorage",
        "QuotaExceeded",
        "StorageQuotaExceeded",
        "TooManyObjects",
        "XMinioAdminBucketQuotaExceeded",
        "XMinioStorageFull",
    }
)
_FULL_WORDS = re.compile(r"(?i)no free volume|quota exceeded|no space left|disk full")
_STATUS = re.compile(r"non-2xx status code: (\d{3})((?: [A-Z][A-Za-z]+)*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})")
_BROKEN = re.compile(r"kind: (Connect|Timeout|Request|Interrupted|Decode)\b")
_SYSTEM = re.compile(r"dns error|Connection refused|Connection reset|timed out|BadScheme")
_KINDS = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    "Request": "the connection broke",
    "Interrupted": "the connection broke",
    "Decode": "the answer broke off",
}


def _code(error: BaseException) -> str:
    """Return the store's own word for what went wrong, ``""`` if it gave none."""
    response = getattr(error, "response", None)  # That is how botocore says it.
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    found = _CODE.search(str(error))
    return found[1] if found else ""


def reason_of(error: BaseException) -> str:
    """Say what went wrong, in one line without secrets."""
    text = str(error)
    said: list[str] = []
    status, code = _STATUS.search(text), _code(error)
    if status or code:
        said += [f"{status[1]}{status[2]}"] if status else []
        said += [code] if code else []
        said += [found[1] for found in [_MESSAGE.search(text)] if found]
    elif broken := _BROKEN.search(text):
        said.append(_KINDS[broken[1]])
        said += [found[0] for found in [_SYSTEM.search(text)] if found]
    elif "credential provider" in text:
        said.append("no credentials could be had from where they are kept")
    else:
        said.append(type(error).__name__)
    return ": ".join(said).rstrip(". ")


def class_of(error: BaseException) -> type[TierError]:
    """Return what the caller should do about it, as a class of errors."""
    text = str(error)
    status, code = _STATUS.search(text), _code(error)
    if code in _FULL_CODES or _FULL_WORDS.search(text) or (status and status[1] == "507"):
        return TierFull
    if code in _DENIED_CODES or type(error).__name__ in _DENIED_NAMES:
        return TierDenied
    return TierUnavailable


def advice(kind: type[TierError]) -> str:
    """Say what to do about an error of that class."""
    if kind is TierFull:
        return "Prune the tier, or have its quota raised."
    if kind is TierDenied:
        return "Mend its name, its rights or the credentials; they are looked up anew."
    return "It may work when tried again."


def is_out_of_range(error: BaseException) -> bool:
    """Tell whether a range was asked for that begins at or past the end of the object."""
    status = _STATUS.search(str(error))
    return status[1] == "416" if status else "StartTooLarge" in str(error)


def lacks_conditions(error: BaseException) -> bool:
    """Tell whether the store says that it does not know conditional puts."""
    status = _STATUS.search(str(error))
    return type(error).__name__ == "NotSupportedError" or bool(status and status[1] == "501")
