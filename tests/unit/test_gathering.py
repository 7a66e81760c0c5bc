"""Gather lists hold the same bytes in fewer pieces; what is large is never copied."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ckptflow.tiers import durable, gathering
from ckptflow.tiers.disk import Disk
from ckptflow.tiers.gathering import gather_list, threshold


def pieces(*sizes: int) -> list[memoryview]:
    rng = np.random.default_rng(0)
    return [memoryview(rng.bytes(size)) for size in sizes]


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("copy_bytes", [0, 64, 512, 1 << 30])
def test_a_gather_list_has_the_same_bytes(copy_bytes: int) -> None:
    parts = pieces(16, 5000, 1, 63, 64, 65, 700_000, 400, 511, 512, 600_000, 3)
    listed = gather_list(parts, copy_bytes)
    assert b"".join(listed) == b"".join(parts)
    where = {address(view) for view in listed}
    assert all(address(part) in where for part in parts if len(part) >= copy_bytes)


def test_small_neighbours_become_one_and_large_ones_stay_where_they_are() -> None:
    parts = pieces(10, 20, 4096, 30, 8192, 40, 50)
    listed = gather_list(parts, 512)
    assert [len(view) for view in listed] == [30, 4096, 30, 8192, 90]
    assert address(listed[1]) == address(parts[2])
    assert address(listed[2]) == address(parts[3]), "alone it would gain nothing"


def test_what_is_copied_together_is_bounded() -> None:
    parts = pieces(400) * 8000
    listed = gather_list(parts, 512)
    assert max(map(len, listed)) < gathering.TOGETHER_BYTES_MAX + 512
    assert sum(map(len, listed)) == 8000 * 400


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([(64, 1, 3), (128, 2, 1), (256, 3, 1), (512, 4, 1)], 128),
        ([(64, 1, 3), (128, 2, 1), (256, 3, 4), (512, 4, 1)], 512),  # Noise at 128.
        ([(64, 1, 1), (128, 2, 1)], 64),
        ([(64, 1, 2), (4096, 1, 2)], gathering.COPY_BYTES_MAX),
        ([(1, 5, 1), (2, 5, 1)], gathering.COPY_BYTES_MIN),
        ([], gathering.COPY_BYTES_MAX),
    ],
)
def test_the_threshold_is_where_naming_is_never_slower(
    measured: list[tuple[int, float, float]], expected: int
) -> None:
    assert threshold(measured) == expected


def test_the_machine_is_measured_once_and_within_bounds() -> None:
    first = gathering.measured_threshold()
    assert gathering.COPY_BYTES_MIN <= first <= gathering.COPY_BYTES_MAX
    assert gathering.measured_threshold() == first
    assert gathering.measured_threshold.cache_info().misses <= 1


def test_where_nothing_can_be_measured_the_default_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert gathering.measured_threshold.__wrapped__() == gathering.COPY_BYTES_DEFAULT


class _Short(Disk):
    """Takes a prime number of bytes at a time, from the first buffers only."""

    def write(self, descriptor: int, buffers: object) -> int:
        assert len(buffers) <= 1024, "more the kernel does not take"  # type: ignore[arg-type]
        whole = b"".join(buffers)  # type: ignore[call-overload]
        return os.write(descriptor, whole[:10_007])


def test_short_writes_are_gone_on_with_inside_of_a_piece(tmp_path: Path) -> None:
    parts = pieces(*([700] * 1500), 50_000, *([30] * 3000))
    path = tmp_path / "value"
    durable.write_atomic(path, parts, durable.Folders(_Short()))
    assert path.read_bytes() == b"".join(parts)
