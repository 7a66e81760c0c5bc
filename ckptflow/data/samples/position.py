"""What is saved of a sampler: a few plain values, the same on all ranks.

=============== ===============================================================================
``version``     of this table: 1
``seed``        of the order; must agree
``shuffle``     whether there is one; must agree
``samples``     how many the data set has; must agree
``fingerprint`` of the data set, or None; must agree where both sides have one
``epoch``       the one that is under way, from 0
``consumed``    how many of its samples the loops of all ranks have got: the first of the order
``world``       how many ranks there were; may differ
``batch``       samples of a rank in a step; may differ
``tail``        what became of the last samples of an epoch; may differ
=============== ===============================================================================

``tests/unit/test_sampler_state.py`` keeps it true.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

VERSION = 1
_NUMBERS = ("version", "seed", "samples", "epoch", "consumed", "world", "batch")


class Position(NamedTuple):
    """Where a loop is: in which epoch, and how many samples of it all ranks have got."""

    epoch: int
    consumed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What has to be the same for a position to mean the same."""

    samples: int
    seed: int
    shuffle: bool
    fingerprint: str | None

    def state(self, position: Position, **informative: object) -> dict[str, Any]:
        """Return the state of a sampler that is at ``position``."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "samples": self.samples,
            "fingerprint": self.fingerprint,
            **position._asdict(),
            **informative,
        }

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return a sentence for everything that keeps ``state`` from being used here."""
        if problem := _malformed(state):
            return [problem]
        found = [
            f"{name}: {state[name]} in what was saved, {own} here; {advice}"
            for name, own, advice in (
                ("samples", self.samples, "it is another data set"),
                ("seed", self.seed, "the order would be another one; give the saved seed"),
                ("shuffle", self.shuffle, "the order would be another one"),
            )
            if state[name] != own
        ]
        saved = state["fingerprint"]
        if None not in (saved, self.fingerprint) and saved != self.fingerprint:
            found.append(
                f"fingerprint: {saved!r} in what was saved, {self.fingerprint!r} here; "
                "it is another data set, or in another order"
            )
        return found


def _malformed(state: object) -> str | None:
    if not isinstance(state, Mapping):
        return f"it is no state of a sampler, but a {type(state).__name__}"
    version = state.get("version")
    if isinstance(version, int) and version > VERSION:
        return f"it has version {version}; this ckptflow reads up to {VERSION}"
    names = (*_NUMBERS, "shuffle", "fingerprint", "tail")
    if missing := [name for name in names if name not in state]:
        return f"it is no state of a sampler: it lacks {', '.join(missing)}"
    for name in _NUMBERS:
        if type(state[name]) is not int or state[name] < 0:
            return f"{name} is {state[name]!r}, not a count"
    if state["consumed"] > state["samples"]:
        return f"{state['consumed']} samples are consumed, of {state['samples']} that there are"
    return None


def fingerprint(items: Iterable[str | bytes | int | os.PathLike[str]]) -> str:
    """Return 32 hex digits of SHA-256 over ``items`` in their order, to know a data set by.

    Items are whatever tells the samples apart, such as their file names, relative to the data
    set's folder so that it may be moved. Costs one pass over them.
    """
    digest = hashlib.sha256()
    for item in items:
        plain = item if isinstance(item, str | bytes | int) else os.fspath(item)
        text = (
            plain if isinstance(plain, bytes) else str(plain).encode("utf-8", "surrogatepass")
        )
        digest.update(f"{type(plain).__name__} {len(text)} ".encode())
        digest.update(text)
    return digest.hexdigest()[:32]
