"""Data whose best encoding is known gets it, and a choice follows sink, goal and time.

Where speeds decide they are given: tables are made up, and the clock that `measure` reads
counts its calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ckptflow.data.codec import Codec
from ckptflow.data.encoding import (
    AS_IT_IS,
    RAW,
    Candidate,
    Choice,
    Chooser,
    Encoding,
    choose,
    decide,
    measure,
    sample_ranges,
)
from ckptflow.data.filters import Filter
from ckptflow.model import DeltaOp

WORDS = 1 << 17
Array = NDArray[np.generic]


def ticks() -> Callable[[], float]:
    """Return a clock that is a microsecond later at each look."""
    counter = itertools.count()
    return lambda: next(counter) * 1e-6


def samples_of(array: Array, item_bytes: int) -> list[memoryview]:
    data = memoryview(array.view(np.uint8))
    return [data[a : a + n] for a, n in sample_ranges(len(data), item_bytes)]


def chosen(
    new: Array,
    old: Array | None = None,
    *,
    goal: str = "auto",
    sink_bytes_per_s: float | None = 2e8,
) -> Choice:
    item_bytes = new.dtype.itemsize
    return choose(
        samples_of(new, item_bytes),
        None if old is None else samples_of(old, item_bytes),
        item_bytes,
        sink_bytes_per_s=sink_bytes_per_s,
        cores=2,
        goal=goal,
        clock=ticks(),
    )


def adam_step(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return float32 weights before and after one step of Adam, with moments from before."""
    old = (rng.standard_normal(WORDS) * 0.02).astype(np.float32)
    mean = rng.standard_normal(WORDS) * 1e-4
    square = rng.random(WORDS) * 1e-6
    return old, (old - 1e-4 * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


def sparse_counters(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return counters of which few are not zero, and the same a little later."""
    old = np.where(rng.random(WORDS) < 0.05, rng.integers(1, 1 << 20, WORDS), 0).astype("<u4")
    return old, old + (rng.random(WORDS) < 0.01).astype("<u4") * rng.integers(
        1, 9, WORDS, dtype="<u4"
    )


# --- what is chosen for what -----------------------------------------------------------


def test_sparse_counters_become_a_list_of_words_or_a_shuffle(rng: np.random.Generator) -> None:
    old, new = sparse_counters(rng)
    for choice in (chosen(new), chosen(new, goal="small")):
        assert choice.encoding.filter in {Filter.WORDS, Filter.SHUFFLE, Filter.BITSHUFFLE}
        assert choice.ratio > 10
    delta = chosen(new, old, goal="small")
    assert delta.encoding.op is not None
    assert delta.ratio > 40
    tried = {found.encoding.filter for found in delta.table if found.encoding.op}
    assert Filter.WORDS in tried


def test_a_step_of_adam_becomes_a_shuffled_difference(rng: np.random.Generator) -> None:
    old, new = adam_step(rng)
    choice = chosen(new, old, goal="small")
    taken = choice.encoding
    assert (taken.op, taken.op_word, taken.word) == (DeltaOp.SUB, 4, 4)
    assert taken.filter in {Filter.SHUFFLE, Filter.BITSHUFFLE}
    assert taken.codec is Codec.ZSTD
    without = max(found.ratio for found in choice.table if found.encoding.op is None)
    assert choice.ratio > 1.25 * without


@pytest.mark.parametrize("goal", ["auto", "small"])
@pytest.mark.parametrize("sink_bytes_per_s", [None, 1e6, 5e9])
def test_noise_stays_as_it_is(
    rng: np.random.Generator, goal: str, sink_bytes_per_s: float | None
) -> None:
    new, old = (rng.integers(0, 1 << 63, WORDS, dtype=np.uint64) for _ in range(2))
    new <<= np.uint64(1)
    old <<= np.uint64(1)
    new |= rng.integers(0, 2, WORDS, dtype=np.uint64)
    choice = chosen(new, old, goal=goal, sink_bytes_per_s=sink_bytes_per_s)
    assert choice.encoding == RAW
    assert choice.ratio == 1
    assert len(choice.table) <= 6  # Noise is soon seen to be noise.


def test_random_doubles_are_compressed_for_a_slow_sink_only(rng: np.random.Generator) -> None:
    """They shrink by 15 %: worth it on the way to a file system that everybody shares."""
    doubles = rng.random(WORDS)
    assert chosen(doubles, sink_bytes_per_s=5e9).encoding == RAW
    assert chosen(doubles, sink_bytes_per_s=None).encoding == RAW
    assert chosen(doubles, sink_bytes_per_s=5e7).encoding.filter != Filter.NONE
    assert chosen(doubles, goal="small", sink_bytes_per_s=5e9).ratio > 1.1


def test_text_needs_no_filter() -> None:
    text = np.frombuffer(b" ".join(b"%d" % i**3 for i in range(20_000)), np.uint8)
    choice = chosen(text, goal="small")
    assert choice.encoding.codec == Codec.ZSTD
    assert choice.encoding.filter in {Filter.NONE, Filter.BITSHUFFLE}
    assert choice.encoding.word <= 1


@pytest.mark.parametrize(
    ("item_bytes", "word", "op_word"),
    [(1, 1, 1), (2, 2, 2), (12, 12, 4), (16, 16, 8), (24, 8, 8)],
)
def test_words_are_numbers_or_parts_of_them(item_bytes: int, word: int, op_word: int) -> None:
    new = np.arange(6000, dtype="<u2").view(np.uint8)
    table = measure([new], [np.roll(new, 2)], item_bytes, clock=ticks())
    assert {found.encoding.word for found in table} == {0, word}
    assert {found.encoding.op_word for found in table} == {0, op_word}


def test_nothing_and_less_than_a_word_stay_as_they_are() -> None:
    for samples in ([], [b""], [b"abc"]):
        assert measure(samples, None, 4) == (AS_IT_IS,)
        choice = choose(samples, None, 4, sink_bytes_per_s=1e6, cores=1, goal="small")
        assert choice.encoding == RAW
        assert choice.reasons == ("There was nothing to sample.",)


def test_parents_of_another_length() -> None:
    with pytest.raises(ValueError, match="must have the length of its sample"):
        measure([bytes(8), bytes(8)], [bytes(8), bytes(16)], 4)


# --- the rule --------------------------------------------------------------------------


def candidate(text: str, ratio: float, speed: float) -> Candidate:
    codec = Codec.LZ4 if "lz4" in text else Codec.ZSTD
    op = DeltaOp.SUB if "sub" in text else None
    level = 3 if "3" in text else int(codec == Codec.ZSTD)
    return Candidate(Encoding(codec, level, op=op, op_word=4 if op else 0), ratio, speed)


FAST = candidate("lz4", 1.5, 2e9)
TIGHT = candidate("zstd", 2.0, 0.5e9)
TIGHTER = candidate("zstd-3", 2.03, 0.2e9)
TABLE = (AS_IT_IS, FAST, TIGHT, TIGHTER)


def decided(
    table: tuple[Candidate, ...], sink: float | None, cores: int, goal: str
) -> Encoding:
    return decide(table, sink_bytes_per_s=sink, cores=cores, goal=goal).encoding


def test_the_sink_decides_between_speed_and_ratio() -> None:
    assert decided(TABLE, 1e8, 2, "auto") == TIGHT.encoding
    assert decided(TABLE, 1e9, 2, "auto") == FAST.encoding
    assert decided(TABLE, 1e10, 2, "auto") == RAW
    assert decided(TABLE, 1e10, 16, "auto") == FAST.encoding


def test_the_goal_small_asks_for_bytes_and_among_equals_for_speed() -> None:
    assert decided(TABLE, 1e10, 1, "small") == TIGHT.encoding
    assert decided((*TABLE, candidate("sub", 2.2, 1e8)), 1e10, 1, "small").op is DeltaOp.SUB


def test_where_time_is_equal_bytes_count() -> None:
    """Both take next to no time on this sink; the smaller one is copied outward sooner."""
    table = (AS_IT_IS, candidate("lz4", 80, 4e9), candidate("zstd", 200, 3e9))
    assert decided(table, 1e8, 2, "auto") == table[2].encoding


def test_a_little_pays_on_slow_sinks_only() -> None:
    table = (AS_IT_IS, candidate("lz4", 1.2, 50e9))
    assert decided(table, 0.4e9, 2, "auto") == table[1].encoding
    assert decided(table, 0.6e9, 2, "auto") == RAW
    assert decided(table, None, 2, "auto") == RAW
    less = (AS_IT_IS, candidate("lz4", 1.04, 50e9))
    assert decided(less, 1e6, 2, "auto") == decided(less, 1e6, 2, "small") == RAW


def test_a_delta_must_gain_what_its_restore_costs() -> None:
    little = (AS_IT_IS, TIGHT, candidate("sub", 2.4, 0.5e9))
    much = (AS_IT_IS, TIGHT, candidate("sub", 2.6, 0.5e9))
    assert decided(little, 1e8, 2, "auto") == TIGHT.encoding
    assert decided(much, 1e8, 2, "auto").op is DeltaOp.SUB
    assert decided(little, 1e8, 2, "small").op is DeltaOp.SUB
    choice = decide(little, sink_bytes_per_s=1e8, cores=2, goal="auto")
    assert choice.reasons[-1] == "A delta would pay from a ratio of 2.5 on."


def test_reasons_say_what_was_found_and_taken() -> None:
    choice = decide(TABLE, sink_bytes_per_s=1e9, cores=2, goal="auto")
    assert choice.reasons == (
        "The samples shrink most with zstd-3 (ratio 2.03, 200 MB/s).",
        "On a sink of 1000 MB/s with 2 cores lz4 (ratio 1.5, 2000 MB/s) takes the least time, "
        "or nearly.",
    )
    assert choice.table == TABLE
    assert (choice.ratio, choice.encode_bytes_per_s) == (1.5, 2e9)


@given(
    found=st.lists(
        st.tuples(
            st.sampled_from(["lz4", "zstd", "zstd-3", "sub"]),
            st.floats(0.9, 500),
            st.floats(1e6, 2e10),
        ),
        max_size=8,
    ),
    sink=st.one_of(st.none(), st.floats(1e5, 1e11)),
    cores=st.integers(1, 64),
    goal=st.sampled_from(["auto", "small"]),
)
def test_no_choice_is_worse_than_raw(
    found: list[tuple[str, float, float]], sink: float | None, cores: int, goal: str
) -> None:
    table = (AS_IT_IS, *(candidate(*each) for each in found))
    choice = decide(table, sink_bytes_per_s=sink, cores=cores, goal=goal)
    assert choice.encoding == RAW or choice.ratio >= 1.05
    if goal == "auto":
        speed = sink or 0.5e9
        taken = Candidate(choice.encoding, choice.ratio, choice.encode_bytes_per_s)
        raw_s = AS_IT_IS.seconds_per_byte(speed, cores)
        assert taken.seconds_per_byte(speed, cores) <= raw_s * 1.021


# --- samples ---------------------------------------------------------------------------


@given(items=st.integers(0, 100_000), item_bytes=st.sampled_from([1, 3, 8, 12, 16, 40_000]))
def test_samples_lie_inside_between_items_and_do_not_meet(items: int, item_bytes: int) -> None:
    length = items * item_bytes
    ranges = sample_ranges(length, item_bytes)
    ends = [0]
    for start, size in ranges:
        assert start % item_bytes == size % item_bytes == 0
        assert start >= ends[-1]
        ends.append(start + size)
    assert ends[-1] == length
    if length >= 16 * 16 * 16_384 and item_bytes <= 16_384:
        assert len(ranges) == 16
    else:
        assert len(ranges) <= max(2, length // (16 * 16_384))


# --- the memory of choices -------------------------------------------------------------


class Region:
    """A region that counts how often it is sampled."""

    def __init__(self, array: Array) -> None:
        self.array, self.taken = array, 0

    def take(self) -> tuple[list[memoryview], None]:
        self.taken += 1
        return samples_of(self.array, 4), None


def ask(
    chooser: Chooser, region: Region, *, sink: float = 1e8, has_parent: bool = False
) -> Choice:
    return chooser.choose(
        "x",
        region.take,
        4,
        has_parent=has_parent,
        sink_bytes_per_s=sink,
        cores=2,
        goal="auto",
    )


@pytest.fixture
def region() -> Region:
    return Region(np.repeat(np.arange(5000, dtype="<u4"), 4))


def test_a_region_is_sampled_again_after_some_choices(region: Region) -> None:
    chooser = Chooser(every=4, clock=ticks())
    counts = []
    for _ in range(9):
        ask(chooser, region)
        counts.append(region.taken)
    assert counts == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_a_ratio_that_moves_is_sampled_again(region: Region) -> None:
    chooser = Chooser(every=100, clock=ticks())

    def checkpoint(stored_bytes: int) -> int:
        ask(chooser, region)
        chooser.achieved("x", has_parent=False, plain_bytes=1000, stored_bytes=stored_bytes)
        return region.taken

    assert [checkpoint(size) for size in (500, 520, 450, 420)] == [1, 1, 1, 1]
    assert checkpoint(390) == 1  # That was 28 % better than at first ...
    assert checkpoint(390) == 2  # ... and is now the first ratio of a new choice.
    assert [checkpoint(size) for size in (390, 390, 480, 480)] == [2, 2, 2, 3]


def test_new_data_changes_the_choice(region: Region, rng: np.random.Generator) -> None:
    chooser = Chooser(every=100, clock=ticks())
    assert ask(chooser, region).encoding != RAW
    chooser.achieved("x", has_parent=False, plain_bytes=1000, stored_bytes=100)
    region.array = np.frombuffer(rng.bytes(80_000), np.uint8)
    assert ask(chooser, region).encoding != RAW
    chooser.achieved("x", has_parent=False, plain_bytes=1000, stored_bytes=1000)
    assert ask(chooser, region).encoding == RAW


def test_a_slower_sink_counts_at_once_without_samples(region: Region) -> None:
    region.array = np.random.default_rng(0).random(20_000)
    chooser = Chooser(clock=ticks())
    assert ask(chooser, region, sink=1e10).encoding == RAW
    assert ask(chooser, region, sink=1e7).encoding != RAW
    assert region.taken == 1


def test_with_and_without_parent_are_two_things(region: Region) -> None:
    chooser = Chooser(clock=ticks())
    for has_parent in (False, True, False, True):
        ask(chooser, region, has_parent=has_parent)
    assert region.taken == 2
    chooser.forget("x")
    ask(chooser, region)
    assert region.taken == 3


def test_what_nobody_chose_may_be_achieved() -> None:
    chooser = Chooser(clock=ticks())
    chooser.achieved("y", has_parent=False, plain_bytes=10, stored_bytes=1)
    chooser.forget("y")
