"""Open the bucket of an address, with the credentials and endpoint that its owner's tools use.

* ``s3://bucket/prefix``: ``AWS_*`` of the environment, ``AWS_PROFILE``, ``~/.aws/config`` and
  ``~/.aws/credentials``, single sign-on, roles and instance metadata, all found by
  botocore, which renews them. Without botocore: the environment and instance metadata only.
* ``gs://bucket/prefix``: ``GOOGLE_APPLICATION_CREDENTIALS``, ``GOOGLE_SERVICE_ACCOUNT``,
  the files of ``gcloud``, metadata.
* ``az://container/prefix``: ``AZURE_STORAGE_ACCOUNT_NAME`` and the other ``AZURE_*``.

Plain http is spoken only where the endpoint itself says ``http://``. Credentials are asked
for anew every `RENEW_S`, so that a file which another tool renews is followed.
``tests/unit/test_objectstore_opening.py`` and ``tests/services/test_object_store.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.tiers.tier import check_key

RETRIES_MAX = 3  # Of one request, by the client itself: a part again is cheaper than all parts.
RETRY_FOR_S = 180.0
CONNECT_S, REQUEST_S = 5.0, 120.0  # No request moves more than one part.
RENEW_S = 60.0

_CLIENT_THRESHOLD_S = 300.0  # The client renews what lives shorter than this.
_ADDRESS = re.compile(r"(s3|gs|az)://([a-z0-9][a-z0-9._-]{1,221})(?:/(.*))?")
_ENDPOINT = re.compile(r"https?://[^@?#\s]+")
_INSTALL = "pip install 'ckptflow[s3]'"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an object tier lies; ``prefix`` has no slash at its ends."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        tail = f"/{self.prefix}" if self.prefix else ""
        return f"{self.scheme}://{self.bucket}{tail}"


@dataclass(frozen=True, slots=True)
class Bucket:
    """An open bucket.

    Attributes:
        store: obstore's store of the whole bucket.
        store_once: the same, which tries each request once only.
        sorts: whether a listing of everything comes in the order of the keys.
        sorts_folders: whether one of keys directly below one folder does.
    """

    store: Any
    store_once: Any
    sorts: bool = False
    sorts_folders: bool = False


def parse_address(url: str) -> Address:
    """Read ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.

    Raises:
        ConfigError: it is none of these. What may hold a password is not repeated.
    """
    match = _ADDRESS.fullmatch(url)
    if not match:
        shown = url if "@" not in url and "?" not in url else f"{url.partition('://')[0]}://…"
        raise ConfigError(
            f"{shown!r}: write s3://bucket/prefix, gs://bucket/prefix or "
            f"az://container/prefix; credentials and endpoint come from the environment."
        )
    scheme, bucket, prefix = match[1], match[2], (match[3] or "").strip("/")
    return Address(scheme, bucket, check_key(prefix, prefix=True))


def open_bucket(address: Address, *, endpoint: str | None, profile: str | None) -> Bucket:
    """Open the bucket of an address; nothing is sent yet.

    Args:
        address: where it is.
        endpoint: of an S3 store that is not Amazon's, instead of the environment's.
        profile: section of ``~/.aws`` to use, instead of the environment's.

    Raises:
        ConfigError: obstore is not installed, or the configuration cannot be used.
    """
    try:
        from obstore.exceptions import BaseError
    except ImportError:
        raise ConfigError(f"Object stores need obstore: {_INSTALL}.") from None
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise ConfigError(f"{address}: an endpoint is https://host:port, without a password.")
    if address.scheme != "s3" and (endpoint or profile):
        raise ConfigError(f"{address}: endpoint and profile are for s3:// only.")
    try:
        if address.scheme == "s3":
            return _s3(address, endpoint, profile)
        return _gcs(address) if address.scheme == "gs" else _azure(address)
    except BaseError as error:
        # Its text may quote a key that it could not read.
        raise ConfigError(
            f"{address} cannot be opened with what the environment says "
            f"({type(error).__name__}). Check the variables and files of its credentials."
        ) from None


def _s3(address: Address, endpoint: str | None, profile: str | None) -> Bucket:
    from obstore.store import S3Store

    config: dict[str, Any] = {}
    more: dict[str, Any] = {}
    session = aws_session(profile)
    if session is None:
        if profile is not None:
            raise ConfigError(f"Profile {profile!r} needs boto3 to be read: {_INSTALL}.")
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = endpoint or next(filter(None, map(os.environ.get, names)), None)
    else:
        endpoint = endpoint or aws_endpoint(session)
        if region := session.get_config_variable("region"):
            config["region"] = region
        if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in {"1", "true"}:
            more["credential_provider"] = _Credentials(profile)
    if endpoint:
        config["aws_endpoint_url_s3"] = endpoint  # Before all other names for it.
    make = partial(
        S3Store, address.bucket, config=config, client_options=_client(endpoint), **more
    )
    # Amazon sorts, but for its directory buckets. What only speaks like S3 may list folder by
    # folder, which is another order as soon as there is more than one.
    express = address.bucket.endswith("--x-s3")
    return _twice(make, sorts=not endpoint and not express, sorts_folders=not express)


def _gcs(address: Address) -> Bucket:
    from obstore.store import GCSStore

    client = _client(os.environ.get("GOOGLE_BASE_URL"))
    return _twice(partial(GCSStore, address.bucket, client_options=client))


def _azure(address: Address) -> Bucket:
    from obstore.store import AzureStore

    names = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    endpoint = next(filter(None, map(os.environ.get, names)), None)
    if endpoint is None and os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
        endpoint = "http://127.0.0.1"
    return _twice(partial(AzureStore, address.bucket, client_options=_client(endpoint)))


def _twice(
    make: Callable[..., Any], *, sorts: bool = True, sorts_folders: bool = True
) -> Bucket:
    def retries(times: int) -> dict[str, Any]:
        backoff = {
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        }
        limit = timedelta(seconds=RETRY_FOR_S)
        return {"max_retries": times, "retry_timeout": limit, "backoff": backoff}

    return Bucket(
        make(retry_config=retries(RETRIES_MAX)),
        make(retry_config=retries(0)),
        sorts=sorts,
        sorts_folders=sorts_folders,
    )


def _client(endpoint: str | None) -> dict[str, Any]:
    return {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }


def aws_session(profile: str | None) -> Any:
    """Return a new session of botocore, or ``None`` where it is not installed."""
    try:
        from botocore.session import Session
    except ImportError:
        return None
    return Session(profile=profile)


def aws_endpoint(session: Any) -> str | None:
    """Return the endpoint of S3 that environment and files name, if they name one."""
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.exceptions import BotoCoreError

    try:
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        found = ConfiguredEndpointProvider(
            full_config=session.full_config,
            scoped_config=session.get_scoped_config(),
            client_name="s3",
        ).provide()
    except BotoCoreError as error:  # Such as a profile that is not there.
        raise ConfigError(f"AWS's configuration cannot be used: {error}.") from None
    return str(found) if found else os.environ.get("AWS_ENDPOINT")


class _Credentials:
    """What obstore calls for credentials; called anew about every `RENEW_S`."""

    def __init__(self, profile: str | None) -> None:
        self._profile, self._found = profile, None

    def __call__(self) -> dict[str, Any]:
        from botocore.credentials import RefreshableCredentials

        if not isinstance(self._found, RefreshableCredentials):
            # Others do not renew themselves; whoever wrote them may have renewed them.
            self._found = aws_session(self._profile).get_credentials()
        if self._found is None:
            raise LookupError("no credentials for AWS in the environment, ~/.aws or metadata")
        frozen = self._found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=_CLIENT_THRESHOLD_S + RENEW_S),
        }
