"""What goes wrong with an SFTP server, as errors of tiers.

``tests/process/test_sftp_server.py`` makes a real server go wrong in each of these ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ckptflow.errors import (
    AlreadyExists,
    NotFoundError,
    TierDenied,
    TierFull,
    TierUnavailable,
)


@contextlib.contextmanager
def translated(verb: str, key: str, where: str) -> Iterator[None]:
    """Raise what goes wrong inside as an error of a tier.

    Args:
        verb: what is tried; only of ``read`` is an absent file a `NotFoundError`.
        key: the key or folder that it is tried on.
        where: the tier and its address, as messages show it.
    """
    import asyncssh

    what = f"{verb} {key!r} on {where}"
    try:
        yield
    except asyncssh.SFTPFileAlreadyExists as error:
        if verb != "create":
            raise TierUnavailable(f"Cannot {what}: {_said(error)}.") from error
        raise AlreadyExists(f"{where} already holds {key!r}.") from error
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
        if verb == "read":
            raise NotFoundError(f"{where} holds no {key!r}.") from error
        raise TierUnavailable(f"Cannot {what}: {_said(error)}.") from error
    except (asyncssh.SFTPNoSpaceOnFilesystem, asyncssh.SFTPQuotaExceeded) as error:
        raise TierFull(
            f"No room to {what}: {_said(error)}. Prune the tier or free space."
        ) from error
    except (asyncssh.SFTPPermissionDenied, asyncssh.SFTPWriteProtect) as error:
        raise TierDenied(f"May not {what}: {_said(error)}. Mend the rights there.") from error
    except asyncssh.PermissionDenied as error:
        raise TierDenied(
            f"May not {what}: the server lets nobody in with the keys that were offered "
            f"({_said(error)}). Load the key into the agent, or name it as `identity`."
        ) from error
    except asyncssh.HostKeyNotVerifiable as error:
        raise TierDenied(
            f"May not {what}: the host key of the server is not the one in known_hosts, or "
            f"none is there ({_said(error)}). If you trust it, connect once with ssh."
        ) from error
    except (asyncssh.KeyImportError, asyncssh.ConfigParseError) as error:
        raise TierDenied(
            f"May not {what}: {_said(error)}. Mend the file, or load the key into the agent."
        ) from error
    except (asyncssh.Error, OSError, RuntimeError) as error:
        # RuntimeError: asyncio cannot connect any more when the interpreter ends.
        raise TierUnavailable(f"Cannot {what}: {_said(error)}.") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
