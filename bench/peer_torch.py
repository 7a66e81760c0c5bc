"""Ways to save that need PyTorch, for `peers.py`.

Tensors share the memory of the state's arrays, so whoever changes one changes both.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from peer_ways import InBackground, Saving, Way, put_in_place
from updates import State


def tensors_of(state: State) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in state.items()}


class TorchSave(Way):
    """`torch.save` to a file that is synced; read back through a map of it."""

    def save(self, step: int) -> Saving:
        self.write(step, tensors_of(self.state))
        return Saving()

    def write(self, step: int, tensors: Any) -> None:
        import torch

        partial = self.folder / "partial"
        torch.save(tensors, partial)
        put_in_place(partial, self.path(step))

    def restore(self, step: int) -> None:
        import torch

        loaded = torch.load(self.path(step), weights_only=True, mmap=True)
        self.take({name: tensor.numpy() for name, tensor in loaded.items()})


class DeepcopyThread(TorchSave):
    """The scheme of CheckFreq: a copy in the call, a file by a thread, one at a time."""

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        self._tensors, self._last = tensors_of(state), Saving()

    def save(self, step: int) -> Saving:
        self._last.wait()
        snapshot = copy.deepcopy(self._tensors)
        self._last = InBackground(lambda: self.write(step, snapshot))
        return self._last


class Dcp(Way):
    """`torch.distributed.checkpoint`, with its file writer, which syncs files."""

    def save(self, step: int) -> Saving:
        from torch.distributed import checkpoint

        checkpoint.save(tensors_of(self.state), storage_writer=self.writer(step), no_dist=True)
        self.sync_new()
        return Saving()

    def writer(self, step: int) -> Any:
        from torch.distributed.checkpoint import FileSystemWriter

        return FileSystemWriter(self.path(step), thread_count=2, sync_files=True)

    def restore(self, step: int) -> None:
        from torch.distributed import checkpoint

        checkpoint.load(tensors_of(self.state), checkpoint_id=self.path(step), no_dist=True)


class DcpAsync(Dcp):
    """The same, from a thread or a process; the next save waits for the one before."""

    def __init__(self, folder: Path, state: State, kind: str) -> None:
        super().__init__(folder, state)
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self._kind, self._last = AsyncCheckpointerType(kind), Saving()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def save(self, step: int) -> Saving:
        from torch.distributed import checkpoint

        self._last.wait()
        future = checkpoint.async_save(
            tensors_of(self.state),
            storage_writer=self.writer(step),
            async_checkpointer_type=self._kind,
        )

        def finish() -> None:
            future.result()
            self.sync_new()

        self._last = InBackground(finish)
        return self._last


class TorchSnapshot(Way):
    """`Snapshot.async_take`, which syncs nothing itself."""

    def save(self, step: int) -> Saving:
        from torchsnapshot import Snapshot

        pending = Snapshot.async_take(str(self.path(step)), self._application_state())

        def finish() -> None:
            pending.wait()
            self.sync_new()

        return InBackground(finish)

    def _application_state(self) -> dict[str, Any]:
        from torchsnapshot import StateDict

        return {"state": StateDict(**tensors_of(self.state))}

    def restore(self, step: int) -> None:
        from torchsnapshot import Snapshot

        Snapshot(str(self.path(step))).restore(self._application_state())


class TorchCheckpointing(Way):
    """`CheckpointManager`, which copies in a thread and writes by a process.

    With its lock, a program that wants to change its state waits until the copy is made.
    """

    def __init__(self, folder: Path, state: State, *, lock: bool) -> None:
        super().__init__(folder, state)
        from torch_checkpointing.config import AsyncCheckpointSaverConfig

        self.captures_later = lock
        self._manager = self._open(AsyncCheckpointSaverConfig())
        self._manager.prewarm_staging({"state": tensors_of(state)})

    def _open(self, saver: Any) -> Any:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        # Its default, O_DIRECT, fails on ext4: what it writes is not aligned.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        return CheckpointManager(CheckpointManager.Config(save=saver, storage_config=storage))

    def save(self, step: int) -> Saving:
        future = self._manager.save(str(self.path(step)), {"state": tensors_of(self.state)})

        def finish() -> None:
            future.result()
            self.sync_new()

        return InBackground(finish, self._wait_for_copy if self.captures_later else _nothing)

    def _wait_for_copy(self) -> None:
        with self._manager.lock():
            pass

    def close(self) -> None:
        self._manager.close()

    def restore(self, step: int) -> None:
        from torch_checkpointing.config import SyncCheckpointSaverConfig

        manager = self._open(SyncCheckpointSaverConfig())  # Which starts no process to write.
        manager.load(str(self.path(step)), into={"state": tensors_of(self.state)})
        manager.close()


def _nothing() -> None:
    """Do nothing."""
