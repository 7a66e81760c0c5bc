"""A shard's map that somebody has changed: refused by name, and in little memory.

Each number and text of the map of one shard is replaced by nonsense, or left out, in a manifest
that is otherwise sound. A restore then raises one of our errors, or gives what was saved.
"""

from __future__ import annotations

import copy
import json
import tracemalloc
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow import manifest as manifest_file
from ckptflow.errors import CheckpointError, FormatError
from ckptflow.model import Manifest
from ckptflow.store.sharding.mapping import read_map
from ckptflow.tiers.memory import MemoryTier

NONSENSE = (-1, 0, 1, 7, 1 << 40, 1 << 63, 1 << 70, 1.5, True, "x", None, [], [1 << 62] * 3, {})
MEMORY_BYTES = 64 << 20


def state() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"w": rng.normal(size=(40, 3)), "b": np.arange(9), "own": {"n": np.arange(5)}}


def saved() -> tuple[MemoryTier, str]:
    tier = MemoryTier("store", level=3)
    for rank in range(2):
        with cf.ShardedCheckpointer(
            tier,
            rank=rank,
            world=2,
            launch="a",
            replicated=["w", "b"],
            rng=False,
            every="never",
        ) as one:
            one.restore({})
            one.save(1, state()).wait()
    [key] = [
        key for key in tier.iter_keys("lineages") if "00001of" in key and "manifests" in key
    ]
    return tier, key


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from places(value, (*path, number))


def changed(columns: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    new = copy.deepcopy(columns)
    inner: Any = new
    for key in path[:-1]:
        inner = inner[key]
    if value is NONSENSE:  # Leave it out.
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return new


def forged(columns: dict[str, Any], manifest: Manifest) -> Manifest:
    *start, [*before, _] = manifest.structure
    return replace(manifest, structure=[*start, [*before, json.dumps(columns)]])


def test_nonsense_in_a_map_is_understood_or_refused() -> None:
    tier, key = saved()
    manifest = manifest_file.decode(tier.get(key), where="here")
    columns = json.loads(manifest.structure[-1][-1])
    refused = 0
    cases = [(path, value) for path in places(columns) for value in (*NONSENSE, NONSENSE)]
    for path, value in cases:
        other = forged(changed(columns, path, value), manifest)
        try:
            read_map(other.structure, where="here")
        except FormatError:
            refused += 1
    assert refused > len(cases) / 3 > 300


SIZES = ("shapes", "items", "parts")


@pytest.mark.parametrize("value", [1 << 40, 1 << 62, 1 << 70, [1 << 62] * 3])
def test_sizes_that_no_memory_has_take_none(value: Any) -> None:
    tier, key = saved()
    manifest = manifest_file.decode(tier.get(key), where="here")
    columns = json.loads(manifest.structure[-1][-1])
    for path in places(columns):
        if path[0] not in SIZES or len(path) < 2:
            continue
        other, _ = saved()
        other.delete(key)
        other.put(key, [manifest_file.encode(forged(changed(columns, path, value), manifest))])
        check(other, f"{path} = {value!r:.80}")


def check(tier: MemoryTier, what: str) -> None:
    sound = state()
    tracemalloc.start()
    with (
        warnings.catch_warnings(),
        cf.ShardedCheckpointer(
            tier, rank=0, world=1, launch="b", per_rank=lambda *_: 0, rng=False, every="never"
        ) as one,
    ):
        warnings.simplefilter("ignore")
        found = {}
        try:
            found = one.restore()
        except CheckpointError:
            pass
        except Exception as error:  # noqa: BLE001 - that is what must not be
            pytest.fail(f"{what}: {error!r}")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES, what
    for name in {"w", "b"} & found.keys():
        assert np.array_equal(found[name], sound[name]), what
