"""Write the store in tests/golden/v1, which every later version has to read.

    python tests/format/golden.py FOLDER

It was run once for format version 1, and its result is never written again: a checkpoint
written today says nothing about those that users have. `test_golden.py` knows by hand what
is in it, and the format page shows the smallest checkpoint in hex (`hexdump.py`).
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ckptflow.checkpointer import Checkpointer
from ckptflow.data.regions import flatten
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.memory import NamedRegion
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

SHOWN = LineageId("golden", "shown")
STEP = CheckpointId(step=7, attempt=1)


def write_shown(tier: Tier) -> None:
    """Write the checkpoint that the format page shows; with the same bytes each time."""
    text = np.frombuffer(b"The quick brown fox jumps over the lazy dog.", np.uint8)
    state = {"text": text, "ones": np.ones(4), "rate": 0.5}
    flattened = flatten({"state": state, "rng": None})
    views = flattened.copy_into(bytearray(flattened.total_bytes))
    write_checkpoint(
        tier,
        SHOWN,
        STEP,
        structure=flattened.structure,
        regions=[
            NamedRegion(region.name, view)
            for region, view in zip(flattened.regions, views, strict=True)
        ],
        base=None,
        chunk_bytes=16,
        metrics={"loss": 0.25},
        now=lambda: datetime(2025, 1, 1, tzinfo=UTC),
        nonce=lambda: "00c0ffee",
    )


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
    options: dict[str, Any] = {"keep": 9, "rng": False, "chunk_bytes": 256}
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


def main(folder: Path) -> None:
    folder.mkdir()  # Not into one that is there.
    tier = PosixTier(folder, name="golden")
    for write in (write_kinds, write_deltas, write_shown):
        write(tier)
    write_overtaken(folder)
    for claim in folder.rglob("*.claim"):
        record = json.loads(claim.read_bytes())
        claim.write_text(json.dumps(record | {"host": "node", "pid": 1}, sort_keys=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
