"""A frame table that says what cannot be is refused when the pack is opened.

The seal is right in all of them: whoever wrote them made a mistake, or meant no good.
"""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data.pack import HEAD, StoredFrame, decode_table, encode_table
from ckptflow.errors import CorruptionError
from ckptflow.model import CheckpointId, ExtentTable, LineageId, Manifest, PackRef, RegionEntry
from ckptflow.store.copies import Pack
from ckptflow.store.restore import read_checkpoint
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("run", "task")
ID = CheckpointId(1, 1)


def opened(*frames: StoredFrame) -> None:
    tail, sealed = encode_table(frames, [bytes(16)] * len(frames))
    size_bytes = len(HEAD) + sum(len(frame.stored) for frame in frames) + len(tail)
    decode_table(
        HEAD, tail, size_bytes=size_bytes, frame_count=len(frames), sealed=sealed, where="here"
    )


def test_what_can_be_is_opened() -> None:
    opened(StoredFrame(bytes(5), 5, 0, 0, 0), StoredFrame(bytes(3), 9, 1, 0, 0))
    opened(StoredFrame(bytes(3), 8, 0, 3, 4))  # A filter makes it shorter, without a codec.


@pytest.mark.parametrize(
    "frame",
    [
        StoredFrame(bytes(4), 5, 0, 0, 0),  # Stored as it is, and yet longer or shorter.
        StoredFrame(bytes(6), 5, 0, 0, 0),
        StoredFrame(bytes(6), 0, 1, 0, 0),
        StoredFrame(bytes(6), (4 << 20) + 1, 1, 0, 0),
        StoredFrame(bytes((8 << 20) + 1), 4 << 20, 1, 0, 0),
    ],
)
def test_what_cannot_be_is_refused(frame: StoredFrame) -> None:
    with pytest.raises(CorruptionError, match="do not fill it: it is damaged"):
        opened(StoredFrame(b"x", 1, 0, 0, 0), frame)


def test_a_small_pack_whose_table_lies_is_no_sound_copy() -> None:
    """It is read as a whole; nothing is taken from behind its end."""
    tier = MemoryTier()
    frame = StoredFrame(bytes(16), 64, 0, 0, 0)
    tail, sealed = encode_table([frame], [bytes(16)])
    key = ID.pack_key(0, "00c0ffee")
    tier.put(f"{LINEAGE.prefix}/{key}", [HEAD, frame.stored, tail])
    pack = PackRef(key, len(HEAD) + 16 + len(tail), 64, 1, sealed)
    rows = ExtentTable(
        np.array([64], np.uint64), np.zeros(1, np.uint64), np.zeros(1, np.uint32)
    )
    manifest = Manifest(
        lineage=LINEAGE, id=ID, parent=None, kind="full", created="", writer="", metrics={},
        root=bytes(16), chunk_bytes=64, packs=(pack,),
        regions=(RegionEntry("w", 64, bytes(16), 1),), extents=rows, structure=None,
    )  # fmt: skip
    with pytest.raises(CorruptionError, match="no sound copy"):
        read_checkpoint([tier], manifest, [memoryview(bytearray(64))])
    held = Pack([tier], LINEAGE, pack, lambda _text: None, hold_small=True)
    held._whole = tier, bytes(40)
    with pytest.raises(CorruptionError, match="ends before byte 64"):
        held.read_into(tier, memoryview(bytearray(32)), 32)
