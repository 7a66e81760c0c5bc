"""One writer of a measurement: it saves, flushes and restores on command, as a task does.

``python -m ckptflow.plan.writer`` reads orders from standard input, one JSON object a line, and
answers each with one line. When the input ends it deletes what it has written, and ends: so
nothing is left when whoever gives the orders is killed. ``tests/process/test_calibrate.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.regions import flatten
from ckptflow.errors import CheckpointError
from ckptflow.flush.copying import Transport, copy_checkpoint, manifest_on
from ckptflow.flush.limits import Bandwidth, ByteBudget
from ckptflow.model import CheckpointId, LineageId
from ckptflow.plan.sandbox import SandboxTier, delete_below, forget_cached
from ckptflow.plan.saves import RUN, measure_saves
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import NamedRegion
from ckptflow.store.packing import CHUNK_BYTES
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.opening import open_tier
from ckptflow.tiers.tier import Placed, Tier

_ID = CheckpointId(1, 1)
_SPARE_BYTES = 64  # No array of the state is empty.


class Writer:
    """What one process does: `prepare`, then `write`, `read` and `delete`, again and again.

    Args:
        number: tells it from the others.
        opens: returns the tier of a spec.
        clock_s: the time, the same for all processes of this computer.
    """

    def __init__(
        self,
        number: int,
        *,
        opens: Callable[[Mapping[str, Any]], Tier] = open_tier,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lineage = LineageId(RUN, f"writer-{number}")
        self._rng = np.random.default_rng(number)
        self._opens, self._clock_s = opens, clock_s
        self._spec: Mapping[str, Any] = {}
        self._sandbox: SandboxTier | None = None
        self._folder = ""
        self._state: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._source: MemoryTier | None = None
        self._transport: Transport | None = None

    def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Do what an order says, and return what came of it."""
        match order["do"]:
            case "prepare":
                self.prepare(order)
            case "write":
                return self._timed(self.write)
            case "read":
                return self._timed(self.read)
            case "delete":
                self.delete()
            case "saves":
                return {"saves": self.saves(order)}
            case "leave":
                self.leave()
        return {}

    def prepare(self, order: Mapping[str, Any]) -> None:
        """Open the tier of an order, and have a state of its size; not timed.

        The state is noise: neither we nor the tier can make less of it. What is to be flushed
        is saved in memory first.
        """
        if self._sandbox is None or self._spec != order["tier"]:
            self.leave()
            self._spec, self._folder = order["tier"], order["folder"]
            self._sandbox = SandboxTier(self._opens(self._spec), self._folder)
        count = max(_SPARE_BYTES, order["size_bytes"]) // 8
        if len(self._state) != count:
            self._source = None
            self._state = np.empty(0, np.uint64)  # Before the next takes memory.
            self._state = self._rng.integers(0, 1 << 64, count, np.uint64)
        ensure_store(self._sandbox)
        if order["how"] == "save":
            self._source = None
        elif self._source is None:
            source = MemoryTier("calibrate-source")
            self._save(source)
            self._source = source
            self._transport = self._transport or Transport(
                streams=order["streams"],
                budget=ByteBudget(order["budget_bytes"]),
                bandwidth=Bandwidth(None),
            )

    def write(self) -> None:
        """Write the state as the product does: from a snapshot, or from another tier."""
        tier = self._on()
        if self._source is None:
            self._save(tier)
            return
        manifest = manifest_on(self._source, self._lineage, _ID)
        copy_checkpoint(
            [self._source], tier, self._lineage, manifest, transport=self._transport
        )

    def read(self) -> None:
        """Restore it, verified, into memory that is there."""
        target = {"state": self._state}
        if restore_newest(Lineage([self._on()], self._lineage), target) is None:
            raise CheckpointError(f"Tier {self._on().name!r} has lost what was written.")

    def delete(self) -> None:
        """Delete what `write` has written."""
        delete_below(self._on(), self._lineage.prefix)

    def saves(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Measure what a save costs the process itself."""
        self.prepare({**order, "how": "save", "size_bytes": 0})
        return measure_saves(
            self._on(), limit_s=order["limit_s"], size_bytes=order["size_bytes"]
        )

    def leave(self) -> None:
        """Delete all that is there, and let go of the tier."""
        if self._sandbox is None:
            return
        sandbox, self._sandbox = self._sandbox, None
        delete_below(sandbox)
        if isinstance(sandbox.inner, Placed):
            sandbox.inner.unmake()

    def _on(self) -> SandboxTier:
        assert self._sandbox is not None, "an order to prepare comes first"
        return self._sandbox

    def _save(self, tier: Tier) -> None:
        flat = flatten({"state": self._state})
        write_checkpoint(
            tier,
            self._lineage,
            _ID,
            structure=flat.structure,
            regions=[NamedRegion(flat.regions[0].name, self._state.view(np.uint8).data)],
            base=None,
            chunk_bytes=CHUNK_BYTES,
        )

    def _timed(self, call: Callable[[], None]) -> dict[str, Any]:
        began_s = self._clock_s()
        call()
        ended_s = self._clock_s()
        forget_cached(self._spec, f"{self._folder}/{self._lineage.prefix}")
        return {"began_s": began_s, "ended_s": ended_s}


def main(number: int) -> None:
    """Obey orders until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Whatever a library prints is no answer.
    writer = Writer(number)
    try:
        for line in sys.stdin:
            try:
                answer = writer.obey(json.loads(line))
            except CheckpointError as error:
                answer = {"kind": error.kind, "error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        with contextlib.suppress(CheckpointError):  # Whoever gave orders looks again.
            writer.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]))
