"""Choose who computes digests and diffs: the compiled core, numba or NumPy.

All three return the same bits, so the choice is only one of speed and is made once, at the
first use: the compiled core where the installation has it, else numba where it is installed,
else NumPy. ``tests/unit/test_digest.py`` and ``tests/property/test_digest_laws.py`` hold every
one of them, and every instruction set of the compiled core, against an oracle of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ckptflow.data.buffers import Bytes, I64s, U32s, U64s
from ckptflow.errors import ConfigError

RunColumns: TypeAlias = tuple[Bytes, U64s, U64s, U64s]  # kind, start, length, ref
CellColumns: TypeAlias = tuple[U64s, U64s, Bytes, U64s]  # index, digest (n, 2), kind, pattern
RepeatColumns: TypeAlias = tuple[I64s, I64s, I64s]  # row, period, count


class DigestTable(Protocol):
    """Finds the row of a digest in a log of digests that it is kept in step with."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the table takes, as far as they are known."""
        ...

    def find_or_add(
        self, digests: U64s, kinds: Bytes, ids: U64s, log: U64s, count: int, first_id: int
    ) -> int:
        """Number the digests of kind `Kind.NEW` in order; return how many rows there are then.

        ``ids[i]`` becomes ``first_id`` + the row of digest ``i`` in ``log``. One that the
        first ``count`` rows lack is appended, for which there is room; where it was there
        already, ``kinds[i]`` becomes `Kind.KNOWN`. Other kinds get id 0.
        """
        ...

    def rebuild(self, log: U64s) -> None:
        """Forget all and learn the rows of ``log``, no two of which are equal."""
        ...


class Kernels(Protocol):
    """The work on bytes that every backend does.

    Arguments are checked by the callers in :mod:`ckptflow.data`. Digests are C-contiguous,
    aligned arrays of shape ``(n, 2)``, low half first; byte arrays are contiguous and of any
    alignment.
    """

    def digest_chunks(self, data: Bytes, chunk_bytes: int, out: U64s) -> None:
        """Set ``out[i]`` to the digest of chunk ``i``; one digest of no bytes is allowed."""
        ...

    def digest_parents(
        self, children: U64s, old_children: U64s, old_parents: U64s, out: U64s
    ) -> None:
        """Set ``out`` to the level above ``children``.

        Where a pair of children is in ``old_children`` at the same place, its parent may be
        taken from ``old_parents``. Both may be empty.
        """
        ...

    def copy_ranges(
        self, source: Bytes, target: Bytes, source_start: U64s, target_start: U64s, length: U64s
    ) -> None:
        """Copy ``length[i]`` bytes for each ``i``."""
        ...

    def copy_memory(self, address: U64s, length: U64s, target: Bytes, start: U64s) -> None:
        """Copy ``length[i]`` bytes from ``address[i]`` to ``start[i]`` in ``target``."""
        ...

    def place_memory(self, source: Bytes, start: U64s, address: U64s, length: U64s) -> None:
        """Copy ``length[i]`` bytes from ``start[i]`` in ``source`` to ``address[i]``."""
        ...

    def digest_memory(self, address: U64s, length: U64s, chunk_bytes: int, out: U64s) -> None:
        """Set ``out`` to the digests of the chunks of what lies at each address, one by one."""
        ...

    def scan_pieces(
        self,
        address: U64s,
        length: U64s,
        chunk_bytes: int,
        old: tuple[U64s, Bytes],
        digests: U64s,
        columns: tuple[Bytes, U64s],
        *,
        given: bool,
    ) -> int:
        """Digest pieces of one chunk each, the last of a region less; tell which changed.

        ``old`` are digests, and whether there is one, uint8. The columns are the kind, SAME,
        NEW or FILL, and the pattern of a fill, else 0. Where ``digests`` are ``given``, pieces
        are read only where these differ from the old ones. Returns the number of a piece that
        does not have its given digest; how many pieces there are if there is none.
        """
        ...

    def look_at(self, arrays: list[Any], address: I64s) -> object:
        """Set ``address[i]`` to where array or buffer ``i`` lies; return how they lie there.

        What is returned is equal for arrays of equal shapes, strides and sizes of items.
        """
        ...

    def fill_ranges(self, target: Bytes, start: U64s, length: U64s, pattern: U64s) -> None:
        """Repeat the eight bytes of ``pattern[i]``, lowest first, over range ``i``."""
        ...

    def repeat_ranges(self, target: Bytes, start: U64s, period: U64s, length: U64s) -> None:
        """Repeat the first ``period[i]`` bytes, at least one, over all of range ``i``."""
        ...

    def ranges_equal(
        self, a: Bytes, b: Bytes, start_a: U64s, start_b: U64s, length: U64s, out: Bytes
    ) -> None:
        """Set ``out[i]`` to 1 where both have the same ``length[i]`` bytes, else to 0."""
        ...

    def make_delta(self, new: Bytes, old: Bytes, out: Bytes, op: int, word_bytes: int) -> None:
        """Set ``out`` to what makes ``new`` of ``old``, word by word, little-endian.

        ``op`` 0 is xor, 1 subtracts and moves the sign to the lowest bit. Bytes behind the
        last whole word are xored.
        """
        ...

    def apply_delta(
        self,
        target: Bytes,
        start: U64s,
        delta: Bytes,
        delta_start: U64s,
        length: U64s,
        op: int,
        word_bytes: int,
    ) -> None:
        """Make new bytes of the old ones in each range; words lie from its start."""
        ...

    def scan(
        self,
        data: Bytes,
        chunk_bytes: int,
        cell_bytes: int,
        old_chunks: U64s,
        old_cells: U64s,
        chunks: U64s,
        columns: CellColumns,
        *,
        given: bool,
    ) -> int:
        """Digest every chunk to ``chunks``; list the changed cells in the columns.

        These have room for every cell. Returns how many there are. Where ``chunks`` is
        ``given``, only chunks that differ from the old ones are read, and compared with their
        digest; if one has another, -1 - the number of such a chunk is returned.
        """
        ...

    def capture(
        self,
        rows: U64s,
        chunk_bytes: int,
        arena: Bytes,
        parent: U64s,
        digests: U64s,
        held: Bytes,
        limit_bytes: int,
    ) -> int:
        """Digest regions where they lie, and copy what changed into an arena.

        ``rows`` is (n, 7): see `ckptflow.data.snapshot.Table`. ``parent``, ``digests`` and
        ``held`` have one entry for each chunk of all regions. Returns how many bytes were
        copied; -1 if there were more than ``limit_bytes``, and the arena is worthless.
        """
        ...

    def digest_table(self) -> DigestTable:
        """Return an empty table."""
        ...

    def collect_runs(
        self,
        cells: tuple[U64s, Bytes, U64s, U64s],
        cell_bytes: int,
        size_bytes: int,
        columns: RunColumns,
    ) -> int:
        """Join changed cells (index, kind, pattern, id) to runs; return how many there are.

        The columns have one entry for each cell; the last is the pattern or the first id.
        """
        ...

    def find_repeats(
        self, length: U64s, source: U64s, pack: U32s, columns: RepeatColumns
    ) -> int:
        """Fill the columns, which have one entry for three rows; return how many there are."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """Who computes, and why nobody faster does."""

    name: str  # native, numba or numpy
    detail: str  # the instruction set, or the version of the library
    reason: str  # why no faster one is active; empty for the fastest

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class _Choice:
    backend: Backend
    kernels: Kernels


_lock = threading.Lock()
_chosen: _Choice | None = None


def active() -> Backend:
    """Return the backend in use."""
    return _choice().backend


def kernels() -> Kernels:
    """Return the functions of the backend in use."""
    return _choice().kernels


def available() -> list[Backend]:
    """Return every backend that works here, fastest first. Imports numba if installed."""
    return [choice.backend for choice in _choices()]


@contextmanager
def use(name: str, detail: str = "") -> Iterator[Backend]:
    """Use one backend, for example ``use("native", "avx2")``, until the block ends.

    For tests and measurements. The choice holds for the whole process, so blocks in several
    threads at once must want the same one.

    Raises:
        ConfigError: that backend does not work here.
    """
    wanted = next(
        (
            choice
            for choice in _choices()
            if choice.backend.name == name and detail in {"", choice.backend.detail}
        ),
        None,
    )
    if wanted is None:
        here = ", ".join(f"{backend.name} ({backend.detail})" for backend in available())
        raise ConfigError(f"There is no backend {name!r} {detail!r} here; there is {here}.")
    global _chosen  # noqa: PLW0603 - one choice for the process is what this module is for.
    before, _chosen = _chosen, wanted
    try:
        yield wanted.backend
    finally:
        _chosen = before


def _choice() -> _Choice:
    global _chosen  # noqa: PLW0603
    chosen = _chosen
    if chosen is None:
        with _lock:
            chosen = _chosen = _chosen or next(_choices())
    return chosen


def _choices() -> Iterator[_Choice]:
    """Yield what works, fastest first, importing each only when it is asked for."""
    reasons: list[str] = []
    for load in (_load_native, _load_numba, _load_numpy):
        try:
            found = load()
        except ImportError as error:
            reasons.append(f"{load.__name__.removeprefix('_load_')} is missing ({error})")
            continue
        for name, detail, functions in found:
            yield _Choice(Backend(name, detail, "; ".join(reasons)), functions)


def _load_native() -> list[tuple[str, str, Kernels]]:
    from ckptflow.data.kernels_native import NativeKernels, variants

    return [("native", variant, NativeKernels(variant)) for variant in variants()]


def _load_numba() -> list[tuple[str, str, Kernels]]:
    from ckptflow.data import kernels_numba

    return [("numba", kernels_numba.VERSION, kernels_numba)]


def _load_numpy() -> list[tuple[str, str, Kernels]]:
    from ckptflow.data import kernels_numpy

    return [("numpy", kernels_numpy.VERSION, kernels_numpy)]
