"""Locks between processes that the kernel takes from whoever dies: no time-out, no stale owner.

They are locks of an open file description (``fcntl(2)``) on single bytes far behind the end of
the file, so one file has as many as one likes. Threads that share the description do not
exclude each other: their owner has a lock of its own for that. A forked child shares it, too,
and would keep its parent's locks after the parent's death; so it first of all calls `reopen`.

``tests/process/test_shared_memory.py`` kills owners.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

_BASE = 1 << 62  # Far behind every end of a file, and within a signed 64-bit offset.
_FLOCK = "hhqqi0q"  # l_type, l_whence, l_start, l_len, l_pid, and the padding of C.
_PAUSE_S, _PAUSE_S_MAX = 20e-6, 2e-3


class OwnerLocks:
    """The locks of one open file description, by number from 0.

    Args:
        descriptor: opened for reading and writing, and by nobody else: not a duplicate.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def acquire(self, number: int, *, wait_s: float) -> None:
        """Take lock ``number``, waiting for whoever has it.

        Raises:
            TimeoutError: somebody alive has held it for ``wait_s``.
        """
        end_s, pause_s = time.monotonic() + wait_s, _PAUSE_S
        while not self.try_acquire(number):
            if time.monotonic() > end_s:
                raise TimeoutError(f"Lock {number} was held by another process for {wait_s} s.")
            time.sleep(pause_s)  # The blocking call of the kernel has no time limit.
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def try_acquire(self, number: int) -> bool:
        """Take lock ``number`` if nobody has it."""
        try:
            self._set(fcntl.F_WRLCK, number)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def release(self, number: int) -> None:
        """Give lock ``number`` back."""
        self._set(fcntl.F_UNLCK, number)

    def reopen(self) -> None:
        """In a forked child: let go of the parent's description, and have one of its own."""
        own = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(own, self._descriptor, inheritable=False)
        os.close(own)

    def _set(self, kind: int, number: int) -> None:
        lock = struct.pack(_FLOCK, kind, os.SEEK_SET, _BASE + number, 1, 0)
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, lock)
