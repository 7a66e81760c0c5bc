"""What a look at the members tells: what is there, what it survives, and what is damaged."""

from __future__ import annotations

import pytest
from nodes import Nodes, lineage_of, restored_step, spoil

from ckptflow.errors import TierError, TierUnavailable
from ckptflow.flush.copying import manifest_on
from ckptflow.manifest import OBJECT_BYTES_MAX
from ckptflow.model import CheckpointId
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import RECORD_BYTES_MAX, ensure_store, store_id
from ckptflow.store.redundancy.release import held_keys, release
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.scrub import scrub
from ckptflow.store.redundancy.stripes import DESCRIPTOR_BYTES_MAX, REDUNDANCY
from ckptflow.store.redundancy.survey import Member, look, member_of
from ckptflow.store.repair import repair
from ckptflow.store.rereading import consolidated
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.sealed import SealedTier
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier

RS = Scheme(name="rs", set_size=5, losses=2)


@pytest.fixture
def nodes() -> Nodes:
    nodes = Nodes(5)
    nodes.save(1)
    nodes.protect(RS)
    return nodes


def losses(nodes: Nodes, node: int, without: tuple[int, ...] = (), **options: object) -> int:
    members = [one for number, one in enumerate(nodes.members) if number not in without]
    survey = look(members)
    checkpoint = CheckpointId(1, 1)
    own = nodes.members[node].id
    return survey.checkpoint_losses(own, lineage_of(node), checkpoint, **options)


def test_each_loss_leaves_one_less(nodes: Nodes) -> None:
    assert losses(nodes, 0) == 2
    assert losses(nodes, 0, without=(1,)) <= 2
    assert losses(nodes, 0, without=(1, 2)) <= 1
    assert losses(nodes, 0, without=(1, 2, 3, 4)) == 0
    assert losses(nodes, 0, without=(0,)) == 0  # It is not there at all.
    silent = [nodes.members[1].id, nodes.members[2].id]
    assert losses(nodes, 0, without=(1, 2), assumed=silent) == 2


def test_what_is_not_protected_survives_nothing() -> None:
    nodes = Nodes(3)
    nodes.save(1)
    assert losses(nodes, 0) == 0
    survey = look(nodes.members)
    assert survey.checkpoint_losses(nodes.members[0].id, lineage_of(0), CheckpointId(9, 1)) == 0


def test_a_pack_that_is_missing_makes_all_unsafe(nodes: Nodes) -> None:
    tier = nodes.tiers[1]
    for key in list(tier.iter_keys(f"{lineage_of(1).prefix}/packs")):
        tier.delete(key)
    assert losses(nodes, 1) == 0


def test_a_new_delta_is_unsafe_until_its_own_pack_is_protected(nodes: Nodes) -> None:
    nodes.save(2, [0])
    survey = look(nodes.members)
    member = nodes.members[0].id
    assert survey.checkpoint_losses(member, lineage_of(0), CheckpointId(1, 1)) == 2
    assert survey.checkpoint_losses(member, lineage_of(0), CheckpointId(2, 1)) == 0
    before = len(survey.stripes)
    nodes.protect(RS)
    survey = look(nodes.members)
    assert survey.checkpoint_losses(member, lineage_of(0), CheckpointId(2, 1)) == 2
    assert len(survey.stripes) == before + 2  # Its pack and its manifest, and no more.


def test_a_lost_descriptor_counts(nodes: Nodes) -> None:
    for tier in nodes.tiers[1:]:
        for key in [key for key in tier.iter_keys(REDUNDANCY) if key.endswith(".json")]:
            tier.delete(key)
    assert losses(nodes, 0) == 0


def test_a_damaged_manifest_is_noted_and_not_counted(nodes: Nodes) -> None:
    key = f"{lineage_of(2).prefix}/{CheckpointId(1, 1).manifest_key}"
    spoil(nodes.tiers[2], key, "flipped")
    notes: list[str] = []
    survey = look(nodes.members, note=notes.append)
    assert survey.checkpoint_losses(nodes.members[2].id, lineage_of(2), CheckpointId(1, 1)) == 0
    assert any("gets no redundancy" in note for note in notes)


def test_a_live_run_that_prunes_is_looked_at_again(nodes: Nodes) -> None:
    tier, own = nodes.tiers[0], nodes.members[0].id
    key = f"{lineage_of(0).prefix}/{CheckpointId(1, 1).manifest_key}"

    def prune_once(operation: str, asked: str) -> None:
        if operation == "get" and asked == key:
            tier.delete(key)

    survey = look([Member(own, FaultyTier(tier, prune_once)), *nodes.members[1:]])
    assert survey.silent == {}
    assert (own, key) not in survey.objects


def test_a_member_that_never_holds_still_is_left_out(nodes: Nodes) -> None:
    tier, own = nodes.tiers[0], nodes.members[0].id
    key = f"{lineage_of(0).prefix}/{CheckpointId(1, 1).manifest_key}"
    data = tier.get(key)

    def restless(operation: str, asked: str) -> None:
        if operation == "iter_keys":
            tier.put(key, [data])
        elif operation == "get" and asked == key:
            tier.delete(key)

    survey = look([Member(own, FaultyTier(tier, restless)), *nodes.members[1:]])
    assert "changed during each of 5 looks" in survey.silent[own]


def test_strangers_beside_the_objects_are_ignored(nodes: Nodes) -> None:
    for key in (
        "lineages/x",
        "lineages/exp/task0/notes/a",
        "redundancy/mine/x",
        "redundancy/y",
    ):
        nodes.tiers[0].put(key, [b"x"])
    assert losses(nodes, 0) == 2
    assert release(look(nodes.members), RS, now_ms=lambda: 1 << 50).loose_blocks == 0
    assert nodes.tiers[0].get("redundancy/mine/x") == b"x"


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_scrub_takes_damaged_parity_away_and_it_is_made_anew(nodes: Nodes, how: str) -> None:
    tier = nodes.tiers[3]
    key = next(key for key in tier.iter_keys(REDUNDANCY) if key.endswith(".parity"))
    assert scrub(look(nodes.members)) == []
    spoil(tier, key, how)
    survey = look(nodes.members)
    damaged = scrub(survey)
    assert [(one.member, key in one.keys) for one in damaged] == [(nodes.members[3].id, True)]
    assert key not in set(tier.iter_keys(REDUNDANCY))
    nodes.protect(RS)
    release(look(nodes.members), RS)
    assert scrub(look(nodes.members)) == []
    assert [losses(nodes, node) for node in range(5)] == [2] * 5


def test_a_scrub_names_damaged_objects_and_leaves_them(nodes: Nodes) -> None:
    tier = nodes.tiers[4]
    key = next(iter(tier.iter_keys(f"{lineage_of(4).prefix}/packs")))
    spoil(tier, key, "flipped")
    damaged = scrub(look(nodes.members))
    assert [(one.member, one.keys) for one in damaged] == [(nodes.members[4].id, (key,))]
    assert "is not what was coded" in damaged[0].reason
    assert key in set(tier.iter_keys("lineages"))
    target = MemoryTier("mended")
    done, _ = nodes.rebuild([4], target)
    assert done.failed == []
    assert restored_step(target, 4) == 1


def test_a_member_is_known_by_the_id_of_its_store() -> None:
    tier = MemoryTier("a")
    ensure_store(tier)
    assert member_of(tier).id == store_id(tier) == member_of(tier).id
    assert member_of(MemoryTier("a")).id != store_id(tier)


def test_a_pack_that_cannot_be_listed_leaves_the_member_out(nodes: Nodes) -> None:
    def failing(operation: str, key: str) -> None:
        if operation == "iter_keys" and key == "lineages":
            raise TierError("input/output error")

    member = nodes.members[1]
    survey = look([nodes.members[0], Member(member.id, FaultyTier(member.tier, failing))])
    assert survey.silent == {member.id: "input/output error"}
    assert Lineage([nodes.tiers[0]], lineage_of(0)).valid()


@pytest.mark.parametrize("kind", [".parity", ".pack"])
def test_a_scrub_deletes_nothing_that_only_does_not_answer(kind: str) -> None:
    nodes, away = Nodes(3), [False]

    def failing(operation: str, key: str) -> None:
        if away[0] and operation in ("get", "read_into", "size") and key.endswith(kind):
            raise TierUnavailable("a pause of the network")

    nodes.save(1)
    nodes.protect(Scheme(name="xor", set_size=3, losses=1))
    survey = look([Member(one.id, FaultyTier(one.tier, failing)) for one in nodes.members])
    before = [list(tier.iter_keys("")) for tier in nodes.tiers]
    away[0] = True
    assert scrub(survey) == []
    assert [list(tier.iter_keys("")) for tier in nodes.tiers] == before


def test_a_forged_manifest_on_a_sealed_member_costs_that_object_only() -> None:
    key = StoreKey(bytes(range(32)))
    nodes = Nodes(tiers=[SealedTier(MemoryTier(f"n{n}", level=1), key) for n in range(3)])
    nodes.save(1)
    sealed = nodes.tiers[1]
    assert isinstance(sealed, SealedTier)
    spoil(sealed.inner, f"{lineage_of(1).prefix}/{CheckpointId(1, 1).manifest_key}", "flipped")
    notes: list[str] = []
    survey = look(
        [Member(one.id, SealedTier(inner_of(one), key)) for one in nodes.members],
        note=notes.append,
    )
    assert survey.silent == {}
    assert [note for note in notes if "gets no redundancy" in note] == notes != []
    assert {held.member for held in survey.objects.values()} >= {nodes.members[0].id}


def inner_of(member: Member) -> Tier:
    assert isinstance(member.tier, SealedTier)
    return member.tier.inner


def test_who_answers_at_the_address_of_a_member_has_to_be_it(nodes: Nodes) -> None:
    one, two = nodes.members[:2]
    survey = look([Member(one.id, two.tier), *nodes.members[1:]])
    assert "answers, not" in survey.silent[one.id]
    assert one.id not in {member for member, _ in survey.objects}
    stranger = look([Member(one.id, MemoryTier("empty")), two])
    assert "is no store" in stranger.silent[one.id]


def test_descriptors_that_are_lost_are_put_again(nodes: Nodes) -> None:
    tier = nodes.tiers[3]
    before = sorted(tier.iter_keys(REDUNDANCY))
    descriptors = [key for key in before if key.endswith("/stripe.json")]
    assert descriptors
    for key in descriptors:
        tier.delete(key)
    done = nodes.protect(RS)
    assert done.stripes == []
    assert sorted(tier.iter_keys(REDUNDANCY)) == before
    assert [losses(nodes, node) for node in range(5)] == [2] * 5


class Limited(TierAround):
    """Notes how much of each object was asked for at the most."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.limits: list[tuple[str, int | None]] = []

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        self.limits.append((key, size_bytes))
        return self.inner.get(key, start_bytes=start_bytes, size_bytes=size_bytes)


def test_manifests_are_never_read_without_a_limit(nodes: Nodes) -> None:
    tier = Limited(nodes.tiers[0])
    lineage, found = Lineage([tier], lineage_of(0)), CheckpointId(1, 1)
    manifest = lineage.manifest(lineage.valid()[0])
    look([Member(nodes.members[0].id, tier)])
    repair(lineage, lineage.checkpoints())
    consolidated([tier], manifest)
    manifest_on(tier, lineage.id, found)
    limits = {limit for key, limit in tier.limits if key.endswith(found.manifest_key)}
    assert limits == {OBJECT_BYTES_MAX + 1}


def test_descriptors_are_never_read_without_a_limit(nodes: Nodes) -> None:
    tier = Limited(nodes.tiers[0])
    look([Member(nodes.members[0].id, tier)])
    held_keys(tier, nodes.members[0].id)
    limits = [limit for key, limit in tier.limits if key.endswith("/stripe.json")]
    assert len(limits) >= 2
    assert set(limits) == {DESCRIPTOR_BYTES_MAX + 1}


def test_a_record_that_is_too_long_is_noted_and_not_counted(nodes: Nodes) -> None:
    lineage = Lineage([nodes.tiers[0]], lineage_of(0))
    before = set(nodes.tiers[0].iter_keys(""))
    lineage.record_resume(2, CheckpointId(1, 1))
    (key,) = set(nodes.tiers[0].iter_keys("")) - before
    assert (nodes.members[0].id, key) in look(nodes.members).objects
    nodes.tiers[0].delete(key)
    nodes.tiers[0].put(key, [bytes(RECORD_BYTES_MAX + 1)])
    notes: list[str] = []
    survey = look(nodes.members, note=notes.append)
    assert (nodes.members[0].id, key) not in survey.objects
    assert any(key in note and "is no record" in note for note in notes)
