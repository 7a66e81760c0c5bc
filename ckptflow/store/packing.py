"""How the checkpoints of a task are compared and stored: the few choices that users have.

`parse_packing` reads the short form that decorators and site files take, as ``"small"`` or
``"auto,cell=256,verify=sample"``. ``tests/unit/test_packing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from ckptflow.data.encoding import Goal
from ckptflow.errors import ConfigError
from ckptflow.store.planning.duplicates import Verify

CHUNK_BYTES = 4096
CELL_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How checkpoints are compared and stored.

    Attributes:
        goal: ``"auto"`` spends time on encoding only where that saves more time in writing,
            and keeps restores short; ``"small"`` stores as few bytes as it can.
        chunk_bytes: unit of digest, a multiple of 8, at least 16.
        cell_bytes: unit of reuse: divides a chunk, or is a multiple of it up to 64 KiB;
            ``None``: as it suits the changes of each region.
        deltas: keep the last snapshot in memory, so that what changed a little can be stored as
            a delta; ``None``: with the goal ``"small"``.
        verify: which bytes that were met before are compared byte by byte, and not by
            digest only: ``"off"``, ``"sample"`` or ``"all"``.

    Raises:
        ConfigError: a size or a word is none of these.
    """

    goal: Goal = "auto"
    chunk_bytes: int = CHUNK_BYTES
    cell_bytes: int | None = None
    deltas: bool | None = None
    verify: Verify = "off"

    def __post_init__(self) -> None:
        for name in ("chunk_bytes", "cell_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) and not (value is None and name == "cell_bytes"):
                raise ConfigError(f"{name} is a number of bytes, not {value!r}.")
        if self.deltas not in {None, True, False}:
            raise ConfigError(f"deltas is True, False or None, not {self.deltas!r}.")
        check_sizes(self.chunk_bytes, self.cell_bytes)
        for name, value, words in (
            ("goal", self.goal, get_args(Goal)),
            ("verify", self.verify, get_args(Verify)),
        ):
            if value not in words:
                raise ConfigError(f"{name} is one of {', '.join(words)}, not {value!r}.")

    def __str__(self) -> str:
        sizes = [
            f"chunk={self.chunk_bytes}",
            f"cell={self.cell_bytes}" if self.cell_bytes else "",
        ]
        deltas = "" if self.deltas is None else f"deltas={'yes' if self.deltas else 'no'}"
        parts = [self.goal, *sizes, deltas, f"verify={self.verify}"]
        return ",".join(part for part in parts if part)

    @property
    def keeps_parent(self) -> bool:
        """Whether the last snapshot stays in memory."""
        return self.goal == "small" if self.deltas is None else self.deltas


def parse_packing(value: Packing | str | None) -> Packing:
    """Return what a short form means.

    Raises:
        ConfigError: it is none.
    """
    if value is None:
        return Packing()
    if isinstance(value, Packing):
        return value
    fields: dict[str, Any] = {}
    for part in str(value).split(","):
        name, equals, text = (word.strip() for word in part.partition("="))
        before = set(fields)
        if not equals and name in get_args(Goal):
            fields["goal"] = name
        elif name in {"chunk", "cell"} and text.isdecimal():
            fields[f"{name}_bytes"] = int(text)
        elif name == "deltas" and text in {"yes", "no"}:
            fields["deltas"] = text == "yes"
        elif name == "verify":
            fields["verify"] = text
        else:
            raise ConfigError(
                f"{part.strip()!r} does not say how to store checkpoints. It is 'auto' or "
                f"'small', with chunk=BYTES, cell=BYTES, deltas=yes|no, "
                f"verify=off|sample|all behind commas."
            )
        if set(fields) == before:
            raise ConfigError(f"{str(value)!r} says twice how to store checkpoints.")
    return Packing(**fields)


def check_sizes(chunk_bytes: int, cell_bytes: int | None) -> None:
    """Raise a `ConfigError` unless there can be such chunks and cells."""
    if chunk_bytes < 16 or chunk_bytes % 8:
        raise ConfigError(
            f"chunk_bytes is a multiple of 8, at least 16, not {chunk_bytes}. Usual is 4096."
        )
    if cell_bytes is None:
        return
    fits = cell_bytes >= 16 and cell_bytes % 8 == 0
    if not fits or (chunk_bytes % cell_bytes and cell_bytes % chunk_bytes):
        raise ConfigError(
            f"cell_bytes is a multiple of 8, at least 16, that divides chunk_bytes "
            f"({chunk_bytes}) or is a multiple of it, not {cell_bytes}."
        )
    if cell_bytes > max(CELL_BYTES_MAX, chunk_bytes):
        raise ConfigError(f"cell_bytes is at most {CELL_BYTES_MAX}, not {cell_bytes}.")
