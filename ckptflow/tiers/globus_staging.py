"""The folder that a collection of Globus shares with us: what goes out, and what came in.

    out/        files on their way out, one for each transfer in the journal
    in/         files on their way in
    fetched/    whole copies, by key and version; the oldest go when there are too many bytes
    journal/    see `ckptflow.tiers.globus_journal`

``tests/unit/test_globus_staging.py``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Buffer

from ckptflow.tiers import durable


class Staging:
    """The local side of the transfers.

    Args:
        folder: made when needed, private.
        cache_bytes: copies that came in are kept up to so much.
    """

    def __init__(self, folder: Path, *, cache_bytes: int) -> None:
        self._folder, self._cache_bytes = folder, cache_bytes
        self._folders = durable.Folders()

    def stage(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write a file that is to go out; it survives a crash when this returns."""
        durable.write_atomic(self._folder / name, parts, self._folders)

    def make_room(self, name: str, size_bytes: int) -> None:
        """Prepare for a file of that size to come in as ``name``."""
        self._folders.make((self._folder / name).parent)
        self._evict(self._cache_bytes - size_bytes)

    def size(self, name: str) -> int:
        """Return the size in bytes of a staged file."""
        return (self._folder / name).stat().st_size

    def drop(self, name: str) -> None:
        """Remove a staged file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def adopt(self, name: str, key: str, version: str) -> None:
        """Keep a file that came in as the copy of a version of a key."""
        self.drop_copies(key)
        target = self._copy(key, version)
        self._folders.make(target.parent)
        path = self._folder / name
        path.chmod(0o600)
        path.rename(target)

    def open_copy(self, key: str, version: str) -> int | None:
        """Open the copy of a version of a key; it stays readable when it is dropped."""
        path = self._copy(key, version)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)  # Used now: others go first.
        return descriptor

    def drop_copies(self, key: str) -> None:
        """Remove what came in for a key."""
        for path in self._copy(key, "").parent.glob(f"{_digest(key)}-*"):
            path.unlink(missing_ok=True)

    def sweep(self, used: set[str], *, before_s: float) -> int:
        """Remove files that are on their way, not ``used``, and older; count them."""
        removed = 0
        for folder in ("out", "in"):
            for path in (self._folder / folder).glob("*"):
                if f"{folder}/{path.name}" in used:
                    continue
                with contextlib.suppress(FileNotFoundError):  # Its owner was faster.
                    if path.stat().st_mtime < before_s:
                        path.unlink()
                        removed += 1
        return removed

    def _copy(self, key: str, version: str) -> Path:
        return self._folder / "fetched" / f"{_digest(key)}-{_digest(version)}"

    def _evict(self, most_bytes: int) -> None:
        found = []
        for path in (self._folder / "fetched").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                state = path.stat()
                found.append((state.st_mtime_ns, state.st_size, path))
        held_bytes = sum(size_bytes for _, size_bytes, _ in found)
        for _, size_bytes, path in sorted(found):
            if held_bytes <= most_bytes:
                return
            path.unlink(missing_ok=True)
            held_bytes -= size_bytes


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
