"""How finely a region is compared: the size of its cells, or whole because all of it changes.

Small cells write less where changes are scattered, but each costs time to digest and to look
up, and memory for its digest. What every size would have cost is reckoned after each save, as a
fraction of writing the region once:

* what is written: the changed cells, shrunk as encoding shrinks them, and a row for each run;
* the time to digest cells, look them up and handle runs, as the bytes that storage would have
  taken in that time;
* the memory for digests of cells, at a small price, since it is held and not written.

A decision is changed only for a gain of more than a fifth that lasts, so a pattern that stays
as it is changes it at most once: ``tests/unit/test_cells.py`` and
``tests/property/test_cell_laws.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ckptflow.units import format_bytes

ROW_BYTES = 8  # Of a manifest, a run; most of its numbers are small differences.
RUN_S = 100e-9  # A run is sorted, merged, copied and read back by itself.
LOOKUP_S = 23e-9  # Of a digest in the history, in a batch.
DIGEST_S = 3.5e-9  # Of a cell, whatever its size,
DIGEST_BYTE_S = 0.038e-9  # and of each byte in it.
DIGEST_BYTES = 16
HELD_PRICE = 0.05  # Of a byte in memory, where one that every save writes costs 1.

GAIN_MIN = 0.2
GAINS_NEEDED = 2  # One after the other, before cells are resized or compared again.
DENSE_MIN, DENSE_ENOUGH = 0.6, 0.5  # Of the chunks: to begin to write all, and to go on.
DENSE_SAVED_MAX = 0.1  # What comparing may save at most when that begins.
DENSE_NEEDED = 3
SAMPLE_MIN = 4  # Chunks; fewer tell too little of the cells in them.


class Observation(Protocol):
    """What a save saw of a region, as `ckptflow.data.sparsity.Sampler` tells it."""

    @property
    def region_bytes(self) -> int:
        """Size of the region."""
        ...

    @property
    def chunk_bytes(self) -> int:
        """Size of its chunks."""
        ...

    @property
    def changed_chunks(self) -> int:
        """How many of them changed."""
        ...

    @property
    def sampled_chunks(self) -> int:
        """In how many of the changed ones cells were counted."""
        ...

    @property
    def counts(self) -> Mapping[int, tuple[int, int]]:
        """Changed cells and runs of them, by size of cell.

        All sizes that may be chosen, the chunk among them. Below it they are of the sampled
        chunks, from it on of the whole region.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How what changed is written.

    Attributes:
        ratio: plain over stored bytes of what the last save wrote.
        delta_coded: whether cells are stored as differences from what they were. Then what did
            not change in a chunk takes next to nothing, and all sizes write what it takes.
        bytes_per_s: how fast storage takes bytes from this process.
    """

    ratio: float = 1.0
    delta_coded: bool = False
    bytes_per_s: float = 5e8


@dataclass(frozen=True, slots=True)
class CellPolicy:
    """How a region is compared in the next save, and why.

    Begin with ``CellPolicy(chunk_bytes)``. ``observe`` returns the policy that follows; it
    counts once the checkpoint is committed.

    Attributes:
        cell_bytes: the size of its cells; of its chunks if it is written whole.
        full: write it whole, without digests of cells, a history or differences.
        reasons: what was weighed, for people.
        wish: what the last observations spoke for, if for a change.
        wished: how many of them, one after the other.
    """

    cell_bytes: int
    full: bool = False
    reasons: tuple[str, ...] = ("nothing was observed yet",)
    wish: Literal["cells", "full"] | None = None
    wished: int = 0

    def observe(self, seen: Observation, writing: Writing = Writing()) -> CellPolicy:
        """Return the policy after one more save."""
        if not seen.changed_chunks:
            return replace(self, reasons=("nothing changed",))
        finest_bytes = min(seen.counts)
        if finest_bytes < seen.chunk_bytes and seen.sampled_chunks < min(
            SAMPLE_MIN, seen.changed_chunks
        ):
            few = f"{seen.sampled_chunks} of {seen.changed_chunks} changed chunks were sampled"
            return replace(self, reasons=(f"{few}, too few to tell",))
        assert self.cell_bytes in seen.counts, "every size that may be chosen is counted"
        costs = {size: cost(seen, size, writing) for size in seen.counts}
        best_bytes = min(costs, key=lambda size: (costs[size], -size))
        changed = seen.changed_chunks / -(-seen.region_bytes // seen.chunk_bytes)
        saved = 1 - costs[best_bytes] * writing.ratio
        gain = 1 - costs[best_bytes] / costs[self.cell_bytes]
        wish = self._wish(changed, saved=saved, gain=gain, delta_coded=writing.delta_coded)
        reasons: tuple[str, ...] = (
            f"{changed:.1%} of the chunks changed",
            f"cells of {format_bytes(best_bytes)} would do best: a save costs "
            f"{costs[best_bytes]:.2%} of writing the region, {costs[self.cell_bytes]:.2%} with "
            f"{format_bytes(self.cell_bytes)}, {1 / writing.ratio:.2%} written whole",
        )
        if wish is None:
            return CellPolicy(self.cell_bytes, self.full, reasons)
        wished = self.wished + 1 if wish == self.wish else 1
        needed = DENSE_NEEDED if wish == "full" else GAINS_NEEDED
        reasons += (f"seen {wished} of {needed} times in a row",)
        if wished < needed:
            return replace(self, reasons=reasons, wish=wish, wished=wished)
        if wish == "full":
            return CellPolicy(seen.chunk_bytes, full=True, reasons=reasons)
        return CellPolicy(best_bytes, full=False, reasons=reasons)

    def _wish(
        self, changed: float, *, saved: float, gain: float, delta_coded: bool
    ) -> Literal["cells", "full"] | None:
        """Return what an observation speaks for; None if all may stay as it is.

        Args:
            changed: fraction of the chunks.
            saved: by the best cells, against writing the region whole.
            gain: of the best cells, against those of now.
            delta_coded: then comparing pays even where all changes.
        """
        if self.full:
            return "cells" if changed < DENSE_ENOUGH or saved > GAIN_MIN else None
        if changed > DENSE_MIN and saved < DENSE_SAVED_MAX and not delta_coded:
            return "full"
        return "cells" if gain > GAIN_MIN else None


def cost(seen: Observation, cell_bytes: int, writing: Writing) -> float:
    """Return what a save with cells of a size costs, as a fraction of writing the region plain.

    Args:
        seen: what changed.
        cell_bytes: the size; one of ``seen.counts``.
        writing: how changed cells are written.
    """
    cells, runs = _in_region(seen, cell_bytes)
    written_cells = seen.chunk_bytes if writing.delta_coded else cell_bytes
    plain_bytes = min(_in_region(seen, written_cells)[0] * written_cells, seen.region_bytes)
    spent_s = cells * LOOKUP_S + runs * RUN_S
    held_bytes = 0.0
    if cell_bytes < seen.chunk_bytes:  # Chunks have their digests in any case.
        digested_bytes = seen.changed_chunks * seen.chunk_bytes
        spent_s += digested_bytes * (DIGEST_S / cell_bytes + DIGEST_BYTE_S)
        held_bytes = seen.region_bytes * DIGEST_BYTES / cell_bytes
    written_bytes = plain_bytes / writing.ratio + runs * ROW_BYTES
    total = written_bytes + spent_s * writing.bytes_per_s + held_bytes * HELD_PRICE
    return total / seen.region_bytes


def _in_region(seen: Observation, cell_bytes: int) -> tuple[float, float]:
    """Return changed cells and runs of the whole region, as the sample suggests."""
    cells, runs = seen.counts[cell_bytes]
    scale = 1.0
    if cell_bytes < seen.chunk_bytes:
        scale = seen.changed_chunks / seen.sampled_chunks
    return cells * scale, runs * scale
