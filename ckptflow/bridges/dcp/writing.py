"""The writing half: ``torch.distributed.checkpoint.StorageWriter`` over our store.

Every rank puts packs with what is new of its items; the coordinator puts one manifest over all
of them, which is the commit. ``tests/unit/test_dcp.py``, ``tests/process/test_dcp_ranks.py``.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ckptflow.bridges.dcp.document import joined_node, offsets_key
from ckptflow.bridges.dcp.sessions import Session, Store, session_of
from ckptflow.checkpointer.arguments import step_of
from ckptflow.checkpointer.health import CheckpointWarning
from ckptflow.data.leaves import Node
from ckptflow.data.regions import Region, flatten
from ckptflow.errors import ConfigError, TierError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.store.memory import NamedRegion
from ckptflow.store.packing import Packing, parse_packing
from ckptflow.store.parts import Part, commit, joined
from ckptflow.store.prune import prune


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank tells the coordinator: small, and sent by torch's own means.

    Attributes:
        part: of the checkpoint.
        node: of its tensors and bytes; regions count from 0.
    """

    part: Part
    node: Node


class Writer(StorageWriter):  # type: ignore[misc]
    """Made by `ckptflow.torch.writer`, which see."""

    def __init__(
        self,
        store: Store,
        *,
        run: str = "default",
        task: str = "main",
        step: int | None = None,
        keep: int | str | Retention = "all",
        packing: str | Packing | None = None,
    ) -> None:
        self._store, self._lineage = store, LineageId(run, task)
        self._step = None if step is None else step_of(step)
        self._retention, self._packing = parse_retention(keep), parse_packing(packing)
        self._own: RankPart | None = None
        self._check_tiers()

    def _session(self) -> Session:
        return session_of(self._store, self._lineage)

    def _check_tiers(self) -> None:
        if len(tiers := self._session().lineage.tiers) != 1:
            names = ", ".join(repr(tier.name) for tier in tiers)
            raise ConfigError(
                f"A writer for torch.distributed.checkpoint writes to one tier, which all "
                f"ranks see; got {names}. Copy outward with `ckptflow flush`."
            )

    def __getstate__(self) -> dict[str, Any]:
        # Sent to a process that writes, which does not know what was loaded in this one.
        return {**self.__dict__, "_own": None, "loaded": self._session().loaded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._lineage = state["_store"], state["_lineage"]
        self._session().loaded = state.pop("loaded")
        self.__dict__.update(state)

    # --- the calls of torch, in their order ---

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save; ``checkpoint_id`` is its step, if given."""
        if checkpoint_id is not None:
            self._step = step_of_id(checkpoint_id)

    def set_up_storage_writer(
        self,
        is_coordinator: bool,  # noqa: FBT001  It is torch's call.
        *_: Any,
        **kwargs: Any,
    ) -> None:
        """Take the role of this rank; the coordinator claims the attempt."""
        if not kwargs.get("use_collectives", True):
            raise ConfigError(
                "use_collectives=False makes as many checkpoints as there are ranks; ckptflow "
                "commits one for all. Leave it at True."
            )
        if is_coordinator:
            self._session().begin(self._known_step())

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans as they are: a planner may keep them, and what we add would stay."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Put what is new of the items of this rank; none of it is committed."""
        session = self._session()
        with session.writing(self._packing) as writer:
            state, sizes = _resolved(plan.items, planner)
            flat = flatten(state)
            regions = [
                NamedRegion(region.name, _bytes_of(region), region.item_bytes)
                for region in flat.regions
            ]
            attempt = session.lineage.newest_claimed()  # By the coordinator, a moment ago.
            part = writer.write(CheckpointId(self._known_step(), attempt), regions)
        self._own = RankPart(part, flat.structure)
        results = [
            WriteResult(item.index, size_bytes, storage_data=None if number else self._own)
            for number, (item, size_bytes) in enumerate(zip(plan.items, sizes, strict=True))
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit what all ranks have put; only the coordinator does."""
        told = [result.storage_data for of_rank in results for result in of_rank]
        ranks = [one for one in told if one is not None] or [self._own]
        counts = itertools.accumulate((len(rank.part.regions) for rank in ranks), initial=0)
        nodes = [(rank.node, first) for rank, first in zip(ranks, counts, strict=False)]
        structure = joined_node(metadata, nodes)
        manifest = joined([rank.part for rank in ranks], self._lineage, structure=structure)
        session = self._session()
        tier = session.lineage.tiers[0]
        commit(tier, session.lineage, manifest, before_commit=session.may_commit)
        if self._retention == parse_retention("all"):
            return
        try:
            prune(session.lineage, tier, self._retention)
        except TierError as error:  # What is saved is saved.
            warnings.warn(f"{error} Nothing was pruned.", CheckpointWarning, stacklevel=2)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether it is a step."""
        return str(checkpoint_id).isdecimal()

    def _known_step(self) -> int:
        if self._step is None:
            raise ConfigError(
                "Which step is saved? Give writer(..., step=...), or save(checkpoint_id=...)."
            )
        return self._step


def step_of_id(checkpoint_id: object) -> int:
    """Return the step that a ``checkpoint_id`` of torch names.

    Raises:
        ConfigError: it is no number.
    """
    text = os.fspath(checkpoint_id) if isinstance(checkpoint_id, os.PathLike) else checkpoint_id
    return step_of(int(text) if isinstance(text, str) and text.isdecimal() else text)


def _resolved(
    items: Sequence[WriteItem], planner: SavePlanner
) -> tuple[dict[str, Any], list[int]]:
    """Return what is to be written of the items as a state, and the bytes of each."""
    tensors: dict[str, dict[str, Any]] = {}
    values: dict[str, bytes] = {}
    sizes = []
    for item in items:
        name, data = item.index.fqn, planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            values[name] = data.getvalue()
            sizes.append(len(values[name]))
        else:
            tensors.setdefault(name, {})[offsets_key(item.tensor_data.chunk.offsets)] = data
            sizes.append(data.nbytes)
    return {"tensors": tensors, "bytes": values}, sizes


def _bytes_of(region: Region) -> memoryview:
    """Return the bytes of a region where they lie; those of a device are copied to the host."""
    if region.data is not None:
        return region.data.data
    gathered = np.empty(region.nbytes, np.uint8)
    region.copy_into(gathered)
    return gathered.data
