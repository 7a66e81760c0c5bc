"""Storage for ``torch.distributed.checkpoint``: incremental, verified, with one commit.

dcp.save(state_dict, storage_writer=ckptflow.torch.writer("store", step=100))
dcp.load(state_dict, storage_reader=ckptflow.torch.reader("store"))
"""

from __future__ import annotations

from ckptflow.bridges.dcp.reading import Reader
from ckptflow.bridges.dcp.sessions import Store
from ckptflow.bridges.dcp.writing import Writer
from ckptflow.policy.retention import Retention
from ckptflow.store.packing import Packing

__all__ = ["reader", "writer"]


def writer(
    store: Store,
    *,
    run: str = "default",
    task: str = "main",
    step: int | None = None,
    keep: int | str | Retention = "all",
    packing: str | Packing | None = None,
) -> Writer:
    """Return where ``torch.distributed.checkpoint`` writes to.

    Give the same on all ranks. What a process has written before to the same store, run and
    task is not written again, whether by this writer or another.

    Args:
        store: a folder, an address or a tier that all ranks see.
        run: name of the workflow run.
        task: name of the task within the run.
        step: of the next save; ``checkpoint_id`` of ``dcp.save`` is a step, too.
        keep: which checkpoints stay, as for `Checkpointer`, but by default all.
        packing: how states are compared and stored.

    Raises:
        ConfigError: an argument is none of these, or there are several tiers.
    """
    return Writer(store, run=run, task=task, step=step, keep=keep, packing=packing)


def reader(
    store: Store, *, run: str = "default", task: str = "main", step: int | None = None
) -> Reader:
    """Return where ``torch.distributed.checkpoint`` reads from.

    Its ``step`` tells, after the load, of which step that was.

    Args:
        store: a folder, an address or a tier, or several of them, the nearest first.
        run: name of the workflow run.
        task: name of the task within the run.
        step: which checkpoint, the newest by default; ``checkpoint_id`` of ``dcp.load`` is a
            step, too.

    Raises:
        ConfigError: an argument is none of these.
    """
    return Reader(store, run=run, task=task, step=step)
