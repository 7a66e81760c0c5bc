"""What a process of one's own loads for a batch; a module that a new interpreter finds."""

from __future__ import annotations

from ckptflow.data import SampleIndex


def load(indices: list[SampleIndex]) -> list[tuple[int, float]]:
    """Return each index, and the first number of its own generator."""
    return [(int(index), float(index.rng().random())) for index in indices]
