"""What a filesystem of somebody else raises, as errors of tiers.

A filesystem that is handed in runs foreign code, and its libraries raise classes of their own
(`aiohttp`, `paramiko`, `botocore`), so everything is caught here, and shown: a tier that fails
in an unknown way is unavailable. Secrets that a library puts into its message are blotted out,
and then the original is not chained either.

``tests/unit/test_filesystem_tier.py``.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ckptflow.errors import (
    CheckpointError,
    NotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers.secrets import blot_out

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def translated(verb: str, key: str, where: str, secrets: frozenset[str]) -> Iterator[None]:
    """Raise what goes wrong inside as an error of a tier.

    Args:
        verb: what is tried; only of ``read`` is an absent file a `NotFoundError`.
        key: the key or folder that it is tried on.
        where: the tier, as messages show it.
        secrets: what no message may hold.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 (code of others runs inside)
        said = str(error) or type(error).__name__
        reason = blot_out(f"{type(error).__name__}: {said}", secrets)
        what = f"{verb} {key!r} on {where}"
        shown: CheckpointError = os_error(what, error, reason)
        if verb == "read" and _errno(error) in _ABSENT:
            shown = NotFoundError(f"Cannot {what}: there is no such file.")
        raise shown from (None if said != blot_out(said, secrets) else error)


def os_error(what: str, error: Exception, reason: str | None = None) -> TierError:
    """Return the error of a tier that an `OSError`, or a relative of one, amounts to."""
    number, reason = _errno(error), reason or str(error)
    if number in _FULL:
        return TierFull(f"No room to {what}: {reason}. Prune the tier or free space.")
    if number in _DENIED:
        return TierDenied(f"May not {what}: {reason}. Mend the rights or the credentials.")
    return TierUnavailable(f"Cannot {what}: {reason}.")


def _errno(error: Exception) -> int | None:
    """Return the number of an `OSError`; many are raised by class alone, without one."""
    named: dict[type[OSError], int] = {
        FileNotFoundError: errno.ENOENT,
        NotADirectoryError: errno.ENOTDIR,
        IsADirectoryError: errno.EISDIR,
        PermissionError: errno.EACCES,
    }
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    return next((number for kind, number in named.items() if isinstance(error, kind)), None)
