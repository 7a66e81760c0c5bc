"""Parts of arrays read out of checkpoints: NumPy's own indexing says what has to come."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.errors import ConfigError, CorruptionError, NotFoundError
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.metered import MeteredTier

INDICES: list[Any] = [
    ..., np.s_[3], np.s_[10:20, :], np.s_[::-7, 1], np.s_[-5:, ::3], np.s_[2, None, 5:2:-1],
    np.s_[..., 4], np.s_[7:7], np.s_[5, 6],
]  # fmt: skip


def state() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 700))
    return {
        "layer.0": {"weight": table, "bias": rng.normal(size=(300, 9)).astype(">f4")},
        "rows": table[20:40],
        "turned": np.asfortranarray(rng.normal(size=(40, 30))),
        "mirror": rng.normal(size=(40, 30))[::-1],
        "gaps": rng.normal(size=(40, 60))[:, ::2],
        "alike": np.broadcast_to(np.arange(30.0), (40, 30)),
    }


def at(tree: Any, name: str) -> Any:
    for part in name.split("/"):
        tree = tree[part]
    return tree


NAMES = ["layer.0/weight", "layer.0/bias", "rows", "turned", "mirror", "gaps", "alike"]


def saved(tier: Any, world: int) -> cf.Checkpointer:
    """Return a checkpointer of what one process, or some ranks, have saved."""
    if not world:
        with cf.Checkpointer(tier) as one:
            one.save(1, state())
        return cf.Checkpointer(tier)
    with ExitStack() as stack:
        for rank in range(world):
            ckpt = stack.enter_context(
                cf.ShardedCheckpointer(tier, rank=rank, world=world, launch="a", replicated="*")
            )
            ckpt.restore({})
            ckpt.save(1, state())
    return cf.ShardedCheckpointer(tier, rank=0, world=1, launch="b")


@pytest.mark.parametrize("world", [0, 1, 3])
def test_what_an_index_picks(world: int) -> None:
    ckpt, expected = saved(MemoryTier("store", level=3), world), state()
    for name in NAMES:
        for index in INDICES:
            whole = at(expected, name)
            found, there = ckpt.read(name, index), whole[index]
            if there.ndim == 0:  # NumPy would make it a number of this machine.
                there = whole[(*index, ...)]
            assert (found.shape, found.dtype) == (there.shape, there.dtype)
            assert found.tobytes() == there.tobytes(), (name, index)


@pytest.mark.parametrize("world", [0, 3])
def test_about_what_is_asked_for_is_read(world: int) -> None:
    tier = MeteredTier(MemoryTier("store", level=3))
    big = np.random.default_rng(0).normal(size=(4000, 1000))
    with ExitStack() as stack:
        for rank in range(max(1, world)):
            shard: dict[str, Any] = {"rank": rank, "world": world, "launch": "a"}
            ckpt: cf.Checkpointer = (
                cf.ShardedCheckpointer(tier, replicated="*", **shard) if world
                else cf.Checkpointer(tier)
            )  # fmt: skip
            stack.enter_context(ckpt)
            ckpt.restore({})
            ckpt.save(1, {"big": big})
    before = tier.read_bytes
    assert (ckpt.read("big", np.s_[1000:1010]) == big[1000:1010]).all()
    assert tier.read_bytes - before < 4 << 20  # Of 32 MB; a frame has up to one or two.


@pytest.mark.parametrize("world", [0, 2])
def test_near_misses(world: int) -> None:
    ckpt = saved(MemoryTier("store", level=3), world)
    with pytest.raises(NotFoundError, match=r"did you mean 'layer.0/weight'"):
        ckpt.read("layer.0.weight")
    with pytest.raises(NotFoundError, match=r"did you mean 'layer.0/bias'"):
        ckpt.read("bias")
    with pytest.raises(NotFoundError, match=r"`ckptflow show` lists those"):
        ckpt.read("xyz")
    with pytest.raises(NotFoundError, match="step 9"):
        ckpt.read("rows", step=9)
    with pytest.raises(ConfigError, match=r"does not fit an array of shape \[20, 700\]"):
        ckpt.read("rows", np.s_[30])
    with pytest.raises(ConfigError, match="picks no part"):
        ckpt.read("rows", [1, 2])  # type: ignore[arg-type]


def test_a_type_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch")
    tier, values = MemoryTier("store", level=3), torch.arange(24.0).to(torch.bfloat16)
    with cf.Checkpointer(tier) as ckpt:
        ckpt.save(1, {"w": values.reshape(4, 6)})
    found = ckpt.read("w", np.s_[1:3, 2])
    assert found.tobytes() == values.view(torch.uint16).reshape(4, 6)[1:3, 2].numpy().tobytes()


@pytest.mark.damaged_store
def test_damage_is_not_returned() -> None:
    tier = MemoryTier("store", level=3)
    ckpt = saved(tier, 0)
    (pack,) = tier.iter_keys("lineages/default/main/packs")
    data = bytearray(tier.get(pack))
    for at_ in range(1000, len(data) - 2000, 1000):
        data[at_] ^= 1
    tier.put(pack, [data])
    with pytest.raises(CorruptionError):
        ckpt.read("layer.0/weight", np.s_[0])
