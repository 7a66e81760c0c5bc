"""Boxes of global arrays, saved by some ranks and restored by others in other boxes."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptflow as cf
from ckptflow.tiers.memory import MemoryTier

Cuts = list[list[int]]


@st.composite
def divisions(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Cut an array along each axis; some boxes may be empty."""
    edges = [
        [0, *sorted(draw(st.lists(st.integers(0, size), max_size=2))), size] for size in shape
    ]
    boxes: list[tuple[slice, ...]] = [()]
    for axis in edges:
        boxes = [(*box, slice(a, b)) for box in boxes for a, b in itertools.pairwise(axis)]
    return boxes


def box(whole: np.ndarray, where: tuple[slice, ...], *, order: str = "C") -> cf.Box:
    local = np.array(whole[where], order=order)  # type: ignore[call-overload]
    return cf.Box(local, [one.start for one in where], whole.shape, name="field")


def spread(boxes: list[Any], world: int) -> list[dict[str, Any]]:
    states: list[dict[str, Any]] = [{} for _ in range(world)]
    for number, one in enumerate(boxes):
        states[number % world][f"part {number}"] = one
    return states


@settings(max_examples=15)
@given(data=st.data())
def test_any_boxes_from_any_boxes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple))
    whole = (
        np.random.default_rng(0)
        .normal(size=shape)
        .astype(data.draw(st.sampled_from(["f4", "f8"])))
    )
    tier, order = MemoryTier("store", level=3), data.draw(st.sampled_from("CF"))
    worlds = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    saved = [box(whole, where, order=order) for where in data.draw(divisions(shape))]
    with ExitStack() as stack:
        for rank, state in enumerate(spread(saved, worlds[0])):
            one = stack.enter_context(
                cf.ShardedCheckpointer(tier, rank=rank, world=worlds[0], launch="a", rng=False)
            )
            one.restore({})
            one.save(1, state)
    new = [box(np.zeros_like(whole), where) for where in data.draw(divisions(shape))]
    targets = [{"part 0": one} for one in new]
    for rank, target in enumerate(targets):
        with cf.ShardedCheckpointer(tier, rank=0, world=1, launch=f"b{rank}", rng=False) as one:
            same = dict.fromkeys(spread(saved, worlds[0])[0], target["part 0"])
            one.restore(same)
    for one in new:
        where = tuple(
            slice(first, first + length)
            for first, length in zip(one.offset, one.array.shape, strict=True)
        )
        assert (one.array == whole[where]).all()
    with cf.ShardedCheckpointer(tier, rank=0, world=1, launch="c", rng=False) as last:
        assert (last.read("part 0") == whole).all()
