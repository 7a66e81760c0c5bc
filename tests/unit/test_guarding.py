"""Arrays cannot be written to for a while, and are afterwards exactly as they were."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from ckptflow.data.guarding import ReadOnly, versions


def flags_of(arrays: list[np.ndarray]) -> list[bool]:
    return [array.flags.writeable for array in arrays]


def test_an_array_and_what_it_is_a_view_of() -> None:
    base = np.zeros(10)
    view = base[2:8].reshape(2, 3)
    guard = ReadOnly()
    guard.freeze([view])
    for array in (view, base):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    guard.lift()
    view[0, 0] = 1
    assert base[2] == 1


def test_each_comes_back_as_it_was() -> None:
    base = np.zeros(10)
    closed = base[:5]
    closed.flags.writeable = False
    shut = np.zeros(4)
    open_view = shut[:]
    shut.flags.writeable = False
    mapped = np.frombuffer(mmap.mmap(-1, 80), np.float64)
    fixed = np.frombuffer(bytes(80), np.float64)
    everything = [closed, base, base[3:][1:], mapped, fixed, shut]
    before = flags_of(everything)
    guard = ReadOnly()
    guard.freeze([open_view, *everything, "no array", None])
    assert not any(flags_of(everything))
    assert open_view.flags.writeable  # NumPy would not open it again.
    guard.lift()
    assert flags_of(everything) == before == [False, True, True, True, False, False]
    guard.lift()


def test_in_whatever_order_views_are_frozen() -> None:
    base = np.zeros(10)
    outer, inner = base[1:], base[1:].view(np.int64)[2:]
    for order in ([base, outer, inner], [inner, outer, base], [outer, base, inner]):
        guard = ReadOnly()
        guard.freeze(order)
        guard.freeze(order)
        assert not any(flags_of(order))
        guard.lift()
        assert all(flags_of(order))


def test_what_numpy_would_not_open_again_is_left_alone() -> None:
    torch = pytest.importorskip("torch")
    array = torch.zeros(4).numpy()
    guard = ReadOnly()
    guard.freeze([array])
    assert array.flags.writeable
    guard.lift()
    assert array.flags.writeable


def test_tensors_count_what_is_written_to_them() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4)
    with torch.inference_mode():
        uncounted = torch.zeros(4)
    alike = [tensor, tensor.detach(), uncounted, np.zeros(2), None]
    before = versions(alike)
    assert [one is None for one in before] == [False, False, True, True, True]
    tensor.add_(1)
    after = versions(alike)
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, *[True] * 3]
