"""Which parts of a store are looked at when not all of it is.

The choice depends on nothing but the seed and the names of things. So whoever repeats a check
with one seed repeats it exactly, and other seeds look elsewhere. ``tests/unit/test_sample.py``.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sample:
    """A share of all frames.

    Attributes:
        share: of the frames of each pack, over 0 and at most 1; at least one frame of each.
        seed: draws the frames.

    Raises:
        ConfigError: ``share`` is no such number.
    """

    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"A sample is more than 0 % and at most 100 % of the bytes, got "
                f"{100 * self.share:g} %."
            )

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.share == 1

    def chosen(self, name: str, count: int) -> NDArray[np.intp]:
        """Return the numbers of the parts of ``name`` to look at, of ``count``, rising."""
        if self.is_all or not count:
            return np.arange(count)
        key = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        size = max(1, math.ceil(self.share * count))
        return np.sort(rng.choice(count, size, replace=False)).astype(np.intp)


ALL = Sample()


def parse_sample(text: str, *, seed: int = 0) -> Sample:
    """Read ``5%`` or ``0.05``.

    Raises:
        ConfigError: it is neither.
    """
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number)
    except ValueError:
        raise ConfigError(f"{text!r} is no sample: write 5% or 0.05.") from None
    return Sample(share / 100 if percent else share, seed)
