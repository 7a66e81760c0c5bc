# The compiled core; ckptflow.data.backend says what its functions do.

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import Bytes, I64s, U32s, U64s

F64s: TypeAlias = NDArray[np.float64]

def variants() -> tuple[str, ...]: ...
def digest_chunks(
    data: Bytes, chunk_bytes: int, out: U64s, variant: int, threads: int, /
) -> None: ...
def digest_parents(
    children: U64s, old_children: U64s, old_parents: U64s, out: U64s, /
) -> None: ...
def copy_ranges(
    source: Bytes, target: Bytes, source_start: U64s, target_start: U64s, length: U64s, /
) -> None: ...
def copy_memory(
    address: U64s, length: U64s, target: Bytes, start: U64s, threads: int, /
) -> None: ...
def place_memory(source: Bytes, start: U64s, address: U64s, length: U64s, /) -> None: ...
def digest_memory(
    address: U64s, length: U64s, chunk_bytes: int, out: U64s, variant: int, threads: int, /
) -> None: ...
def scan_pieces(
    address: U64s,
    length: U64s,
    chunk_bytes: int,
    old: U64s,
    known: Bytes,
    digests: U64s,
    given: bool,
    kind: Bytes,
    pattern: U64s,
    variant: int,
    threads: int,
    /,
) -> int: ...
def look_at(arrays: list[Any], address: I64s, /) -> bytes: ...
def fill_ranges(target: Bytes, start: U64s, length: U64s, pattern: U64s, /) -> None: ...
def apply_filter(filter_: int, word: int, plain: Bytes, out: Bytes, variant: int, /) -> int: ...
def undo_filter(
    filter_: int, word: int, stored: Bytes, out: Bytes, variant: int, /
) -> bool: ...
def galois_add(factor: int, source: Bytes, target: Bytes, variant: int, /) -> None: ...
def repeat_ranges(target: Bytes, start: U64s, period: U64s, length: U64s, /) -> None: ...
def ranges_equal(
    a: Bytes, b: Bytes, start_a: U64s, start_b: U64s, length: U64s, out: Bytes, /
) -> None: ...
def make_delta(new: Bytes, old: Bytes, out: Bytes, op: int, word_bytes: int, /) -> None: ...
def apply_delta(
    target: Bytes,
    start: U64s,
    delta: Bytes,
    delta_start: U64s,
    length: U64s,
    op: int,
    word_bytes: int,
    /,
) -> None: ...
def scan(
    data: Bytes,
    chunk_bytes: int,
    cell_bytes: int,
    old_chunks: U64s | None,
    old_cells: U64s | None,
    chunks: U64s,
    index: U64s,
    digest: U64s,
    kind: Bytes,
    pattern: U64s,
    given: bool,
    variant: int,
    threads: int,
    /,
) -> int: ...
def capture(
    rows: U64s,
    chunk_bytes: int,
    arena: Bytes,
    parent: U64s,
    digests: U64s,
    held: Bytes,
    limit_bytes: int,
    variant: int,
    threads: int,
    /,
) -> int: ...
def find_or_add(
    digests: U64s,
    kinds: Bytes,
    ids: U64s,
    log: U64s,
    count: int,
    slots: U64s,
    first_id: int,
    /,
) -> tuple[int, int]: ...
def fill_table(log: U64s, slots: U64s, /) -> None: ...
def collect_runs(
    index: U64s,
    kinds: Bytes,
    pattern: U64s,
    ids: U64s,
    cell_bytes: int,
    size_bytes: int,
    kind: Bytes,
    start: U64s,
    length: U64s,
    ref: U64s,
    /,
) -> int: ...
def find_repeats(
    length: U64s, source: U64s, pack: U32s, row: I64s, period: I64s, count: I64s, /
) -> int: ...
def pattern_efficiencies(levels: F64s, interval_s: F64s, every: I64s, out: F64s, /) -> None: ...
def simulate_pattern(
    levels: F64s,
    interval_s: float,
    every: I64s,
    laws: F64s,
    times_s: F64s,
    surroundings: F64s,
    seed: int,
    batch: int,
    events: int,
    out: F64s,
    /,
) -> int: ...
