"""Laws of the choice of cells: what must hold for every pattern of changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.sparsity import Count, Sparsity, cell_sizes
from ckptflow.policy.cells import GAIN_MIN, CellPolicy, Writing, cost

CHUNK = 4096
SIZES = cell_sizes(CHUNK)


def observation(marks: np.ndarray, sampled: int) -> Sparsity:
    """Return what is seen where cells of 64 B changed as ``marks``, (chunks, 64), tells."""
    changed = marks.any(axis=1)
    numbers = np.flatnonzero(changed)[:sampled]
    counts = {}
    for size in SIZES:
        rows = marks[numbers] if size < CHUNK else marks.reshape(1, -1)
        cells = -(-rows.shape[1] // (size // 64))
        padded = np.zeros((len(rows), cells * (size // 64)), np.bool_)
        padded[:, : rows.shape[1]] = rows
        joined = padded.reshape(len(rows), cells, size // 64).any(axis=2)
        runs = (np.diff(joined.astype(np.int8), axis=1, prepend=0) == 1).sum()
        counts[size] = Count(int(joined.sum()), int(runs))
    return Sparsity(marks.shape[0] * CHUNK, CHUNK, int(changed.sum()), len(numbers), counts)


@st.composite
def seen(draw: st.DrawFn) -> Sparsity:
    """Changes of any density, in runs of any length, in all of a region or in a part of it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    chunks = draw(st.integers(1, 200))
    marks = np.zeros(chunks * 64, np.bool_)
    run = draw(st.sampled_from([1, 2, 7, 64, 300]))
    hot = max(1, round(len(marks) * draw(st.floats(0.01, 1.0))))
    count = round(hot / run * draw(st.floats(0.0, 2.0) | st.floats(0.0, 0.02)))
    for start in rng.integers(0, hot, count).tolist():
        marks[start : start + run] = True
    return observation(marks.reshape(chunks, 64), draw(st.integers(1, 200)))


policies = st.builds(CellPolicy, st.sampled_from(SIZES)) | st.just(CellPolicy(CHUNK, full=True))
writings = st.builds(
    Writing,
    ratio=st.floats(1.0, 50.0),
    delta_coded=st.booleans(),
    bytes_per_s=st.floats(1e7, 1e10),
)


@given(what=seen(), policy=policies, writing=writings)
def test_a_pattern_that_stays_changes_the_cells_at_most_once(
    what: Sparsity, policy: CellPolicy, writing: Writing
) -> None:
    seen_so_far = [(policy.cell_bytes, policy.full)]
    for _ in range(12):
        policy = policy.observe(what, writing)
        seen_so_far.append((policy.cell_bytes, policy.full))
    changes = sum(a != b for a, b in pairwise(seen_so_far))
    assert changes <= 1


@given(what=seen(), policy=policies, writing=writings)
def test_what_it_settles_on_is_nearly_the_best(
    what: Sparsity, policy: CellPolicy, writing: Writing
) -> None:
    for _ in range(4):
        policy = policy.observe(what, writing)
    if not what.changed_chunks or what.sampled_chunks < min(4, what.changed_chunks):
        return
    if policy.full:  # Then no comparison saves much.
        costs = [cost(what, size, writing) for size in SIZES]
        assert min(costs) >= (1 - GAIN_MIN) / writing.ratio * (1 - 1e-9)
    else:
        costs = [cost(what, size, writing) for size in SIZES]
        chosen = cost(what, policy.cell_bytes, writing)
        assert min(costs) >= (1 - GAIN_MIN) * chosen * (1 - 1e-9) or dense_soon(what, policy)


def dense_soon(what: Sparsity, policy: CellPolicy) -> bool:
    """Whether it does not resize cells, since all that is about to be written whole."""
    return policy.wish == "full"


@given(what=seen(), writing=writings, faster=st.floats(1.0, 100.0))
def test_faster_storage_never_makes_cells_smaller(
    what: Sparsity, writing: Writing, faster: float
) -> None:
    if not what.sampled_chunks:
        return

    def best(bytes_per_s: float) -> int:
        given = Writing(ratio=writing.ratio, bytes_per_s=bytes_per_s)
        return min(SIZES, key=lambda size: (cost(what, size, given), -size))

    assert best(writing.bytes_per_s) <= best(writing.bytes_per_s * faster)


@given(what=st.lists(seen(), max_size=12), policy=policies, writing=writings)
def test_every_decision_is_one_that_can_be_taken_and_says_why(
    what: list[Sparsity], policy: CellPolicy, writing: Writing
) -> None:
    for one in what:
        policy = policy.observe(one, writing)
        assert policy.cell_bytes in SIZES
        assert policy.cell_bytes == CHUNK or not policy.full
        assert policy.reasons
        assert all(policy.reasons)


@given(what=st.lists(seen(), min_size=2, max_size=12), policy=policies, writing=writings)
def test_no_two_changes_follow_one_another_at_once(
    what: list[Sparsity], policy: CellPolicy, writing: Writing
) -> None:
    changed_before = False
    for one in what:
        after = policy.observe(one, writing)
        changed = (after.cell_bytes, after.full) != (policy.cell_bytes, policy.full)
        assert not (changed and changed_before)
        policy, changed_before = after, changed
