"""What ckptflow promises beside other ways to save, from the results of `peers.py`.

A promise for which something was not measured is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import updates
import zstandard
from peer_registry import MODES, OURS
from peer_results import FEW, RIGHT, SAVES, Results
from report import Claim
from updates import Kind, Scale

COPY, DIFF_FIRST, LAZY = (f"ckptflow {mode}" for mode in ("copy", "diff-first", "lazy"))
AUTO = "ckptflow auto"
SHORT = {"1 % contiguous": "1_pct", "5 % of rows": "rows", "1 % of words": "words"}
KINDS: tuple[Kind, ...] = ("large", "small")
CHANGED = ("1 % contiguous", "5 % of rows")


def claims(results: Results, scale: Scale) -> list[Claim]:
    """Return all promises that can be judged."""
    return [
        *blocked(results),
        *blocked_small(results),
        *written(results, scale),
        *durable(results),
        *memory(results),
        *restored(results),
    ]


def blocked(results: Results) -> Iterator[Claim]:
    """How long calls block, of the state of few large arrays."""
    loops = list(results.events("large", LAZY, "loop"))
    if loops:
        idle = statistics.median(step_s for one in loops for step_s in one["idle_s"])
        waits = [wait_s for one in loops for wait_s in one["blocked_s"]]
        first = [one["blocked_s"] for one in results.saves("large", LAZY, "first")]
        percent = 100 * statistics.median(waits) / idle
        yield Claim("lazy_blocked_pct_of_step", percent, "<=", 1)
        percent = 100 * statistics.median(first) / idle
        yield Claim("lazy_first_save_blocked_pct_of_step", percent, "<=", 1)
    for update, short in SHORT.items():
        for value in middles(results.blocked("large", DIFF_FIRST, update)):
            yield Claim(f"diff_first_blocked_over_memcpy_{short}", value, "<=", 1.2)
    for value in middles(results.blocked("large", DIFF_FIRST, "unchanged")):
        yield Claim("diff_first_blocked_over_memcpy_unchanged", value, "<=", 0.8)
    for value in worst_middle(results, "large", COPY):
        yield Claim("copy_blocked_over_memcpy", value, "<=", 1.1)


def blocked_small(results: Results) -> Iterator[Claim]:
    """How long calls block, of the state of many small arrays, and against the best other."""
    for mode in MODES:
        for value in worst_middle(results, "small", f"ckptflow {mode}"):
            name = mode.replace("-", "_")
            yield Claim(f"{name}_blocked_over_memcpy_small", value, "<=", 1.5)
    others = [
        statistics.median(found)
        for way in sound_others(results, "small")
        if (found := results.blocked("small", way, "all words"))
    ]
    for value in worst_middle(results, "small", AUTO):
        if others:
            yield Claim("best_other_blocked_over_ours_small", min(others) / value, ">=", 3)


def written(results: Results, scale: Scale) -> Iterator[Claim]:
    """How many bytes are written, of the state of few large arrays."""
    for update in CHANGED:
        short = SHORT[update]
        for value in middles(results.over_changed("large", DIFF_FIRST, update)):
            yield Claim(f"bytes_over_changed_{short}", value, "<=", 1.1)
        ours = results.stored("large", DIFF_FIRST, update)
        full = [
            statistics.median(found)
            for way in others_of(results)
            if way != "borg" and (found := results.stored("large", way, update))
        ]
        borg = results.stored("large", "borg", update)
        if ours and full:
            value = min(full) / statistics.median(ours)
            yield Claim(f"full_writers_bytes_over_ours_{short}", value, ">=", 10)
        if ours and borg:
            value = statistics.median(ours) / statistics.median(borg)
            yield Claim(f"bytes_over_borg_{short}", value, "<=", 1)
    for update, short in (("1 % of words", "words"), ("all words", "all")):
        for value in middles(results.stored("large", AUTO, update)):
            over = value / results.state_bytes("large") / zstd_share(scale)
            yield Claim(f"bytes_over_zstd_{short}", over, "<=", 1)


def durable(results: Results) -> Iterator[Claim]:
    """How long it takes until a save is durable."""
    for update in CHANGED:
        for value in middles(results.over_floor("large", DIFF_FIRST, update)):
            yield Claim(f"durable_over_2_memcpy_and_write_{SHORT[update]}", value, "<=", 1)
    for kind in KINDS:
        ours = results.durable(kind, AUTO, "all words")
        others = [
            statistics.median(found)
            for way in sound_others(results, kind)
            if (found := results.durable(kind, way, "all words"))
        ]
        if ours and others:
            value = statistics.median(ours) / min(others)
            yield Claim(f"durable_over_best_other_all_words_{kind}", value, "<=", 1.1)


def memory(results: Results) -> Iterator[Claim]:
    """How much more memory the process takes than it had."""
    if found := results.extra("large", COPY, SAVES):
        yield Claim("memory_over_state_copy", max(found), "<=", 1.05)
    for way, name in ((DIFF_FIRST, "diff_first"), (LAZY, "lazy")):
        if found := results.extra("large", way, FEW):
            yield Claim(f"memory_over_state_{name}_few_changes", max(found), "<=", 0.2)


def restored(results: Results) -> Iterator[Claim]:
    """How long restores take, and that their bits are right."""
    for value in middles(results.restores("large", AUTO, "read_s")):
        yield Claim("restore_over_raw_read", value, "<=", 1.3)
    ours = {kind: results.restores(kind, AUTO, "memcpy_s") for kind in KINDS}
    for kind in KINDS:
        theirs = results.restores(kind, "safetensors", "memcpy_s")
        if ours[kind] and theirs:
            value = statistics.median(ours[kind]) / statistics.median(theirs)
            yield Claim(f"restore_over_safetensors_{kind}", value, "<=", 1)
    seconds = [
        statistics.median(one["seconds"] for one in found) / results.state_bytes(kind)
        for kind in KINDS
        if (found := list(results.events(kind, AUTO, "restore")))
    ]
    if len(seconds) == len(KINDS):
        yield Claim("restore_small_over_large", seconds[1] / seconds[0], "<=", 2)
    right = [
        share
        for kind in KINDS
        for way in OURS
        if (share := results.right(kind, way)) is not None
    ]
    if right:
        yield Claim("ours_restored_bits_of_the_call", min(right), ">=", RIGHT)


def others_of(results: Results) -> list[str]:
    return [way for way in results.ways if way not in OURS]


def sound_others(results: Results, kind: Kind) -> list[str]:
    """Return the other ways that gave back the bits of the call."""
    return [way for way in others_of(results) if results.right(kind, way) == RIGHT]


def middles(values: Sequence[float]) -> list[float]:
    """Return the median, if there is one."""
    return [statistics.median(values)] if values else []


def worst_middle(results: Results, kind: Kind, way: str) -> list[float]:
    """Return the largest of the median blocked times of all updates and the first save."""
    found = [
        statistics.median(values)
        for update in SAVES
        if (values := results.blocked(kind, way, update))
    ]
    return [max(found)] if found else []


def zstd_share(scale: Scale) -> float:
    """Return what zstd-1 alone makes of the state, as a share of it; of one array of it."""
    array = next(iter(updates.make_state("large", scale).values()))
    compressor = zstandard.ZstdCompressor(level=1)
    return len(compressor.compress(memoryview(array).cast("B"))) / array.nbytes
