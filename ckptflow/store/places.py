"""Several folders or addresses as the tiers of one store: which names and levels they get.

``tests/unit/test_places.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptflow.model import SHARED_LEVEL
from ckptflow.tiers.opening import spec_of


def names_and_levels(count: int) -> list[tuple[str, int]]:
    """Return the name and the level of each of so many places, inner ones first.

    The last one is taken for one that outlives nodes, and holds the claims.
    """
    if count == 1:
        return [("store", SHARED_LEVEL)]
    return [
        (f"store{number}", 1 if number < count else SHARED_LEVEL)
        for number in range(1, count + 1)
    ]


def spec_at(place: str | Path, *, name: str, level: int) -> dict[str, Any]:
    """Return the spec of the tier at a folder or an address.

    Its level is at least ``level``; a bucket has a higher one of its own.

    Raises:
        ConfigError: it is no address of any tier.
    """
    spec = spec_of(place)
    return spec | {"name": name, "level": max(level, spec["level"])}
