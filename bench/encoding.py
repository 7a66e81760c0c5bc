"""How fast filters are, next to a copy, and how good the choice of an encoding is.

Filters run as in a checkpoint: frames of 1 MiB of a region that no cache holds, into memory
that is used again; a copy of the same frames is the measure. Then regions of several kinds
are encoded as samples of them suggest, for a sink of 200 MB/s, and decoded again. The speeds
are those of one core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from report import Claim, Row, arguments, finish, ratio, require, show, time_in_turn

from ckptflow.data import digest, filters
from ckptflow.data.codec import decode_frame
from ckptflow.data.deltas import make_delta
from ckptflow.data.encoding import Encoding, Scratch, choose, encode_frame, sample_ranges
from ckptflow.data.filters import Filter

FRAME_BYTES = 1 << 20
SINK_BYTES_PER_S = 2e8
WORDS = (2, 4, 8, 16, 3)

Bytes = NDArray[np.uint8]


def frames(region: Bytes) -> Iterator[Bytes]:
    """Yield the frames of a region."""
    for start in range(0, len(region), FRAME_BYTES):
        yield region[start : start + FRAME_BYTES]


def time_filters(size_bytes: int, rounds: int) -> list[Row]:
    """Return a row for each filter and word; WORDS gets data of which 95 % are zero."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, size_bytes, dtype=np.uint8)
    sparse = noise.copy()
    sparse.reshape(-1, 16)[rng.random(size_bytes // 16) > 0.05] = 0
    out, back = np.zeros(2 * FRAME_BYTES, np.uint8), np.zeros(FRAME_BYTES, np.uint8)
    rows: list[Row] = []
    for filter_ in (Filter.SHUFFLE, Filter.BITSHUFFLE, Filter.WORDS):
        region = sparse if filter_ is Filter.WORDS else noise
        for word in WORDS:
            stored = [bytes(filters.apply(filter_, word, frame)) for frame in frames(region)]

            def copy(region: Bytes = region) -> None:
                for frame in frames(region):
                    np.copyto(back, frame)

            def apply(
                filter_: Filter = filter_, word: int = word, region: Bytes = region
            ) -> None:
                for frame in frames(region):
                    filters.apply(filter_, word, frame, out=out)

            def undo(
                filter_: Filter = filter_, word: int = word, stored: list[bytes] = stored
            ) -> None:
                for each in stored:
                    filters.undo(filter_, word, each, plain_bytes=FRAME_BYTES, out=back)

            seconds = time_in_turn(
                {"memcpy": copy, "apply": apply, "undo": undo}, rounds=rounds
            )
            require(
                bytes(back) == bytes(region[-FRAME_BYTES:]), f"{filter_!r} does not come back"
            )
            rows.append(
                {
                    "filter": filter_.name.lower(),
                    "word_bytes": word,
                    "memcpy_gb_per_s": size_bytes / min(seconds["memcpy"]) / 1e9,
                    "apply_over_memcpy": ratio(seconds["apply"], seconds["memcpy"]),
                    "undo_over_memcpy": ratio(seconds["undo"], seconds["memcpy"]),
                }
            )
    return rows


def regions(words: int) -> Iterator[tuple[str, NDArray[np.generic], NDArray[np.generic]]]:
    """Yield name, parent and new bytes of each kind of region."""
    rng = np.random.default_rng(0)
    old = (rng.standard_normal(words) * 0.02).astype("<f4")
    mean, square = rng.standard_normal(words) * 1e-4, rng.random(words) * 1e-6
    new = (old - 1e-4 * mean / (np.sqrt(square) + 1e-8)).astype("<f4")
    yield "fp32 weights", old, new
    yield "bf16 weights", *((x.view("<u4") >> 16).astype("<u2") for x in (old, new))
    counters = (rng.pareto(1, words) * 5).astype("<u4")
    touched = rng.random(words) < 0.02
    yield "counters", counters, counters + touched * rng.integers(1, 9, words).astype("<u4")
    wave = np.sin(np.arange(words // 2) * 1e-3)
    yield "fp64 field", wave, wave * (1 - 1e-6)
    yield "fp64 noise", rng.random(words // 2), rng.random(words // 2)


def encode_all(region: Bytes, encoding: Encoding) -> tuple[int, float, float]:
    """Return stored bytes and the seconds of encoding and decoding, one core."""
    scratch, target = Scratch(), np.zeros(FRAME_BYTES, np.uint8)
    start = time.perf_counter()
    encoded = [encode_frame(frame.data, encoding, scratch) for frame in frames(region)]
    between = time.perf_counter()
    for (codec, filter_, word, stored), frame in zip(encoded, frames(region), strict=True):
        size = len(frame)
        decode_frame(codec, filter_, word, stored, plain_bytes=size, out=target[:size])
    end = time.perf_counter()
    for (codec, filter_, word, stored), frame in zip(encoded, frames(region), strict=True):
        plain = decode_frame(codec, filter_, word, stored, plain_bytes=len(frame))
        require(bytes(plain) == bytes(frame), f"{encoding} does not come back")
    return sum(len(stored) for *_, stored in encoded), between - start, end - between


def try_choices(words: int, rounds: int) -> list[Row]:
    """Return a row for each kind of region, with and without its parent."""
    rows: list[Row] = []
    for name, old, new in regions(words):
        item = new.dtype.itemsize
        region, parent = new.view(np.uint8), old.view(np.uint8)
        ranges = sample_ranges(len(region), item)
        samples = [region[a : a + n] for a, n in ranges]
        for parents in (None, [parent[a : a + n] for a, n in ranges]):
            start = time.perf_counter()
            choice = choose(
                samples, parents, item, sink_bytes_per_s=SINK_BYTES_PER_S, cores=1, goal="auto"
            )
            sampling_s = time.perf_counter() - start
            encoding, data = choice.encoding, region
            if encoding.op is not None:
                data = np.empty_like(region)
                make_delta(region, parent, data, op=encoding.op, word_bytes=encoding.op_word)
            runs = [encode_all(data, encoding) for _ in range(rounds)]
            stored = runs[0][0]
            rows.append(
                {
                    "region": name,
                    "parent": "yes" if parents else "no",
                    "chosen": str(encoding),
                    "sampling_ms": 1e3 * sampling_s,
                    "ratio_expected": choice.ratio,
                    "ratio": len(region) / stored,
                    "encode_mb_per_s": len(region) / min(run[1] for run in runs) / 1e6,
                    "decode_mb_per_s": len(region) / min(run[2] for run in runs) / 1e6,
                }
            )
    return rows


def main() -> None:
    args = arguments(__doc__)
    size_bytes, rounds = (64 << 20, 3) if args.quick else (256 << 20, 7)
    speeds = time_filters(size_bytes, rounds)
    show(f"Filters of {size_bytes >> 20} MiB in frames of 1 MiB by {digest.active()}", speeds)
    rows = try_choices(size_bytes // 16, rounds=2)
    shuffles = [
        max(float(row["apply_over_memcpy"]), float(row["undo_over_memcpy"]))
        for row in speeds
        if row["filter"] == "shuffle" and row["word_bytes"] in {2, 4, 8}
    ]
    errors = [abs(float(row["ratio_expected"]) / float(row["ratio"]) - 1) for row in rows]
    finish(
        f"Encodings chosen for a sink of {SINK_BYTES_PER_S / 1e6:.0f} MB/s, on one core",
        rows,
        [
            Claim("shuffle_over_memcpy", max(shuffles), "<=", 3),
            Claim("ratio_off_expected_by", max(errors), "<=", 0.2),
        ],
        args.json_path,
        details=speeds,
    )


if __name__ == "__main__":
    main()
