"""Nodes are lost, and their checkpoints come back, bit by bit, or a report says why not.

In process: each node is a tier in memory, and every one runs a task with its own state. The
losses are those that SCR's and FTI's own tests name: one node, neighbours and nodes apart, more
than the set can rebuild, redundancy itself erased, cut or damaged, nodes that come back old, in
another order, or fewer of them.
"""

from __future__ import annotations

import itertools

import pytest
from nodes import Nodes, copy_of, lineage_of, restored_step, spoil

from ckptflow.errors import CorruptionError, NotFoundError, TierUnavailable
from ckptflow.flush import copy_checkpoint
from ckptflow.store.catalog import Lineage
from ckptflow.store.redundancy.rebuild import read_protected, rebuild
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import encode
from ckptflow.store.redundancy.survey import Member, look, member_of
from ckptflow.store.resume import restore_newest
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier

PARTNER = Scheme(name="partner", set_size=2, losses=1)
PARTNERS = Scheme(name="partner", set_size=4, losses=2)
XOR = Scheme(name="xor", set_size=4, losses=1)
RS = Scheme(name="rs", set_size=5, losses=2)


@pytest.mark.parametrize(
    ("scheme", "count"),
    [(PARTNER, 2), (PARTNER, 3), (XOR, 3), (XOR, 4), (RS, 4), (RS, 5), (PARTNERS, 4)],
    ids=lambda value: value.name if isinstance(value, Scheme) else str(value),
)
def test_every_loss_that_the_scheme_names_is_rebuilt(scheme: Scheme, count: int) -> None:
    """SCR 3; FTI L2 and L3, consecutive or not: all patterns of losses."""
    nodes = Nodes(count)
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
def test_more_losses_than_that_are_reported(scheme: Scheme, count: int) -> None:
    """SCR 10; FTI L2 with neighbours: what cannot be rebuilt is said, nothing is invented."""
    nodes = Nodes(count)
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


def test_an_older_checkpoint_is_used_when_the_newest_is_lost() -> None:
    """SCR 4: the newest was protected against one loss only, an older one against two."""
    nodes = Nodes(4)
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
def test_damaged_redundancy_costs_what_it_is_worth(part: str, how: str) -> None:
    """VELOC 25, FTI: redundancy of one node erased or damaged, and another node lost."""
    nodes = Nodes(5)
    nodes.save(1)
    nodes.protect(RS)
    for key in [key for key in nodes.tiers[2].iter_keys("") if key.endswith(part)]:
        spoil(nodes.tiers[2], key, how)
    for lost in (0, 1, 3, 4):
        done, target = nodes.rebuild([lost])
        assert done.failed == []
        assert restored_step(target, lost) == 1


def test_damage_beyond_repair_is_named() -> None:
    nodes = Nodes(3)
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


def test_a_member_that_comes_back_with_old_data_does_no_harm() -> None:
    """Its disk is a week old: what it lacks is missing, and what it has too much is ignored."""
    nodes = Nodes(5)
    nodes.save(1)
    old = copy_of(nodes.tiers[0])
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


def test_fewer_nodes_under_other_names() -> None:
    """Two of five nodes are gone for good; the others are found under new names."""
    nodes = Nodes(5)
    nodes.save(3)
    nodes.protect(RS)
    renamed = []
    for number, tier in enumerate(nodes.tiers[1:4]):
        renamed.insert(0, member_of(copy_of(tier, f"host-{9 - number}")))
    target = renamed[0].tier  # No spare node: a survivor takes what is rebuilt.
    done = rebuild(look(renamed), target)
    assert done.failed == []
    assert {restored_step(target, node) for node in (0, 4)} == {3}


def test_a_rebuild_goes_on_where_it_stopped() -> None:
    nodes = Nodes(4)
    nodes.save(1)
    nodes.protect(XOR)
    done, target = nodes.rebuild([1])
    again, _ = nodes.rebuild([1], target)
    assert again.checkpoints == done.checkpoints
    assert again.written_bytes < done.written_bytes
    assert restored_step(target, 1) == 1


def test_nothing_is_deleted_by_a_rebuild() -> None:
    """FTI issue 76: a recovery deleted the intact partner copy."""
    nodes = Nodes(4)
    nodes.save(1)
    nodes.protect(XOR)
    before = [list(tier.iter_keys("")) for tier in nodes.tiers]
    nodes.rebuild([1])
    nodes.rebuild([1, 2])
    assert [list(tier.iter_keys("")) for tier in nodes.tiers] == before


def test_all_is_lost() -> None:
    """SCR 5, VELOC 23: a report, and not a crash."""
    nodes = Nodes(3)
    nodes.save(1)
    nodes.protect(XOR)
    done, target = nodes.rebuild([0, 1, 2])
    assert (done.lost, done.checkpoints, done.failed) == ((), [], [])
    assert restore_newest(Lineage([target], lineage_of(0)), None) is None


def test_void_checkpoints_stay_void() -> None:
    """Where the fence tier is the lost node's own, what it said of attempts comes back, too."""
    nodes = Nodes(3)
    nodes.save(1, [0])
    lineage = Lineage([nodes.tiers[0]], lineage_of(0))
    first = lineage.checkpoints()[0].id
    nodes.save(2, [0])
    lineage.record_resume(2, first)  # Attempt 2 went back to step 1.
    nodes.protect(XOR)
    done, target = nodes.rebuild([0])
    assert done.failed == []
    assert restored_step(target, 0) == 1


def test_members_that_do_not_answer_are_left_out() -> None:
    nodes = Nodes(5)
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


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_one_object_can_be_had_from_the_others(how: str) -> None:
    """For a repair of what is damaged on a node that is there. VELOC 22."""
    nodes = Nodes(4)
    nodes.save(1)
    nodes.protect(XOR)
    member, tier = nodes.members[2].id, nodes.tiers[2]
    keys = list(tier.iter_keys(lineage_of(2).prefix))
    for key in keys:
        right = tier.get(key)
        spoil(tier, key, how)
        assert read_protected(look(nodes.members), member, key) == right
        tier.put(key, [right])
    with pytest.raises(NotFoundError, match="is in no stripe"):
        read_protected(look(nodes.members), member, keys[0] + "x")
    with pytest.raises(CorruptionError, match="cannot be rebuilt"):
        read_protected(look(nodes.members[2:3]), member, keys[0])


def test_a_rebuild_outward_while_a_node_is_down() -> None:
    """SCR 8: an allocation ends, and what the lost node had is rescued to the file system."""
    nodes = Nodes(4)
    nodes.save(1)
    nodes.protect(XOR)
    shared = MemoryTier("pfs", level=3)
    for node in (0, 1, 3):
        found = Lineage([nodes.tiers[node]], lineage_of(node))
        manifest = found.manifest(found.valid()[0])
        copy_checkpoint([nodes.tiers[node]], shared, lineage_of(node), manifest)
    done, _ = nodes.rebuild([2], shared)
    assert done.failed == []
    assert [restored_step(shared, node) for node in range(4)] == [1] * 4


def test_what_cannot_be_rebuilt_is_fetched_from_further_out() -> None:
    """SCR 10: two nodes of an XOR set are gone; the shared file system has the step before."""
    nodes, shared = Nodes(4), MemoryTier("pfs", level=3)
    nodes.save(1)
    for node in range(4):
        manifest = nodes.manifest(node)
        copy_checkpoint([nodes.tiers[node]], shared, lineage_of(node), manifest)
    nodes.save(2)
    nodes.protect(XOR)
    done, target = nodes.rebuild([2, 3])
    rebuilt = {lineage for lineage, checkpoint in done.checkpoints if checkpoint.step == 2}
    steps = [restored_step([target, shared], node) for node in (2, 3)]
    assert steps == [2 if lineage_of(node) in rebuilt else 1 for node in (2, 3)]
    assert 1 in steps


def test_a_forged_descriptor_sends_nothing_astray() -> None:
    """One that names keys outside of lineages, or another stripe, is not believed."""
    nodes = Nodes(3)
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


def test_a_damaged_pack_of_the_right_size_is_replaced() -> None:
    nodes = Nodes(4)
    nodes.save(1)
    nodes.protect(XOR)
    _, target = nodes.rebuild([1])
    key = next(iter(target.iter_keys(f"{lineage_of(1).prefix}/packs")))
    sound = target.get(key)
    spoil(target, key, "flipped")
    done, _ = nodes.rebuild([1], target)
    assert done.failed == []
    assert target.get(key) == sound
    assert restored_step(target, 1) == 1


def test_what_a_rebuild_brings_is_held_against_a_prune_meanwhile() -> None:
    nodes, target, held = Nodes(4), MemoryTier("new", level=1), list[bool]()
    nodes.save(1)
    nodes.protect(XOR)

    def see(operation: str, key: str) -> None:
        if operation == "put" and key.endswith((".pack", ".ckpt")):
            held.append(any("/guards/" in one for one in target.iter_keys("")))

    done, _ = nodes.rebuild([1], FaultyTier(target, see))
    assert done.failed == []
    assert held == [True, True]
    assert not any("/guards/" in one for one in target.iter_keys(""))
