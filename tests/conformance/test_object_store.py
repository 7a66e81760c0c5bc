"""The object store tier passes the suite: on a real S3 server, and on obstore's own memory."""

from __future__ import annotations

from typing import Any

import pytest
from obstore.store import MemoryStore

from ckptflow.errors import ConfigError
from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.objectstore import ObjectStoreTier
from ckptflow.tiers.objectstore_opening import Bucket
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.tier import Ordered, Sweeping, Tier


class TestInMemory(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        store = MemoryStore()
        bucket = Bucket(store, store, sorts=True, sorts_folders=True)
        return ObjectStoreTier("s3://bucket/a/prefix", bucket=bucket)


class Backwards:
    """A store that lists in the wrong order, and from any name on all there is."""

    def __init__(self) -> None:
        self._inner = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str | None, *, offset: str | None, chunk_size: int) -> Any:
        assert offset is None or chunk_size
        return iter([list(reversed(self._inner.list(prefix).collect()))])


class TestOnAStoreThatSortsNothing(TierConformance):
    """Amazon's directory buckets do not."""

    @pytest.fixture
    def tier(self) -> Tier:
        store = Backwards()
        return ObjectStoreTier("s3://bucket--x-s3", bucket=Bucket(store, store))


class TestOnAServer(TierConformance):
    @pytest.fixture
    def tier(self, s3_url: str) -> Tier:
        return ObjectStoreTier(s3_url)


class TestOpenedByItsAddress(TierConformance):
    @pytest.fixture
    def tier(self, s3_url: str) -> Tier:
        return open_tier(spec_of(s3_url))

    def test_it_can_do_more(self, tier: Tier) -> None:
        assert isinstance(tier, Ordered)
        assert isinstance(tier, Sweeping)
        assert tier.level == 4


class Careless:
    """A store that heeds no conditions, as some that speak like S3."""

    def __init__(self) -> None:
        self._inner = MemoryStore()

    def put(self, path: str, data: bytes, *, mode: str, use_multipart: bool) -> None:
        assert mode == "create"
        self._inner.put(path, data, use_multipart=use_multipart)

    def head(self, path: str) -> Any:
        return self._inner.head(path)


def test_a_store_that_ignores_conditions_holds_no_claims() -> None:
    bucket = Bucket(Careless(), Careless())
    with pytest.raises(ConfigError, match=r"told not to.*claims = false"):
        ObjectStoreTier("s3://bucket", bucket=bucket).create("claim", b"mine")
    tier = ObjectStoreTier("s3://bucket", bucket=bucket, claims=False)
    assert not tier.can_create
    assert tier.spec["claims"] is False
    with pytest.raises(ConfigError, match="holds no claims"):
        tier.create("claim", b"mine")
