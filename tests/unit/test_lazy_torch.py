"""Torch loops on the CPU: what an optimizer changes is captured while the next batch runs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.checkpointer.taking import Take
from ckptflow.errors import TornCapture
from ckptflow.tiers.memory import MemoryTier

torch = pytest.importorskip("torch")

WIDTH = 96  # Weights above the size that is copied at once.


def model_and_optimizer(kind: str = "Adam") -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 2)
    )
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.01)


def train(model: Any, optimizer: Any, seed: int) -> None:
    torch.manual_seed(seed)
    batch = torch.randn(16, WIDTH)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def bits(model: Any, optimizer: Any) -> list[bytes]:
    tensors = list(model.state_dict().values())
    for state in optimizer.state_dict()["state"].values():
        tensors += [one for one in state.values() if torch.is_tensor(one)]
    return [one.detach().numpy().tobytes() for one in tensors]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Captures read only when this is set."""
    finish, may_go_on = Take.finish, threading.Event()

    def slow(take: Take) -> None:
        assert may_go_on.wait(60)
        finish(take)

    monkeypatch.setattr(Take, "finish", slow)
    return may_go_on


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_the_step_waits_and_the_forward_pass_does_not(late: threading.Event, kind: str) -> None:
    """The batch statistics change in the forward pass, so they were copied in the call."""
    tier, (model, optimizer) = MemoryTier(), model_and_optimizer(kind)
    train(model, optimizer, 0)
    with Checkpointer(tier, every="never", model=model, optim=optimizer) as ckpt:
        expected = bits(model, optimizer)
        ticket = ckpt.save(1)
        modes = {str(choice.mode) for choice in ticket.modes.values()}
        assert modes == {"lazy", "copy"}
        assert ticket.modes["model/0.weight"].mode == "lazy"
        assert ticket.modes["model/1.running_mean"].mode == "copy"
        stepped = threading.Event()

        def next_iteration() -> None:
            train(model, optimizer, 1)
            stepped.set()

        thread = threading.Thread(target=next_iteration, daemon=True)
        before = model[1].running_mean.clone()
        thread.start()
        while torch.equal(before, model[1].running_mean):
            pass  # Until the forward pass has been.
        assert not stepped.wait(0.05)
        late.set()
        assert stepped.wait(60)
        thread.join()
        assert bits(model, optimizer) != expected
        ticket.wait()
    again = model_and_optimizer(kind)
    train(*again, 5)
    with Checkpointer(tier, every="never", model=again[0], optim=again[1]) as ckpt:
        assert ckpt.resume() == 2
    assert bits(*again) == expected


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_a_loop_that_saves_each_step_stores_each_state(kind: str) -> None:
    tier, (model, optimizer) = MemoryTier(), model_and_optimizer(kind)
    expected = {}
    with Checkpointer(tier, every=1, keep="all", model=model, optim=optimizer) as ckpt:
        for step in range(6):
            train(model, optimizer, step)
            expected[step] = bits(model, optimizer)
            ckpt.step(step)
    with Checkpointer(tier, every="never", model=model, optim=optimizer) as ckpt:
        for step, wanted in expected.items():
            ckpt.restore(step=step)
            assert bits(model, optimizer) == wanted


def test_a_large_buffer_is_not_left_for_later() -> None:
    model = torch.nn.Linear(WIDTH, WIDTH)
    model.register_buffer("seen", torch.zeros(WIDTH * WIDTH))
    frozen = torch.nn.Linear(WIDTH, WIDTH)  # Of no optimizer, so nobody knows who writes.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(MemoryTier(), every="never", a=model, b=frozen, o=[optimizer]) as ckpt:
        modes = ckpt.save(1).modes
    assert {name: str(modes[name].mode) for name in ("a/weight", "a/seen", "b/weight")} == {
        "a/weight": "lazy",
        "a/seen": "copy",
        "b/weight": "copy",
    }


@pytest.mark.parametrize("how", ["in place", "behind autograd"])
def test_a_write_during_the_capture_is_found(late: threading.Event, how: str) -> None:
    tier, (model, optimizer) = MemoryTier(), model_and_optimizer()
    weight = model[0].weight
    real = Take._check

    def written(take: Take, which: np.ndarray) -> None:
        if how == "in place":
            with torch.no_grad():
                weight.add_(1).sub_(1)
        else:
            weight.detach().numpy()[0, 0] += 1
        real(take, which)

    with Checkpointer(tier, every="never", model=model, optim=optimizer) as ckpt:
        late.set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Take, "_check", written)
            ticket = ckpt.save(1)
            ckpt._capturing.wait()
        with pytest.raises(TornCapture, match=r"model/0\.weight"):
            ticket.wait()
        with pytest.warns(CheckpointWarning, match="while it was captured"):
            again = ckpt.save(2)
        assert again.modes["model/0.weight"].mode == "copy"
        again.wait()
    assert [found.id.step for found in ckpt.lineage.valid()] == [2]


def test_the_hooks_go_when_it_is_closed() -> None:
    model, optimizer = model_and_optimizer()
    with Checkpointer(MemoryTier(), every="never", model=model, optim=optimizer):
        assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert not optimizer._optimizer_step_pre_hooks
    with Checkpointer(MemoryTier(), every="never", capture="copy", o=optimizer):
        assert not optimizer._optimizer_step_pre_hooks
