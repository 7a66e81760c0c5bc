"""A bucket as a tier: S3 and what speaks like it, Google Cloud Storage, Azure, through obstore.

A value of up to one part is one put; a larger one goes in parts, several at once, straight
from the caller's buffers, and appears when all parts are confirmed. Large reads are several
ranges at once, each copied into its place in the target. `create` is a put on condition that
nothing is there.

A request that fails is repeated by the client a few times (`RETRIES_MAX`), which costs one part
and not all of them; creates are not, since the client does not tell whether an earlier try came
through. What still fails is `TierUnavailable`, and `RetryingTier`, which is around each tier
that is opened from a spec, tries all of it again and knows its own creates.

``tests/conformance/test_object_store.py`` and, on a real server,
``tests/services/test_object_store.py``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from typing_extensions import Buffer

from ckptflow.errors import AlreadyExists, ConfigError, CorruptionError, TierDenied
from ckptflow.tiers.lastkeys import PAGE_KEYS, find_last
from ckptflow.tiers.objectstore_calls import Calls
from ckptflow.tiers.objectstore_errors import is_out_of_range
from ckptflow.tiers.objectstore_opening import Bucket, open_bucket, parse_address
from ckptflow.tiers.objectstore_uploads import abort_uploads
from ckptflow.tiers.retrying import RetryingTier
from ckptflow.tiers.tier import check_key, is_key_part
from ckptflow.units import MIB

PART_BYTES, PARTS_AT_ONCE = 16 * MIB, 8
RANGE_BYTES, RANGES_AT_ONCE = 8 * MIB, 8
PARTS_MAX = 10_000  # S3's limit for one object.
STALE_S = 86_400.0  # An upload that began a day ago has no writer any more.
SWEEP_EVERY_S = 3600.0
LEVEL = 4


class ObjectStoreTier:
    """The objects below a prefix of a bucket.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
        name: used in messages.
        level: 4, unless the store stands beside the machine.
        claims: whether it may hold claims; not on a store without conditional puts.
        endpoint: of an S3 store, instead of what the environment says.
        profile: section of ``~/.aws``, instead of what the environment says.
        bucket: an open bucket, instead of the one that ``url`` names.
        part_bytes, range_bytes: size of one request when several go at once.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "store",
        level: int = LEVEL,
        claims: bool = True,
        endpoint: str | None = None,
        profile: str | None = None,
        bucket: Bucket | None = None,
        part_bytes: int = PART_BYTES,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        self._address = parse_address(url)
        self._name, self._level, self._claims = name, level, claims
        self._endpoint, self._profile = endpoint, profile
        self._part_bytes, self._range_bytes = part_bytes, range_bytes
        self._bucket = bucket or open_bucket(self._address, endpoint=endpoint, profile=profile)
        self._store = self._bucket.store
        self._calls = Calls(name, self._address, self._store)
        self._proven = False  # That the store heeds conditions.
        self._next_sweep_s: dict[str, float] = {}

    def __repr__(self) -> str:
        return (
            f"ObjectStoreTier({str(self._address)!r}, name={self._name!r}, level={self._level})"
        )

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> RetryingTier:
        """See `ckptflow.tiers.opening.Opens`. What may pass is tried again."""
        given = ("name", "level", "claims", "endpoint", "profile")
        return RetryingTier(
            cls(spec["url"], **{key: spec[key] for key in given if key in spec})
        )

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`."""
        address = str(parse_address(url))
        return {"kind": "object", "name": "store", "level": LEVEL, "url": address}

    @property
    def name(self) -> str:
        """Name from the site file."""
        return self._name

    @property
    def level(self) -> int:
        """4 unless said otherwise: it outlives the site."""
        return self._level

    @property
    def can_create(self) -> bool:
        """Unless its owner said no. The first `create` finds out whether the store agrees."""
        return self._claims

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`. Credentials are found where it is opened."""
        spec: dict[str, Any] = {
            "kind": "object",
            "name": self._name,
            "level": self._level,
            "url": str(self._address),
        }
        chosen = {"endpoint": self._endpoint, "profile": self._profile}
        spec |= {key: value for key, value in chosen.items() if value is not None}
        return spec if self._claims else spec | {"claims": False}

    # --- values ---

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`. Nothing is joined but what fits into one part."""
        path = self._path(key)
        views = [view for part in parts if len(view := memoryview(part).cast("B"))]
        size_bytes = sum(map(len, views))
        with self._calls.to("write", key):
            if size_bytes <= self._part_bytes:
                self._store.put(path, b"".join(views), use_multipart=False)
            else:
                self._store.put(
                    path,
                    iter(views),
                    use_multipart=True,
                    chunk_size=max(self._part_bytes, -(-size_bytes // PARTS_MAX)),
                    max_concurrency=PARTS_AT_ONCE,
                )

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`. The first is done twice: the store must refuse the second."""
        path, data = self._path(key), bytes(value)
        if not self._claims:
            raise self._cannot_create("its site file says that it holds no claims")
        self._create(path, key, data)
        if not self._proven:
            with contextlib.suppress(AlreadyExists):
                self._create(path, key, data)
                raise self._cannot_create("the store overwrites what it was told not to")
            self._proven = True

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        path = self._path(key)
        options: dict[str, Any] = {}
        if size_bytes is not None:
            options["range"] = (start_bytes, start_bytes + size_bytes)
        elif start_bytes:
            options["range"] = {"offset": start_bytes}
        with self._calls.to("read", key):
            if size_bytes != 0:
                try:
                    return bytes(self._store.get(path, options=options).bytes())
                except self._calls.failures as error:
                    if not is_out_of_range(error):
                        raise
            self._store.head(path)
        return b""

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        path, view = self._path(key), memoryview(target).cast("B")

        def fill(begin: int) -> bool:
            piece = view[begin : begin + self._range_bytes]
            with self._calls.to("read", key):
                return self._fill(path, piece, start_bytes + begin)

        begins = range(0, max(1, len(view)), self._range_bytes)
        if len(begins) == 1:
            filled = fill(0)
        else:
            with ThreadPoolExecutor(min(RANGES_AT_ONCE, len(begins))) as pool:
                filled = all(pool.map(fill, begins))  # What has not begun need not any more.
        if not filled:
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {self.size(key)} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        path = self._path(key)
        with self._calls.to("read", key):
            return int(self._store.head(path)["size"])

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        path = self._path(key)
        with self._calls.to("delete", key), contextlib.suppress(FileNotFoundError):
            self._store.delete(path)

    # --- listings ---

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`. Page by page, if the store is known to sort as we do."""
        keys = self._listed(check_key(prefix, prefix=True), after="")
        yield from keys if self._bucket.sorts else sorted(keys)

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`. One request for a thousand names.

        One more for each name, where the store may keep folders that have become empty.
        """
        folder = self._folder(check_key(prefix, prefix=True))
        with self._calls.to("list", prefix):
            found = self._store.list_with_delimiter(folder or None)
        names = {str(path).rpartition("/")[2] for path in found["common_prefixes"]}
        for name in sorted(filter(is_key_part, names)):
            key = f"{prefix}/{name}" if prefix else name
            if self._bucket.sorts or next(self._listed(key, after=""), None) is not None:
                yield name

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `ckptflow.tiers.tier.Ordered`, and `find_last` for what it costs.

        Keys deeper below ``prefix`` are listed, too, and passed over.
        """
        start = f"{check_key(prefix, prefix=True)}/" if prefix else ""

        def page(after: str, limit: int) -> list[str]:
            if after.startswith("."):  # No key does, and a path may not be "..".
                after = ".z"
            names = (key.removeprefix(start) for key in self._listed(prefix, after=after))
            direct = (name for name in names if "/" not in name and name > after)
            return list(islice(direct, limit)) if self._bucket.sorts_folders else sorted(direct)

        return [start + name for name in find_last(page, count)]

    def sweep(self, prefix: str) -> int:
        """See `ckptflow.tiers.tier.Sweeping`: abort the uploads that nobody finishes.

        On S3, where boto3 is installed, and whoever asks may list them; otherwise it is left
        to a rule of the bucket. One folder is looked through once in `SWEEP_EVERY_S`.
        """
        folder = self._folder(check_key(prefix, prefix=True))
        now_s = time.monotonic()
        if now_s < self._next_sweep_s.get(prefix, now_s):
            return 0
        self._next_sweep_s[prefix] = now_s + SWEEP_EVERY_S
        with contextlib.suppress(TierDenied), self._calls.to("sweep", prefix):
            return abort_uploads(
                self._address,
                f"{folder}/" if folder else "",
                before=datetime.now(UTC) - timedelta(seconds=STALE_S),
                endpoint=self._endpoint,
                profile=self._profile,
            )
        return 0

    # --- one request ---

    def _path(self, key: str) -> str:
        return self._folder(check_key(key))

    def _folder(self, prefix: str) -> str:
        """Return ``prefix`` as seen from the bucket; ``""`` is all of it."""
        return "/".join(filter(None, (self._address.prefix, prefix)))

    def _create(self, path: str, key: str, value: bytes) -> None:
        with self._calls.to("create", key):
            self._bucket.store_once.put(path, value, mode="create", use_multipart=False)

    def _cannot_create(self, why: str) -> ConfigError:
        return ConfigError(
            f"Tier {self._name!r} ({self._address}) cannot hold the claims of attempts: {why}. "
            f"Say claims = false there, and give the site another tier for them."
        )

    def _fill(self, path: str, view: memoryview, start_bytes: int) -> bool:
        """Fill ``view``; return whether the object had enough."""
        if not len(view):
            self._store.head(path)
            return True
        try:
            data = memoryview(self._store.get_range(path, start=start_bytes, length=len(view)))
        except self._calls.failures as error:
            if is_out_of_range(error):
                return False
            raise
        if len(data) != len(view):
            return False
        view[:] = data
        return True

    def _listed(self, prefix: str, *, after: str) -> Iterator[str]:
        """Yield the keys below ``prefix`` as the store lists them, after one of them."""
        folder = self._folder(prefix)
        offset = f"{folder}/{after}".lstrip("/") if after else None
        skip = len(self._folder("")) + 1 if self._address.prefix else 0
        with self._calls.to("list", prefix):
            pages = iter(self._store.list(folder or None, offset=offset, chunk_size=PAGE_KEYS))
        while True:
            with self._calls.to("list", prefix):
                page = next(pages, ())
            if not page:
                return
            keys = (str(found["path"])[skip:] for found in page)
            # Others may keep things there that are no keys of ours.
            yield from (key for key in keys if all(map(is_key_part, key.split("/"))))
