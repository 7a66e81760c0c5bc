"""Read again, with the independent reader, every checkpoint that a test leaves in its folder.

A pytest plugin. After each test it looks through the test's folder for stores and reads the
checkpoints of each lineage, the newest first, checking all that the format page tells a reader
to check.
Tests that damage a store, or write one that must be refused, are marked ``damaged_store``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import unseal
from independent_reader import (
    checkpoints,
    read_manifest,
    read_regions,
    read_set,
    sets,
    value,
)

STATE_BYTES_MAX = 64 << 20  # Of one test: what is larger would cost more than it could show.


def read_again(folder: Path, *, state_bytes_max: int = STATE_BYTES_MAX) -> list[Path]:
    """Read the checkpoints of each lineage of each store, and return whose were read.

    Once ``state_bytes_max`` would be passed, larger states are left out.

    Raises:
        independent_reader.Refused: one of them is not sound.
    """
    done = []
    for mark in sorted(folder.rglob("ckptflow-store.json")):
        if mark.read_bytes().startswith(unseal.MAGIC):
            continue  # Whoever has its key unseals it and has the result read.
        for lineage in sorted(mark.parent.glob("lineages/*/*")):
            for checkpoint in reversed(checkpoints(mark.parent, *lineage.parts[-2:])):
                document, _ = read_manifest(checkpoint)
                if document["state_bytes"] <= state_bytes_max:
                    state_bytes_max -= document["state_bytes"]
                    document, regions = read_regions(checkpoint)
                    value(document["structure"], regions)
                    done.append(lineage)
        for name in sorted({one.name.partition("+")[0] for one in done if "+" in one.name}):
            for run in {one.parent for one in done if one.name.startswith(f"{name}+")}:
                for shards in sets(mark.parent, run.name, name)[-2:]:
                    read_set(shards, len(shards) - 1)
    return done


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "damaged_store: leaves a store that no reader should accept; the witness stays away",
    )


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Let the independent reader confirm what the test has written."""
    yield
    if not request.node.get_closest_marker("damaged_store"):
        read_again(tmp_path)
