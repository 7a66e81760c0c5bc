"""The bytes of a stripe: parity of objects, and an object from the pieces that are left.

Both go block by block, so that memory is a few blocks however long an object is (a rebuilt
object itself is held once, since a tier takes it whole). What is coded is compared with its
digests on the way: damage gets no redundancy. What is rebuilt is compared with its seal.
``tests/unit/test_redundancy_rebuild.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ckptflow.data import digest, galois
from ckptflow.data.buffers import Bytes
from ckptflow.data.pack import FrameTable
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.manifest import SEAL_BYTES
from ckptflow.store.copies import open_pack
from ckptflow.store.redundancy.stripes import (
    DataPiece,
    ParityPiece,
    Stripe,
    block_count,
)
from ckptflow.store.redundancy.survey import Held, Member
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

READ_BYTES = 4 * MIB
_T = TypeVar("_T")
UNREADABLE = (NotFoundError, TierError, CorruptionError)


class MemberFailed(Exception):
    """A member did not do its part; who, whether it was by giving, and why."""

    def __init__(self, member: str, error: CheckpointError, *, gave: bool) -> None:
        self.member, self.error, self.gave = member, error, gave
        super().__init__(str(error))


def write_parity(
    stripe_id: str,
    objects: Sequence[Held],
    holders: Sequence[str],
    members: Mapping[str, Member],
    *,
    block_bytes: int,
) -> Stripe:
    """Code objects of different members and put the parity with ``holders``; no descriptor yet.

    Raises:
        MemberFailed: an object could not be read or is damaged, or parity could not be put.
    """
    sources = [_Source(members[held.member], held) for held in objects]
    longest = max(held.size_bytes for held in objects)
    rows = galois.coding_matrix(len(objects), len(holders))
    shape = Stripe(stripe_id, block_bytes, tuple(source.piece() for source in sources), ())
    seals: list[list[bytes]] = [[] for _ in holders]
    for block in range(block_count(longest, block_bytes)):
        parity = np.zeros((len(holders), shape.block_size(block)), np.uint8)
        for number, source in enumerate(sources):
            for start, part in source.read(block * block_bytes, parity.shape[1]):
                for factors, row in zip(rows, parity, strict=True):
                    galois.add_product(int(factors[number]), part, row[start:])
        for number, (holder, row) in enumerate(zip(holders, parity, strict=True)):
            key = shape.block_key(len(objects) + number, block)
            put_on(members[holder], key, row)
            seals[number].append(_seal(row))
    for source in sources:
        source.finish()
    return Stripe(
        stripe_id,
        block_bytes,
        tuple(source.piece() for source in sources),
        tuple(
            ParityPiece(holder, tuple(own)) for holder, own in zip(holders, seals, strict=True)
        ),
    )


def put_on(member: Member, key: str, value: bytes | Bytes) -> None:
    """Put a value on a member.

    Raises:
        MemberFailed: that failed.
    """
    try:
        member.tier.put(key, [value])  # type: ignore[list-item]
    except TierError as error:
        raise MemberFailed(member.id, error, gave=False) from error


class _Source:
    """An object that is read once, from the start to the end, and checked on the way."""

    def __init__(self, member: Member, held: Held) -> None:
        self._member, self._held = member, held
        self._sealing = hashlib.blake2b(digest_size=SEAL_BYTES)
        self._check = self._guarded(self._open)
        self._buffer = np.empty(min(READ_BYTES, max(held.size_bytes, 1)), np.uint8)

    def piece(self) -> DataPiece:
        """Return the piece; its seal is right when all was read."""
        held = self._held
        return DataPiece(held.member, held.key, held.size_bytes, self._sealing.digest())

    def read(self, start_bytes: int, size_bytes: int) -> Iterator[tuple[int, Bytes]]:
        """Yield (place within the range, bytes) up to the end of the range or the object."""
        end = min(start_bytes + size_bytes, self._held.size_bytes)
        for at in range(start_bytes, end, READ_BYTES):
            part = self._buffer[: min(READ_BYTES, end - at)]
            self._guarded(lambda: self._fill(part, at))  # noqa: B023 - called at once.
            yield at - start_bytes, part

    def finish(self) -> None:
        """Raise unless what was read is what was written."""
        self._guarded(self._finish)

    def _open(self) -> _FrameCheck | None:
        held, tier = self._held, self._member.tier
        if (size_bytes := tier.size(held.key)) != held.size_bytes:
            raise CorruptionError(
                f"{held.key!r} on tier {tier.name!r} has {size_bytes} bytes instead of "
                f"{held.size_bytes}."
            )
        if held.pack is None:
            return None
        frames = open_pack(tier, held.lineage, held.pack)
        return _FrameCheck(frames, f"{held.key!r} on tier {tier.name!r}")

    def _fill(self, part: Bytes, at: int) -> None:
        self._member.tier.read_into(self._held.key, part.data, start_bytes=at)
        self._sealing.update(part.data)
        if self._check is not None:
            self._check.update(part.data)

    def _finish(self) -> None:
        if self._held.seal not in (None, self._sealing.digest()):
            raise CorruptionError(
                f"{self._held.key!r} on tier {self._member.tier.name!r} has changed since it "
                f"was looked at."
            )

    def _guarded(self, do: Callable[[], _T]) -> _T:
        try:
            return do()
        except UNREADABLE as error:
            raise MemberFailed(self._held.member, error, gave=True) from error


class _FrameCheck:
    """Compares the frames of a pack with their digests while its bytes pass by."""

    def __init__(self, frames: FrameTable, where: str) -> None:
        self._frames, self._where = frames, where
        self._edges = frames.offset.tolist()
        self._frame, self._at, self._begun = 0, 0, bytearray()

    def update(self, part: memoryview) -> None:
        """Take the next bytes of the pack."""
        if self._at < self._edges[0]:  # The magic, which opening it has checked.
            skipped = min(len(part), self._edges[0] - self._at)
            part, self._at = part[skipped:], self._at + skipped
        while self._frame < len(self._frames) and len(part):
            lacking = self._edges[self._frame + 1] - self._at
            self._begun += part[:lacking]
            self._at += min(len(part), lacking)
            part = part[lacking:]
            if self._at == self._edges[self._frame + 1]:
                if digest.digest(self._begun) != self._frames.digest[self._frame].tobytes():
                    raise CorruptionError(
                        f"Frame {self._frame} of pack {self._where} does not match its digest."
                    )
                self._frame, self._begun = self._frame + 1, bytearray()


def read_object(
    stripe: Stripe, wanted: int, present: Sequence[int], tiers: Mapping[str, Tier]
) -> list[Bytes]:
    """Make data piece ``wanted`` from others, and return its bytes, in blocks.

    Args:
        stripe: what it was coded with.
        wanted: number of the data piece.
        present: numbers of the pieces that seem to be there.
        tiers: of the members that answer, by id.

    Raises:
        CorruptionError: too few pieces are left; the notes say what is wrong with the others.
    """
    usable, problems = [number for number in present if number != wanted], list[str]()
    while len(usable) >= len(stripe.data):
        chosen = usable[: len(stripe.data)]
        try:
            return _decoded(stripe, wanted, chosen, tiers)
        except _PieceFailed as failed:
            bad, reasons = [failed.number], [failed.reason]
        except _WrongResult:
            found = [(n, why) for n in chosen if (why := problem_of(stripe, n, tiers))]
            bad, reasons = [n for n, _ in found], [why for _, why in found]
            if not bad:
                problems.append("what its pieces give does not match its seal")
                break
        usable = [number for number in usable if number not in bad]
        problems += reasons
    absent = sorted(set(range(len(stripe.members))) - set(present) - {wanted})
    raised = CorruptionError(
        f"{stripe.data[wanted].key!r} of member {stripe.data[wanted].member[:8]} cannot be "
        f"rebuilt: {len(usable)} of the {len(stripe.data)} pieces are left that stripe "
        f"{stripe.id} needs."
    )
    for number in absent:
        raised.add_note(f"piece {number} of member {stripe.members[number][:8]} is not there")
    for problem in problems:
        raised.add_note(problem)
    raise raised


class _PieceFailed(Exception):
    def __init__(self, number: int, error: CheckpointError) -> None:
        self.number, self.reason, self.error = number, str(error), error
        super().__init__(self.reason)


class _WrongResult(Exception):
    pass


def _decoded(
    stripe: Stripe, wanted: int, have: Sequence[int], tiers: Mapping[str, Tier]
) -> list[Bytes]:
    piece = stripe.data[wanted]
    factors = galois.recovery_row(len(stripe.data), len(stripe.parity), have, wanted)
    sealing, blocks = hashlib.blake2b(digest_size=SEAL_BYTES), []
    for block in range(block_count(piece.size_bytes, stripe.block_bytes)):
        start = block * stripe.block_bytes
        result = np.zeros(min(stripe.block_bytes, piece.size_bytes - start), np.uint8)
        for number, factor in zip(have, factors, strict=True):
            if factor:
                source = _block_of(stripe, number, block, tiers)[: len(result)]
                galois.add_product(factor, source, result)
        sealing.update(result.data)
        blocks.append(result)
    if sealing.digest() != piece.seal:
        raise _WrongResult
    return blocks


def _block_of(stripe: Stripe, number: int, block: int, tiers: Mapping[str, Tier]) -> Bytes:
    """Read one block of a piece; of an object what there is of it."""
    tier = tiers[stripe.members[number]]
    try:
        if number >= len(stripe.data):
            return _parity_block(stripe, number, block, tier)
        piece, start = stripe.data[number], block * stripe.block_bytes
        if (size_bytes := tier.size(piece.key)) != piece.size_bytes:
            raise CorruptionError(
                f"{piece.key!r} on tier {tier.name!r} has {size_bytes} bytes instead of "
                f"{piece.size_bytes}."
            )
        target = np.empty(max(0, min(stripe.block_bytes, size_bytes - start)), np.uint8)
        if len(target):
            tier.read_into(piece.key, target.data, start_bytes=start)
        return target
    except UNREADABLE as error:
        raise _PieceFailed(number, error) from error


def _parity_block(stripe: Stripe, number: int, block: int, tier: Tier) -> Bytes:
    key = stripe.block_key(number, block)
    expected = stripe.parity[number - len(stripe.data)].seals[block]
    stored = np.empty(stripe.block_size(block), np.uint8)
    tier.read_into(key, stored.data)
    if _seal(stored) != expected:
        raise CorruptionError(f"{key!r} on tier {tier.name!r} does not match its seal.")
    return stored


def problem_of(
    stripe: Stripe, number: int, tiers: Mapping[str, Tier], *, silent_is_bad: bool = True
) -> str | None:
    """Read a whole piece, compare it with its seal, and say what is wrong with it.

    Raises:
        TierError: its tier did not answer, and ``silent_is_bad`` is not set.
    """
    sealing = hashlib.blake2b(digest_size=SEAL_BYTES)
    is_data = number < len(stripe.data)
    size_bytes = stripe.data[number].size_bytes if is_data else stripe.parity_bytes
    for block in range(block_count(size_bytes, stripe.block_bytes)):
        try:
            sealing.update(_block_of(stripe, number, block, tiers).data)
        except _PieceFailed as failed:
            if isinstance(failed.error, TierError) and not silent_is_bad:
                raise failed.error from None
            return failed.reason
    if is_data and sealing.digest() != stripe.data[number].seal:
        piece = stripe.data[number]
        return f"{piece.key!r} on tier {tiers[piece.member].name!r} is not what was coded"
    return None


def _seal(block: Bytes) -> bytes:
    return hashlib.blake2b(block.data, digest_size=SEAL_BYTES).digest()
