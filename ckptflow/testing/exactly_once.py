"""See that each sample is served exactly once an epoch, also by a loop that stops and goes on.

For whoever trains: a few epochs of your own loader, the data set giving its index with each
sample::

    with exactly_once(len(dataset)) as served:
        for epoch in range(2):
            for batch in loader:
                served.add(batch["index"], epoch=epoch)

and the same loader stopped after every batch, saved, made anew, loaded, and gone on with::

    stop_everywhere(make_loader, lambda batch: batch["index"], samples=len(dataset))

Both raise AssertionError with the numbers of the samples. ``tests/unit/test_exactly_once.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

SHOWN = 8  # Numbers of samples in a message.


class Served:
    """How often each sample was served, epoch by epoch."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._counts: dict[int, NDArray[np.int64]] = {}

    def add(self, indices: ArrayLike, *, epoch: int = 0) -> None:
        """Note the samples of a batch, in an array or a tensor of any shape, or a list."""
        flat = np.asarray(indices, dtype=np.int64).reshape(-1)
        wrong = flat[(flat < 0) | (flat >= self._samples)]
        assert not wrong.size, f"epoch {epoch}: {wrong[0]} is no sample of {self._samples}"
        counts = self._counts.setdefault(epoch, np.zeros(self._samples, np.int64))
        np.add.at(counts, flat, 1)

    def check(self, *, left_out: int = 0) -> None:
        """Compare.

        Args:
            left_out: how many samples each epoch may lack, where a loader drops the last ones.

        Raises:
            AssertionError: a sample was served twice in an epoch, or never; or nothing was.
        """
        assert self._counts, "no samples were served"
        found = {epoch: _problem(counts, left_out) for epoch, counts in self._counts.items()}
        problems = [f"epoch {epoch}: {found[epoch]}" for epoch in sorted(found) if found[epoch]]
        assert not problems, "; ".join(problems)


def _problem(counts: NDArray[np.int64], left_out: int) -> str | None:
    never, often = np.flatnonzero(counts == 0), np.flatnonzero(counts > 1)
    if never.size == left_out and not often.size:
        return None
    return (
        f"{never.size + often.size} of {counts.size} samples were not served exactly once: "
        f"{never.size} never ({_some(never)}; {left_out} expected), "
        f"{often.size} more than once ({_some(often)})"
    )


def _some(numbers: NDArray[np.intp]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN])) or "none"
    return shown + ", ..." * (numbers.size > SHOWN)


@contextmanager
def exactly_once(samples: int, *, left_out: int = 0) -> Iterator[Served]:
    """Yield a tally; on leaving, compare.

    Args:
        samples: how many the data set has.
        left_out: how many of them each epoch may lack.

    Raises:
        AssertionError: see `Served.check`.
    """
    served = Served(samples)
    yield served
    served.check(left_out=left_out)


def stop_everywhere(
    make_loader: Callable[[], Any],
    indices_of: Callable[[Any], ArrayLike],
    *,
    samples: int,
    epochs: int = 2,
    left_out: int = 0,
) -> int:
    """Stop a loader before and after every batch, go on with a new one, and compare each time.

    Takes time in the square of the number of batches, so give it a small part of a data set.

    Args:
        make_loader: returns a new loader at the beginning of epoch 0 that has ``state_dict``
            and ``load_state_dict``. To iterate over it is to run through an epoch.
        indices_of: returns the samples of a batch.
        samples: how many the data set has.
        epochs: how many to run through.
        left_out: how many samples each epoch may lack.

    Returns:
        How often it was stopped.

    Raises:
        AssertionError: see `Served.check`; a note says where it was stopped.
    """
    events, _, _ = _run(make_loader(), lambda *_: None, epochs=epochs)
    for stop in range(events + 1):
        served = Served(samples)

        def add(batch: Any, epoch: int, served: Served = served) -> None:
            served.add(indices_of(batch), epoch=epoch)

        try:
            _, state, epoch = _run(make_loader(), add, epochs=epochs, stop_after=stop)
            for _ in range(2):  # What is loaded and saved at once has to do as well.
                loader = make_loader()
                loader.load_state_dict(state)
                state = copy.deepcopy(loader.state_dict())
            _run(loader, add, epoch=epoch, epochs=epochs)
            served.check(left_out=left_out)
        except BaseException as error:
            error.add_note(f"stopped after {stop} of {events} batches and ends of epochs")
            raise
    return events + 1


def _run(
    loader: Any,
    add: Callable[[Any, int], None],
    *,
    epoch: int = 0,
    epochs: int,
    stop_after: int | None = None,
) -> tuple[int, Any, int]:
    """Run to so many batches and ends of epochs; return their number, the state, the epoch."""
    events = 0
    while epoch < epochs and events != stop_after:
        for batch in loader:
            add(batch, epoch)
            events += 1
            if events == stop_after:
                return events, copy.deepcopy(loader.state_dict()), epoch
        epoch += 1
        events += 1
    return events, copy.deepcopy(loader.state_dict()), epoch
