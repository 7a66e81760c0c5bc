"""A tier in the memory of a GPU: to go back a few steps without asking the host.

It lives as long as the process. ``tests/gpu_emulated/test_device_tier.py`` with an imitation of
CuPy, ``tests/gpu/test_device_tier.py`` on a device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import Buffer

from ckptflow.errors import ConfigError, CorruptionError, TierError, TierFull, TierUnavailable
from ckptflow.gpu.plain import CudaPlainMemory, DeviceFailedError, Memory, PlainMemory
from ckptflow.tiers.shelf import Shelf, folders_of
from ckptflow.tiers.tier import check_key
from ckptflow.units import format_bytes


class DeviceTier:
    """A dictionary of values that lie in the memory of one GPU.

    Args:
        name: used in messages.
        capacity_bytes: how much of the device it may take.
        level: 0: lost with the process.
        number: which device; the current one if it is not given.
        memory: the memory itself; by default that of the CUDA device ``number``.

    Raises:
        ConfigError: CuPy is not installed, there is no such device, or the capacity is nothing.
    """

    def __init__(
        self,
        name: str = "device",
        *,
        capacity_bytes: int,
        level: int = 0,
        number: int | None = None,
        memory: PlainMemory | None = None,
    ) -> None:
        if capacity_bytes < 1:
            raise ConfigError(f"Tier {name!r} needs a capacity, got {capacity_bytes} B.")
        self._name, self._level, self._number = name, level, number
        self._memory = CudaPlainMemory(number) if memory is None else memory
        self._values: Shelf[Memory] = Shelf(name, capacity_bytes)

    def __repr__(self) -> str:
        return f"DeviceTier({self._name!r}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> DeviceTier:
        """See `ckptflow.tiers.opening.Opens`. One name is one tier in the whole process."""
        with _opened_lock:
            if spec["name"] not in _opened:
                _opened[spec["name"]] = cls(
                    spec["name"],
                    level=spec["level"],
                    capacity_bytes=spec["capacity_bytes"],
                    number=spec.get("number"),
                )
            return _opened[spec["name"]]

    @property
    def name(self) -> str:
        """Name used in messages."""
        return self._name

    @property
    def level(self) -> int:
        """0 unless said otherwise: lost with the process."""
        return self._level

    @property
    def can_create(self) -> bool:
        """A lock decides, within the process."""
        return True

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`. Another process gets an empty tier of that name."""
        spec: dict[str, Any] = {
            "kind": "device",
            "name": self._name,
            "level": self._level,
            "capacity_bytes": self._values.capacity_bytes,
        }
        return spec if self._number is None else {**spec, "number": self._number}

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        self._put(key, [memoryview(part).cast("B") for part in parts], replace=True)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        self._put(key, [memoryview(value).cast("B")], replace=False)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        left = max(0, self.size(key) - start_bytes)
        target = bytearray(left if size_bytes is None else min(size_bytes, left))
        if target:
            self.read_into(key, target, start_bytes=start_bytes)
        return bytes(target)

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        memory, size = self._values.value(check_key(key))
        view = np.frombuffer(memoryview(target).cast("B"), np.uint8)
        if start_bytes + len(view) > size:
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {size} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )
        try:
            self._memory.download(memory, start_bytes, view)
        except DeviceFailedError as error:
            raise self._failed("read", key, size, error) from error

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        return self._values.value(check_key(key))[1]

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        yield from self._values.keys(check_key(prefix, prefix=True))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        yield from folders_of(self._values.keys(check_key(prefix, prefix=True)), prefix)

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        self._values.remove(check_key(key))

    def _put(self, key: str, parts: list[memoryview], *, replace: bool) -> None:
        size_bytes, at = sum(map(len, parts)), 0
        self._values.require_room(check_key(key), size_bytes)
        try:
            memory = self._memory.allocate(size_bytes)
            for part in parts:
                self._memory.upload(memory, at, np.frombuffer(part, np.uint8))
                at += len(part)
        except DeviceFailedError as error:
            raise self._failed("write", key, size_bytes, error) from error
        self._values.store(key, memory, size_bytes, replace=replace)

    def _failed(
        self, verb: str, key: str, size_bytes: int, error: DeviceFailedError
    ) -> TierError:
        where = f"{verb} the {format_bytes(size_bytes)} of {key!r} on tier {self._name!r}"
        if error.full:
            return TierFull(f"No memory of the GPU to {where}: {error}. Give it less capacity.")
        return TierUnavailable(f"Cannot {where}: {error}.")


_opened: dict[str, DeviceTier] = {}
_opened_lock = threading.Lock()
