"""Nodes are lost, and their checkpoints come back, bit by bit, or a report says why not.

In process: each node is a tier in memory, and every one runs a task with its own state. The
losses are those that SCR's and FTI's own tests name: one node, neighbours and nodes apart, more
than the set can rebuild, redundancy itself erased, cut or damaged, nodes that come back old, in
another order, or fewer of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import TierUnavailable
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.redundancy.protect import protect
from ckptflow.store.redundancy.rebuild import Rebuilt, rebuild
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import encode
from ckptflow.store.redundancy.survey import Member, look, member_of
from ckptflow.store.resume import restore_newest
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]

PARTNER = Scheme(name="partner", set_size=2, losses=1)
PARTNERS = Scheme(name="partner", set_size=4, losses=2)
XOR = Scheme(name="xor", set_size=4, losses=1)
RS = Scheme(name="rs", set_size=5, losses=2)
BLOCK = 700  # So that objects have several blocks.


def state_of(node: int, step: int) -> dict[str, Any]:
    """A state whose size differs from node to node."""
    rng = np.random.default_rng((node, step))
    fixed = np.random.default_rng(node).standard_normal(50 + 37 * node)
    return {"fixed": fixed, "own": rng.standard_normal(20), "step": step}


def bits(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in state.items()}


class Cluster:
    """Nodes with a tier each; some are lost."""

    def __init__(self, count: int, save_state: SaveState) -> None:
        self.tiers: list[Tier] = [MemoryTier(f"node{n}", level=1) for n in range(count)]
        self.members: list[Member] = [member_of(tier) for tier in self.tiers]
        self._save_state = save_state

    def save(self, step: int, nodes: Sequence[int] | None = None) -> None:
        for node in range(len(self.tiers)) if nodes is None else nodes:
            self._save_state(self.tiers[node], f"exp/task{node}", step, state_of(node, step))

    def protect(self, scheme: Scheme) -> Any:
        return protect(look(self.members), scheme, block_bytes=BLOCK)

    def rebuild(self, lost: Sequence[int], target: Tier | None = None) -> tuple[Rebuilt, Tier]:
        left = [one for node, one in enumerate(self.members) if node not in lost]
        target = target or MemoryTier("new", level=1)
        return rebuild(look(left[::-1]), target), target


def restored_step(tier: Tier, node: int) -> int:
    """Restore the newest checkpoint of a node's task, compare its bits, return its step."""
    found = restore_newest(Lineage([tier], LineageId("exp", f"task{node}")), None)
    assert found is not None
    assert bits(found.state) == bits(state_of(node, found.id.step))
    return found.id.step


@pytest.fixture
def cluster(save_state: SaveState) -> Callable[[int], Cluster]:
    return lambda count: Cluster(count, save_state)


def spoil(tier: Tier, key: str, how: str) -> None:
    data = bytearray(tier.get(key))
    tier.delete(key)
    if how == "cut":
        tier.put(key, [data[: len(data) // 2]])
    elif how == "flipped":
        data[len(data) // 2] ^= 4
        tier.put(key, [data])


@pytest.mark.parametrize(
    ("scheme", "count"),
    [(PARTNER, 2), (PARTNER, 3), (XOR, 3), (XOR, 4), (RS, 4), (RS, 5), (PARTNERS, 4)],
    ids=lambda value: value.name if isinstance(value, Scheme) else str(value),
)
def test_every_loss_that_the_scheme_names_is_rebuilt(
    cluster: Callable[[int], Cluster], scheme: Scheme, count: int
) -> None:
    """SCR 3; FTI L2 and L3, consecutive or not: all patterns of losses."""
    nodes = cluster(count)
    for step in (1, 2):
        nodes.save(step)
        nodes.protect(scheme)
    for lost in itertools.combinations(range(count), scheme.losses):
        done, target = nodes.rebuild(lost)
        assert sorted(done.lost) == sorted(nodes.members[node].id for node in lost)
        assert done.failed == []
        assert len(done.checkpoints) == 2 * len(lost)
        for node in lost:
            assert restored_step(target, node) == 2


@pytest.mark.parametrize(("scheme", "count"), [(PARTNER, 4), (XOR, 4), (RS, 5)])
def test_more_losses_than_that_are_reported(
    cluster: Callable[[int], Cluster], scheme: Scheme, count: int
) -> None:
    """SCR 10; FTI L2 with neighbours: what cannot be rebuilt is said, nothing is invented."""
    nodes = cluster(count)
    nodes.save(1)
    nodes.protect(scheme)
    failed = 0
    for lost in itertools.combinations(range(count), scheme.losses + 1):
        done, target = nodes.rebuild(lost)
        for lineage, checkpoint, reason in done.failed:
            assert checkpoint.step == 1
            assert "cannot be rebuilt" in reason or "no stripe" in reason
            assert restore_newest(Lineage([target], lineage), None) is None
        for lineage, _ in done.checkpoints:
            assert restored_step(target, int(lineage.task.removeprefix("task"))) == 1
        # Where all who knew of a member are gone, so is its name.
        assert len(done.failed) + len(done.checkpoints) <= len(lost)
        failed += len(lost) - len(done.checkpoints)
    assert failed > 0


def test_an_older_checkpoint_is_used_when_the_newest_is_lost(
    cluster: Callable[[int], Cluster],
) -> None:
    """SCR 4: the newest was protected against one loss only, an older one against two."""
    nodes = cluster(4)
    nodes.save(1)
    nodes.protect(RS)
    nodes.save(2)
    nodes.protect(XOR)
    done, target = nodes.rebuild([0, 1])
    assert done.failed
    assert {restored_step(target, node) for node in (0, 1)} <= {1, 2}
    assert 1 in {restored_step(target, node) for node in (0, 1)}


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
@pytest.mark.parametrize("part", ["parity", "stripe.json", "pack"])
def test_damaged_redundancy_costs_what_it_is_worth(
    cluster: Callable[[int], Cluster], part: str, how: str
) -> None:
    """VELOC 25, FTI: redundancy of one node erased or damaged, and another node lost."""
    nodes = cluster(5)
    nodes.save(1)
    nodes.protect(RS)
    for key in [key for key in nodes.tiers[2].iter_keys("") if key.endswith(part)]:
        spoil(nodes.tiers[2], key, how)
    for lost in (0, 1, 3, 4):
        done, target = nodes.rebuild([lost])
        assert done.failed == []
        assert restored_step(target, lost) == 1


def test_damage_beyond_repair_is_named(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(3)
    nodes.save(1)
    done = nodes.protect(XOR)
    stripe = next(one for one in done.stripes if len(one.data) == 2)
    nodes_of = {member.id: number for number, member in enumerate(nodes.members)}
    lost, other = (nodes_of[piece.member] for piece in stripe.data)
    spoil(nodes.tiers[other], stripe.data[1].key, "flipped")
    done, target = nodes.rebuild([lost])
    assert len(done.failed) == 1
    assert "1 of the 2 pieces are left" in done.failed[0][2]
    assert "is not what was coded" in done.failed[0][2]
    assert list(target.iter_keys("lineages")) == []


def test_a_member_that_comes_back_with_old_data_does_no_harm(
    cluster: Callable[[int], Cluster],
) -> None:
    """Its disk is a week old: what it lacks is missing, and what it has too much is ignored."""
    nodes = cluster(5)
    nodes.save(1)
    old = MemoryTier("node0", level=1)
    for key in nodes.tiers[0].iter_keys(""):
        old.put(key, [nodes.tiers[0].get(key)])
    nodes.protect(RS)
    nodes.save(2)
    nodes.protect(RS)
    stale = [Member(nodes.members[0].id, old), *nodes.members[2:]]
    target = MemoryTier("new", level=1)
    done = rebuild(look(stale), target)
    assert done.failed == []
    assert restored_step(target, 1) == 2
    done = rebuild(look(stale), old, lost=[nodes.members[0].id])
    assert done.failed == []
    assert restored_step(old, 0) == 2


def test_fewer_nodes_under_other_names(cluster: Callable[[int], Cluster]) -> None:
    """Two of five nodes are gone for good; the others are found under new names."""
    nodes = cluster(5)
    nodes.save(3)
    nodes.protect(RS)
    renamed = []
    for number, tier in enumerate(nodes.tiers[1:4]):
        other = MemoryTier(f"host-{9 - number}", level=1)
        for key in tier.iter_keys(""):
            other.put(key, [tier.get(key)])
        renamed.insert(0, member_of(other))
    target = renamed[0].tier  # No spare node: a survivor takes what is rebuilt.
    done = rebuild(look(renamed), target)
    assert done.failed == []
    assert {restored_step(target, node) for node in (0, 4)} == {3}


def test_a_rebuild_goes_on_where_it_stopped(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(4)
    nodes.save(1)
    nodes.protect(XOR)
    done, target = nodes.rebuild([1])
    again, _ = nodes.rebuild([1], target)
    assert again.checkpoints == done.checkpoints
    assert again.written_bytes < done.written_bytes
    assert restored_step(target, 1) == 1


def test_nothing_is_deleted_by_a_rebuild(cluster: Callable[[int], Cluster]) -> None:
    """FTI issue 76: a recovery deleted the intact partner copy."""
    nodes = cluster(4)
    nodes.save(1)
    nodes.protect(XOR)
    before = [list(tier.iter_keys("")) for tier in nodes.tiers]
    nodes.rebuild([1])
    nodes.rebuild([1, 2])
    assert [list(tier.iter_keys("")) for tier in nodes.tiers] == before


def test_all_is_lost(cluster: Callable[[int], Cluster]) -> None:
    """SCR 5, VELOC 23: a report, and not a crash."""
    nodes = cluster(3)
    nodes.save(1)
    nodes.protect(XOR)
    done, target = nodes.rebuild([0, 1, 2])
    assert (done.lost, done.checkpoints, done.failed) == ((), [], [])
    assert restore_newest(Lineage([target], LineageId("exp", "task0")), None) is None


def test_void_checkpoints_stay_void(cluster: Callable[[int], Cluster]) -> None:
    """Where the fence tier is the lost node's own, what it said of attempts comes back, too."""
    nodes = cluster(3)
    nodes.save(1, [0])
    lineage = Lineage([nodes.tiers[0]], LineageId("exp", "task0"))
    first = lineage.checkpoints()[0].id
    nodes.save(2, [0])
    lineage.record_resume(2, first)  # Attempt 2 went back to step 1.
    nodes.protect(XOR)
    done, target = nodes.rebuild([0])
    assert done.failed == []
    assert restored_step(target, 0) == 1


def test_members_that_do_not_answer_are_left_out(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(5)
    nodes.save(1)
    nodes.protect(RS)

    def silent(_operation: str, _key: str) -> None:
        raise TierUnavailable("no route to host")

    notes: list[str] = []
    members = list(nodes.members)
    members[1] = Member(members[1].id, FaultyTier(members[1].tier, silent))
    survey = look([*members[:2], *members[3:]], note=notes.append)
    assert set(survey.silent) == {members[1].id}
    assert any("was left out: no route to host" in note for note in notes)
    target = MemoryTier("new", level=1)
    done = rebuild(survey, target)
    assert done.failed == []
    assert {restored_step(target, node) for node in (1, 2)} == {1}


def test_a_forged_descriptor_sends_nothing_astray(cluster: Callable[[int], Cluster]) -> None:
    """One that names keys outside of lineages, or another stripe, is not believed."""
    nodes = cluster(3)
    nodes.save(1)
    done = nodes.protect(XOR)
    stripe = done.stripes[0]
    for member in nodes.members:
        data = encode(stripe).replace(b"lineages/exp", b"attempts/x..")
        member.tier.put("redundancy/" + "0" * 32 + "/stripe.json", [encode(stripe)])
        member.tier.put("redundancy/" + "f" * 32 + "/stripe.json", [data])
    notes: list[str] = []
    survey = look(nodes.members, note=notes.append)
    assert set(survey.stripes) == {one.id for one in done.stripes}
    assert any("does not match its seal" in note for note in notes)
