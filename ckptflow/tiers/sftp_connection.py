"""Connections to an SFTP server: opened by OpenSSH's rules, shared, renewed when they died.

Who the server is has to be known: a host key that is in no ``known_hosts`` is refused, and
so is a configuration that switches the check off. Who we are comes from the agent, from
``~/.ssh/config`` and from the usual key files; passwords are not used.

``tests/process/test_sftp_server.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ckptflow.errors import TierDenied
from ckptflow.tiers.background_loop import call_soon, run_async

_T = TypeVar("_T")
# Where ssh_config(5) says that host keys are, if nothing else is configured.
_KNOWN_HOSTS = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
_on_moved: ContextVar[Callable[[], None]] = ContextVar("ckptflow_sftp_moved")
_SILENT_PROBES = 3  # A peer that answers none of so many in a row is gone.


@dataclass(frozen=True)
class SftpAddress:
    """Where a server is, and how to get in. What is ``None`` comes from ``~/.ssh/config``.

    Attributes:
        host: name, address, or a ``Host`` of the configuration.
        port: number; 22 if nothing says otherwise.
        user: name on the server; the local one if nothing says otherwise.
        identity: path of the private key; the agent and the usual files otherwise.
        known_hosts: path of the file of host keys; the usual ones otherwise.
        timeout_s: how long connecting may take, and how long the server may be silent.
    """

    host: str
    port: int | None = None
    user: str | None = None
    identity: str | None = None
    known_hosts: str | None = None
    timeout_s: float = 30.0

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"sftp://{user}{self.host}{port}"


class SftpConnections:
    """Lends connections, at most ``limit`` at once; the others wait."""

    def __init__(self, address: SftpAddress, *, limit: int) -> None:
        self._address, self._limit = address, limit
        self._begin()

    def use(self, action: Callable[[Any], Awaitable[_T]], *, repeatable: bool = True) -> _T:
        """Return what ``action`` returns, called with an ``asyncssh.SFTPClient``.

        Args:
            action: runs in the background loop.
            repeatable: whether it may run again, on a new connection, when the one that was
                lent turned out to have died.

        Raises:
            asyncssh.Error: as from ``action``, or no connection could be made.
            OSError: no connection could be made.
        """
        if self._pid != os.getpid():  # Forked: these connections are our parent's.
            self._begin()
        with self._free:
            return run_async(self._use(action, repeatable=repeatable))

    def close(self) -> None:
        """Close, soon, what is not lent. Another call of `use` connects anew."""
        if self._pid == os.getpid():
            call_soon(self._close_idle)

    def _begin(self) -> None:
        self._pid, self._free = os.getpid(), threading.BoundedSemaphore(self._limit)
        self._idle: list[_Connection] = []  # Touched in the loop only.

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _use(self, action: Callable[[Any], Awaitable[_T]], *, repeatable: bool) -> _T:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_closed():
                continue
            try:
                return await self._lend(connection, action)
            except lost_errors():
                if not repeatable:
                    raise
                # It had died while nobody looked, and so, likely, had the other idle ones.
                self._close_idle()
        return await self._lend(await _connect(self._address), action)

    async def _lend(
        self, connection: _Connection, action: Callable[[Any], Awaitable[_T]]
    ) -> _T:
        import asyncssh

        # The daemon may answer probes while SFTP itself, or the file system below it, hangs.
        loop, timeout_s = asyncio.get_running_loop(), self._address.timeout_s
        watch = loop.call_later(timeout_s, connection.abort)

        def later() -> None:
            nonlocal watch
            watch.cancel()
            watch = loop.call_later(timeout_s, connection.abort)

        _on_moved.set(later)
        try:
            result = await action(connection.sftp)
        except asyncssh.SFTPError as error:
            if isinstance(error, lost_errors()):
                connection.abort()
            else:
                self._idle.append(connection)
            raise
        except BaseException:  # In the middle of something: not fit for anybody else.
            connection.abort()
            raise
        finally:
            watch.cancel()
        self._idle.append(connection)
        return result


def moved() -> None:
    """Say that the server answers: it has its whole time for what comes next."""
    with contextlib.suppress(LookupError):
        _on_moved.get()()


def lost_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a connection that ended."""
    import asyncssh

    return (
        asyncssh.DisconnectError,
        asyncssh.ChannelOpenError,
        asyncssh.SFTPConnectionLost,
        asyncssh.SFTPNoConnection,
        OSError,
    )


@dataclass(frozen=True)
class _Connection:
    ssh: Any
    sftp: Any

    def is_closed(self) -> bool:
        return bool(self.ssh.is_closed())

    def abort(self) -> None:
        self.ssh.abort()


async def _connect(address: SftpAddress) -> _Connection:
    import asyncssh

    given: dict[str, Any] = {
        "port": address.port,
        "username": address.user,
        "client_keys": [address.identity] if address.identity else None,
        "known_hosts": address.known_hosts,
        "connect_timeout": address.timeout_s,
        "login_timeout": address.timeout_s,
        "keepalive_interval": address.timeout_s / _SILENT_PROBES,
        "keepalive_count_max": _SILENT_PROBES,
    }
    options = {name: value for name, value in given.items() if value is not None}
    options["known_hosts"] = await _known_hosts(address.host, options)
    ssh = await asyncssh.connect(address.host, **options)
    try:
        # Names that are no text are no keys either, but must not spoil a listing.
        return _Connection(ssh, await ssh.start_sftp_client(path_errors="surrogateescape"))
    except BaseException:
        ssh.abort()
        raise


async def _known_hosts(host: str, options: Mapping[str, Any]) -> Any:
    """Return what `asyncssh.connect` is to check the host key against; never nothing.

    Raises:
        TierDenied: the configuration of ssh switches the check off.
    """
    import asyncssh

    checked = await asyncssh.SSHClientConnectionOptions.construct(
        host=host, config=(), **options
    )
    if checked.known_hosts is None:
        raise TierDenied(
            f"~/.ssh/config switches the check of host keys off for {host!r} "
            f"(UserKnownHostsFile none). A store is only used on a server that is known."
        )
    usual = [str(path) for name in _KNOWN_HOSTS if (path := Path(name).expanduser()).is_file()]
    return checked.known_hosts or usual or b""
