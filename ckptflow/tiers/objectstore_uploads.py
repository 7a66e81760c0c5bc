"""Uploads in parts that nobody finishes: killed writers leave them, unseen but paid for.

obstore cannot list them, so boto3 does where it is installed; it speaks S3 only. A
lifecycle rule of the bucket does the same without any client, see
``docs/guides/object-stores.md``. ``tests/services/test_object_store.py``.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

from ckptflow.tiers.objectstore_opening import Address, aws_endpoint


def abort_uploads(
    address: Address,
    folder: str,
    *,
    before: datetime,
    endpoint: str | None,
    profile: str | None,
) -> int:
    """Abort the uploads below ``folder`` that began ``before``, and count them.

    On what is not S3, or without boto3, none.

    Raises:
        botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError: S3 refused.
    """
    client = _client(endpoint, profile) if address.scheme == "s3" else None
    if client is None:
        return 0
    aborted = 0
    with contextlib.closing(client):
        pages = client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=address.bucket, Prefix=folder):
            for upload in page.get("Uploads", ()):
                if upload["Initiated"] < before:
                    client.abort_multipart_upload(
                        Bucket=address.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    aborted += 1
    return aborted


def _client(endpoint: str | None, profile: str | None) -> Any:
    try:
        import boto3
    except ImportError:
        return None
    session = boto3.Session(profile_name=profile)
    chosen = endpoint or aws_endpoint(session._session)  # noqa: SLF001 - has no other name.
    return session.client("s3", endpoint_url=chosen)
