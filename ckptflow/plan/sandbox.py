"""A store of its own on a tier that is in use: all keys lie below one folder, which goes again.

Like a probe it lies outside of everything that the format names, so nobody lists, prunes or
restores what is in it. ``tests/unit/test_calibration.py``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from typing_extensions import Buffer

from ckptflow.errors import CheckpointError, NotFoundError
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.opening import open_tier
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.tiers.tier import Tier, check_key


class SandboxTier(TierAround):
    """A part of another tier, which looks like a whole one.

    Args:
        inner: the tier.
        folder: below it, as a key.
    """

    def __init__(self, inner: Tier, folder: str) -> None:
        super().__init__(inner)
        self._folder = folder

    def _below(self, key: str) -> str:
        return f"{self._folder}/{check_key(key)}"

    def _prefix(self, prefix: str) -> str:
        return self._below(prefix) if prefix else self._folder

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        super().put(self._below(key), parts)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        super().create(self._below(key), value)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        return super().get(self._below(key), start_bytes=start_bytes, size_bytes=size_bytes)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        super().read_into(self._below(key), target, start_bytes=start_bytes)

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        return super().size(self._below(key))

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        for key in super().iter_keys(self._prefix(prefix)):
            yield key.removeprefix(f"{self._folder}/")

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        return super().iter_folders(self._prefix(prefix))

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        super().delete(self._below(key))

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`."""
        found = super().last_keys(self._prefix(prefix), count)
        return [key.removeprefix(f"{self._folder}/") for key in found]

    def settle(self, prefix: str) -> None:
        """See `Settling.settle`."""
        super().settle(self._prefix(prefix))

    def sweep(self, prefix: str) -> int:
        """See `Sweeping.sweep`."""
        return super().sweep(self._prefix(prefix))


def delete_below(tier: Tier, prefix: str = "") -> None:
    """Delete every key below a folder.

    Raises:
        TierError: the tier failed.
    """
    for key in list(tier.iter_keys(prefix)):
        with contextlib.suppress(NotFoundError):  # Another one clears up, too.
            tier.delete(key)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A place on a tier for one measurement.

    Attributes:
        spec: of the tier.
        folder: below which everything lies.
    """

    spec: Mapping[str, Any]
    folder: str

    @classmethod
    def on(cls, spec: Mapping[str, Any], *, arena_bytes_max: int) -> Self:
        """Return a new one, which nobody else uses.

        A tier in shared memory gets an arena of its own. One takes all of its memory at once,
        and that of a workflow has no room to spare.

        Args:
            spec: of the tier.
            arena_bytes_max: how large such an arena may be.
        """
        name = f"ckptflow-calibrate-{secrets.token_hex(6)}"
        if spec["kind"] == "shared_memory" and "device" not in spec:
            size_bytes = min(int(spec["capacity_bytes"]), arena_bytes_max)
            spec = {**spec, "arena": name, "capacity_bytes": size_bytes}
        return cls(spec, f"probes/{name}")

    def clear(self, *, note: Callable[[str], None]) -> None:
        """Remove all that is in it; no writer uses it any more.

        Args:
            note: told, in a sentence, of what is left behind.
        """
        if self.spec["kind"] in {"memory", "device"}:
            return  # It went with the processes.
        try:
            delete_below(SandboxTier(open_tier(self.spec), self.folder))
            self._remove_arena()
        except CheckpointError as error:
            note(
                f"What was written to tier {self.spec['name']!r} below {self.folder} may be "
                f"left: {error}"
            )
        if self.spec["kind"] == "posix":  # Folders, and what killed writers have left.
            shutil.rmtree(Path(self.spec["path"]) / self.folder, ignore_errors=True)

    def _remove_arena(self) -> None:
        name = self.folder.rpartition("/")[2]
        if self.spec["kind"] == "shared_memory" and self.spec.get("arena") == name:
            SharedMemoryTier.from_spec(self.spec).remove()


def forget_cached(spec: Mapping[str, Any], folder: str) -> None:
    """Have the system forget what it keeps in memory of files, so that a read reads.

    It helps for folders of this computer and of most parallel file systems; what others keep
    in memory is theirs.
    """
    if spec["kind"] != "posix" or not hasattr(os, "posix_fadvise"):
        return
    for path in (Path(spec["path"]) / folder).rglob("*"):
        with contextlib.suppress(OSError):  # Another writer has deleted it.
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
