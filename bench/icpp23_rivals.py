"""Every way to keep checkpoints that `icpp23.py` compares, behind one interface.

A keeper saves states one after the other onto a tier of its own, a folder, and gives any of
them back. Bytes are those that lie on the tier. Metadata is what says where bytes belong:
ids and headers of the published methods; manifests, heads and tables of frames of ckptflow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zstandard
from icpp23_methods import HEADER, METHODS, Basic, Full
from numpy.typing import NDArray

from ckptflow import manifest as manifest_file
from ckptflow.data.pack import HEAD, table_bytes
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store import save as product_save
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.planning import plan as product_plan
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.posix import PosixTier

Bytes = NDArray[np.uint8]

ROOM_BYTES = 1 << 16  # Behind a state that is restored, for the padding of its last chunk.
PHASES = ("scan", "encode", "write")


@dataclass(frozen=True, slots=True)
class Saved:
    """What one checkpoint took."""

    payload_bytes: int
    metadata_bytes: int
    seconds: Mapping[str, float]  # By phase.

    @property
    def stored_bytes(self) -> int:
        """All bytes on the tier."""
        return self.payload_bytes + self.metadata_bytes


class Keeper(Protocol):
    """A way to keep checkpoints."""

    def save(self, state: Bytes) -> Saved:
        """Store the next checkpoint; when this returns it is durable."""
        ...

    def restore(self, number: int, into: Bytes) -> Bytes:
        """Return a checkpoint, in the memory of ``into`` where that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """One row of a table: how to make a keeper in a folder."""

    name: str
    chunk_bytes: int  # 0: it has no such setting.
    make: Callable[[Path], Keeper]
    missing: str = ""  # Why it cannot be measured here.
    program: bool = False  # Another program does the work.
    one_number: bool = False  # Payload and metadata cannot be told apart.


# --- ckptflow -----------------------------------------------------------------------------


SMALL = "ckptflow small"
CHUNK_BYTES = 4096  # Of ckptflow's digests; what it reuses are cells of them.


def ours_arguments(cell_bytes: int) -> dict[str, Any]:
    """Return the arguments of `write_checkpoint` that make it reuse units of this size."""
    return {"chunk_bytes": CHUNK_BYTES, "cell_bytes": cell_bytes, "goal": "small"}


def default_arguments() -> dict[str, Any]:
    """Return the arguments that weigh time against bytes, and fit the cells to the changes."""
    return {"chunk_bytes": CHUNK_BYTES}


def small_arguments() -> dict[str, Any]:
    """Return the arguments of ``packing="small"``: few bytes, cells that fit the changes."""
    return {"chunk_bytes": CHUNK_BYTES, "goal": "small"}


# Where a save of ckptflow looks for what changed. What is neither in these nor in the tier is
# encoding.
SCANNING = (
    (product_plan, "find_changes"),
    (product_plan, "lay_out"),
    (product_save, "remember_changes"),
)


class Ours:
    """Checkpoints of ckptflow; without ``history`` each is a full one."""

    LINEAGE = LineageId("icpp23", "state")

    def __init__(self, folder: Path, arguments: Mapping[str, Any], *, history: bool) -> None:
        self.tier = TimedTier(folder)
        self.arguments, self.history = arguments, history
        self.base: Base | None = None
        self.count = 0
        self.known: set[str] = set()

    def save(self, state: Bytes) -> Saved:
        """Store the next checkpoint."""
        scan = Watch()
        self.tier.written.seconds = 0.0
        began = time.perf_counter()
        with ExitStack() as stack:
            for module, name in SCANNING:
                stack.enter_context(timed(module, name, scan))
            base = write_checkpoint(
                self.tier,
                self.LINEAGE,
                CheckpointId(self.count, 1),
                structure=None,
                regions=[NamedRegion("counts", state.data)],
                base=self.base if self.history else None,
                **self.arguments,
            )
        total, written = time.perf_counter() - began, self.tier.written.seconds
        if self.arguments.get("goal") == "small":  # As a checkpointer keeps its last snapshot.
            base.memory.bytes_at_hand = {"counts": memoryview(state.tobytes())}
        self.base, self.count = base, self.count + 1
        seconds = {
            "scan": scan.seconds,
            "encode": total - scan.seconds - written,
            "write": written,
        }
        return self._measured(base, seconds)

    def _measured(self, base: Base, seconds: Mapping[str, float]) -> Saved:
        new = set(self.tier.iter_keys(self.LINEAGE.prefix)) - self.known
        self.known |= new
        packs = {f"{self.LINEAGE.prefix}/{pack.key}": pack for pack in base.manifest.packs}
        payload = total = 0
        for key in new:
            total += self.tier.size(key)
            if key in packs:
                pack = packs[key]
                payload += pack.size_bytes - len(HEAD) - table_bytes(pack.frame_count)
        return Saved(payload, total - payload, seconds)

    def restore(self, number: int, into: Bytes) -> Bytes:
        """Return a checkpoint: read its manifest, its packs, and verify it."""
        key = f"{self.LINEAGE.prefix}/{CheckpointId(number, 1).manifest_key}"
        manifest = manifest_file.decode(self.tier.get(key), where=key)
        state = into[: manifest.regions[0].size_bytes]
        read_checkpoint([self.tier], manifest, [state.data])
        return state


class Watch:
    """Adds up the time in calls; a call within another one counts once."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Count the time of the block."""
        self.depth += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.seconds += time.perf_counter() - began


class TimedTier(PosixTier):
    """A folder that knows how long was spent on writing to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written = Watch()

    def put(self, key: str, parts: Sequence[Any]) -> None:
        """Store the bytes of ``parts``."""
        with self.written():
            super().put(key, parts)


@contextmanager
def timed(module: Any, name: str, watch: Watch) -> Iterator[None]:
    """Count the time in a function of a module until the block ends."""
    function = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        with watch():
            return function(*args, **kwargs)

    setattr(module, name, call)
    try:
        yield
    finally:
        setattr(module, name, function)


# --- the published methods, and what makes objects of bytes as they do --------------------


class Encoded:
    """Checkpoints made by an encoder, one object each."""

    def __init__(self, folder: Path, encoder: Any) -> None:
        self.tier, self.encoder, self.count = TimedTier(folder), encoder, 0

    def save(self, state: Bytes) -> Saved:
        """Store the next checkpoint."""
        difference = self.encoder.save(state)
        self.tier.written.seconds = 0.0
        self.tier.put(f"{self.count}", difference.parts)
        self.count += 1
        seconds = difference.seconds | {"write": self.tier.written.seconds}
        return Saved(difference.payload_bytes, difference.metadata_bytes, seconds)

    def restore(self, number: int, into: Bytes) -> Bytes:
        """Return a checkpoint."""
        if isinstance(self.encoder, Full):  # Nothing is as fast as reading into place.
            state = into[: self.tier.size(f"{number}") - HEADER.size]
            self.tier.read_into(f"{number}", state, start_bytes=HEADER.size)
            return state
        return self.encoder.restore(lambda each: self.tier.get(f"{each}"), number, into)


@dataclass(frozen=True, slots=True)
class Compressed:
    """One compressed object."""

    parts: list[bytes]
    seconds: dict[str, float]
    metadata_bytes: int = 0

    @property
    def payload_bytes(self) -> int:
        """All its bytes."""
        return sum(map(len, self.parts))


class Zstd:
    """Each state compressed by itself."""

    def __init__(self, level: int) -> None:
        self.level = level

    def save(self, state: Bytes) -> Compressed:
        """Encode the next checkpoint."""
        began = time.perf_counter()
        stored = zstandard.ZstdCompressor(level=self.level).compress(state.data)
        return Compressed([stored], {"scan": 0.0, "encode": time.perf_counter() - began})

    def restore(self, read: Callable[[int], bytes], number: int, into: Bytes) -> Bytes:
        """Return a checkpoint."""
        stored = read(number)
        target = into[: zstandard.frame_content_size(stored)]
        with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
            done = 0
            while got := reader.readinto(target[done:].data):
                done += got
        return target


class Xdelta:
    """Each state as a difference to the one before, by the program xdelta3."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.old, self.new, self.stored = (folder / name for name in ("old", "new", "stored"))

    def save(self, state: Bytes) -> Compressed:
        """Encode the next checkpoint. The copies that it works on are not timed."""
        state.tofile(self.new)
        began = time.perf_counter()
        self._run("-e", "-9", *self._source(state.nbytes), str(self.new), str(self.stored))
        seconds = {"scan": 0.0, "encode": time.perf_counter() - began}
        self.count += 1
        self.new.replace(self.old)
        return Compressed([self.stored.read_bytes()], seconds)

    def restore(self, read: Callable[[int], bytes], number: int, into: Bytes) -> Bytes:
        """Return a checkpoint: apply all differences up to it."""
        old, self.old = self.old, self.folder / "restored"
        count, self.count = self.count, 0
        try:
            for each in range(number + 1):
                self.stored.write_bytes(read(each))
                source = self._source(len(into))
                self._run("-d", *source, str(self.stored), str(self.new))
                self.new.replace(self.old)
                self.count += 1
            size_bytes = self.old.stat().st_size
            with self.old.open("rb", buffering=0) as file:
                file.readinto(into[:size_bytes].data)
        finally:
            self.old, self.count = old, count
        return into[:size_bytes]

    def _source(self, size_bytes: int) -> list[str]:
        window = 1 << max(20, (size_bytes - 1).bit_length())
        return ["-B", str(window), "-s", str(self.old)] if self.count else []

    @staticmethod
    def _run(*arguments: str) -> None:
        subprocess.run(["xdelta3", "-f", *arguments], check=True, stdin=subprocess.DEVNULL)


class Borg:
    """An archive of Borg for each state; what counts is how much its segments grow."""

    def __init__(self, folder: Path, chunker: str) -> None:
        self.repository, self.chunker, self.count, self.size_bytes = folder, chunker, 0, 0
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._run("init", "--encryption", "none", str(folder))
        self.size_bytes = self._stored()

    def save(self, state: Bytes) -> Saved:
        """Store the next checkpoint. Its phases cannot be told apart: all is in `encode`."""
        began = time.perf_counter()
        self._run(
            *("create", "--compression", "zstd,3", "--chunker-params", self.chunker),
            *(f"{self.repository}::{self.count}", "-"),
            input=state.data,
        )
        seconds = {"scan": 0.0, "encode": time.perf_counter() - began, "write": 0.0}
        self.count += 1
        before, self.size_bytes = self.size_bytes, self._stored()
        return Saved(self.size_bytes - before, 0, seconds)

    def restore(self, number: int, into: Bytes) -> Bytes:
        """Return a checkpoint."""
        stored = self._run("extract", "--stdout", f"{self.repository}::{number}")
        target = into[: len(stored)]
        np.copyto(target, np.frombuffer(stored, np.uint8))
        return target

    def _stored(self) -> int:
        data = self.repository / "data"
        return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())

    def _run(self, *arguments: str, input: Any = None) -> bytes:  # noqa: A002
        environment = os.environ | {
            "BORG_BASE_DIR": str(self.repository.parent),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        done = subprocess.run(
            ["borg", *arguments], input=input, check=True, env=environment, capture_output=True
        )
        return done.stdout


# --- all of them --------------------------------------------------------------------------


def ours(cell_bytes: int) -> Way:
    """Return ckptflow with this unit of reuse, told to store as little as it can."""
    arguments = ours_arguments(cell_bytes)
    return Way("ckptflow", cell_bytes, lambda to: Ours(to, arguments, history=True))


def ours_by_default() -> list[Way]:
    """Return ckptflow without settings, with the one for size, and without a memory."""
    arguments, small = default_arguments(), small_arguments()
    return [
        Way("ckptflow full", 0, lambda to: Ours(to, arguments, history=False)),
        Way("ckptflow default", 0, lambda to: Ours(to, arguments, history=True)),
        Way(SMALL, 0, lambda to: Ours(to, small, history=True)),
    ]


def published(method: type[Full | Basic], chunk_bytes: int) -> Way:
    """Return one of the published methods."""
    return Way(
        method.name,
        0 if method is Full else chunk_bytes,
        lambda to: Encoded(to, method(chunk_bytes)),
    )


def others() -> list[Way]:
    """Return compressors, differs and archivers; those that are not installed, too."""
    levels = [
        Way(f"zstd-{level}", 0, lambda to, level=level: Encoded(to, Zstd(level)))
        for level in (1, 3, 19)
    ]
    programs = [
        Way(
            "xdelta3 -9",
            0,
            lambda to: Encoded(to / "tier", Xdelta(to / "work")),
            _unless_found("xdelta3"),
            program=True,
        ),
        *(
            Way(
                f"borg {name}",
                chunk_bytes,
                lambda to, chunker=chunker: Borg(to / "borg" / "repository", chunker),
                _unless_found("borg"),
                program=True,
                one_number=True,
            )
            for name, chunk_bytes, chunker in (
                ("default", 0, "buzhash,19,23,21,4095"),
                ("fixed", 4096, "fixed,4096"),
            )
        ),
    ]
    return levels + programs


def ways(chunks_bytes: Sequence[int]) -> list[Way]:
    """Return every way, the published methods and ckptflow at each of these sizes."""
    full, *methods = METHODS
    return [
        published(full, chunks_bytes[0]),
        *(published(method, size) for method in methods for size in chunks_bytes),
        *others(),
        *ours_by_default(),
        *(ours(size) for size in chunks_bytes),
    ]


def _unless_found(program: str) -> str:
    return "" if shutil.which(program) else "not installed"
