"""Look into a checkpoint: names, values, and no byte more than one region read at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ckptflow.errors import CorruptionError, NotFoundError
from ckptflow.store.arrays import StoredArrays, restrict
from ckptflow.store.catalog import Lineage
from ckptflow.store.find import find_checkpoint
from ckptflow.tiers.memory import MemoryTier

SaveState = Callable[..., Lineage]


def opened(lineage: Lineage, *, part: str = "state") -> StoredArrays:
    manifest = lineage.manifest(find_checkpoint(lineage))
    return StoredArrays(lineage, manifest, part=part)  # type: ignore[arg-type]


def test_reads_every_array(save_state: SaveState, arrays: dict[str, np.ndarray]) -> None:
    stored = opened(save_state(MemoryTier(), "exp/a", 1, {"deep": arrays, "lr": 0.5}))
    assert list(stored) == [f"deep/{name}" for name in arrays]
    assert len(stored) == len(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(stored.read(f"deep/{name}"), array)
    assert stored.plain == {"lr": 0.5}


def test_reads_a_delta_whose_regions_need_different_packs(save_state: SaveState) -> None:
    tier, rng = MemoryTier(), np.random.default_rng(0)
    state = {name: rng.standard_normal(2000) for name in "abc"}
    save_state(tier, "exp/a", 1, state)
    state["b"][500] = 1.0
    lineage = save_state(tier, "exp/a", 2, state)
    stored = opened(lineage)
    packs = [len(restrict(stored.manifest, number).packs) for number in range(3)]
    assert packs == [1, 2, 1]
    for name in "cab":
        np.testing.assert_array_equal(stored.read(name), state[name])


def test_views_of_one_memory_are_read_once(save_state: SaveState) -> None:
    base = np.arange(24.0)
    state = {"all": base, "part": base[::2].reshape(3, 4), "back": base[::-1]}
    stored = opened(save_state(MemoryTier(), "exp/a", 1, state))
    assert stored.region_of("all") is stored.region_of("back")
    for name, array in state.items():
        np.testing.assert_array_equal(stored.read(name), array)


def test_names_are_those_of_the_application(save_state: SaveState) -> None:
    whole = {"state": {"w": np.arange(3)}, "rng": {"words": np.arange(4), "version": 3}}
    lineage = save_state(MemoryTier(), "exp/a", 1, whole)
    assert list(opened(lineage)) == ["w"]
    assert list(opened(lineage, part="rng")) == ["words"]
    assert opened(lineage, part="rng").plain == {"version": 3}
    np.testing.assert_array_equal(opened(lineage, part="rng").read("words"), np.arange(4))


def test_without_random_states(save_state: SaveState) -> None:
    lineage = save_state(MemoryTier(), "exp/a", 1, {"state": np.arange(3), "rng": None})
    assert list(opened(lineage)) == [""]
    np.testing.assert_array_equal(opened(lineage).read(""), np.arange(3))
    assert list(opened(lineage, part="rng")) == []


def test_what_is_read_cannot_be_changed(save_state: SaveState) -> None:
    stored = opened(save_state(MemoryTier(), "exp/a", 1, {"w": np.arange(3)}))
    assert not stored.read("w").flags.writeable


def test_an_unknown_array(save_state: SaveState) -> None:
    stored = opened(save_state(MemoryTier(), "exp/a", 1, {"w": np.arange(3)}))
    with pytest.raises(NotFoundError, match=r"exp/a step 1 .* has no array 'v'"):
        stored.read("v")


def test_only_the_region_in_question_has_to_be_sound(save_state: SaveState) -> None:
    tier, rng = MemoryTier(), np.random.default_rng(0)
    save_state(tier, "exp/a", 1, {"a": rng.bytes(5000)})
    state = {"a": rng.bytes(5000), "b": rng.standard_normal(1000)}
    lineage = save_state(tier, "exp/a", 2, state)
    stored = opened(lineage)
    key = next(key for key in tier.iter_keys("") if key.endswith(".pack") and "0002." in key)
    damaged = bytearray(tier.get(key))
    damaged[100] ^= 1
    tier.put(key, [damaged])
    np.testing.assert_array_equal(stored.read("b"), state["b"])
    with pytest.raises(CorruptionError, match="has no sound copy"):
        stored.read("a")
