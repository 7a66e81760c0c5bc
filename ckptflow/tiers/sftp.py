"""A folder on an SFTP server as a tier, through asyncssh.

The same steps as on a local disk, see `ckptflow.tiers.sftp_files`; connections by OpenSSH's
own files, see `ckptflow.tiers.sftp_connection`.

``tests/conformance/test_sftp_tier.py``, and ``tests/process/test_sftp_server.py`` for servers
that vanish, fill up, or are not who they should be.
"""

from __future__ import annotations

import importlib.util
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from typing_extensions import Buffer

from ckptflow.errors import ConfigError, CorruptionError
from ckptflow.tiers import sftp_files
from ckptflow.tiers.sftp_connection import SftpAddress, SftpConnections
from ckptflow.tiers.sftp_errors import translated
from ckptflow.tiers.tier import check_key, is_key_part

CONNECTIONS = 4
TIMEOUT_S = 30.0

_PARTIAL_AGE_S = 86_400.0  # A put that is a day old has no writer any more.
_T = TypeVar("_T")


class SftpTier:
    """A folder on a server that holds one file per key.

    Args:
        address: the server and how to get in.
        path: the folder, absolute or below the home on the server; made on the first write.
        name: used in messages.
        level: what it survives; 4 for another computer.
        connections: so many at most; further calls wait for one.

    Raises:
        ConfigError: asyncssh is not installed.
    """

    def __init__(
        self,
        address: SftpAddress,
        path: str,
        *,
        name: str = "sftp",
        level: int = 4,
        connections: int = CONNECTIONS,
    ) -> None:
        if importlib.util.find_spec("asyncssh") is None:
            raise ConfigError(f"Tier {name!r} needs asyncssh: pip install ckptflow[sftp].")
        self._address, self._name, self._level = address, name, level
        self._root = path.rstrip("/") or "/."
        self._limit = connections
        self._connections = SftpConnections(address, limit=connections)
        self._where = f"tier {name!r} ({address}/{path.removeprefix('/')})"
        weakref.finalize(self, self._connections.close)

    def __repr__(self) -> str:
        return f"SftpTier({self._where}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> SftpTier:
        """See `ckptflow.tiers.opening.Opens`."""
        address = SftpAddress(
            spec["host"],
            port=spec.get("port"),
            user=spec.get("user"),
            identity=spec.get("identity"),
            known_hosts=spec.get("known_hosts"),
            timeout_s=spec.get("timeout_s", TIMEOUT_S),
        )
        return cls(
            address,
            spec["path"],
            name=spec["name"],
            level=spec["level"],
            connections=spec.get("connections", CONNECTIONS),
        )

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`: ``sftp://user@host:port/absolute/path``.

        ``sftp://host/~/path`` is below the home on the server.
        """
        parts = urlsplit(url)
        if parts.password is not None:
            raise ConfigError(
                f"The address of the SFTP store on {parts.hostname!r} has a password in it. "
                f"Secrets do not belong there; use a key, in the agent or in a file."
            )
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r}: {error}.") from error
        if not parts.hostname or not parts.path.strip("/") or parts.query or parts.fragment:
            shown = url.partition("?")[0]  # What may hold a secret is not repeated.
            raise ConfigError(f"{shown!r}: write sftp://user@host:port/absolute/path.")
        fields = {
            "kind": "sftp",
            "name": "store",
            "level": 4,
            "host": parts.hostname,
            "port": port,
            "user": unquote(parts.username) if parts.username else None,
            "path": unquote(parts.path.removeprefix("/~/")),
        }
        return {name: value for name, value in fields.items() if value is not None}

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
        """The file system of the server decides: see `sftp_files.create_exclusive`."""
        return True

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`. Of keys it has paths only."""
        fields = {
            "kind": "sftp",
            "name": self._name,
            "level": self._level,
            "host": self._address.host,
            "port": self._address.port,
            "user": self._address.user,
            "path": self._root,
            "identity": self._address.identity,
            "known_hosts": self._address.known_hosts,
            "connections": self._limit,
            "timeout_s": self._address.timeout_s,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def close(self) -> None:
        """Close connections that are not in use; another call opens new ones."""
        self._connections.close()

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        path = self._path(key)
        self._do("write", key, lambda sftp: sftp_files.write_whole(sftp, path, parts))

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`.

        When the connection is lost in the middle nobody knows who won, so it is not tried
        again: `TierUnavailable`, and the key may be taken.
        """
        path = self._path(key)
        self._do(
            "create",
            key,
            lambda sftp: sftp_files.create_exclusive(sftp, path, value),
            repeatable=False,
        )

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        path = self._path(key)

        async def action(sftp: Any) -> bytes:
            left = max(0, await sftp_files.size_of(sftp, path) - start_bytes)
            wanted = left if size_bytes is None else min(size_bytes, left)
            return await sftp_files.read_pieces(sftp, path, start_bytes, wanted)

        return self._do("read", key, action)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        path, view = self._path(key), memoryview(target).cast("B")

        async def action(sftp: Any) -> tuple[int, int]:
            held_bytes = await sftp_files.size_of(sftp, path)
            if start_bytes + len(view) > held_bytes:
                return held_bytes, 0
            filled = await sftp_files.read_into(sftp, path, view, start_bytes)
            return start_bytes + filled, filled

        held_bytes, filled = self._do("read", key, action)
        if filled < len(view):
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {held_bytes} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        path = self._path(key)
        return self._do("read", key, lambda sftp: sftp_files.size_of(sftp, path))

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        check_key(prefix, prefix=True)

        async def action(sftp: Any) -> list[str]:
            return [key async for key in sftp_files.walk(sftp, self._root, prefix)]

        yield from sorted(self._do("list", prefix, action))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        check_key(prefix, prefix=True)

        async def holds_keys(sftp: Any, folder: str) -> bool:
            async for _ in sftp_files.walk(sftp, self._root, folder):
                return True
            return False

        async def action(sftp: Any) -> list[str]:
            below = f"{prefix}/" if prefix else ""
            found = await sftp_files.entries(sftp, f"{self._root}/{prefix}")
            return [
                name
                for name, is_folder, _ in found
                if is_folder and is_key_part(name) and await holds_keys(sftp, below + name)
            ]

        yield from sorted(self._do("list", prefix, action))

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        path = self._path(key)
        self._do("delete", key, lambda sftp: sftp_files.remove(sftp, path))

    def sweep(self, prefix: str, *, now_s: float | None = None) -> int:
        """See `Sweeping.sweep`; a writer that began a day ago is taken for dead."""
        folder = f"{self._root}/{check_key(prefix, prefix=True)}"
        before_s = (time.time() if now_s is None else now_s) - _PARTIAL_AGE_S
        return self._do(
            "sweep", prefix, lambda sftp: sftp_files.sweep(sftp, folder, before_s=before_s)
        )

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _do(
        self,
        verb: str,
        key: str,
        action: Callable[[Any], Awaitable[_T]],
        *,
        repeatable: bool = True,
    ) -> _T:
        with translated(verb, key, self._where):
            return self._connections.use(action, repeatable=repeatable)
