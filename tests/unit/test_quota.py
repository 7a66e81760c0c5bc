"""Room that checkpoints share: who goes first, what that frees, and a store for all tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckptflow.model import CheckpointId
from ckptflow.policy.quota import dropped_for_room, fair_shares
from ckptflow.policy.retention import Candidate, Retention, parse_retention, retain
from ckptflow.store.catalog import Lineage
from ckptflow.store.prune import plan_prune, prune
from ckptflow.store.shares import retention_by_lineage
from ckptflow.tiers.memory import MemoryTier

SaveState = Callable[..., Lineage]

CHAIN = {  # Each needs the first pack and its own; the third shares all with the second.
    "old": {"base": 100, "one": 10},
    "middle": {"base": 100, "two": 10},
    "twin": {"base": 100, "two": 10},
    "new": {"base": 100, "three": 10},
}
ORDER = ["old", "middle", "twin"]


@pytest.mark.parametrize(
    ("room", "dropped"),
    [
        (130, []),
        (129, ["old"]),
        (120, ["old"]),
        (119, ["old", "middle", "twin"]),  # To drop one of the twins frees nothing.
        (0, ["old", "middle", "twin"]),  # Who may not go stays.
    ],
)
def test_who_goes_for_room(room: int, dropped: list[str]) -> None:
    assert list(dropped_for_room(CHAIN, ORDER, size_bytes=room)) == dropped


def test_who_frees_something_goes_before_who_frees_nothing() -> None:
    order = ["middle", "twin", "old"]
    assert list(dropped_for_room(CHAIN, order, size_bytes=129)) == ["old"]


def test_a_count_goes_by_the_order_alone() -> None:
    assert list(dropped_for_room(CHAIN, ORDER, count=2)) == ["old", "middle"]
    both = dropped_for_room(CHAIN, ORDER, count=3, size_bytes=119)
    assert list(both) == ["old", "middle", "twin"]
    assert "count" in both["old"]
    assert "frees 10 B" in both["twin"]


def candidate(step: int, packs: dict[str, int], loss: float = 1.0) -> Candidate:
    return Candidate(CheckpointId(step, 1), {"loss": loss}, packs=packs)


def test_the_rule_that_keeps_one_says_what_it_is_worth() -> None:
    history = [candidate(step, {f"p{step}": 10}, loss=step) for step in range(1, 11)]
    rules = "newest=3,every=4,best=loss:min:1"  # Keeps 10, 9, 8; 4 and 8; 1.
    kept = [
        [
            one.id.step
            for one in retain(history, parse_retention(f"{rules},bytes={room}"))
            if one.keep
        ]
        for room in (50, 49, 39, 29, 19, 1)
    ]
    assert kept == [[1, 4, 8, 9, 10], [1, 8, 9, 10], [8, 9, 10], [9, 10], [10], [10]]


def test_a_verdict_tells_what_goes_for_room_and_what_that_frees() -> None:
    history = [candidate(1, {"a": 1 << 20}), candidate(2, {"b": 1 << 20})]
    first, second = retain(history, parse_retention("bytes=1MiB"))
    assert second.keep
    assert first.reasons == ("2.00 MiB are more than 1.00 MiB (bytes); frees 1.00 MiB",)


def test_who_has_to_stay_is_no_candidate_for_room() -> None:
    history = [candidate(step, {f"p{step}": 10}) for step in (1, 2, 3)]
    stays = {CheckpointId(1, 1): "is being copied outward"}
    verdicts = retain(history, parse_retention("bytes=10"), stays=stays)
    assert [one.keep for one in verdicts] == [True, False, True]


def test_a_limit_alone_keeps_as_many_as_fit() -> None:
    assert parse_retention("bytes=200GB") == Retention(newest=None, size_bytes=200 * 10**9)
    assert parse_retention("count=5") == Retention(newest=None, count=5)
    assert parse_retention("every=10,bytes=1kB").newest == 2
    assert not parse_retention("bytes=1GB").keeps_all
    assert parse_retention("all").keeps_all
    assert parse_retention(str(parse_retention("all,bytes=7,count=3"))) == Retention(
        newest=None, count=3, size_bytes=7
    )


# --- shares ---


@pytest.mark.parametrize(
    ("wanted", "floors", "room", "shares"),
    [
        ([10, 20, 30], [1, 1, 1], 60, [10, 20, 30]),
        ([10, 20, 30], [1, 1, 1], 45, [10, 17, 17]),
        ([10, 20, 30], [1, 1, 1], 9, [3, 3, 3]),
        ([10, 20, 30], [1, 1, 25], 40, [7, 7, 25]),  # A floor is not bargained over.
        ([10, 20, 30], [9, 9, 9], 5, [9, 9, 9]),
        ([0, 5], [0, 5], 0, [0, 5]),
        ([], [], 5, []),
    ],
)
def test_shares_are_fair(
    wanted: list[int], floors: list[int], room: int, shares: list[int]
) -> None:
    found = fair_shares(dict(enumerate(wanted)), dict(enumerate(floors)), room)
    assert list(found.values()) == shares


def test_lineages_share_a_store(save_state: SaveState) -> None:
    tier = MemoryTier("disk")
    rng = np.random.default_rng(0)
    lineages = [
        save_state(tier, f"exp/{name}", step, {"w": rng.standard_normal(1000)})
        for name, steps in (("small", 1), ("large", 6), ("huge", 12))
        for step in range(1, steps + 1)
    ]
    lineages = list({lineage.id: lineage for lineage in lineages}.values())
    assert _sizes(tier, lineages) == pytest.approx([8000, 48_000, 96_000], rel=0.2)
    kept = retention_by_lineage(lineages, tier, parse_retention("all"), 60_000)
    for lineage in lineages:
        prune(lineage, tier, kept[lineage.id])
    sizes = _sizes(tier, lineages)
    assert sum(sizes) <= 60_000
    assert sizes == pytest.approx([8000, 24_000, 24_000], rel=0.2)
    again = retention_by_lineage(lineages, tier, parse_retention("all"), 1)
    for lineage in lineages:
        prune(lineage, tier, again[lineage.id])
        assert len(lineage.valid()) == 1


def _sizes(tier: MemoryTier, lineages: list[Lineage]) -> list[int]:
    def size(lineage: Lineage) -> int:
        return sum(tier.size(key) for key in tier.iter_keys(f"{lineage.id.prefix}/packs"))

    return [size(lineage) for lineage in lineages]


def test_the_bytes_that_a_plan_keeps_are_those_on_the_tier(save_state: SaveState) -> None:
    tier, state = MemoryTier("disk"), {"w": np.random.default_rng(0).standard_normal(4000)}
    for step in range(1, 9):
        state["w"][step * 100 : step * 100 + 300] += 1
        lineage: Any = save_state(tier, "exp/task", step, state)
    for room in (100_000, 38_000, 35_000, 1):
        plan = plan_prune(lineage, tier, parse_retention(f"bytes={room}"))
        prune(lineage, tier, parse_retention(f"bytes={room}"))
        assert plan.kept_bytes == _sizes(tier, [lineage])[0]
        one_is_left = sum(verdict.keep for verdict in plan.verdicts) == 1
        assert plan.kept_bytes <= room or one_is_left
