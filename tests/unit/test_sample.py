"""A sample is drawn by its seed and nothing else, and every pack gives at least one frame."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.store.checking.sample import ALL, Sample, parse_sample


def test_the_share_is_kept_and_the_draw_repeats() -> None:
    chosen = Sample(0.05, 1).chosen("pack", 1000)
    assert len(chosen) == len(set(chosen.tolist())) == 50
    assert np.array_equal(chosen, np.sort(chosen))
    assert np.array_equal(chosen, Sample(0.05, 1).chosen("pack", 1000))
    assert not np.array_equal(chosen, Sample(0.05, 2).chosen("pack", 1000))
    assert not np.array_equal(chosen, Sample(0.05, 1).chosen("other", 1000))


def test_seeds_look_everywhere_in_the_end() -> None:
    seen = {int(n) for seed in range(60) for n in Sample(0.1, seed).chosen("pack", 20)}
    assert seen == set(range(20))


def test_at_least_one_and_at_most_all() -> None:
    assert len(Sample(0.001).chosen("pack", 3)) == 1
    assert ALL.chosen("pack", 3).tolist() == [0, 1, 2]
    assert Sample(0.5).chosen("pack", 0).tolist() == []


@pytest.mark.parametrize("text", ["5%", "0.05", " 5 % "])
def test_short_forms(text: str) -> None:
    assert parse_sample(text) == Sample(0.05)


@pytest.mark.parametrize("text", ["0", "101%", "-1%", "1.5", "nan"])
def test_no_share_at_all(text: str) -> None:
    with pytest.raises(ConfigError, match="more than 0 % and at most 100 %"):
        parse_sample(text)
