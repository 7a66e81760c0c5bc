"""Boxes of global arrays as leaves of a state; DTensors of a mesh of one rank."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.data import boxes
from ckptflow.data.dtypes import Unsupported
from ckptflow.errors import ConfigError, RestoreError, StateError
from ckptflow.tiers.memory import MemoryTier


def one(tier: MemoryTier, launch: str, **options: Any) -> cf.ShardedCheckpointer:
    return cf.ShardedCheckpointer(tier, rank=0, world=1, launch=launch, rng=False, **options)


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier("store", level=3)


@pytest.mark.parametrize(
    ("offset", "shape"),
    [((-1, 0), (4, 4)), ((3, 0), (4, 4)), ((0,), (4, 4)), ((0, 0, 0), (4, 4))],
)
def test_a_box_lies_in_its_array(offset: tuple[int, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="does not lie in an array"):
        cf.Box(np.zeros((2, 3)), offset, shape)


def test_a_plain_checkpointer_takes_no_box() -> None:
    refused = pytest.raises(StateError, match="rest of; save it with a ShardedCheckpointer")
    with cf.Checkpointer(MemoryTier()) as ckpt, refused:
        ckpt.save(1, {"x": cf.Box(np.zeros(3), (0,), (9,))})


def test_a_box_shares_no_memory(tier: MemoryTier) -> None:
    whole = np.zeros(9)
    state = {"part": cf.Box(whole[:3], (0,), (9,)), "all": whole}
    with one(tier, "a") as ckpt, pytest.raises(StateError, match="'part', 'all': share memory"):
        ckpt.save(1, state)


def test_what_no_rank_has_is_an_error(tier: MemoryTier) -> None:
    with one(tier, "a") as ckpt:
        ckpt.restore({})
        ckpt.save(1, {"x": cf.Box(np.ones(3), (0,), (9,))})
    state = {"x": cf.Box(np.zeros(3), (1,), (9,))}
    with one(tier, "b") as ckpt, pytest.raises(RestoreError) as caught:
        ckpt.restore(state)
    assert "no shard has all of 'x'" in "".join(caught.value.__notes__)


def test_a_box_of_another_array(tier: MemoryTier) -> None:
    with one(tier, "a") as ckpt:
        ckpt.restore({})
        ckpt.save(1, {"x": cf.Box(np.ones(9), (0,), (9,))})
    refused = pytest.raises(StateError, match=r"'x': shape \(9,\) in the checkpoint, a box of")
    with one(tier, "b") as ckpt, refused:
        ckpt.restore({"x": cf.Box(np.zeros(3), (1,), (8,))})


def test_boxes_have_to_be_there(tier: MemoryTier) -> None:
    """An optimizer of sharded parameters has no state before its first step."""
    with one(tier, "a") as ckpt:
        ckpt.restore({})
        ckpt.save(1, {name: cf.Box(np.ones(9), (0,), (9,)) for name in ("w", "moment")})
    refused = pytest.raises(StateError, match="'moment': a part of a global array in the")
    with one(tier, "b") as ckpt, refused:
        ckpt.restore({"w": cf.Box(np.zeros(3), (1,), (9,)), "moment": None})
    with one(tier, "c") as ckpt:  # Nothing is in parts here.
        assert (ckpt.restore({"w": np.zeros(9), "moment": None})["moment"] == 1).all()


def test_a_box_of_what_was_whole(tier: MemoryTier) -> None:
    """Saved by ranks that all had it, restored by ranks that have a part each."""
    whole = np.random.default_rng(0).normal(size=(40, 30))
    for turned in (whole, np.asfortranarray(whole), np.repeat(whole, 2, axis=1)[:, ::2]):
        with one(tier, f"a{id(turned)}", replicated="*", task=f"t{id(turned)}") as ckpt:
            ckpt.restore({})
            ckpt.save(1, {"x": turned})
        part = cf.Box(np.zeros((10, 7)), (20, 5), whole.shape)
        with one(tier, "b", task=f"t{id(turned)}") as ckpt:
            ckpt.restore({"x": part})
        assert (part.array == whole[20:30, 5:12]).all()


# --- DTensors ------------------------------------------------------------------------------


class Mesh:
    """A mesh as far as placements are asked of it."""

    def __init__(self, sizes: tuple[int, ...], coordinate: tuple[int, ...] | None) -> None:
        self._sizes, self._coordinate = sizes, coordinate

    def size(self, axis: int) -> int:
        return self._sizes[axis]

    def get_coordinate(self) -> list[int] | None:
        return None if self._coordinate is None else list(self._coordinate)


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    """Torch's process group of one rank."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield torch
    dist.destroy_process_group()


def test_a_dtensor_is_a_box(alone: Any, tier: MemoryTier) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    values = alone.arange(24.0).reshape(4, 6)
    state = {
        "rows": distribute_tensor(values, mesh, [Shard(0)]),
        "all": distribute_tensor(values + 1, mesh, [Replicate()]),
        "bf16": distribute_tensor(values.to(alone.bfloat16), mesh, [Shard(1)]),
    }
    with one(tier, "a") as ckpt:
        ckpt.restore({})
        ckpt.save(1, state)
    target = {
        name: distribute_tensor(alone.zeros_like(tensor.full_tensor()), mesh, [Shard(1)])
        for name, tensor in state.items()
    }
    with one(tier, "b") as ckpt:
        assert ckpt.restore(target) is target
        assert (ckpt.read("all", np.s_[1:3, 2]) == (values + 1)[1:3, 2].numpy()).all()
    for name, tensor in state.items():
        assert alone.equal(target[name].full_tensor(), tensor.full_tensor())
    with one(tier, "c") as ckpt:
        whole = ckpt.restore(
            {"rows": alone.zeros(4, 6), "all": alone.zeros(4, 6), "bf16": None}
        )
    assert alone.equal(whole["rows"], values)


@pytest.mark.parametrize(
    ("shape", "placements", "sizes", "coordinate", "expected"),
    [
        ((10, 4), "S0", (4,), (3,), ((9, 0), (1, 4), 0, 1)),
        ((3, 4), "S0", (4,), (3,), ((3, 0), (0, 4), 0, 1)),
        ((10, 4), "R", (4,), (2,), ((0, 0), (10, 4), 2, 4)),
        ((10, 4), "R S0", (2, 2), (1, 1), ((5, 0), (5, 4), 1, 2)),
        ((10, 5), "S1 S0", (2, 3), (1, 2), ((8, 3), (2, 2), 0, 1)),
        ((10,), "S0 S0", (2, 2), (1, 1), ((8,), (2,), 0, 1)),
    ],
)
def test_where_a_dtensor_lies(
    alone: Any,
    shape: tuple[int, ...],
    placements: str,
    sizes: tuple[int, ...],
    coordinate: tuple[int, ...],
    expected: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.tensor import Replicate, Shard

    offset, lengths, replica, replicas = expected

    class Fake:
        device_mesh = Mesh(sizes, coordinate)

        def detach(self) -> Any:
            return self

        def to_local(self) -> Any:
            return alone.zeros(lengths)

    fake = Fake()
    fake.shape = shape  # type: ignore[attr-defined]
    fake.placements = tuple(  # type: ignore[attr-defined]
        Replicate() if one == "R" else Shard(int(one[1:])) for one in placements.split()
    )
    monkeypatch.setattr(boxes, "is_box", lambda leaf: leaf is fake)
    found = boxes.placed(fake)
    assert found == boxes.Placed(None, shape, offset, lengths, replica, replicas)


def test_other_placements_are_refused(alone: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, init_device_mesh

    tensor = DTensor.from_local(alone.ones(3), init_device_mesh("cpu", (1,)), [Partial()])
    with pytest.raises(Unsupported, match="redistribute it to Shard or Replicate"):
        boxes.placed(tensor)
