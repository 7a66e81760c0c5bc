# The compiled core; ckptflow.data.backend says what its functions do.

from ckptflow.data.buffers import Bytes, U64s

def variants() -> tuple[str, ...]: ...
def digest_chunks(
    data: Bytes, chunk_bytes: int, out: U64s, variant: int, threads: int, /
) -> None: ...
def digest_parents(
    children: U64s, old_children: U64s, old_parents: U64s, out: U64s, /
) -> None: ...
def classify_chunks(
    data: Bytes,
    chunk_bytes: int,
    digests: U64s,
    parent: U64s,
    kinds: Bytes,
    /,
) -> int: ...
def collect_runs(
    data: Bytes,
    chunk_bytes: int,
    kinds: Bytes,
    kind: Bytes,
    start: U64s,
    length: U64s,
    pattern: U64s,
    /,
) -> None: ...
def copy_ranges(
    source: Bytes, target: Bytes, source_start: U64s, target_start: U64s, length: U64s, /
) -> None: ...
def fill_ranges(target: Bytes, start: U64s, length: U64s, pattern: U64s, /) -> None: ...
def apply_filter(
    filter: int, word: int, plain: Bytes, out: Bytes, variant: int, /
) -> int: ...
def undo_filter(
    filter: int, word: int, stored: Bytes, out: Bytes, variant: int, /
) -> bool: ...
