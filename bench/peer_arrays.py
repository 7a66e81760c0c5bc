"""Ways to save that take NumPy arrays, for `peers.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import updates
from peer_ways import InBackground, Saving, Unavailable, Way, put_in_place
from updates import State

CHUNK_WORDS = 1 << 20  # Of zarr and icechunk, where an array is longer.


class Safetensors(Way):
    """A file for all arrays, synced and renamed; read back through a map of it."""

    def save(self, step: int) -> Saving:
        from safetensors.numpy import save_file

        partial = self.folder / "partial"
        save_file(self.state, partial)
        put_in_place(partial, self.path(step))
        return Saving()

    def restore(self, step: int) -> None:
        from safetensors import safe_open

        with safe_open(self.path(step), framework="numpy") as file:
            for name, array in self.state.items():
                array[:] = file.get_tensor(name)


class Hdf5(Way):
    """A file of contiguous data sets."""

    def save(self, step: int) -> Saving:
        import h5py

        partial = self.folder / "partial"
        with h5py.File(partial, "w") as file:
            for name, array in self.state.items():
                file.create_dataset(name, data=array)
        put_in_place(partial, self.path(step))
        return Saving()

    def restore(self, step: int) -> None:
        import h5py

        with h5py.File(self.path(step), "r") as file:
            for name, array in self.state.items():
                file[name].read_direct(array)


class Zarr(Way):
    """A store of version 3 for each save, not compressed."""

    def save(self, step: int) -> Saving:
        import zarr

        group = zarr.open_group(self.path(step), mode="w")
        for name, array in self.state.items():
            group.create_array(
                name, data=array, chunks=(min(len(array), CHUNK_WORDS),), compressors=None
            )
        self.sync_new()
        return Saving()

    def restore(self, step: int) -> None:
        import zarr

        group = zarr.open_group(self.path(step), mode="r")
        for name, array in self.state.items():
            array[:] = group[name][:]


class Icechunk(Way):
    """A repository with a commit for each save."""

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        import icechunk

        self._icechunk = icechunk
        self._storage = icechunk.local_filesystem_storage(str(folder / "repository"))
        self._repository = icechunk.Repository.create(self._storage)
        self._ids: dict[int, str] = {}  # Of commits, by step.

    def save(self, step: int) -> Saving:
        import zarr

        session = self._repository.writable_session("main")
        group = zarr.open_group(session.store)
        for name, array in self.state.items():
            if self._ids:
                group[name][:] = array
            else:
                chunks = (min(len(array), CHUNK_WORDS),)
                group.create_array(name, data=array, chunks=chunks, compressors=None)
        self._ids[step] = session.commit(str(step))
        self.sync_new()
        return Saving()

    def forget(self, step: int) -> None:
        """Older commits stay; they are deleted with the folder."""

    def restore(self, step: int) -> None:
        import zarr

        repository = self._icechunk.Repository.open(self._storage)
        session = repository.readonly_session(snapshot_id=self._ids[step])
        group = zarr.open_group(session.store, mode="r")
        for name, array in self.state.items():
            array[:] = group[name][:]


class Orbax(Way):
    """`CheckpointManager`, asynchronous, as it is by default."""

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        import orbax.checkpoint as orbax

        self._orbax = orbax
        self._manager = self._open()

    def _open(self) -> Any:
        options = self._orbax.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=True
        )
        return self._orbax.CheckpointManager(self.folder, options=options)

    def save(self, step: int) -> Saving:
        self._manager.save(step, args=self._orbax.args.StandardSave(self.state))
        return InBackground(self._finish)

    def _finish(self) -> None:
        self._manager.wait_until_finished()
        self.sync_new()

    def forget(self, step: int) -> None:
        """Its manager does."""

    def close(self) -> None:
        self._manager.close()

    def restore(self, step: int) -> None:
        with self._open() as manager:
            self.take(manager.restore(step, args=self._orbax.args.StandardRestore(self.state)))


class Borg(Way):
    """A backup by content: chunks of 64 KiB, each of which is stored once."""

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        beside = Path(sys.executable).with_name("borg")
        self._program = str(beside) if beside.exists() else "borg"
        self._repository = folder / "repository"
        self._environment = os.environ | {
            "BORG_BASE_DIR": str(folder / "home"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        try:
            self._run("init", "--encryption=none", str(self._repository))
        except FileNotFoundError:
            raise Unavailable("the program borg is not installed") from None

    def save(self, step: int) -> Saving:
        with subprocess.Popen(
            [
                self._program,
                "create",
                "--chunker-params=fixed,65536",
                "--compression=none",
                "--files-cache=disabled",
                f"{self._repository}::{step}",
                "-",
            ],
            env=self._environment,
            stdin=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            for pieces in updates.batches(self.state, None):
                for piece in pieces:
                    process.stdin.write(piece)
            process.stdin.close()
        if process.returncode:
            raise OSError(f"borg create ended with {process.returncode}")
        self.sync_new()
        return Saving()

    def forget(self, step: int) -> None:
        """What is the same is there once, so little is gained."""

    def restore(self, step: int) -> None:
        arguments = ["extract", "--stdout", f"{self._repository}::{step}"]
        with subprocess.Popen(
            [self._program, *arguments], env=self._environment, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for array in self.state.values():
                process.stdout.readinto(memoryview(array).cast("B"))  # type: ignore[attr-defined]
        if process.returncode:
            raise OSError(f"borg extract ended with {process.returncode}")

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._program, *arguments], check=True, env=self._environment)
