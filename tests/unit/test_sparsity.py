"""The counts of the sampler are those of a plain loop over all cells of the sampled chunks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptflow.data.digest import chunk_digests
from ckptflow.data.sparsity import (
    SAMPLE_CHUNKS_MAX,
    Count,
    Sampler,
    Sparsity,
    cell_sizes,
)
from ckptflow.errors import ConfigError

CHUNK = 4096
Bytes = NDArray[np.uint8]


def changed_chunks(old: Bytes, new: Bytes, chunk_bytes: int = CHUNK) -> NDArray[np.bool_]:
    before, now = (chunk_digests(data, chunk_bytes) for data in (old, new))
    changed = np.ones(len(now), np.bool_)
    both = min(len(before), len(now))
    changed[:both] = (before[:both] != now[:both]).any(axis=1)
    return changed


def follow(sampler: Sampler, old: Bytes, new: Bytes) -> Sparsity:
    """Observe ``old``, commit, and return what is observed of ``new``."""
    chunk_bytes = sampler.chunk_bytes
    sampler.observe(old, np.ones(-(-len(old) // chunk_bytes), np.bool_))
    sampler.commit()
    return sampler.observe(new, changed_chunks(old, new, chunk_bytes))


def loop(old: Bytes, new: Bytes, cell_bytes: int) -> Count:
    """Count cells and runs of a whole region, one cell after the other."""
    cells = runs = 0
    before = False
    for start in range(0, len(new), cell_bytes):
        piece = slice(start, start + cell_bytes)
        now = not np.array_equal(old[piece], new[piece])
        cells, runs, before = cells + now, runs + (now and not before), now
    return Count(cells, runs)


def noise(chunks: float, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, int(chunks * CHUNK), np.uint8)


def with_words_changed(data: Bytes, fraction: float, seed: int = 1) -> Bytes:
    rng = np.random.default_rng(seed)
    words = data.copy().view(np.uint32)
    chosen = rng.choice(len(words), max(1, int(len(words) * fraction)), replace=False)
    words[chosen] ^= np.uint32(1)
    return words.view(np.uint8)


def test_sizes_divide_the_chunk_and_go_on_above_it() -> None:
    assert cell_sizes(4096) == [
        64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536
    ]  # fmt: skip
    assert cell_sizes(192) == [64, 192, 384, 768, 1536, 3072, 6144, 12288, 24576, 49152]
    assert cell_sizes(64)[0] == 64
    assert cell_sizes(1000)[:2] == [1000, 2000]
    assert cell_sizes(1 << 20)[-2:] == [1 << 19, 1 << 20]


@pytest.mark.parametrize("fraction", [0.0005, 0.01, 0.2])
@pytest.mark.parametrize("chunks", [1, 4, 4.5])
def test_a_region_that_is_sampled_whole_is_counted_exactly(
    chunks: float, fraction: float
) -> None:
    old = noise(chunks)
    new = old.copy()
    whole = len(old) // CHUNK * CHUNK  # The part of a chunk at the end is not sampled.
    new[:whole] = with_words_changed(old[:whole], fraction)
    seen = follow(Sampler(CHUNK), old, new)
    for cell_bytes, count in seen.counts.items():
        assert count == loop(old, new, cell_bytes)


def test_from_the_chunk_on_the_whole_region_is_counted() -> None:
    old = noise(600.25)
    new = with_words_changed(old, 0.0002)
    seen = follow(Sampler(CHUNK), old, new)
    for cell_bytes in (4096, 8192, 16384, 32768, 65536):
        assert seen.counts[cell_bytes] == loop(old, new, cell_bytes)
    assert seen.region_bytes == len(old)
    assert seen.changed_chunks == seen.counts[CHUNK].cells


def test_a_sample_tells_the_fraction_of_the_cells() -> None:
    old = noise(4000)
    new = with_words_changed(old, 0.01)
    seen = follow(Sampler(CHUNK), old, new)
    assert seen.sampled_chunks == SAMPLE_CHUNKS_MAX
    for cell_bytes in (64, 256, 1024):
        in_region = loop(old, new, cell_bytes)
        share = seen.sampled_chunks / seen.changed_chunks
        assert seen.counts[cell_bytes].cells == pytest.approx(share * in_region.cells, rel=0.1)
        assert seen.counts[cell_bytes].runs == pytest.approx(share * in_region.runs, rel=0.1)


def test_a_region_that_is_all_new_is_few_runs_in_the_sample_as_well() -> None:
    seen = follow(Sampler(CHUNK), noise(1000), noise(1000, seed=1))
    assert seen.counts[64].cells == 64 * seen.sampled_chunks > 64 * 100
    assert seen.counts[64].runs <= 1


def test_one_long_run_is_one_run_at_every_size() -> None:
    old = noise(4)
    new = old.copy()
    new[1000:9000] ^= 1
    seen = follow(Sampler(CHUNK), old, new)
    assert {count.runs for count in seen.counts.values()} == {1}


def test_the_sample_moves_to_where_changes_are() -> None:
    old = noise(4000)
    hot = old.copy()
    hot[1000 * CHUNK : 1040 * CHUNK : 64] ^= 1
    sampler = Sampler(CHUNK)
    first = follow(sampler, old, hot)
    assert first.sampled_chunks < 5
    sampler.commit()
    hotter = hot.copy()
    hotter[1000 * CHUNK : 1040 * CHUNK : 128] ^= 1
    second = sampler.observe(hotter, changed_chunks(hot, hotter))
    assert second.sampled_chunks == 40
    assert second.counts[64] == Count(40 * 32, 40 * 32)


def test_what_was_rolled_back_is_not_compared_with() -> None:
    old, sampler = noise(4), Sampler(CHUNK)
    new = with_words_changed(old, 0.01)
    first = follow(sampler, old, new)
    sampler.rollback()
    sampler.commit()  # There is nothing to commit any more.
    assert sampler.observe(new, changed_chunks(old, new)) == first
    sampler.commit()
    assert sampler.observe(new, changed_chunks(new, new)).counts[64] == Count(0, 0)


def test_a_save_that_failed_may_be_followed_by_another_without_rollback() -> None:
    old, sampler = noise(4), Sampler(CHUNK)
    new = with_words_changed(old, 0.01)
    first = follow(sampler, old, new)
    sampler.observe(old, changed_chunks(old, old))
    assert sampler.observe(new, changed_chunks(old, new)) == first


def test_an_unchanged_region_keeps_its_sample() -> None:
    old, sampler = noise(4), Sampler(CHUNK)
    follow(sampler, old, old)
    sampler.commit()
    new = with_words_changed(old, 0.01)
    assert sampler.observe(new, changed_chunks(old, new)).counts[64] == loop(old, new, 64)


@pytest.mark.parametrize("chunks", [0, 0.25, 3, 40])
def test_a_region_may_grow_and_shrink(chunks: float) -> None:
    sampler = Sampler(CHUNK)
    new = noise(chunks, seed=2)
    seen = follow(sampler, noise(16), new)
    assert seen.changed_chunks == -(-len(new) // CHUNK)
    assert seen.counts[64].cells == 64 * seen.sampled_chunks  # All of it is new.
    sampler.commit()
    back = sampler.observe(noise(16), changed_chunks(new, noise(16)))
    assert back.changed_chunks == 16


@pytest.mark.parametrize("chunk_bytes", [16, 64, 1000])
def test_a_chunk_without_finer_cells_needs_no_sample(chunk_bytes: int) -> None:
    old = noise(2)
    seen = follow(Sampler(chunk_bytes), old, with_words_changed(old, 0.01))
    assert min(seen.counts) == chunk_bytes
    assert seen.sampled_chunks == 0


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one entry for each of 2 chunks, got \(3,\)"):
        Sampler(CHUNK).observe(noise(2), np.ones(3, np.bool_))
    with pytest.raises(ConfigError, match="multiple of 8 and at least 16, got 12"):
        Sampler(12)
