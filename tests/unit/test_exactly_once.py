"""The self-check passes what is right, and names what is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ckptflow.data import ResumableSampler
from ckptflow.testing.exactly_once import Served, exactly_once, stop_everywhere


class Counted:
    """A loader as they are often written: it shuffles by a generator, and counts batches.

    Resumed, it skips as many batches as were served, of whatever order it has now.
    """

    def __init__(self, *, saves_generator: bool) -> None:
        self.rng, self.skip, self.saves_generator = np.random.default_rng(4), 0, saves_generator

    def __iter__(self) -> Iterator[Any]:
        self.before = self.rng.bit_generator.state
        order = self.rng.permutation(20).reshape(5, 4)
        self.served, self.skip = self.skip, 0
        for batch in order[self.served :]:
            self.served += 1
            yield batch
        self.served = 0
        del self.before

    def state_dict(self) -> dict[str, Any]:
        generator = getattr(self, "before", self.rng.bit_generator.state)
        served = getattr(self, "served", self.skip)
        return {"served": served, **({"rng": generator} if self.saves_generator else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = state["served"]
        if self.saves_generator:
            self.rng.bit_generator.state = state["rng"]


def test_a_tally_passes_what_was_served_once() -> None:
    with exactly_once(10) as served:
        for epoch in range(2):
            for indices in ResumableSampler(10, batch=3).batches():
                served.add(indices, epoch=epoch)


def test_a_tally_names_what_was_not() -> None:
    message = (
        r"epoch 1: 3 of 6 samples were not served exactly once: 2 never \(1, 5; 0 expected\), "
        r"1 more than once \(0\)"
    )
    served = Served(6)
    served.add([[0, 1, 2], [3, 4, 5]])
    served.add([0, 2, 3, 4, 0], epoch=1)
    with pytest.raises(AssertionError, match=message):
        served.check()


def test_a_tally_allows_what_is_dropped_and_nothing_else() -> None:
    with exactly_once(6, left_out=2) as served:
        served.add([0, 1, 2, 3])
    with pytest.raises(AssertionError, match="1 never"), exactly_once(6, left_out=2) as served:
        served.add([0, 1, 2, 3, 4])


def test_a_tally_of_nothing_or_of_others_is_no_success() -> None:
    with pytest.raises(AssertionError, match="no samples were served"), exactly_once(6):
        pass
    with pytest.raises(AssertionError, match="6 is no sample of 6"), exactly_once(6) as served:
        served.add([6])


def test_an_error_within_is_not_replaced_by_a_tally() -> None:
    with pytest.raises(KeyError, match="mine"), exactly_once(6):
        raise KeyError("mine")


def test_a_loader_that_goes_on_in_another_order_is_found_out() -> None:
    """The report: 15 of 20 samples twice or never, and nothing said so."""
    with pytest.raises(AssertionError, match="of 20 samples were not served exactly") as caught:
        stop_everywhere(
            lambda: Counted(saves_generator=False), lambda batch: batch, samples=20, epochs=2
        )
    assert caught.value.__notes__ == ["stopped after 7 of 12 batches and ends of epochs"]


def test_a_loader_that_goes_on_in_the_same_order_passes() -> None:
    stops = stop_everywhere(
        lambda: Counted(saves_generator=True), lambda batch: batch, samples=20, epochs=2
    )
    assert stops == 13
