"""The copies of a pack: open one that is sound, and read from it.

For a restore a small pack is read as a whole when it is opened, so that it costs one read and
not two for its table and one for every frame. ``tests/unit/test_restore.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptflow.data.pack import HEAD, FrameTable, decode_table, table_bytes
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.model import LineageId, PackRef
from ckptflow.tiers.tier import Tier
from ckptflow.units import KIB

WHOLE_BYTES = 256 * KIB  # Packs up to this size are read as a whole.

_COPY_FAILED = (NotFoundError, TierError, CorruptionError)


def open_pack(tier: Tier, lineage: LineageId, ref: PackRef) -> FrameTable:
    """Read the frame table of a pack on one tier, checked against its manifest.

    Raises:
        NotFoundError: the pack is not there.
        CorruptionError: it is damaged, too short or too long.
    """
    key = _checked_key(tier, lineage, ref)
    tail_bytes = table_bytes(ref.frame_count)
    tail_start = max(0, ref.size_bytes - tail_bytes)
    head = tier.get(key, size_bytes=len(HEAD))
    return _table(
        tier, key, ref, head, tier.get(key, start_bytes=tail_start, size_bytes=tail_bytes)
    )


def _checked_key(tier: Tier, lineage: LineageId, ref: PackRef) -> str:
    """Return the key of a pack that has the size that it should have."""
    key = f"{lineage.prefix}/{ref.key}"
    if (size_bytes := tier.size(key)) != ref.size_bytes:
        raise CorruptionError(
            f"Pack {key!r} on tier {tier.name!r} has {size_bytes} bytes instead of "
            f"{ref.size_bytes}."
        )
    return key


def _table(tier: Tier, key: str, ref: PackRef, head: bytes, tail: bytes) -> FrameTable:
    return decode_table(
        head,
        tail,
        size_bytes=ref.size_bytes,
        frame_count=ref.frame_count,
        sealed=ref.table_seal,
        where=f"{key!r} on tier {tier.name!r}",
    )


class Pack:
    """The copies of one pack, the preferred tier first.

    With ``hold_small`` packs up to `WHOLE_BYTES` are read at once.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        lineage: LineageId,
        ref: PackRef,
        note: Callable[[str], None],
        *,
        hold_small: bool = False,
        on_failed: Callable[[Tier], None] = lambda _tier: None,
    ) -> None:
        self.key = f"{lineage.prefix}/{ref.key}"
        self._tiers, self._lineage, self._ref, self._note = list(tiers), lineage, ref, note
        self._on_failed = on_failed  # Told of each tier whose copy could not be used.
        self._frames: FrameTable | None = None
        self._hold = hold_small and ref.size_bytes <= WHOLE_BYTES
        self._whole: tuple[Tier, bytes] | None = None  # A small pack, and where it is from.

    def frames(self) -> FrameTable:
        """Return the frame table, read from the first copy whose table is sound."""
        if self._frames is not None:
            return self._frames
        found: list[FrameTable] = []

        def read(tier: Tier) -> None:
            if not self._hold:
                found.append(open_pack(tier, self._lineage, self._ref))
                return
            data = tier.get(_checked_key(tier, self._lineage, self._ref))
            tail = data[-table_bytes(self._ref.frame_count) :]
            found.append(_table(tier, self.key, self._ref, data[: len(HEAD)], tail))
            self._whole = tier, data

        self.first_sound(read)
        self._frames = found[0]
        return found[0]

    def read_into(
        self, tier: Tier, target: memoryview, start_bytes: int, *, anew: bool = False
    ) -> None:
        """Read a part of the copy on a tier; from the tier itself, if ``anew``."""
        if self._whole is not None and self._whole[0] is tier and not anew:
            part = self._whole[1][start_bytes : start_bytes + len(target)]
            if len(part) != len(target):
                raise CorruptionError(
                    f"Pack {self.key!r} on tier {tier.name!r} ends before byte "
                    f"{start_bytes + len(target)}: its table says what cannot be."
                )
            target[:] = part
        else:
            tier.read_into(self.key, target, start_bytes=start_bytes)

    def first_sound(self, read: Callable[[Tier], None]) -> None:
        """Call ``read`` with one tier after the other until it succeeds.

        Raises:
            CorruptionError: it failed with every tier; the notes tell how.
        """
        failures: list[CheckpointError] = []
        for tier in self._tiers:
            try:
                read(tier)
            except _COPY_FAILED as error:
                failures.append(error)
                self._note(str(error))
                self._on_failed(tier)
                if isinstance(error, NotFoundError):  # It will not come; do not ask again.
                    self._tiers = [left for left in self._tiers if left is not tier]
            else:
                return
        names = ", ".join(repr(tier.name) for tier in self._tiers)
        failed = CorruptionError(f"Pack {self.key!r} has no sound copy on tier {names}.")
        failed.may_pass = any(isinstance(failure, TierError) for failure in failures)
        for failure in failures:
            failed.add_note(str(failure))
        raise failed
