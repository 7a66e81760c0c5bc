"""What a rank captures of its state: views of the live arrays, and what they are parts of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptflow.errors import FormatError
from ckptflow.store.sharding.divide import Divided, Divider
from ckptflow.store.sharding.mapping import ShardMap, read_map


def divided(state: Any, world: int = 3, kind: str = "replicated") -> list[Divided]:
    return [
        Divider(rank, world).divide(state, lambda _name: kind, check=False)  # type: ignore[arg-type, return-value]
        for rank in range(world)
    ]


def map_of(one: Divided) -> ShardMap:
    shard = one.shard
    node = ["dict", *(item for pair in shard.items() for item in pair)]
    return read_map(["dict", "state", None, "rng", None, "shard", node], where="here")


def joined(all_: list[Divided]) -> dict[int, bytes]:
    """Return the bytes of each whole region, from all parts."""
    whole: dict[int, bytearray] = {}
    for one in all_:
        map_ = map_of(one)
        for part, view in zip(map_.parts, one.state.values(), strict=True):
            size = map_.regions[part.region].size_bytes
            raw = np.asarray(view).tobytes()
            assert len(raw) == part.lengths[0]
            whole.setdefault(part.region, bytearray(size))[part.offset[0] :][: len(raw)]
            whole[part.region][part.offset[0] : part.offset[0] + len(raw)] = raw
    return {number: bytes(data) for number, data in whole.items()}


@pytest.mark.parametrize(
    "array",
    [
        np.arange(60.0).reshape(4, 15),
        np.asfortranarray(np.arange(60.0).reshape(4, 15)),
        np.arange(60.0).reshape(3, 4, 5).transpose(2, 0, 1),
        np.arange(60.0)[::-1],
        np.arange(120.0).reshape(6, 20)[1:5, ::2],
        np.arange(900.0).reshape(10, 9, 10)[::2, ::3, 1:-1],
        np.broadcast_to(np.arange(30.0), (5, 30)),
        np.array(3.5),
        np.arange(31, dtype="u1"),
        np.arange(72, dtype="u1").view([("a", "<i4"), ("b", "<f8")]).reshape(3, 2),
    ],
)
def test_parts_are_views_and_make_the_whole(array: np.ndarray) -> None:
    all_ = divided({"x": array})
    for one in all_:
        assert all(np.shares_memory(view, array) for view in one.state.values())
        assert all(view.dtype == array.dtype for view in one.state.values())
    (found,) = joined(all_).values()
    flat = np.frombuffer(found, array.dtype)
    assert len(flat) == len(np.unique(array))  # Each element once.
    assert set(flat.tolist()) == set(array.reshape(-1).tolist())


def test_arrays_that_share_memory_are_cut_once() -> None:
    whole = np.arange(1000.0)
    state = {"all": whole, "head": whole[:10], "again": whole, "every": whole[::3]}
    assert sum(view.nbytes for one in divided(state) for view in one.state.values()) == 8000
    two = {"even": whole[::2], "odd": whole[1::2]}  # No array spans what both fill together.
    assert list(joined(divided(two)).values()) == [whole.tobytes()]


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.arange(1200.0).reshape(30, 40).to(torch.bfloat16))
    turned = torch.arange(300.0).reshape(10, 30).T
    for one in divided({"w": weight, "t": turned}):
        for view in one.state.values():
            assert isinstance(view, torch.Tensor)
            assert not view.requires_grad
            before = view._version
            with torch.no_grad():
                weight.add_(0)
                turned.add_(0)
            assert view._version > before  # Who captures it sees that it was written.


def test_own_and_first_leaves() -> None:
    state = {"x": np.arange(9.0), "n": 1}
    assert [len(one.state) for one in divided(state, kind="own")] == [1, 1, 1]
    assert [map_of(one).own for one in divided(state, kind="own")] == [("n", "x")] * 3
    assert [len(one.state) for one in divided(state, kind="first")] == [1, 0, 0]


@pytest.mark.parametrize(
    "node",
    [
        None,
        ["dict", "rank", 0, "world", 1, "map", "{"],
        ["dict", "rank", 0, "world", 1, "map", "{}"],
        ["dict", "rank", -1, "world", 1, "map", "{}"],
    ],
)
def test_what_is_no_map(node: Any) -> None:
    with pytest.raises(FormatError, match="here"):
        read_map(["dict", "state", None, "rng", None, "shard", node], where="here")


def test_parts_lie_inside() -> None:
    (one,) = divided({"x": np.arange(9.0)}, world=1)
    one.shard["map"] = one.shard["map"].replace(
        '"parts":[[0,[0],[72]]]', '"parts":[[0,[8],[72]]]'
    )
    with pytest.raises(FormatError, match="outside of region 0"):
        map_of(one)
