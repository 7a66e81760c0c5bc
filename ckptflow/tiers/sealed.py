"""A tier whose objects only the holders of a key can make, and, when asked, only they can read.

Every object is sealed on its way in and opened on its way out; a changed, cut, forged or moved
one is a `ForgedError` before a byte of it is used. Names, sizes and times stay visible to
whoever holds the storage, and who holds it can still hide or delete objects.
``tests/unit/test_sealing.py``, ``tests/unit/test_hostile_store.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

from ckptflow.errors import CorruptionError, ForgedError
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.sealing import (
    HEAD_BYTES,
    SEGMENT_BYTES,
    Head,
    Mode,
    Sealed,
    new_head,
    plain_bytes,
    read_head,
    segments_start,
)
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier

HEADS_MAX = 4096  # Heads that are remembered: reading a part of an object needs its head.

R = TypeVar("R")


class SealedTier(TierAround):
    """Seals what goes to ``inner``, and opens what comes back.

    Args:
        inner: where the sealed objects are.
        key: the store's key.
        encrypt: also hide the bytes (AES-256-GCM); without it they are only authenticated
            (HMAC-SHA256). Objects of either kind can be read.
        key_file: where another process finds the key; goes into `spec`.
    """

    def __init__(
        self, inner: Tier, key: StoreKey, *, encrypt: bool = False, key_file: str | None = None
    ) -> None:
        super().__init__(inner)
        self._key, self._key_file = key, key_file
        self._mode = Mode.ENCRYPTED if encrypt else Mode.AUTHENTICATED
        self._heads: dict[str, Head] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"SealedTier({self.inner!r}, key {self._key.key_id}, {self._mode.name.lower()})"

    @property
    def spec(self) -> dict[str, Any]:
        """That of the inner tier, and the name of the file with the key, never the key."""
        encrypt = self._mode is Mode.ENCRYPTED
        return {**self.inner.spec, "key_file": self._key_file, "encrypt": encrypt}

    def around(self, inner: Tier) -> SealedTier:
        """Return another tier, sealed with the same key in the same way."""
        encrypt = self._mode is Mode.ENCRYPTED
        return SealedTier(inner, self._key, encrypt=encrypt, key_file=self._key_file)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`. An encrypted object is in memory twice while it is put."""
        self.inner.put(key, self._sealed(key, parts))
        self._forget(key)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self.inner.create(key, b"".join(self._sealed(key, [value])))
        self._forget(key)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`.

        Raises:
            ForgedError: what is there was not sealed with the key of the store.
        """
        if start_bytes == 0 and size_bytes is None:
            return self._whole(key)

        def read(head: Head) -> bytes:
            left = max(0, head.size_bytes - start_bytes)
            size = left if size_bytes is None else min(size_bytes, left)
            if not 0 < size <= SEGMENT_BYTES:  # Before memory is taken for what a head says.
                self._check_size(key, head)
            if not size:  # That nothing is there has to be sealed, too.
                last = head.segment_count - 1
                stored = self.inner.get(
                    key,
                    start_bytes=segments_start(last),
                    size_bytes=segments_start(last + 1) - segments_start(last),
                )
                Sealed(head, self._key, key).open(last, memoryview(stored))
            out = bytearray(size)
            self._read(key, head, memoryview(out), start_bytes)
            return bytes(out)

        return self._with_head(key, read)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`.

        Raises:
            ForgedError: what is there was not sealed with the key of the store.
        """
        view = memoryview(target).cast("B")

        def read(head: Head) -> None:
            if start_bytes + len(view) > head.size_bytes:
                raise CorruptionError(
                    f"{key!r} on tier {self.name!r} ends after {head.size_bytes} bytes; "
                    f"{len(view)} bytes were expected from byte {start_bytes} on."
                )
            self._read(key, head, view, start_bytes)

        self._with_head(key, read)

    def size(self, key: str) -> int:
        """See `Tier.size`; follows from the size of the sealed object, which is not opened."""
        return plain_bytes(self.inner.size(key), where=self._where(key))

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        self.inner.delete(key)
        self._forget(key)

    def _sealed(self, key: str, parts: Sequence[Buffer]) -> list[Buffer]:
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        head = new_head(self._key, self._mode, size_bytes)
        return list(Sealed(head, self._key, key).seal(parts))

    def _whole(self, key: str) -> bytes:
        stored = memoryview(self.inner.get(key))
        head = read_head(bytes(stored[:HEAD_BYTES]), self._key, where=self._where(key))
        sealed, last = Sealed(head, self._key, key), head.segment_count - 1
        if plain_bytes(len(stored), where=self._where(key)) != head.size_bytes:
            raise ForgedError(f"{self._where(key)} has not the size that its head says.")
        return b"".join(
            sealed.open(number, stored[segments_start(number) : segments_start(number + 1)])
            for number in range(last + 1)
        )

    def _read(self, key: str, head: Head, target: memoryview, start_bytes: int) -> None:
        """Fill ``target``, all of which lies within the object."""
        if not len(target):
            return
        first = start_bytes // SEGMENT_BYTES
        last = (start_bytes + len(target) - 1) // SEGMENT_BYTES
        begin, end = segments_start(first), segments_start(last + 1)
        stored = memoryview(self.inner.get(key, start_bytes=begin, size_bytes=end - begin))
        sealed, filled = Sealed(head, self._key, key), 0
        for number in range(first, last + 1):
            piece = stored[segments_start(number) - begin : segments_start(number + 1) - begin]
            skipped = max(0, start_bytes - number * SEGMENT_BYTES)
            plain = memoryview(sealed.open(number, piece))[skipped:][: len(target) - filled]
            target[filled : filled + len(plain)] = plain
            filled += len(plain)

    def _check_size(self, key: str, head: Head) -> None:
        """Raise unless there is as much as the head says: before memory is taken for it."""
        if self.size(key) != head.size_bytes:
            raise ForgedError(f"{self._where(key)} has not the size that its head says.")

    def _with_head(self, key: str, read: Callable[[Head], R]) -> R:
        """Call ``read`` with the head of an object; once more if it was put anew meanwhile."""
        with self._lock:
            head = self._heads.get(key)
        if head is not None:
            try:
                return read(head)
            except CorruptionError:
                self._forget(key)
        data = self.inner.get(key, size_bytes=HEAD_BYTES)
        head = read_head(data, self._key, where=self._where(key))
        with self._lock:
            while len(self._heads) >= HEADS_MAX:
                del self._heads[next(iter(self._heads))]
            self._heads[key] = head
        return read(head)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._heads.pop(key, None)

    def _where(self, key: str) -> str:
        return f"{key!r} on tier {self.name!r}"
