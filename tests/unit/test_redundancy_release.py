"""What a stripe needs stays while anything in it is needed, and goes when nothing is."""

from __future__ import annotations

import pytest
from nodes import Nodes, lineage_of, restored_step, spoil

from ckptflow.errors import FormatError
from ckptflow.manifest import seal
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.prune import plan_prune, prune
from ckptflow.store.redundancy.release import held_keys, release
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import REDUNDANCY, encode
from ckptflow.store.redundancy.survey import look
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier

XOR = Scheme(name="xor", set_size=4, losses=1)


def parity_of(nodes: Nodes) -> list[str]:
    return [key for tier in nodes.tiers for key in tier.iter_keys(REDUNDANCY)]


@pytest.fixture
def nodes() -> Nodes:
    """Four nodes. The packs of 1, 2 and 3, the largest, are coded together; 0 has a copy."""
    nodes = Nodes(4)
    nodes.save(1)
    nodes.protect(XOR)
    return nodes


def newest_packs(nodes: Nodes, node: int) -> list[str]:
    prefix = lineage_of(node).prefix
    return [f"{prefix}/{pack.key}" for pack in nodes.manifest(node).packs]


def save_full(nodes: Nodes, step: int, which: list[int]) -> None:
    """Save without a parent, so that nothing of older packs is needed."""
    for node in which:
        nodes.bases.pop(node, None)
    nodes.save(step, which)


def test_what_others_are_decoded_with_is_held(nodes: Nodes) -> None:
    """Its own checkpoint goes at once; the pack stays, and a neighbour is rebuilt with it."""
    old = newest_packs(nodes, 3)
    save_full(nodes, 2, [3])
    nodes.prune(3, keep=1)
    assert restored_step(nodes.tiers[3], 3) == 2
    assert len(Lineage([nodes.tiers[3]], lineage_of(3)).checkpoints()) == 1
    assert set(old) <= held_keys(nodes.tiers[3], nodes.members[3].id)
    assert set(old) <= set(nodes.tiers[3].iter_keys("lineages"))
    for lost in (0, 1, 2):
        done, target = nodes.rebuild([lost])
        assert [failed for failed in done.failed if failed[0] == lineage_of(lost)] == []
        assert restored_step(target, lost) == 1


def test_when_all_have_given_up_parity_and_packs_go(nodes: Nodes) -> None:
    save_full(nodes, 2, [0, 1, 2, 3])
    nodes.protect(XOR)
    for node in range(4):
        nodes.prune(node, keep=1)
    before = len(parity_of(nodes))
    released = release(look(nodes.members), XOR)
    assert released.stripes
    assert len(parity_of(nodes)) < before
    for node in range(4):
        nodes.prune(node, keep=1)
        left = set(nodes.tiers[node].iter_keys(f"{lineage_of(node).prefix}/packs"))
        assert left == set(newest_packs(nodes, node))
    for lost in range(4):
        done, target = nodes.rebuild([lost])
        assert done.failed == []
        assert restored_step(target, lost) == 2


def test_what_still_lives_is_coded_anew_so_that_the_rest_can_go(nodes: Nodes) -> None:
    """Two of three moved on: the pack of the third gets another stripe, the old one goes."""
    old = {key for node in (2, 3) for key in newest_packs(nodes, node)}
    save_full(nodes, 2, [0, 2, 3])
    for node in (0, 2, 3):
        nodes.prune(node, keep=1)
    assert old & {key for tier in nodes.tiers for key in tier.iter_keys("lineages")}
    nodes.protect(XOR)
    release(look(nodes.members), XOR)
    for node in (2, 3):
        nodes.prune(node, keep=1)
    assert not old & {key for tier in nodes.tiers for key in tier.iter_keys("lineages")}
    done, target = nodes.rebuild([1])
    assert done.failed == []
    assert restored_step(target, 1) == 1


def test_nothing_is_released_while_somebody_cannot_be_asked(nodes: Nodes) -> None:
    save_full(nodes, 2, [0, 1, 2, 3])
    nodes.protect(XOR)
    for node in range(4):
        nodes.prune(node, keep=1)
    there = look(nodes.members[:3])
    of_the_silent = {
        name
        for name, seen in there.stripes.items()
        if any(piece.member == nodes.members[3].id for piece in seen.stripe.data)
    }
    assert of_the_silent
    assert not of_the_silent & set(release(there, XOR).stripes)
    gone = {nodes.members[3].id}
    assert of_the_silent & set(release(look(nodes.members[:3]), XOR, gone=gone).stripes)


def test_a_stripe_that_lost_a_member_is_replaced(nodes: Nodes) -> None:
    """The node is gone for good, and was rebuilt on another one."""
    done, target = nodes.rebuild([3])
    assert done.failed == []
    after = Nodes(tiers=[*nodes.tiers[:3], target])
    after.protect(XOR)
    gone = {nodes.members[3].id}
    release(look(after.members), XOR, gone=gone)
    survey = look(after.members)
    assert all(gone.isdisjoint(seen.stripe.members) for seen in survey.stripes.values())
    for lost in range(4):
        done, target = after.rebuild([lost])
        assert done.failed == []
        assert restored_step(target, lost) == 1


def test_releasing_again_finds_nothing(nodes: Nodes) -> None:
    before = parity_of(nodes)
    assert release(look(nodes.members), XOR).stripes == ()
    assert parity_of(nodes) == before


def test_a_plan_of_prune_leaves_out_what_is_held(nodes: Nodes) -> None:
    save_full(nodes, 2, [3])
    tier, keep = nodes.tiers[3], Retention(newest=1)
    lineage = Lineage([tier], lineage_of(3))
    held = held_keys(tier, nodes.members[3].id)
    plan = plan_prune(lineage, tier, keep)
    kept = [lineage.manifest_on(tier, one.id) for one in plan.verdicts if one.keep]
    needed = {f"{lineage.id.prefix}/{pack.key}" for one in kept for pack in one.packs}
    assert held - needed  # No manifest that is kept names them,
    assert not set(plan.packs) & held  # and they stay.
    for key in list(tier.iter_keys(REDUNDANCY)):
        tier.delete(key)
    assert set(plan_prune(lineage, tier, keep).packs) & held


def test_a_stripe_of_a_newer_version_lets_nothing_go(nodes: Nodes) -> None:
    survey = look(nodes.members)
    stripe = next(iter(survey.stripes.values())).stripe
    line = encode(stripe).split(b"\n")[0].replace(b'"version":1', b'"version":2')
    tier = nodes.tiers[0]
    for key in [key for key in tier.iter_keys(REDUNDANCY) if key.endswith("stripe.json")]:
        tier.put(key, [line + b"\n" + seal(line).hex().encode() + b"\n"])
    with pytest.raises(FormatError, match="format version 2"):
        held_keys(tier, nodes.members[0].id)


def test_a_stripe_that_was_made_after_the_plan_is_respected() -> None:
    nodes = Nodes(4)
    nodes.save(1)
    old = newest_packs(nodes, 3)
    save_full(nodes, 2, [3])
    tier, made = nodes.tiers[3], list[str]()

    def protect_once(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".prune") and not made:
            made.append(key)
            nodes.protect(XOR)

    lineage = Lineage([tier], lineage_of(3))
    plan = prune(lineage, FaultyTier(tier, protect_once), Retention(newest=1))
    assert made
    held = held_keys(tier, nodes.members[3].id)
    assert set(old) <= held <= set(tier.iter_keys("lineages"))
    assert not set(plan.packs) & held
    for lost in (0, 1, 2):
        done, target = nodes.rebuild([lost])
        assert [failed for failed in done.failed if failed[0] == lineage_of(lost)] == []
        assert restored_step(target, lost) == 1


@pytest.mark.parametrize("level", [1, 3])
def test_packs_are_held_on_a_member_of_whatever_level(level: int) -> None:
    nodes = Nodes(tiers=[MemoryTier(f"node{number}", level=level) for number in range(4)])
    nodes.save(1)
    nodes.protect(XOR)
    old = newest_packs(nodes, 3)
    save_full(nodes, 2, [3])
    nodes.prune(3, keep=1)
    assert set(old) <= set(nodes.tiers[3].iter_keys("lineages"))


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_a_lost_descriptor_is_put_again(nodes: Nodes, how: str) -> None:
    """What a member holds follows from its own."""
    tier, member = nodes.tiers[3], nodes.members[3].id
    before, held = {key: tier.get(key) for key in tier.iter_keys("")}, held_keys(tier, member)
    assert held
    for key in [key for key in before if key.endswith("stripe.json")]:
        spoil(tier, key, how)
    assert held_keys(tier, member) == frozenset()
    nodes.protect(XOR)
    assert held_keys(tier, member) == held
    assert {key: tier.get(key) for key in tier.iter_keys("")} == before
