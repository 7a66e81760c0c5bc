"""A redundancy set with every misfortune, against a model of what was committed where.

Nodes save, protect, prune and release; each of these may crash before any change. Nodes are
lost and rebuilt on new ones, come back with the disk they had a while ago, and objects are
damaged. At all times: a checkpoint of which a survey says that it survives so many losses does
survive the loss of its node and any others, bit by bit; and what a node holds itself is not
harmed by what is done for others.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from nodes import BLOCK, copy_of, lineage_of, member_with_id, restored_step, save

from ckptflow.errors import FlushError
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.memory import Base
from ckptflow.store.prune import prune
from ckptflow.store.redundancy.protect import protect
from ckptflow.store.redundancy.rebuild import rebuild
from ckptflow.store.redundancy.release import release
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.set import RedundancySet
from ckptflow.store.redundancy.survey import Member, look
from ckptflow.testing.faults import Crash, FaultyTier
from ckptflow.tiers.memory import MemoryTier

NODES = 4
NODE = st.integers(0, NODES - 1)
CRASHES = st.one_of(st.none(), st.integers(0, 12))
SCHEMES = {
    "partner": Scheme(name="partner", set_size=NODES, losses=1),
    "xor": Scheme(name="xor", set_size=NODES, losses=1),
    "rs": Scheme(name="rs", set_size=NODES, losses=2),
}


class LifeOfASet(RuleBasedStateMachine):
    """Four nodes; node ``n`` runs the task of number ``n`` wherever it is rebuilt."""

    @initialize(scheme=st.sampled_from(sorted(SCHEMES)))
    def start(self, scheme: str) -> None:
        self.scheme, self.made = SCHEMES[scheme], 0
        self.members: list[Member] = [self.fresh(node) for node in range(NODES)]
        self.bases: list[Base | None] = [None] * NODES
        self.steps = [0] * NODES
        self.gone: set[str] = set()
        self.damaged: set[tuple[str, str]] = set()

    def fresh(self, node: int) -> Member:
        """Ids come in an order that has nothing to do with that of the nodes."""
        self.made += 1
        return member_with_id(MemoryTier(f"node{node}", level=1), self.made * 7919 % 1009)

    def doomed(self, crash_at: int | None) -> list[Member]:
        left = [crash_at]

        def on_call(operation: str, key: str) -> None:
            if left[0] is not None and operation in ("put", "create", "delete"):
                if left[0] == 0:
                    raise Crash(f"{operation} {key}")
                left[0] -= 1

        return [Member(one.id, FaultyTier(one.tier, on_call)) for one in self.members]

    def with_crash(self, crash_at: int | None, do: Callable[[list[Member]], object]) -> None:
        """Whatever is done, and wherever it ends: nobody's newest checkpoint is less safe."""
        own = [restored_step(one.tier, node) for node, one in self.undamaged()]
        before = self.losses()
        with contextlib.suppress(Crash):
            do(self.doomed(crash_at))
        assert own == [restored_step(one.tier, node) for node, one in self.undamaged()]
        assert self.damaged or all(
            new >= old for new, old in zip(self.losses(), before, strict=True)
        )

    def losses(self) -> list[int]:
        """How many losses the newest checkpoint of each node survives."""
        survey, found = look(self.members), []
        for node, member in enumerate(self.members):
            valid = Lineage([member.tier], lineage_of(node)).valid()
            found.append(
                survey.checkpoint_losses(member.id, lineage_of(node), valid[0].id)
                if valid
                else 0
            )
        return found

    def undamaged(self) -> list[tuple[int, Member]]:
        spoilt = {member for member, _ in self.damaged}
        return [(n, one) for n, one in enumerate(self.members) if one.id not in spoilt]

    # --- what is looked at after every event ---

    @invariant()
    def what_is_called_protected_is(self) -> None:
        if self.damaged:  # A look at keys does not see damage: see `rebuild_with_damage`.
            return
        for node, losses in enumerate(self.losses()):
            others = [number for number in range(NODES) if number != node]
            if losses:
                found = Lineage([self.members[node].tier], lineage_of(node)).valid()
                for more in itertools.combinations(others, losses - 1):
                    self.check_loss([node, *more], node, found[0].id.step)

    def check_loss(self, lost: list[int], node: int, step: int) -> None:
        left = [one for number, one in enumerate(self.members) if number not in lost]
        target = MemoryTier("new")
        rebuild(look(left), target, lost=[self.members[node].id])
        assert restored_step(target, node) == step

    # --- what nodes do ---

    @rule(node=NODE, full=st.booleans())
    def save(self, node: int, full: bool) -> None:
        self.steps[node] += 1
        base = None if full else self.bases[node]
        tier = self.members[node].tier
        if base is not None and not all(
            self.has(tier, node, p.key) for p in base.manifest.packs
        ):
            base = None
        self.bases[node] = save(tier, node, self.steps[node], base)

    @staticmethod
    def has(tier: MemoryTier, node: int, key: str) -> bool:
        return f"{lineage_of(node).prefix}/{key}" in set(
            tier.iter_keys(lineage_of(node).prefix)
        )

    @rule()
    def everybody_saves(self) -> None:
        for node in range(NODES):
            self.save(node, False)

    @rule(crash_at=CRASHES)
    def protect(self, crash_at: int | None) -> None:
        self.with_crash(
            crash_at, lambda members: protect(look(members), self.scheme, block_bytes=BLOCK)
        )

    @rule(node=NODE, crash_at=CRASHES)
    def protect_a_checkpoint(self, node: int, crash_at: int | None) -> None:
        """What returns is true: it survives what is said, damage to others' disks apart."""
        base = self.bases[node]
        if base is None:
            return

        def do(members: list[Member]) -> None:
            one = RedundancySet(
                own=members[node],
                others=[m for m in members if m is not members[node]],
                scheme=self.scheme,
                wait_s=0,
                block_bytes=BLOCK,
            )
            try:
                losses = one.protect_checkpoint(lineage_of(node), base.manifest)
            except FlushError:
                assert self.damaged
                return
            assert self.damaged or losses == self.losses()[node] == self.scheme.losses

        self.with_crash(crash_at, do)

    @rule(node=NODE, crash_at=CRASHES)
    def prune(self, node: int, crash_at: int | None) -> None:
        def do(members: list[Member]) -> None:
            tier = members[node].tier
            prune(Lineage([tier], lineage_of(node)), tier, Retention(newest=1))

        self.with_crash(crash_at, do)

    @rule(crash_at=CRASHES)
    def release(self, crash_at: int | None) -> None:
        self.with_crash(
            crash_at, lambda members: release(look(members), self.scheme, gone=self.gone)
        )

    # --- misfortunes ---

    @rule(node=NODE)
    def lose_a_node_and_rebuild_it_elsewhere(self, node: int) -> None:
        """On a new node with another id; the task goes on from what came back."""
        lost, new = self.members[node], self.fresh(node)
        self.members[node] = new
        done = rebuild(look(self.members), new.tier, lost=[lost.id])
        for lineage, checkpoint, reason in done.failed:
            assert reason, (lineage, checkpoint)
        self.gone.add(lost.id)
        self.damaged = {place for place in self.damaged if place[0] != lost.id}
        self.bases[node] = None
        restored_step(new.tier, node)

    @rule(node=NODE)
    def come_back_with_an_old_disk(self, node: int) -> None:
        """The disk of an earlier moment: saves since then are lost, and what was held, too."""
        old = getattr(self, f"old{node}", None)
        if old is None or old.id != self.members[node].id:
            return
        self.members[node] = Member(old.id, copy_of(old.tier))
        self.bases[node] = None

    @rule(node=NODE)
    def remember_a_disk(self, node: int) -> None:
        if not any(member == self.members[node].id for member, _ in self.damaged):
            member = self.members[node]
            setattr(self, f"old{node}", Member(member.id, copy_of(member.tier)))

    @rule(node=NODE, choice=st.integers(0, 99), how=st.sampled_from(["cut", "flipped"]))
    def damage(self, node: int, choice: int, how: str) -> None:
        tier = self.members[node].tier
        keys = [key for key in tier.iter_keys("") if key != "ckptflow-store.json"]
        if not keys or self.damaged:  # One at a time.
            return
        key = keys[choice % len(keys)]
        data = bytearray(tier.get(key))
        if not data:
            return
        tier.delete(key)
        if how == "flipped":
            data[len(data) * choice // 100] ^= 1 << choice % 8
        else:
            data = data[: len(data) * choice // 100]
        tier.put(key, [data])
        self.damaged.add((self.members[node].id, key))

    @rule()
    def mend(self) -> None:
        """The damaged node is taken out of service: nothing wrong was ever restored from it."""
        for member, _ in list(self.damaged):
            node = next(n for n, one in enumerate(self.members) if one.id == member)
            self.lose_a_node_and_rebuild_it_elsewhere(node)


LifeOfASet.TestCase.settings = settings(
    stateful_step_count=20, max_examples=settings().max_examples // 4
)
TestLifeOfASet = LifeOfASet.TestCase
