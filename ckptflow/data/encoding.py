"""Choose how to encode a region: try encodings on samples of it, and take what saves most time.

`measure` runs encodings over a few samples, cheap ones first, and returns what each achieved
here; `decide` picks one for a sink, and says why; `choose` does both. A `Chooser` remembers
what was measured for each region and measures again now and then. Ratios come from the data
and speeds from this machine: nothing about them is built in.

``tests/unit/test_encoding.py`` has the data whose choice is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from ckptflow.data import filters
from ckptflow.data.buffers import BufferLike, Bytes, byte_view
from ckptflow.data.codec import Codec
from ckptflow.data.deltas import make_delta
from ckptflow.data.filters import Filter
from ckptflow.data.frames import RAW, Encoding, Scratch, encode_frame
from ckptflow.model import DeltaOp
from ckptflow.units import KIB

__all__ = ["AS_IT_IS", "RAW", "Candidate", "Choice", "Chooser", "Encoding", "Goal", "Scratch"]
__all__ += ["choose", "decide", "encode_frame", "measure", "sample_ranges"]

SAMPLE_COUNT, SAMPLE_BYTES = 16, 16 * KIB

RATIO_MIN = 1.05  # Below, raw: raw frames are read straight into place.

# Where a raw frame is read faster than an encoded one is decoded, encoding must save more than
# a little, or restores get slower (docs/design/002-raw-unless-it-pays.md).
FAST_SINK_BYTES_PER_S = 0.5e9
RATIO_MIN_FAST = 1.25

# A delta must be as much smaller than the best without: its restore reads what it changes, too.
DELTA_GAIN_MIN = 1.25

# What an unknown sink is taken for: one process's share of a parallel file system. Since it may
# as well be fast, the ratio that fast ones demand holds for it.
UNKNOWN_SINK_BYTES_PER_S = 0.5e9

NEAR = 0.02  # Differences below this share are within the accuracy of the samples.
HARD_LEVEL = 19
SPARSE = 0.15  # Share of words that are not zero, below which a list of them is tried.

Goal: TypeAlias = Literal["auto", "small"]
Clock: TypeAlias = Callable[[], float]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one encoding achieved on the samples.

    Attributes:
        encoding: which.
        ratio: plain bytes over stored bytes.
        encode_bytes_per_s: plain bytes through one core, from delta to codec; infinite for raw.
    """

    encoding: Encoding
    ratio: float
    encode_bytes_per_s: float

    def seconds_per_byte(self, sink_bytes_per_s: float, cores: int) -> float:
        """Return the time that a plain byte takes: encoding and writing go on side by side."""
        return max(1 / (self.ratio * sink_bytes_per_s), 1 / (self.encode_bytes_per_s * cores))

    def __str__(self) -> str:
        speed = f"{self.encode_bytes_per_s / 1e6:.0f} MB/s"
        return f"{self.encoding} (ratio {self.ratio:.3g}, {speed})"


AS_IT_IS = Candidate(RAW, 1.0, float("inf"))


@dataclass(frozen=True, slots=True)
class Choice:
    """An encoding, and why.

    Attributes:
        encoding: what to use.
        ratio: plain over stored bytes, expected.
        encode_bytes_per_s: through one core, expected; infinite for raw.
        reasons: short sentences.
        table: every encoding that was tried, `AS_IT_IS` first.
    """

    encoding: Encoding
    ratio: float
    encode_bytes_per_s: float
    reasons: tuple[str, ...]
    table: tuple[Candidate, ...]


def sample_ranges(length_bytes: int, item_bytes: int = 1) -> list[tuple[int, int]]:
    """Return start and length of evenly spaced samples, which start and end between items.

    All of it in one, where the samples would cover it. Of less than 4 MiB there are fewer
    than `SAMPLE_COUNT`, down to two, so that sampling costs no more than encoding.
    """
    size = SAMPLE_BYTES // item_bytes * item_bytes or item_bytes
    count = min(SAMPLE_COUNT, max(2, length_bytes // (SAMPLE_COUNT * SAMPLE_BYTES)))
    if length_bytes <= count * size:
        return [(0, length_bytes)] if length_bytes else []
    last = length_bytes - size
    starts = [last * i // (count - 1) for i in range(count)]
    return [(start // item_bytes * item_bytes, size) for start in starts]


def choose(
    samples: Sequence[BufferLike],
    parents: Sequence[BufferLike] | None,
    item_bytes: int,
    *,
    sink_bytes_per_s: float | None,
    cores: int,
    goal: Goal,
    clock: Clock = time.thread_time,
) -> Choice:
    """Return the encoding for data like the samples.

    Args:
        samples: contiguous pieces of the bytes to store; `sample_ranges` says which.
        parents: for each sample the bytes that the parent has in its place, or None.
        item_bytes: bytes of one number; of a complex one, those of a part.
        sink_bytes_per_s: how fast stored bytes are written; None if nobody knows.
        cores: how many encode at a time.
        goal: ``auto`` saves time, in checkpoints and restores; ``small`` saves bytes.
        clock: seconds; by default of this thread alone, whatever its neighbours do.

    Raises:
        ValueError: a parent has not the length of its sample.
    """
    table = measure(samples, parents, item_bytes, clock=clock)
    return decide(table, sink_bytes_per_s=sink_bytes_per_s, cores=cores, goal=goal)


def measure(
    samples: Sequence[BufferLike],
    parents: Sequence[BufferLike] | None,
    item_bytes: int,
    *,
    hard: bool = False,
    clock: Clock = time.thread_time,
) -> tuple[Candidate, ...]:
    """Return what encodings achieve on the samples, `AS_IT_IS` first; ``hard`` adds zstd-19.

    Not every encoding is tried. One shuffle with zstd-1 screens the samples as they are and as
    deltas. The better delta goes on if it is smaller than no delta, no delta goes on if it is
    less than `DELTA_GAIN_MIN` times `DELTA_GAIN_MIN` larger. If nothing shrinks, that is all.

    Raises:
        ValueError: a parent has not the length of its sample.
    """
    word, op_word = _words_of(item_bytes)
    plain = _join(samples, word)
    old = None if parents is None else _join(parents, word)
    if old is not None and [_size(x) for x in samples] != [_size(x) for x in parents or ()]:
        raise ValueError("A parent must have the length of its sample.")
    if not len(plain):
        return (AS_IT_IS,)
    trials = _Trials(plain, old, clock)
    shuffle = (
        Encoding(Codec.ZSTD, 1, Filter.SHUFFLE, word) if word > 1 else Encoding(Codec.ZSTD, 1)
    )
    screens = [trials.run(shuffle)]
    if old is not None:
        of_ops = [
            trials.run(replace(shuffle, op=op, op_word=op_word))
            for op in (DeltaOp.SUB, DeltaOp.XOR)
        ]
        screens = _promising(screens[0], max(of_ops, key=lambda found: found.ratio))
    for screen in screens:
        _refine(trials, screen.encoding, screen.ratio, levels=(3, HARD_LEVEL) if hard else (3,))
    return (AS_IT_IS, *trials.table)


def decide(
    table: Sequence[Candidate], *, sink_bytes_per_s: float | None, cores: int, goal: Goal
) -> Choice:
    """Pick from what `measure` returned.

    ``small``: the greatest ratio; of those within 2 % of it the fastest. ``auto``: the least
    time for encoding and writing, which go on side by side; of those within 2 % of the time of
    raw bytes the one that ``small`` would take, since bytes cost time again when they are
    copied outward and read.

    An encoding counts only if its ratio reaches `RATIO_MIN`. With ``auto`` that has to be
    `RATIO_MIN_FAST` on a sink of `FAST_SINK_BYTES_PER_S` or more, or an unknown one, and a
    delta counts only if its ratio is `DELTA_GAIN_MIN` times that of the best without.
    """
    rule = _Rule(table, sink_bytes_per_s, max(cores, 1), goal)
    pool = [found for found in table if rule.counts(found)]
    if goal == "auto":
        latest = min(map(rule.seconds_per_byte, pool)) + NEAR * rule.seconds_per_byte(AS_IT_IS)
        pool = [found for found in pool if rule.seconds_per_byte(found) <= latest]
    smallest = max(found.ratio for found in pool)
    best = max(
        (found for found in pool if found.ratio * (1 + NEAR) >= smallest),
        key=lambda found: found.encode_bytes_per_s,
    )
    reasons = _reasons(best, table, rule)
    return Choice(best.encoding, best.ratio, best.encode_bytes_per_s, reasons, tuple(table))


class _Rule:
    """What `decide` goes by."""

    def __init__(
        self, table: Sequence[Candidate], sink_bytes_per_s: float | None, cores: int, goal: Goal
    ) -> None:
        self.goal, self.cores = goal, cores
        self._sink = sink_bytes_per_s or UNKNOWN_SINK_BYTES_PER_S
        may_be_fast = sink_bytes_per_s is None or self._sink >= FAST_SINK_BYTES_PER_S
        self.ratio_min = RATIO_MIN_FAST if goal == "auto" and may_be_fast else RATIO_MIN
        without = max(found.ratio for found in table if found.encoding.op is None)
        self.delta_ratio_min = without * (DELTA_GAIN_MIN if goal == "auto" else 1)
        self.sink = f"a sink of {self._sink / 1e6:.0f} MB/s"
        if sink_bytes_per_s is None:
            self.sink = f"an unknown sink, taken for one of {self._sink / 1e6:.0f} MB/s,"

    def counts(self, found: Candidate) -> bool:
        """Return whether an encoding saves enough to be thought of."""
        least = self.delta_ratio_min if found.encoding.op else 0.0
        return found.encoding == RAW or found.ratio >= max(self.ratio_min, least)

    def seconds_per_byte(self, found: Candidate) -> float:
        """Return the time that a plain byte takes."""
        return found.seconds_per_byte(self._sink, self.cores)


class Chooser:
    """Choices for the regions of a program, checkpoint after checkpoint. For any threads.

    A region is measured at first, then at every ``every``-th choice, and after its achieved
    ratio moved by more than ``moved``. In between `decide` goes over the old table, so that
    a sink that got slower counts at once.
    """

    def __init__(
        self, *, every: int = 16, moved: float = 0.2, clock: Clock = time.thread_time
    ) -> None:
        self._every, self._moved, self._clock = every, moved, clock
        self._known: dict[tuple[Hashable, bool], _Known] = {}
        self._lock = threading.Lock()

    def choose(
        self,
        key: Hashable,
        take: Callable[[], tuple[Sequence[BufferLike], Sequence[BufferLike] | None]],
        item_bytes: int,
        *,
        has_parent: bool,
        sink_bytes_per_s: float | None,
        cores: int,
        goal: Goal,
        hard: bool = False,
    ) -> Choice:
        """Return the choice for a region; `achieved` should follow.

        Args:
            key: names the region.
            take: returns samples and parents, as `choose` takes them; called only if needed.
            item_bytes: see `choose`.
            has_parent: whether ``take`` would return parents. With and without are two things.
            sink_bytes_per_s: see `choose`.
            cores: see `choose`.
            goal: see `choose`.
            hard: whether to try zstd-19, which takes hundreds of times as long as zstd-1.
        """
        with self._lock:
            known = self._known.get((key, has_parent))
        if known is None or known.uses >= self._every or known.item_bytes != item_bytes:
            table = measure(*take(), item_bytes, hard=hard, clock=self._clock)
            known = _Known(table, item_bytes)
        found = decide(known.table, sink_bytes_per_s=sink_bytes_per_s, cores=cores, goal=goal)
        with self._lock:
            if found.encoding != known.encoding:
                known.encoding, known.ratio = found.encoding, None
            known.uses += 1
            self._known[key, has_parent] = known
        return found

    def achieved(
        self, key: Hashable, *, has_parent: bool, plain_bytes: int, stored_bytes: int
    ) -> None:
        """Tell what the last choice for a region made of how much.

        The first time after a choice sets the ratio that later ones are compared with: samples
        are a little more or less compressible than the whole.
        """
        if not plain_bytes or not stored_bytes:
            return
        ratio = plain_bytes / stored_bytes
        with self._lock:
            known = self._known.get((key, has_parent))
            if known is None:
                return
            if known.ratio is None:
                known.ratio = ratio
            elif max(ratio / known.ratio, known.ratio / ratio) > 1 + self._moved:
                known.uses = self._every

    def forget(self, key: Hashable) -> None:
        """Drop what is known about a region, as when it got another shape."""
        with self._lock:
            for has_parent in (False, True):
                self._known.pop((key, has_parent), None)


@dataclass(slots=True)
class _Known:
    table: tuple[Candidate, ...]
    item_bytes: int
    uses: int = 0
    encoding: Encoding | None = None
    ratio: float | None = None  # The first achieved with this encoding.


class _Trials:
    """Runs encodings over joined samples; each step only once, and timed."""

    def __init__(self, plain: Bytes, old: Bytes | None, clock: Clock) -> None:
        self._old, self._clock = old, clock
        self._scratch = Scratch()
        self._steps: dict[tuple[object, ...], tuple[Bytes, float]] = {(None, 0): (plain, 0.0)}
        self.table: list[Candidate] = []

    def delta(self, op: DeltaOp | None, op_word: int) -> tuple[Bytes, float]:
        """Return the samples after the first step, and its seconds."""
        plain = self._steps[None, 0][0]
        if (op, op_word) not in self._steps:
            assert op is not None
            assert self._old is not None
            out, old = np.zeros_like(plain), self._old
            _, seconds = self._time(
                lambda: make_delta(plain, old, out, op=op, word_bytes=op_word)
            )
            self._steps[op, op_word] = out, seconds
        return self._steps[op, op_word]

    def run(self, encoding: Encoding) -> Candidate:
        """Return what an encoding achieves, and put it into the table."""
        data, seconds = self.delta(encoding.op, encoding.op_word)
        key = (encoding.op, encoding.op_word, encoding.filter, encoding.word)
        if key not in self._steps:
            room = np.zeros(filters.max_bytes(*key[2:], len(data)), np.uint8)
            filtered, spent = self._time(lambda: filters.apply(*key[2:], data, out=room))
            self._steps[key] = np.asarray(filtered), seconds + spent
        view, seconds = self._steps[key]
        compress = self._scratch.compressor(encoding)
        stored, spent = self._time(lambda: len(compress(view.data)))
        seconds += spent
        rate = len(data) / seconds if seconds > 0 else float("inf")
        found = Candidate(encoding, len(data) / max(stored, 1), rate)
        self.table.append(found)
        return found

    def _time(self, action: Callable[[], Result]) -> tuple[Result, float]:
        """Return the result and the seconds of an action: the shorter of two times."""
        times = []
        for _ in range(2):  # The first warms caches and pages.
            start = self._clock()
            result = action()
            times.append(self._clock() - start)
        return result, min(times)


def _refine(
    trials: _Trials, start: Encoding, screened: float, *, levels: Sequence[int]
) -> None:
    """Try the filters and codecs that are left for one kind of delta.

    Args:
        trials: where to run them.
        start: the encoding that it was screened with.
        screened: the ratio that this gave.
        levels: of zstd, to be tried with the best filter.
    """
    word = start.word or 1
    bare = trials.run(replace(start, filter=Filter.NONE, word=0)).ratio if start.word else 0.0
    if max(screened, bare) < RATIO_MIN:
        return
    lz4 = replace(start, codec=Codec.LZ4, level=0)
    if start.word:
        trials.run(lz4)
    trials.run(replace(lz4, filter=Filter.NONE, word=0))
    for encoding in (start, lz4):
        trials.run(replace(encoding, filter=Filter.BITSHUFFLE, word=word))
    data, _ = trials.delta(start.op, start.op_word)
    if _nonzero_share(data, word) < SPARSE:
        for encoding in (replace(lz4, codec=Codec.RAW), lz4, start):
            trials.run(replace(encoding, filter=Filter.WORDS, word=word))
    best = max(
        (found for found in trials.table if found.encoding.op == start.op),
        key=lambda found: found.ratio,
    )
    for level in levels:
        trials.run(replace(best.encoding, codec=Codec.ZSTD, level=level))


def _promising(without: Candidate, delta: Candidate) -> list[Candidate]:
    gain = delta.ratio / without.ratio
    if gain <= 1:
        return [without]
    return [delta] if gain > DELTA_GAIN_MIN**2 else [without, delta]


def _words_of(item_bytes: int) -> tuple[int, int]:
    """Return the words of filters and of deltas for numbers of so many bytes."""
    op_word = next(word for word in (8, 4, 2, 1) if item_bytes % word == 0)
    return (item_bytes if 1 <= item_bytes <= filters.WORD_MAX else op_word), op_word


def _join(samples: Iterable[BufferLike], word: int) -> Bytes:
    """Return whole words of all samples, one after the other."""
    views = [byte_view(sample) for sample in samples]
    whole = [view[: len(view) // word * word] for view in views]
    return np.concatenate(whole) if whole else np.empty(0, np.uint8)


def _size(sample: BufferLike) -> int:
    return len(byte_view(sample))


def _nonzero_share(data: Bytes, word: int) -> float:
    return float(data.reshape(-1, word).any(axis=1).mean()) if len(data) else 1.0


def _reasons(best: Candidate, table: Sequence[Candidate], rule: _Rule) -> tuple[str, ...]:
    """Say in short sentences what was found and why this was taken."""
    if len(table) == 1:
        return ("There was nothing to sample.",)
    most = max(table, key=lambda found: found.ratio)
    if most.encoding == RAW:
        return ("No encoding makes the samples smaller.",)
    found = [f"The samples shrink most with {most}."]
    if best.encoding == RAW and most.ratio < rule.ratio_min:
        found.append(f"A ratio below {rule.ratio_min:g} does not pay here: raw.")
    elif rule.goal == "small":
        found.append(f"Within 2 % of the smallest, {best} is the fastest.")
    else:
        found.append(
            f"On {rule.sink} with {rule.cores} cores {best} takes the least time, or nearly."
        )
    if most.encoding.op and not best.encoding.op and most.ratio < rule.delta_ratio_min:
        found.append(f"A delta would pay from a ratio of {rule.delta_ratio_min:.3g} on.")
    return tuple(found)
