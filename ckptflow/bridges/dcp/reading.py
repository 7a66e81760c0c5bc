"""The reading half: ``torch.distributed.checkpoint.StorageReader`` over our store.

Torch says which boxes of which chunks it wants. Each lies in a range of bytes of one region, so
only that range is read, in parts of limited size, every frame of it verified.
``tests/unit/test_dcp.py``, ``tests/process/test_dcp_ranks.py``.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from ckptflow.bridges.dcp.document import metadata_of, parts_of_state, tensor_name
from ckptflow.bridges.dcp.sessions import Store, session_of
from ckptflow.bridges.dcp.writing import step_of_id
from ckptflow.checkpointer.arguments import step_of
from ckptflow.checkpointer.health import CheckpointWarning
from ckptflow.data import torch_arrays
from ckptflow.data.arrays import ArraySpec
from ckptflow.data.leaves import Node, decode_plain
from ckptflow.data.memory import Layout
from ckptflow.data.overlap import span
from ckptflow.data.tree import array_spec, is_long_bytes, iter_arrays
from ckptflow.errors import ConfigError, CorruptionError, NotFoundError
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.partial import PART_BYTES, PartialReader
from ckptflow.store.rereading import consolidated


class Wanted(NamedTuple):
    """One item of a load as a range of bytes of one region."""

    item: ReadItem
    dtype: str
    region: int
    start: int
    layout: Layout  # Of what is wanted, from the start of the range.
    nbytes: int


class Reader(StorageReader):  # type: ignore[misc]
    """Made by `ckptflow.torch.reader`, which see."""

    def __init__(
        self,
        store: Store,
        *,
        run: str = "default",
        task: str = "main",
        step: int | None = None,
    ) -> None:
        self._session = session_of(store, LineageId(run, task))
        self._step = None if step is None else step_of(step)
        self._manifest: Manifest | None = None
        self._specs: dict[str, ArraySpec] = {}
        self._values: dict[str, Node] = {}

    @property
    def step(self) -> int | None:
        """The step of the checkpoint that was loaded; ``None`` before."""
        return self._manifest.id.step if self._manifest else None

    # --- the calls of torch, in their order ---

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load; ``checkpoint_id`` is its step, if given."""
        self._manifest = None
        if checkpoint_id is not None:
            self._step = step_of_id(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Find the checkpoint and return what torch said about it."""
        self._manifest = manifest = self._found()
        node, self._values = parts_of_state(manifest.structure)
        state = manifest.structure[2]  # The other part is that of random states.
        self._specs = dict(iter_arrays(state))
        return metadata_of(node)

    def set_up_storage_reader(self, *_: Any) -> None:
        """Nothing is left to be done."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say in the plan which checkpoint this rank reads."""
        return replace(plan, storage_data=self._known().id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Make sure that all ranks read one checkpoint; asked of the coordinator."""
        chosen: dict[CheckpointId, int] = {}
        for rank, plan in enumerate(plans):
            chosen.setdefault(plan.storage_data, rank)
        if len(chosen) > 1:
            what = ", ".join(f"rank {rank} {one}" for one, rank in chosen.items())
            raise ConfigError(
                f"Not all ranks found the same checkpoint of {self._session.lineage.id} to be "
                f"the newest: {what}. Say which: reader(step=...)."
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the items of this rank, verified, and give them to the planner."""
        wanted = []
        for item in plan.items:
            value = self._values.get(item.storage_index.fqn)
            if item.type == LoadItemType.BYTE_IO and not is_long_bytes(value):
                planner.load_bytes(item, io.BytesIO(decode_plain(value)))
            else:
                wanted.append(self._wanted(item, value))
        for batch in _batches(wanted):
            for one, data in zip(batch, self._read(batch), strict=True):
                _give(one, data, planner)
        self._session.loaded = self._known().id
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether it is a step."""
        return str(checkpoint_id).isdecimal()

    # --- inside ---

    def _found(self) -> Manifest:
        """Return the manifest to be read; one that is damaged is passed over for an older."""
        lineage, damaged = self._session.lineage, None
        found = (
            lineage.valid_newest_first()
            if self._step is None
            else lineage.valid_of_step(self._step)
        )
        for one in found:
            try:
                return lineage.manifest(one)
            except CorruptionError as error:
                damaged = error
                warnings.warn(f"{error} It is passed over.", CheckpointWarning, stacklevel=3)
        if damaged is not None:
            raise damaged
        which = "checkpoint" if self._step is None else f"checkpoint of step {self._step}"
        raise NotFoundError(f"{lineage.id} has no {which}.")

    def _known(self) -> Manifest:
        assert self._manifest is not None, "torch reads the metadata first"
        return self._manifest

    def _wanted(self, item: ReadItem, value: Any) -> Wanted:
        if item.type == LoadItemType.BYTE_IO:
            spec = array_spec(value[1])
            begin, shape = (0,), spec.shape
        else:
            index = item.storage_index
            spec = self._specs[tensor_name(index.fqn, index.offset)]
            begin, shape = tuple(item.storage_offsets), tuple(item.lengths)
        spec.check(self._known().regions[spec.region].size_bytes)
        whole = spec.layout()
        skipped = sum(a * b for a, b in zip(begin, whole.strides_bytes, strict=True))
        layout = whole._replace(address=whole.address + skipped, shape=shape)
        low, high = span(layout)
        layout = layout._replace(address=layout.address - low)
        return Wanted(item, spec.dtype, spec.region, low, layout, high - low)

    def _read(self, batch: Sequence[Wanted]) -> list[memoryview]:
        """Return the bytes of some ranges."""
        manifest, tiers = self._known(), self._session.lineage.tiers
        try:
            return _read_ranges(tiers, manifest, batch)
        except CorruptionError:  # Its packs may have gone with a consolidation.
            self._manifest = consolidated(tiers, manifest)
            if self._manifest is None:
                self._manifest = manifest
                raise
            return _read_ranges(tiers, self._manifest, batch)


def _read_ranges(
    tiers: Sequence[Any], manifest: Manifest, batch: Sequence[Wanted]
) -> list[memoryview]:
    region = np.array([one.region for one in batch], np.intp)
    start = np.array([one.start for one in batch], np.uint64)
    length = np.array([one.nbytes for one in batch], np.uint64)
    with PartialReader(tiers, manifest) as reader:
        data, shifted = reader.read(region, start, length)
    return [
        data[one.region][int(at) : int(at) + one.nbytes]
        for one, at in zip(batch, shifted, strict=True)
    ]


def _batches(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Yield items that are read at once, in the order in which they lie."""
    batch: list[Wanted] = []
    total_bytes = 0
    for one in sorted(wanted, key=lambda one: (one.region, one.start)):
        if batch and total_bytes + one.nbytes > PART_BYTES:
            yield batch
            batch, total_bytes = [], 0
        batch.append(one)
        total_bytes += one.nbytes
    if batch:
        yield batch


def _give(one: Wanted, data: memoryview, planner: LoadPlanner) -> None:
    """Hand what was read to the planner."""
    if one.item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(one.item, io.BytesIO(data))
        return
    source = torch_arrays.over(np.frombuffer(data, np.uint8), one.layout, one.dtype)
    target = planner.resolve_tensor(one.item).detach()
    if target.shape != source.shape:
        raise ConfigError(
            f"{one.item.storage_index.fqn!r} has the shape {tuple(source.shape)} in the "
            f"checkpoint, and the planner gave {tuple(target.shape)} to put it."
        )
    target.copy_(source)
    planner.commit_tensor(one.item, target)
