"""The ways to save that `peers.py` compares, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from peer_arrays import Borg, Hdf5, Icechunk, Orbax, Safetensors, Zarr
from peer_torch import (
    Dcp,
    DcpAsync,
    DeepcopyThread,
    TorchCheckpointing,
    TorchSave,
    TorchSnapshot,
)
from peer_ways import Ckptflow, Way
from updates import State


@dataclass(frozen=True, slots=True)
class Entry:
    """One way.

    Attributes:
        make: sets it up in an empty folder for a state.
        imports: modules that it needs; their memory is not counted as what saving takes.
        packages: whose versions are told.
    """

    make: Callable[[Path, State], Way]
    imports: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


MODES = ("auto", "copy", "diff-first", "lazy")
OURS = tuple(f"ckptflow {mode}" for mode in MODES)
_CKPTFLOW = ("ckptflow.checkpointer",)
_TCP = ("torch-checkpointing",)
_DCP = ("torch.distributed.checkpoint",)

WAYS: dict[str, Entry] = {
    **{f"ckptflow {mode}": Entry(partial(Ckptflow, capture=mode), _CKPTFLOW) for mode in MODES},
    "torch.save": Entry(TorchSave, ("torch",), ("torch",)),
    "deepcopy and thread": Entry(DeepcopyThread, ("torch",), ("torch",)),
    "safetensors": Entry(Safetensors, ("safetensors.numpy",), ("safetensors",)),
    "DCP": Entry(Dcp, _DCP, ("torch",)),
    "DCP async, thread": Entry(partial(DcpAsync, kind="thread"), _DCP, ("torch",)),
    "DCP async, process": Entry(partial(DcpAsync, kind="process"), _DCP, ("torch",)),
    "torchsnapshot": Entry(TorchSnapshot, ("torchsnapshot",), ("torchsnapshot",)),
    "torch-checkpointing": Entry(
        partial(TorchCheckpointing, lock=True), ("torch_checkpointing",), _TCP
    ),
    "torch-checkpointing, no lock": Entry(
        partial(TorchCheckpointing, lock=False), ("torch_checkpointing",), _TCP
    ),
    "orbax": Entry(Orbax, ("orbax.checkpoint",), ("orbax-checkpoint", "jax")),
    "zarr": Entry(Zarr, ("zarr",), ("zarr",)),
    "icechunk": Entry(Icechunk, ("icechunk", "zarr"), ("icechunk",)),
    "h5py": Entry(Hdf5, ("h5py",), ("h5py",)),
    "borg": Entry(Borg, (), ("borgbackup",)),
}
