"""A member's view: who leads, who waits how long, and what becomes of a checkpoint alone.

Time is a number that `sleep` moves on; what others do meanwhile happens in `sleep`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from nodes import BLOCK, Nodes, lineage_of, restored_step

from ckptflow.errors import ConfigError, FlushError, TierFull, TierUnavailable
from ckptflow.store.catalog import Lineage
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.set import RedundancySet
from ckptflow.store.redundancy.survey import Member, look
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier

XOR = Scheme(name="xor", set_size=4, losses=1)
RS = Scheme(name="rs", set_size=4, losses=2)
PARTNER = Scheme(name="partner", set_size=4, losses=1)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now_s, self._meanwhile = 0.0, meanwhile

    def clock(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        assert pause_s > 0
        self.now_s += pause_s
        self._meanwhile()


def set_of(
    nodes: Nodes, node: int, scheme: Scheme = XOR, time: Time | None = None, **options: Any
) -> RedundancySet:
    time = time or Time()
    return RedundancySet(
        own=nodes.members[node],
        others=[one for one in nodes.members if one is not nodes.members[node]],
        scheme=scheme,
        block_bytes=BLOCK,
        clock=time.clock,
        sleep=time.sleep,
        **options,
    )


def in_order_of_id(count: int) -> Nodes:
    """Nodes of which 0 leads."""
    nodes = Nodes(count)
    by_id = sorted(range(count), key=lambda node: nodes.members[node].id)
    nodes.tiers = [nodes.tiers[node] for node in by_id]
    nodes.members = [nodes.members[node] for node in by_id]
    return nodes


def silenced(nodes: Nodes, which: Sequence[int]) -> None:
    def silent(_operation: str, _key: str) -> None:
        raise TierUnavailable("no route to host")

    for node in which:
        member = nodes.members[node]
        nodes.members[node] = Member(member.id, FaultyTier(member.tier, silent))


def test_who_leads_codes_for_everybody_at_once() -> None:
    nodes, time = in_order_of_id(4), Time()
    nodes.save(1)
    leader = set_of(nodes, 0, time=time)
    assert leader.protect_checkpoint(lineage_of(0), nodes.manifest(0)) == 1
    assert time.now_s == 0  # Enough members had something.
    assert any(len(seen.stripe.data) == 3 for seen in look(nodes.members).stripes.values())
    for node in (1, 2, 3):
        follower = set_of(nodes, node, time=time)
        before = len(look(nodes.members).stripes)
        assert follower.protect_checkpoint(lineage_of(node), nodes.manifest(node)) == 1
        assert len(look(nodes.members).stripes) == before
    assert time.now_s == 0


def test_who_leads_waits_for_others_but_not_for_long() -> None:
    nodes = in_order_of_id(4)
    nodes.save(1, [0])
    time = Time(lambda: nodes.save(1, [1, 2]) if time.now_s == 4 else None)
    assert set_of(nodes, 0, time=time, wait_s=30).protect_checkpoint(
        lineage_of(0), nodes.manifest(0)
    )
    assert time.now_s == 4
    nodes.save(2, [0])
    alone = Time()
    assert set_of(nodes, 0, time=alone, wait_s=30).protect_checkpoint(
        lineage_of(0), nodes.manifest(0)
    )
    assert alone.now_s == pytest.approx(15)  # Half the time; then a copy.
    done, target = nodes.rebuild([0])
    assert done.failed == []
    assert restored_step(target, 0) == 2


def test_the_others_wait_for_who_leads() -> None:
    nodes = in_order_of_id(4)
    nodes.save(1)
    time = Time(lambda: nodes.protect(XOR) if time.now_s == 2 else None)
    follower = set_of(nodes, 2, time=time, wait_s=30)
    assert follower.protect_checkpoint(lineage_of(2), nodes.manifest(2)) == 1
    assert time.now_s == 2


def test_what_others_have_lost_since_is_seen() -> None:
    """The own disk says that all is well; the one with the parity has been replaced."""
    nodes = in_order_of_id(4)
    nodes.save(1)
    nodes.protect(PARTNER)
    for tier in (nodes.tiers[number] for number in (0, 1, 2)):
        for key in list(tier.iter_keys("redundancy")):
            tier.delete(key)
    assert set_of(nodes, 3).protect_checkpoint(lineage_of(3), nodes.manifest(3)) == 1
    _, target = nodes.rebuild([3])
    assert restored_step(target, 3) == 1


def test_less_than_wanted_is_not_enough() -> None:
    """Of what survived two losses one has happened; the new member makes it two again."""
    nodes = in_order_of_id(5)
    nodes.save(1)
    nodes.protect(RS)
    done, target = nodes.rebuild([1])
    assert done.failed == []
    after = Nodes(tiers=[nodes.tiers[0], *nodes.tiers[2:], target])
    one = set_of(after, 3, RS)  # It was node 4, and does not lead.
    assert one.protect_checkpoint(lineage_of(4), nodes.manifest(4)) == 2


def test_if_it_does_not_come_they_do_it_themselves() -> None:
    """And with them what the others have by then."""
    nodes, time = in_order_of_id(4), Time()
    nodes.save(1, [1, 2, 3])
    follower = set_of(nodes, 2, time=time, wait_s=30)
    assert follower.protect_checkpoint(lineage_of(2), nodes.manifest(2)) == 1
    assert time.now_s == pytest.approx(30)
    stripes = [seen.stripe for seen in look(nodes.members).stripes.values()]
    assert {len(stripe.data) for stripe in stripes} == {3, 1}
    done, target = nodes.rebuild([2])
    assert done.failed == []
    assert restored_step(target, 2) == 1


def test_with_a_checkpoint_goes_what_makes_others_void() -> None:
    """The only fence tier is the node's own: attempt 2 went back from step 2 to step 1."""
    nodes = in_order_of_id(4)
    nodes.save(1)
    lineage = Lineage([nodes.tiers[3]], lineage_of(3))
    first = nodes.manifest(3)
    nodes.save(2, [3])
    one = set_of(nodes, 3, wait_s=0)
    for manifest in (first, nodes.manifest(3)):
        assert one.protect_checkpoint(lineage_of(3), manifest) == 1
    lineage.record_resume(2, first.id)
    survey = look(nodes.members)
    assert survey.checkpoint_losses(nodes.members[3].id, lineage_of(3), first.id) == 0
    assert one.protect_checkpoint(lineage_of(3), first) == 1
    _, target = nodes.rebuild([3])
    assert restored_step(target, 3) == 1


def test_partner_copies_wait_for_nobody() -> None:
    nodes, time = in_order_of_id(4), Time()
    nodes.save(1)
    member = set_of(nodes, 3, PARTNER, time=time)
    assert member.protect_checkpoint(lineage_of(3), nodes.manifest(3)) == 1
    assert time.now_s == 0
    assert all(len(s.stripe.data) == 1 for s in look(nodes.members).stripes.values())


def test_with_members_down_less_is_done_and_that_is_said() -> None:
    nodes, notes = in_order_of_id(4), list[str]()
    nodes.save(1)
    silenced(nodes, [2, 3])
    member = set_of(nodes, 0, RS, note=notes.append, gone=frozenset())
    assert member.protect_checkpoint(lineage_of(0), nodes.manifest(0)) == 1
    assert any("protected against 1 losses instead of 2" in note for note in notes)
    assert any("was left out: no route to host" in note for note in notes)
    assert member.protect_now().stripes == []  # Better cannot be had now.


def test_alone_nothing_is_protected_and_the_caller_is_told() -> None:
    nodes = in_order_of_id(3)
    nodes.save(1)
    silenced(nodes, [1, 2])
    with pytest.raises(FlushError, match="1 of 3 members answer") as raised:
        set_of(nodes, 0).protect_checkpoint(lineage_of(0), nodes.manifest(0))
    assert raised.value.__notes__ == ["no route to host"] * 2
    assert list(nodes.tiers[0].iter_keys("redundancy")) == []


def test_a_pause_of_the_network_moves_no_bytes_but_a_loss_does() -> None:
    nodes = in_order_of_id(4)
    nodes.save(1)
    nodes.protect(XOR)
    silent = nodes.members[3].id
    silenced(nodes, [3])
    assert set_of(nodes, 0).protect_now().stripes == []
    rest = [one for one in nodes.members if one.id != silent]
    done = set_of(nodes, 0, gone=frozenset({silent})).protect_now()
    assert done.stripes
    assert all(silent not in stripe.members for stripe in done.stripes)
    survey = look(rest)
    for node in range(3):
        checkpoint = nodes.manifest(node).id
        member = nodes.members[node].id
        assert survey.checkpoint_losses(member, lineage_of(node), checkpoint) == 1


def test_who_has_no_room_holds_nothing_for_others() -> None:
    nodes = in_order_of_id(4)
    nodes.save(1)

    def full(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".parity"):
            raise TierFull("no room")

    member = nodes.members[3]
    nodes.members[3] = Member(member.id, FaultyTier(member.tier, full))
    done = set_of(nodes, 0).protect_now()
    assert any("no room" in reason for reason in done.reasons)
    for stripe in done.stripes:
        assert member.id not in {piece.member for piece in stripe.parity}
    for lost in range(4):
        rebuilt, target = nodes.rebuild([lost])
        assert rebuilt.failed == []
        assert restored_step(target, lost) == 1


def test_a_member_that_dies_while_it_is_written_to_is_done_without() -> None:
    nodes = in_order_of_id(5)
    nodes.save(1)
    calls = []

    def dying(_operation: str, key: str) -> None:
        calls.append(key)
        if any(key.endswith(".parity") for key in calls):
            raise TierUnavailable("connection reset")

    member = nodes.members[4]
    nodes.members[4] = Member(member.id, FaultyTier(member.tier, dying))
    done = set_of(nodes, 0).protect_now()
    assert any("connection reset" in reason for reason in done.reasons)
    assert {piece.key for stripe in done.stripes for piece in stripe.data} >= {
        f"{lineage_of(node).prefix}/{nodes.manifest(node).id.manifest_key}" for node in range(4)
    }
    set_of(nodes, 0, gone=frozenset({member.id})).protect_now()
    survey = look(nodes.members[:4])
    for node in range(4):
        checkpoint = nodes.manifest(node).id
        losses = survey.checkpoint_losses(nodes.members[node].id, lineage_of(node), checkpoint)
        assert losses == 1


def test_a_damaged_pack_gets_no_redundancy() -> None:
    """Damage is not copied to others and called safe there; everybody else is protected."""
    nodes = in_order_of_id(4)
    nodes.save(1)
    tier = nodes.tiers[1]
    key = next(iter(tier.iter_keys(f"{lineage_of(1).prefix}/packs")))
    data = bytearray(tier.get(key))
    data[20] ^= 1
    tier.put(key, [data])
    notes: list[str] = []
    done = set_of(nodes, 0, note=notes.append).protect_now()
    assert any("Frame 0 of pack" in note for note in notes)
    assert any("is not protected: a pack that it names is not" in note for note in notes)
    coded = {(p.member, p.key) for stripe in done.stripes for p in stripe.data}
    assert nodes.members[1].id not in {member for member, _ in coded}
    with pytest.raises(FlushError, match="is not protected"):
        set_of(nodes, 1, wait_s=1).protect_checkpoint(lineage_of(1), nodes.manifest(1))
    survey = look(nodes.members)
    for node in (0, 2, 3):
        checkpoint = nodes.manifest(node).id
        assert survey.checkpoint_losses(nodes.members[node].id, lineage_of(node), checkpoint)


def test_a_manifest_that_was_replaced_is_protected_again() -> None:
    """Consolidation puts another manifest under the same key."""
    nodes = in_order_of_id(3)
    nodes.save(1)
    nodes.save(2)
    member = set_of(nodes, 0)
    member.protect_now()
    checkpoint = nodes.manifest(0).id
    tier = nodes.tiers[0]
    replaced = Nodes(tiers=[MemoryTier("other")])
    replaced.save(2)
    prefix = lineage_of(0).prefix
    for key in replaced.tiers[0].iter_keys(prefix):
        tier.put(key, [replaced.tiers[0].get(key)])
    before = look(nodes.members)
    assert before.checkpoint_losses(member.own.id, lineage_of(0), checkpoint) == 0
    member.protect_now()
    after = look(nodes.members)
    assert after.checkpoint_losses(member.own.id, lineage_of(0), checkpoint) == 1
    member.release_now()
    done, target = nodes.rebuild([0])
    assert done.failed == []
    assert restored_step(target, 0) == 2


def test_a_copied_store_is_no_second_member() -> None:
    nodes = Nodes(2)
    with pytest.raises(ConfigError, match="an id of its own"):
        RedundancySet(
            own=nodes.members[0],
            others=[Member(nodes.members[0].id, nodes.tiers[1])],
            scheme=XOR,
        )


def test_rebuild_release_and_what_is_held_from_one_hand() -> None:
    nodes = in_order_of_id(4)
    nodes.save(1)
    member = set_of(nodes, 1)
    member.protect_now()
    held = [set_of(nodes, node).held_keys() for node in range(4)]
    assert sum(map(len, held)) == 3  # Those that are coded together.
    lost = nodes.members[3].id
    target = MemoryTier("new")
    assert member.rebuild(target, lost=[lost]).failed == []
    assert restored_step(target, 3) == 1
    assert member.release_now().stripes == ()
