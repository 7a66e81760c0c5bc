"""Around each request to an object store: errors become ours, and a forked process is stopped.

obstore runs on threads of its own, which a fork does not copy: a request in the child would
wait forever. ``tests/services/test_object_store.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ckptflow.errors import (
    AlreadyExists,
    CheckpointError,
    ConfigError,
    NotFoundError,
    TierDenied,
    TierError,
)
from ckptflow.tiers.objectstore_errors import advice, class_of, lacks_conditions, reason_of
from ckptflow.tiers.objectstore_opening import Address

_first_user_pid: int | None = None


class Calls:
    """What requests of one tier have in common.

    Attributes:
        failures: the classes of errors with which requests fail.
    """

    def __init__(self, tier: str, address: Address, store: Any) -> None:
        self._tier, self._address, self._store = tier, address, store
        self._seen = False  # Whether the bucket has answered before.
        self.failures = _failures()

    @contextlib.contextmanager
    def to(self, verb: str, key: str) -> Iterator[None]:
        """Do one request, or several, for ``key``.

        Raises:
            NotFoundError, TierError: what went wrong, without secrets.
            ConfigError: the process was forked, or the store lacks conditional puts.
        """
        _check_process()
        try:
            yield
        except self.failures as error:
            # Not `from error`: its text may quote a signed address.
            raise self._translated(verb, key, error) from None
        self._seen = True

    def _translated(self, verb: str, key: str, error: Exception) -> CheckpointError:
        kind = class_of(error)
        if isinstance(error, FileNotFoundError) and kind is not TierDenied:
            return self._absent(verb, key)
        if verb == "create" and type(error).__name__ == "AlreadyExistsError":
            return AlreadyExists(f"Tier {self._tier!r} already holds {key!r}.")
        if verb == "create" and lacks_conditions(error):
            return ConfigError(
                f"Tier {self._tier!r} ({self._address}) cannot hold the claims of attempts: "
                f"it knows no conditional put. Say claims = false there, and give the site "
                f"another tier for them."
            )
        return self._failed(verb, key, kind, reason_of(error))

    def _failed(self, verb: str, key: str, kind: type[TierError], reason: str) -> TierError:
        where = f"{verb} {key!r} on tier {self._tier!r} ({self._address})"
        return kind(f"Cannot {where}: {reason}. {advice(kind)}")

    def _absent(self, verb: str, key: str) -> CheckpointError:
        """Tell a missing key from a missing bucket; a HEAD does not say which it is."""
        if not self._seen:
            try:
                next(iter(self._store.list(self._address.prefix or None, chunk_size=1)), None)
            except FileNotFoundError:
                missing = f"there is no bucket {self._address.bucket!r}"
                return self._failed(verb, key, TierDenied, missing)
            except self.failures as error:
                return self._failed(verb, key, class_of(error), reason_of(error))
        return NotFoundError(f"Tier {self._tier!r} ({self._address}) holds no {key!r}.")


def _failures() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return (BaseError, OSError)
    return (BaseError, OSError, BotoCoreError, ClientError)


def _check_process() -> None:
    global _first_user_pid  # noqa: PLW0603 - it is one per process, like obstore's threads.
    if _first_user_pid is None:
        _first_user_pid = os.getpid()
    elif _first_user_pid != os.getpid():
        raise ConfigError(
            f"Process {os.getpid()} was forked from process {_first_user_pid}, which had used "
            f"an object store; such a copy cannot use one. Start processes by spawn or "
            f"forkserver."
        )
