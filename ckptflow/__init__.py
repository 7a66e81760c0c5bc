"""Checkpoint and restart for HPC workflows: incremental, verified, multi-level, on Parsl.

The whole public face is here. Names are imported when they are first used, so that a training
script which only needs `Checkpointer` does not wait for Parsl.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptflow.checkpointer import Checkpointer, CheckpointWarning
    from ckptflow.checkpointer.sharded import ShardedCheckpointer
    from ckptflow.checkpointer.ticket import Ticket
    from ckptflow.data.boxes import Box
    from ckptflow.data.leaves import register_leaf
    from ckptflow.flush.options import Flushing
    from ckptflow.model import Export
    from ckptflow.policy.interval import (
        EverySeconds,
        EverySteps,
        Never,
        OverheadAtMost,
        YoungDaly,
    )
    from ckptflow.policy.progress import Interval
    from ckptflow.policy.retention import BestOf, Retention
    from ckptflow.policy.tuned import Tuned
    from ckptflow.site import Site, load, load_site
    from ckptflow.store.packing import Packing
    from ckptflow.tiers.memory import MemoryTier
    from ckptflow.tiers.opening import open_store
    from ckptflow.tiers.posix import PosixTier
    from ckptflow.tiers.tier import Tier
    from ckptflow.workflow.apps import bash_app, python_app
    from ckptflow.workflow.attaching import attach
    from ckptflow.workflow.retry import retry_handler
    from ckptflow.workflow.run import Run, build_config, run

__version__ = importlib.metadata.version("ckptflow")

_HOMES = {
    "BestOf": "policy.retention",
    "Box": "data.boxes",
    "CheckpointWarning": "checkpointer",
    "Checkpointer": "checkpointer",
    "EverySeconds": "policy.interval",
    "EverySteps": "policy.interval",
    "Export": "model",
    "Flushing": "flush.options",
    "Interval": "policy.progress",
    "MemoryTier": "tiers.memory",
    "Never": "policy.interval",
    "OverheadAtMost": "policy.interval",
    "Packing": "store.packing",
    "PosixTier": "tiers.posix",
    "Retention": "policy.retention",
    "Run": "workflow.run",
    "ShardedCheckpointer": "checkpointer.sharded",
    "Site": "site",
    "Ticket": "checkpointer.ticket",
    "Tier": "tiers.tier",
    "Tuned": "policy.tuned",
    "YoungDaly": "policy.interval",
    "attach": "workflow.attaching",
    "bash_app": "workflow.apps",
    "build_config": "workflow.run",
    "load": "site",
    "load_site": "site",
    "open_store": "tiers.opening",
    "python_app": "workflow.apps",
    "register_leaf": "data.leaves",
    "retry_handler": "workflow.retry",
    "run": "workflow.run",
}

_FACES = {  # Modules for what may not be installed.
    "globus_compute": "ckptflow.workflow.globus_compute",
    "huggingface": "ckptflow.huggingface",
    "lightning": "ckptflow.lightning",
    "torch": "ckptflow.torch",
}

__all__ = [
    "BestOf",
    "Box",
    "CheckpointWarning",
    "Checkpointer",
    "EverySeconds",
    "EverySteps",
    "Export",
    "Flushing",
    "Interval",
    "MemoryTier",
    "Never",
    "OverheadAtMost",
    "Packing",
    "PosixTier",
    "Retention",
    "Run",
    "ShardedCheckpointer",
    "Site",
    "Ticket",
    "Tier",
    "Tuned",
    "YoungDaly",
    "attach",
    "bash_app",
    "build_config",
    "load",
    "load_site",
    "open_store",
    "python_app",
    "register_leaf",
    "retry_handler",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _FACES:
        return importlib.import_module(_FACES[name])
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptflow' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ckptflow.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_FACES])
