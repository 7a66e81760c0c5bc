"""Write the stores in tests/golden, which every later version has to read.

    python tests/format/golden.py FOLDER            as v1
    python tests/format/golden.py FOLDER compact    as v1-compact

Each was run once: v1 for format version 1, v1-compact when repeats, delta layers, filters and
LZ4 came. Their results are never written again: a checkpoint written today says nothing about
those that users have. `test_golden.py` knows by hand what is in them, and the format page shows
the smallest checkpoints in hex (`hexdump.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from ckptflow.checkpointer import Checkpointer
from ckptflow.data.codec import Codec
from ckptflow.data.filters import Filter
from ckptflow.data.frames import RAW, Encoding
from ckptflow.data.regions import flatten
from ckptflow.model import CheckpointId, DeltaOp, LineageId
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.planning import plan
from ckptflow.store.planning.drafting import RegionEncoding
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

TEXT = b"The quick brown fox jumps over the lazy dog."
SHOWN = LineageId("golden", "shown")
STEP = CheckpointId(step=7, attempt=1)


def write_shown(tier: Tier) -> None:
    """Write the checkpoint of v1 that the format page shows."""
    text = np.frombuffer(TEXT, np.uint8)
    state = {"text": text, "ones": np.ones(4), "rate": 0.5}
    _write(tier, SHOWN, STEP, state, None, None, nonce="00c0ffee")


def write_shown_compact(tier: Tier) -> None:
    """Write the checkpoints of v1-compact that the page shows; with the same bytes each time.

    The second refers to the first, repeats a period of it, and has a delta on it.
    """
    state: dict[str, Any] = {
        "text": np.frombuffer(TEXT, np.uint8),
        "ones": np.ones(4),
        "beat": np.tile(np.arange(1, 9, dtype="<u4"), 8),
        "steps": np.arange(100, 112, dtype="<u4"),
        "rate": 0.5,
    }
    base = _write(tier, SHOWN, STEP, state, None, None, nonce="00c0ffee")
    state = state | {"steps": state["steps"].copy(), "rate": 0.25}
    state["steps"][4:] += np.uint32(1)
    how = Encoding(Codec.LZ4, 0, Filter.SHUFFLE, 4, DeltaOp.SUB, 4)
    _write(tier, SHOWN, CheckpointId(8, 1), state, base, how, nonce="5ca1ab1e")


def _write(
    tier: Tier,
    lineage: LineageId,
    checkpoint: CheckpointId,
    state: dict[str, Any],
    base: Base | None,
    delta: Encoding | None,
    *,
    nonce: str,
    plain: Encoding = RAW,
) -> Base:
    """Write a checkpoint with dictated encodings; what has a parent is stored as a delta."""
    flattened = flatten({"state": state, "rng": None})
    views = flattened.copy_into(bytearray(flattened.total_bytes))
    regions = [
        NamedRegion(region.name, view)
        for region, view in zip(flattened.regions, views, strict=True)
    ]

    def dictated(diffs: Sequence[Any], _memory: Any, **_options: Any) -> list[RegionEncoding]:
        return [RegionEncoding(plain, delta) for _ in diffs]

    with mock.patch.object(plan, "choose_encodings", dictated):
        new = write_checkpoint(
            tier,
            lineage,
            checkpoint,
            structure=flattened.structure,
            regions=regions,
            base=base,
            chunk_bytes=16,
            goal="small",
            metrics={"loss": 0.25},
            now=lambda: datetime(2025, 1, 1, tzinfo=UTC),
            nonce=lambda: nonce,
        )
    new.memory.bytes_at_hand = {region.name: region.data for region in regions}
    return new


def write_layers(tier: Tier) -> None:
    """Write five states, each a delta on the one before, with every filter, codec and op."""
    numbers = np.arange(3001, dtype="<u8") * np.uint64(1009) % np.uint64(4099)
    steps = [
        Encoding(Codec.ZSTD, 3, Filter.SHUFFLE, 8, DeltaOp.SUB, 8),
        Encoding(Codec.LZ4, 0, Filter.BITSHUFFLE, 2, DeltaOp.XOR, 4),
        Encoding(Codec.RAW, 0, Filter.WORDS, 8, DeltaOp.SUB, 2),
        Encoding(Codec.LZ4, 0, Filter.WORDS, 4, DeltaOp.XOR, 1),
        Encoding(Codec.ZSTD, 1, op=DeltaOp.SUB, op_word=4),
    ]
    base, lineage = None, LineageId("golden", "layers")
    plain = Encoding(Codec.ZSTD, 1, Filter.SHUFFLE, 8)
    for step, delta in enumerate(steps):
        numbers = numbers.copy()
        numbers[step * 400 :] += np.uint64(step)
        odd = numbers.view(np.uint8)[: 5000 + step].copy()
        state, checkpoint = {"numbers": numbers, "odd": odd}, CheckpointId(step, 1)
        nonce = f"{step:08x}"
        base = _write(tier, lineage, checkpoint, state, base, delta, nonce=nonce, plain=plain)


def write_kinds(tier: Tier) -> None:
    """Write one state with a bit of everything."""
    grid = np.arange(12.0).reshape(3, 4)
    state = {
        "grid": grid,
        "its column": grid[:, 1],
        "big-endian": np.arange(6, dtype=">i4"),
        "flags": np.arange(10) % 3 == 0,
        "bf16": np.arange(8).astype(ml_dtypes.bfloat16),
        "complex": np.arange(4) * (1 - 2j),
        "zeros": np.zeros(5000),
        "empty": np.empty((0, 3), np.float32),
        "zero-d": np.array(2.5),
        "backwards": np.arange(9)[::-1],
        "compressible": np.arange(20_000) // 100,
        "plain": [None, True, -7, 2**70, 0.1, -np.inf, "ß", b"bytes", (1, 2), {3}, 1 + 2j],
        "NumPy scalar": np.float32(0.1),
        "long bytes": bytes(range(256)) * 20,
        "generator": np.random.default_rng(7),
        5: {"key": "number"},
    }
    with Checkpointer(tier, run="golden", task="kinds", rng=False) as checkpointer:
        checkpointer.restore(state)
        checkpointer.save(10, state, metrics={"loss": 0.5})


def write_deltas(tier: Tier) -> None:
    """Write five states; each changes a part of the one before."""
    state = np.arange(4000, dtype="<i4")
    options: dict[str, Any] = {"keep": 9, "rng": False, "packing": "chunk=256"}
    with Checkpointer(tier, run="golden", task="deltas", **options) as checkpointer:
        checkpointer.restore(state)
        for step in range(1, 6):
            state[100 * step : 100 * step + 10] = -step
            checkpointer.save(step, state)


def write_overtaken(folder: Path) -> None:
    """Write three states, then another third one in an attempt that went on from the second.

    The first third one comes late, as if its writer had been thought dead: it is void.
    """
    options: dict[str, Any] = {"run": "golden", "task": "overtaken", "keep": 9, "rng": False}
    with Checkpointer(folder, **options) as first:
        first.restore(np.arange(5))
        for step in (1, 2, 3):
            first.save(step, np.arange(5) * step)
    late = {path: path.read_bytes() for path in folder.rglob("overtaken/*/000000000003.*")}
    with Checkpointer(folder, **options) as second:
        state = second.restore(np.arange(5), step=2)
        second.save(3, state + 100)
    for path, raw in late.items():
        path.write_bytes(raw)


def main(folder: Path, *, compact: bool) -> None:
    folder.mkdir()  # Not into one that is there.
    tier = PosixTier(folder, name="golden")
    ensure_store(tier)
    last = (write_shown_compact, write_layers) if compact else (write_shown,)
    for write in (write_kinds, write_deltas, *last):
        write(tier)
    if not compact:
        write_overtaken(folder)
    for claim in folder.rglob("*.claim"):
        record = json.loads(claim.read_bytes())
        claim.write_text(json.dumps(record | {"host": "node", "pid": 1}, sort_keys=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), compact="compact" in sys.argv[2:])
