"""A diff on a device and one on the CPU, fed the same states and held against each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.history import History, diff_region
from ckptflow.data.scan import Kind
from ckptflow.gpu.device import Device, DeviceArray
from ckptflow.gpu.diff import DeviceDiff, DeviceRegionDiff

Bytes = NDArray[np.uint8]
U64s = NDArray[np.uint64]


@dataclass
class Twin:
    """``diff`` takes the bytes for the CPU and the same bytes on the device."""

    device: Device
    history_limit: int = 1000
    first_id: int = 0
    _old: dict[str, tuple[U64s, U64s]] = field(default_factory=dict)
    _new: dict[str, tuple[U64s, U64s]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limit, first = self.history_limit, self.first_id
        self.gpu = DeviceDiff(self.device, history_limit=limit, first_id=first)
        self.cpu = History(self.device.shape.cell_bytes, limit, first)

    def diff(self, data: Bytes, array: DeviceArray, region: str = "") -> DeviceRegionDiff:
        chunks, cells = self._old.get(region, (None, None))
        changes, runs = diff_region(
            data,
            self.cpu,
            chunk_bytes=self.device.shape.chunk_bytes,
            old_chunks=chunks,
            old_cells=cells,
        )
        self._new[region] = changes.chunks, changes.cells(cells)
        found = self.gpu.diff(array, region=region)
        for column in ("kind", "start_bytes", "length_bytes", "ref"):
            np.testing.assert_array_equal(
                getattr(found.runs, column), getattr(runs, column), err_msg=column
            )
        np.testing.assert_array_equal(found.chunk_digests, changes.chunks)
        new = runs.kind == Kind.NEW
        pieces = [
            data[int(start) : int(start + length)]
            for start, length in zip(runs.start_bytes[new], runs.length_bytes[new], strict=True)
        ]
        expected = np.concatenate([np.empty(0, np.uint8), *pieces])
        np.testing.assert_array_equal(found.payload, expected)
        if new.any():
            assert found.first_id == int(runs.ref[new][0])
        self._require_equal_ids()
        return found

    def commit(self) -> None:
        self.gpu.commit()
        self.cpu.commit()
        self._old |= self._new
        self._new = {}
        self._require_equal_ids()

    def rollback(self) -> None:
        self.gpu.rollback()
        self.cpu.rollback()
        self._new = {}
        self._require_equal_ids()

    def forget(self, region: str) -> None:
        self.gpu.forget(region)
        del self._old[region]

    def _require_equal_ids(self) -> None:
        assert (self.gpu.first_id, self.gpu.next_id) == (self.cpu.first_id, self.cpu.next_id)


def edited(data: Bytes, shape_bytes: int, rng: np.random.Generator) -> Bytes:
    """Change some bytes, repeat, move and fill some stretches, and perhaps the length."""
    data = data.copy()
    for _ in range(int(rng.integers(0, 5))):
        if not data.size:
            break
        length = int(rng.integers(1, 2 * shape_bytes))
        start, source = (int(rng.integers(0, data.size)) for _ in range(2))
        end = min(start + length, data.size)
        match rng.integers(0, 4):
            case 0:
                data[start] ^= np.uint8(1 + rng.integers(0, 255))
            case 1:
                data[start:end] = np.resize(
                    rng.integers(0, 256, 8, dtype=np.uint8), end - start
                )
            case 2:
                piece = data[source : source + end - start].copy()
                data[start : start + len(piece)] = piece[: data.size - start]
            case _:
                cells = data[: data.size // shape_bytes * shape_bytes].reshape(-1, shape_bytes)
                if len(cells) > 1:
                    a, b = rng.integers(0, len(cells), 2)
                    cells[a] = cells[b]
    if rng.integers(0, 4) == 0:
        size = int(rng.integers(0, 3 * shape_bytes + 9))
        data = np.resize(data, size) if data.size else np.zeros(size, np.uint8)
    return data
