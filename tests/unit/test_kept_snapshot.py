"""The snapshot kept for deltas: held while they are made, and given back in any case."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from typing_extensions import Buffer

import ckptflow as cf
from ckptflow.errors import CheckpointError, TierUnavailable
from ckptflow.store.packer import Packer
from ckptflow.tiers.memory import MemoryTier

COUNT = 50_000


def drifting(step: int) -> dict[str, Any]:
    """Return a state that is stored as a delta on the one before."""
    values = np.random.default_rng(0).standard_normal(COUNT)
    return {"w": values * (1 + 1e-12) ** step}


def test_deltas_are_made_before_the_snapshot_is_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A save that needs the room comes while the one before it makes its deltas."""
    began, may_go_on = threading.Event(), threading.Event()
    held, encode = threading.Event(), Packer._frame

    def slow(packer: Packer, pieces: slice) -> Any:
        if held.is_set():
            began.set()
            assert may_go_on.wait(60)
        return encode(packer, pieces)

    monkeypatch.setattr(Packer, "_frame", slow)
    tier, budget_bytes = MemoryTier(), int(COUNT * 8 * 2.5)
    with cf.Checkpointer(
        tier, packing="small", budget_bytes=budget_bytes, every="never", keep="all", rng=False
    ) as ckpt:
        ckpt.save(0, drifting(0)).wait()
        held.set()
        ckpt.save(1, drifting(1))
        assert began.wait(60)
        other = {"w": np.full(COUNT, 7.0)}
        third = threading.Thread(target=ckpt.save, args=(2, other), daemon=True)
        third.start()
        third.join(0.2)
        may_go_on.set()
        third.join(60)
        ckpt.wait()
        found = ckpt.lineage.valid()[1]
        assert ckpt.lineage.manifest(found).regions[0].deltas
    with cf.Checkpointer(tier, rng=False) as again:
        assert np.array_equal(again.restore(step=1)["w"], drifting(1)["w"])


def test_going_back_gives_the_snapshot_back() -> None:
    """However often a task goes back: each attempt would keep one for itself."""
    state = drifting(0)
    budget_bytes = int(COUNT * 8 * 2.5)
    with cf.Checkpointer(
        MemoryTier(), packing="small", budget_bytes=budget_bytes, every="never"
    ) as ckpt:
        for step in range(6):
            saving = threading.Thread(target=ckpt.save, args=(step, state), daemon=True)
            saving.start()
            saving.join(60)
            assert not saving.is_alive(), "it waits for memory that nobody gives back"
            ckpt.wait()
            state = ckpt.restore(state)


class Failing(MemoryTier):
    """A tier that fails while somebody waits for memory."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.may_fail = threading.Event(), threading.Event()
        self.fails = False

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Put, or fail when it is asked to."""
        if self.fails and "/packs/" in key:
            self.began.set()
            assert self.may_fail.wait(60)
            raise TierUnavailable("asked to")
        super().put(key, parts)


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_a_failed_save_gives_the_snapshot_back_to_who_waits() -> None:
    tier, tickets = Failing(), []
    budget_bytes = COUNT * 8 * 2 + 4096
    large = {"w": np.zeros(2 * COUNT)}  # Needs the room of both.
    with cf.Checkpointer(
        tier, packing="small", budget_bytes=budget_bytes, every="never", rng=False
    ) as ckpt:
        ckpt.save(0, drifting(0)).wait()
        tier.fails = True
        failing = ckpt.save(1, drifting(1))
        assert tier.began.wait(60)
        waiting = threading.Thread(
            target=lambda: tickets.append(ckpt.save(2, large)), daemon=True
        )
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        tier.fails = False
        tier.may_fail.set()
        waiting.join(60)
        assert tickets, "it waits for memory that nobody gives back"
        with pytest.raises(CheckpointError, match="asked to"):
            failing.wait()
        tickets[0].wait()
    with cf.Checkpointer(tier, rng=False) as again:
        assert not again.restore()["w"].any()
