"""Cells follow what changed: small where words are scattered, large in long runs.

Observations are those of the real sampler, on regions that change as programs change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptflow.data.digest import chunk_digests
from ckptflow.data.sparsity import Count, Sampler, Sparsity
from ckptflow.policy.cells import CellPolicy, Writing, cost

CHUNK, CHUNKS = 4096, 2048
PLAIN = Writing()
Words = NDArray[np.uint32]
Change = Callable[[Words, np.random.Generator], None]


def scattered(fraction: float) -> Change:
    def change(words: Words, rng: np.random.Generator) -> None:
        count = round(fraction * len(words))
        words[rng.choice(len(words), count, replace=False)] ^= np.uint32(1)

    return change


def in_runs(fraction: float, run_words: int) -> Change:
    def change(words: Words, rng: np.random.Generator) -> None:
        runs = max(1, round(fraction * len(words) / run_words))
        for start in rng.integers(0, len(words) - run_words, runs):
            words[start : start + run_words] ^= np.uint32(1)

    return change


def everywhere(words: Words, rng: np.random.Generator) -> None:
    words += np.uint32(1)


def nothing(words: Words, rng: np.random.Generator) -> None:
    pass


def observations(*phases: tuple[Change, int]) -> Iterator[Sparsity]:
    """Change a region so many times in each way; yield what the sampler sees each time."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, CHUNK * CHUNKS // 4, np.uint32)
    sampler, old = Sampler(CHUNK), chunk_digests(words, CHUNK)
    sampler.observe(words, np.ones(CHUNKS, np.bool_))
    sampler.commit()
    for change, times in phases:
        for _ in range(times):
            change(words, rng)
            new = chunk_digests(words, CHUNK)
            yield sampler.observe(words, (old != new).any(axis=1))
            sampler.commit()
            old = new


def follow(
    *phases: tuple[Change, int], writing: Writing = PLAIN, start: CellPolicy | None = None
) -> list[CellPolicy]:
    policies = [start or CellPolicy(CHUNK)]
    for seen in observations(*phases):
        policies.append(policies[-1].observe(seen, writing))
    return policies[1:]


@pytest.mark.parametrize("fraction", [0.001, 0.003, 0.01])
def test_scattered_words_get_the_smallest_cells(fraction: float) -> None:
    assert follow((scattered(fraction), 3))[-1].cell_bytes == 64


def test_short_runs_get_cells_of_about_their_length() -> None:
    assert follow((in_runs(0.01, 64), 3))[-1].cell_bytes in (64, 128, 256)
    assert follow((in_runs(0.02, 1024), 3))[-1].cell_bytes in (256, 512, 1024, 2048)


def test_long_runs_get_chunks_back() -> None:
    long_runs = in_runs(0.3, 40 * 1024)
    assert follow((long_runs, 3))[-1].cell_bytes >= CHUNK
    fast = Writing(bytes_per_s=1e9)  # On slow storage 64 B are no fifth worse.
    assert follow((long_runs, 3), writing=fast, start=CellPolicy(64))[-1].cell_bytes >= 1024


def test_many_small_gaps_are_not_worth_a_run_each() -> None:
    """Where handling runs costs more than the bytes between them, cells exceed the chunk."""

    def every_other_chunk(words: Words, rng: np.random.Generator) -> None:
        words.reshape(CHUNKS, -1)[::2] ^= np.uint32(1)

    ram_disk = Writing(bytes_per_s=1e11)
    assert follow((every_other_chunk, 3), writing=ram_disk)[-1].cell_bytes > CHUNK


def test_a_switch_takes_two_observations() -> None:
    policies = follow((scattered(0.005), 3))
    assert [policy.cell_bytes for policy in policies] == [CHUNK, 64, 64]
    assert policies[0].reasons[-1] == "seen 1 of 2 times in a row"
    assert "cells of 64 B would do best" in policies[1].reasons[1]


def test_observations_that_disagree_change_nothing() -> None:
    phases = [(scattered(0.005), 1), (everywhere, 1)] * 5
    assert {(policy.cell_bytes, policy.full) for policy in follow(*phases)} == {(CHUNK, False)}


def test_where_all_changes_the_region_is_written_whole() -> None:
    full = [policy.full for policy in follow((everywhere, 5))]
    assert full == [False, False, True, True, True]


def test_whole_regions_have_no_small_cells() -> None:
    policy = follow((everywhere, 4), start=CellPolicy(64))[-1]
    assert (policy.full, policy.cell_bytes) == (True, CHUNK)


def test_comparing_comes_back_with_the_cells_that_suit() -> None:
    policies = follow((everywhere, 4), (scattered(0.005), 3))
    assert [policy.full for policy in policies] == [False, False, *[True] * 3, False, False]
    assert [policy.cell_bytes for policy in policies[-2:]] == [64, 64]
    back = follow((everywhere, 4), (in_runs(0.1, 40 * 1024), 3))[-1]
    assert not back.full
    assert back.cell_bytes >= CHUNK


def test_one_quiet_save_is_not_the_end_of_a_dense_phase() -> None:
    policies = follow((everywhere, 4), (scattered(0.005), 1), (everywhere, 3))
    assert all(policy.full for policy in policies[3:])


def test_nothing_changed_says_nothing() -> None:
    before = CellPolicy(256, wish="cells", wished=1)
    (after,) = follow((nothing, 1), start=before)
    assert after == replace(before, reasons=("nothing changed",))


def test_a_sample_of_too_few_chunks_says_nothing() -> None:
    few = Sparsity(1 << 30, CHUNK, 500, 3, {64: Count(3, 3), CHUNK: Count(500, 500)})
    policy = CellPolicy(CHUNK)
    for _ in range(5):
        policy = policy.observe(few)
    assert policy.cell_bytes == CHUNK
    assert policy.reasons == ("3 of 500 changed chunks were sampled, too few to tell",)


def test_slow_storage_takes_smaller_cells() -> None:
    phase = scattered(0.05), 4
    assert follow(phase, writing=Writing(bytes_per_s=1e8))[-1].cell_bytes == 64
    assert follow(phase, writing=Writing(bytes_per_s=2e9))[-1].full


def test_differences_need_no_small_cells() -> None:
    phase = scattered(0.01), 4
    differences = Writing(ratio=40.0, delta_coded=True)
    assert follow(phase)[-1].cell_bytes == 64
    assert follow(phase, writing=differences)[-1].cell_bytes == CHUNK


def test_differences_of_all_of_a_region_are_no_reason_to_write_it_whole() -> None:
    differences = Writing(ratio=1.9, delta_coded=True)
    assert not any(policy.full for policy in follow((everywhere, 5), writing=differences))


def test_chunks_that_have_no_smaller_cells_need_no_sample() -> None:
    seen = Sparsity(1000_000, 1000, 1000, 0, {1000: Count(1000, 1), 2000: Count(500, 1)})
    policy = CellPolicy(1000)
    for _ in range(3):
        policy = policy.observe(seen)
    assert policy.full


def test_a_cost_is_reckoned_as_it_says() -> None:
    """One chunk in a hundred changed, half of its cells of 64 B, in 4 runs."""
    seen = Sparsity(100 * CHUNK, CHUNK, 1, 1, {64: Count(32, 4), CHUNK: Count(1, 1)})
    writing = Writing(ratio=2.0, bytes_per_s=1e9)
    written = 32 * 64 / 2.0 + 4 * 8
    taken = 32 * 23 + 4 * 100 + 64 * 3.5 + CHUNK * 0.038  # In ns, a byte each.
    held = 100 * 64 * 16 * 0.05
    found = cost(seen, 64, writing)
    assert found == pytest.approx((written + taken + held) / (100 * CHUNK))
    whole = CHUNK / 2.0 + 8 + 23 + 100
    assert cost(seen, CHUNK, writing) == pytest.approx(whole / (100 * CHUNK))
