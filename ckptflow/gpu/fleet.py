"""The devices on which a state lies, who captures there, and one snapshot of them all.

A device is opened when a state with regions on it is first seen. Where that cannot be (there is
no CuPy, no compiler for the kernels, chunks of a size that they cannot have) or where memory
there runs short, a note says so, and the library of the arrays has to copy them, all of their
bytes, as those that are no contiguous memory. ``tests/gpu_emulated/test_fleet.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import Bytes, I64s, U64s
from ckptflow.data.division import Flattened
from ckptflow.data.snapshot import NOTHING, Parent, Places, Snapshot
from ckptflow.errors import ConfigError
from ckptflow.gpu.arrays import stream_of
from ckptflow.gpu.capture import DeviceCapture, DeviceRegions, Transfer
from ckptflow.gpu.cuda import CudaDevice
from ckptflow.gpu.device import Device, DeviceArray, Done
from ckptflow.gpu.plan import Shape

Mask = NDArray[np.bool_]
Open = Callable[[Shape, int], Device]

_CUDA = "cuda:"  # Begins the name of a device that has kernels, its number follows.


class Fleet:
    """The devices of one process.

    Args:
        chunk_bytes: unit of digest.
        note: told, once for each device, why nothing can be captured there.
        open_device: returns a device of a number, with the kernels.
    """

    def __init__(
        self, chunk_bytes: int, *, note: Callable[[str], None], open_device: Open = CudaDevice
    ) -> None:
        self._chunk_bytes, self._note, self._open = chunk_bytes, note, open_device
        self._posts: dict[str, _Post] = {}
        self._lock = threading.Lock()

    def prepare(self, on_devices: Mapping[str, list[int]], places: Places) -> None:
        """Open the devices of a state, and take memory there, before it is captured.

        Args:
            on_devices: numbers of the regions on each, by its name.
            places: of all regions.
        """
        with self._lock:
            for name, numbers in on_devices.items():
                post = self._post(name)
                if post is not None:
                    post.prepare(places, np.array(numbers, np.int64))

    def regions(self, flattened: Flattened) -> OnDevices:
        """Return the regions of a state that devices can capture."""
        with self._lock:  # Who prepares comes first.
            parts = [
                _Part(post, post.capture, _regions(flattened, name, numbers))
                for name, numbers in flattened.on_devices.items()
                if (post := self._post(name)) is not None
            ]
        return OnDevices(parts, len(flattened.names))

    def _post(self, name: str) -> _Post | None:
        """Return who captures on a device; ``None`` if nobody can."""
        if name not in self._posts:
            self._posts[name] = post = _Post(name, self._note)
            post.open(lambda: self._opened(name))
        post = self._posts[name]
        return post if post.is_open else None

    def _opened(self, name: str) -> DeviceCapture:
        if not name.startswith(_CUDA):
            raise ConfigError("there are kernels for CUDA devices only.")
        shape = Shape(self._chunk_bytes, self._chunk_bytes)
        return DeviceCapture(self._open(shape, int(name.removeprefix(_CUDA))))


class _Post:
    """One device, as long as captures succeed there.

    Attributes:
        lock: one thread prepares while another may capture.
    """

    def __init__(self, name: str, note: Callable[[str], None]) -> None:
        self._name, self._note = name, note
        self._capture: DeviceCapture | None = None
        self._given_up = False
        self.lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return not self._given_up

    @property
    def capture(self) -> DeviceCapture:
        assert self._capture is not None, "the device was given up"
        return self._capture

    def open(self, make: Callable[[], DeviceCapture]) -> None:
        with self.trying():
            self._capture = make()

    def prepare(self, places: Places, numbers: I64s) -> None:
        with self.trying():
            self.capture.prepare(places, numbers)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Give the device up if something fails there."""
        with self.lock:
            try:
                yield
            except (ConfigError, MemoryError, RuntimeError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._capture = None  # Its memory is given back.
        if not self._given_up:
            self._given_up = True
            self._note(
                f"What lies on {self._name} is copied as a whole by its library in each save: "
                f"{str(error) or type(error).__name__}"
            )


@dataclass(slots=True, eq=False)
class _Part:
    """The regions of a state on one device, while a snapshot is taken."""

    post: _Post
    device: DeviceCapture
    regions: DeviceRegions
    after: Done | None = None
    transfers: list[Transfer] = field(default_factory=list)


class OnDevices:
    """The regions of one state that devices capture, while a snapshot of it is taken.

    Attributes:
        where: which these are; fewer when a device fails: its regions are to be gathered.
    """

    def __init__(self, parts: Sequence[_Part], regions: int) -> None:
        self._parts = list(parts)
        self.where: Mask = np.zeros(regions, np.bool_)
        for part in parts:
            self.where[part.regions.numbers] = True

    @property
    def is_under_way(self) -> bool:
        """Whether bytes are still to be brought in."""
        return any(part.transfers for part in self._parts)

    def mark(self) -> None:
        """Capture what comes later beside the application, after what it has begun so far."""
        for part in list(self._parts):
            with self._trying(part):
                part.after = part.device.now(part.regions)

    def capture(
        self,
        snapshot: Snapshot,
        how: U64s,
        *,
        arena: Bytes,
        parent: Parent,
        grain: U64s,
        limit_bytes: int,
    ) -> int | None:
        """Begin to capture regions; `finish` ends it. See `DeviceCapture.capture`.

        Returns:
            How many bytes will be held; ``None`` if that would be more than ``limit_bytes``.
        """
        taken = 0
        for part in list(self._parts):
            if not (how[part.regions.numbers] != NOTHING).any():
                continue
            with self._trying(part):
                transfer = part.device.capture(
                    snapshot, part.regions, how, arena=arena, parent=parent, grain=grain,
                    limit_bytes=limit_bytes - taken, after=part.after,
                )  # fmt: skip
                if transfer is None:
                    self.drop()
                    return None
                part.transfers.append(transfer)
                taken += transfer.taken_bytes
        return taken

    def finish(self) -> None:
        """Wait until everything is in the arena."""
        for part in self._parts:
            while part.transfers:
                part.transfers.pop(0).finish()

    def drop(self) -> None:
        """Bring nothing more in."""
        for part in self._parts:
            while part.transfers:
                part.transfers.pop().drop()

    def torn(self, snapshot: Snapshot, which: Mask) -> list[int]:
        """Return the numbers of those of some regions that are not as they were digested.

        To be called when everything is in the arena.
        """
        wrong: list[int] = []
        for part in list(self._parts):
            if which[part.regions.numbers].any():
                with self._trying(part):
                    wrong += part.device.torn(snapshot, part.regions, which, part.after)
        return wrong

    @contextmanager
    def _trying(self, part: _Part) -> Iterator[None]:
        """Take the regions of a device out of these if something fails there."""
        with part.post.trying():
            yield
        if not part.post.is_open:
            self._parts.remove(part)
            self.where[part.regions.numbers] = False


def _regions(flattened: Flattened, name: str, numbers: list[int]) -> DeviceRegions:
    """Return the regions of a state on one device, and an array for each stream they are on."""
    device, table = int(name.removeprefix(_CUDA)), flattened.table
    arrays: dict[int | None, DeviceArray] = {}
    seen: set[type] = set()
    for number in numbers:
        owner = flattened.owners_of(number)[0]
        if type(owner) in seen:  # A library works on one stream at a time.
            continue
        seen.add(type(owner))
        stream = stream_of(owner)
        address, size = int(table.device_address[number]), int(table.nbytes[number])
        arrays.setdefault(stream, DeviceArray(address, size, device, stream, owner))
    addresses = table.device_address[numbers].view(np.uint64)
    return DeviceRegions(np.array(numbers, np.int64), addresses, list(arrays.values()))
