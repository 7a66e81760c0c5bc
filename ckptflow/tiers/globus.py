"""A folder on a collection of Globus as a tier.

Globus moves files between collections, not bytes between programs. So there is a *staging
folder* on this side, on a file system that some collection shows to Globus: a value that is put
is written there, and a transfer carries it to the remote collection; a value that is read is
transferred back into the staging folder, and read from there.

Globus writes straight to the name it is given, and a reader would see a file that grows. So a
value arrives under a name that is no key, and is renamed when its task has succeeded, which is
also when Globus has compared the checksums of both sides. ``direct`` leaves the rename out, for
collections on object stores, which cannot rename and show nothing before an object is whole.

A put that is interrupted, by a crash, a deadline or a network that is gone, goes on where it
was: see `ckptflow.tiers.globus_journal`.

``tests/conformance/test_globus_tier.py``, ``tests/unit/test_globus_tier.py`` and
``tests/process/test_globus_resume.py``; what they cannot show is in ``docs/guides/globus.md``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import Buffer

from ckptflow.errors import ConfigError, CorruptionError
from ckptflow.tiers.filesystem_kinds import Commit
from ckptflow.tiers.globus_auth import transfer_client
from ckptflow.tiers.globus_carrier import Carrier, GlobusPlaces
from ckptflow.tiers.globus_collection import Found
from ckptflow.tiers.globus_errors import translated
from ckptflow.tiers.globus_tasks import Polling
from ckptflow.tiers.tier import check_key, is_key_part
from ckptflow.units import GIB

DEADLINE_S = 3600.0
CACHE_BYTES = 16 * GIB

_OLD_S = 86_400.0  # What is a day old and in no journal has no writer any more.


class GlobusTier:
    """A folder on a remote collection that holds one file per key.

    Args:
        places: the folder, and the staging folder.
        name: used in messages.
        level: what it survives; 4 for another site.
        commit: ``move`` or ``direct``, see the module.
        deadline_s: so long one waits for a task; it goes on, and a later call takes it up.
        cache_bytes: so much of what was read is kept in the staging folder.
        data_access: ids of collections that ask for a consent of their own.
        client: a ``globus_sdk.TransferClient``; made when first needed.
        polling: how one waits; by the deadline if not given.

    Raises:
        ConfigError: the SDK is not installed.
    """

    def __init__(
        self,
        places: GlobusPlaces,
        *,
        name: str = "globus",
        level: int = 4,
        commit: Commit = "move",
        deadline_s: float = DEADLINE_S,
        cache_bytes: int = CACHE_BYTES,
        data_access: Sequence[str] = (),
        client: Any = None,
        polling: Polling | None = None,
    ) -> None:
        if importlib.util.find_spec("globus_sdk") is None:
            raise ConfigError(f"Tier {name!r} needs globus_sdk: pip install ckptflow[globus].")
        self._places, self._name, self._level = places, name, level
        self._commit, self._deadline_s, self._cache_bytes = commit, deadline_s, cache_bytes
        self._data_access, self._client = tuple(data_access), client
        self._polling = polling or Polling(deadline_s)
        self._where = f"tier {name!r} (globus://{places.collection}{places.path})"
        self._lock = threading.Lock()
        self._made: tuple[int, Carrier] | None = None  # With the process that made it.

    def __repr__(self) -> str:
        return f"GlobusTier({self._where}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> GlobusTier:
        """See `ckptflow.tiers.opening.Opens`."""
        staging = Path(spec["staging"]).absolute()
        places = GlobusPlaces(
            spec["collection"],
            spec["path"].rstrip("/"),
            spec["staging_collection"],
            staging,
            (spec.get("staging_path") or str(staging)).rstrip("/"),
        )
        return cls(
            places,
            name=spec["name"],
            level=spec["level"],
            commit=spec.get("commit", "move"),
            deadline_s=spec.get("deadline_s", DEADLINE_S),
            cache_bytes=spec.get("cache_bytes", CACHE_BYTES),
            data_access=spec.get("data_access") or (),
        )

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`.

        ``globus://COLLECTION/path`` with the staging folder from the environment:
        ``CKPTFLOW_GLOBUS_STAGING=COLLECTION:/absolute/path``.
        """
        parts = urlsplit(url)
        if not parts.hostname or not parts.path.strip("/"):
            raise ConfigError(f"{url!r}: write globus://COLLECTION/path.")
        collection, sign, folder = os.environ.get("CKPTFLOW_GLOBUS_STAGING", "").partition(":")
        if not sign or not folder.startswith("/"):
            raise ConfigError(
                f"{url!r} needs a staging folder that Globus sees: set "
                f"CKPTFLOW_GLOBUS_STAGING=COLLECTION:/absolute/path, or use a site file."
            )
        return {
            "kind": "globus",
            "name": "store",
            "level": 4,
            "collection": parts.hostname,
            "path": unquote(parts.path),
            "staging_collection": collection,
            "staging": folder,
        }

    @property
    def name(self) -> str:
        """Name from the site file."""
        return self._name

    @property
    def level(self) -> int:
        """What it survives."""
        return self._level

    @property
    def can_create(self) -> bool:
        """Globus cannot decide between two."""
        return False

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`. Who we are is in the environment and the SDK's own files."""
        return {
            "kind": "globus",
            "name": self._name,
            "level": self._level,
            "collection": self._places.collection,
            "path": self._places.path,
            "staging_collection": self._places.staging_collection,
            "staging": str(self._places.staging),
            "staging_path": self._places.staging_path,
            "commit": self._commit,
            "deadline_s": self._deadline_s,
            "cache_bytes": self._cache_bytes,
            "data_access": list(self._data_access),
        }

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`. It takes as long as Globus takes, up to the deadline.

        Raises:
            TierUnavailable: also when the deadline has passed; putting the same bytes again
                goes on with the same task.
        """
        with self._translated("write", check_key(key)):
            self._carrier().send(key, parts)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        del value
        check_key(key)
        raise ConfigError(
            f"{self._where} cannot decide between two that claim {key!r}; claims need a tier "
            f"of another kind beside it."
        )

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`. The whole value is transferred first if it is not staged."""
        with self._opened(key, newest=size_bytes is None) as descriptor:
            left = max(0, os.fstat(descriptor).st_size - start_bytes)
            data = bytearray(left if size_bytes is None else min(size_bytes, left))
            filled = _read_full(descriptor, memoryview(data), start_bytes)
        return bytes(memoryview(data)[:filled])

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`. The whole value is transferred first if it is not staged."""
        view = memoryview(target).cast("B")
        with self._opened(key, newest=False) as descriptor:
            held_bytes = os.fstat(descriptor).st_size
            filled = _read_full(descriptor, view, start_bytes)
        if filled < len(view):
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {held_bytes} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        with self._translated("read", check_key(key)):
            return self._carrier().find(key).size_bytes

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        check_key(prefix, prefix=True)
        yield from sorted(self._walk(prefix))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        check_key(prefix, prefix=True)
        names = [found.name for found in self._entries(prefix) if found.is_folder]
        for name in sorted(names):
            if next(self._walk(f"{prefix}/{name}" if prefix else name), None) is not None:
                yield name

    def delete(self, key: str) -> None:
        """See `Tier.delete`. Each is a task of Globus of its own."""
        with self._translated("delete", check_key(key)):
            self._carrier().delete(key)

    def sweep(self, prefix: str, *, now_s: float | None = None) -> int:
        """See `Sweeping.sweep`: staged files, and remote ones that were never renamed.

        They have no key yet, so all are looked at, whatever ``prefix`` is.
        """
        before_s = (time.time() if now_s is None else now_s) - _OLD_S
        with self._translated("sweep", check_key(prefix, prefix=True)):
            return self._carrier().sweep(before_s=before_s)

    @contextlib.contextmanager
    def _opened(self, key: str, *, newest: bool) -> Iterator[int]:
        with self._translated("read", check_key(key)):
            descriptor = self._carrier().open_copy(key, newest=newest)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _entries(self, prefix: str) -> list[Found]:
        with self._translated("list", prefix):
            carrier = self._carrier()
            found = carrier.collection.entries(carrier.remote(prefix).rstrip("/"))
        return [one for one in found if is_key_part(one.name)]

    def _walk(self, prefix: str) -> Iterator[str]:
        for found in self._entries(prefix):
            key = f"{prefix}/{found.name}" if prefix else found.name
            if found.is_folder:
                yield from self._walk(key)
            else:
                yield key

    def _carrier(self) -> Carrier:
        """Return what asks Globus; made when first needed, since that may need a login.

        A forked child makes its own, since two processes cannot share a connection.
        """
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                carrier = Carrier(
                    self._places,
                    client=self._client or transfer_client(self._data_access),
                    polling=self._polling,
                    commit=self._commit,
                    cache_bytes=self._cache_bytes,
                    where=self._where,
                )
                self._made = (os.getpid(), carrier)
            return self._made[1]

    def _translated(self, verb: str, key: str) -> contextlib.AbstractContextManager[None]:
        return translated(verb, key, self._where)


def _read_full(descriptor: int, view: memoryview, start_bytes: int) -> int:
    filled = 0
    while filled < len(view):
        count = os.preadv(descriptor, [view[filled : filled + GIB]], start_bytes + filled)
        if count == 0:
            break
        filled += count
    return filled
