"""Whoever protects, rebuilds or releases dies before each of its writes; then somebody goes on.

Method: count the changes of an undisturbed run on all tiers together, and repeat it once for
each, dying just before it. What a survey calls protected is then really lost, and rebuilt.
"""

from __future__ import annotations

import itertools

import pytest
from nodes import Nodes, lineage_of, restored_step

from ckptflow.model import LINEAGES
from ckptflow.store.catalog import Lineage
from ckptflow.store.redundancy.rebuild import rebuild
from ckptflow.store.redundancy.release import UNFINISHED_AGE_S, release
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import time_of
from ckptflow.store.redundancy.survey import Member, look
from ckptflow.testing.faults import Crash, Doom, FaultyTier
from ckptflow.tiers.memory import MemoryTier

SCHEMES = [
    Scheme(name="partner", set_size=3, losses=1),
    Scheme(name="xor", set_size=3, losses=1),
    Scheme(name="rs", set_size=3, losses=2),
    Scheme(name="rs", set_size=4, losses=2),
]
by_scheme = pytest.mark.parametrize(
    "scheme",
    [*SCHEMES[:3], pytest.param(SCHEMES[3], marks=pytest.mark.slow)],
    ids=lambda scheme: f"{scheme.name}{scheme.set_size}",
)


def doomed(nodes: Nodes, doom: Doom) -> Nodes:
    around = Nodes(tiers=nodes.tiers)
    around.members = [
        Member(member.id, FaultyTier(member.tier, doom)) for member in nodes.members
    ]
    return around


def saved(scheme: Scheme) -> Nodes:
    nodes = Nodes(scheme.set_size)
    nodes.save(1)
    return nodes


def check_that_claims_are_true(nodes: Nodes) -> list[int]:
    """Lose each node, and as many more as its newest checkpoint is said to survive.

    Returns who is protected.
    """
    survey, protected = look(nodes.members), []
    for node, member in enumerate(nodes.members):
        lineage = Lineage([member.tier], lineage_of(node))
        newest = lineage.valid()[0]
        needed = [newest.id.manifest_key, *(p.key for p in lineage.manifest(newest).packs)]
        losses = survey.checkpoint_losses(member.id, lineage_of(node), newest.id)
        others = [number for number in range(len(nodes.members)) if number != node]
        for more in itertools.combinations(others, max(0, losses - 1)):
            if losses:
                _, target = nodes.rebuild([node, *more])
                for key in (f"{lineage_of(node).prefix}/{one}" for one in needed):
                    assert target.get(key) == member.tier.get(key)
        if losses:
            protected.append(node)
    return protected


def of_lineages(nodes: Nodes) -> list[list[str]]:
    return [list(tier.iter_keys(LINEAGES)) for tier in nodes.tiers]


def release_later(nodes: Nodes, scheme: Scheme, *, after_s: float) -> None:
    survey = look(nodes.members)
    now_ms = max(map(time_of, survey.stripes)) + int(after_s * 1000)
    release(survey, scheme, now_ms=lambda: now_ms)


@by_scheme
def test_a_crash_before_any_write_of_a_protection(scheme: Scheme) -> None:
    start = saved(scheme)
    undisturbed, doom = start.copy(), Doom()
    doomed(undisturbed, doom).protect(scheme)
    everybody = list(range(scheme.set_size))
    assert check_that_claims_are_true(undisturbed) == everybody
    seen = set()
    for crash_at in range(doom.changes):
        nodes = start.copy()
        before = of_lineages(nodes)
        with pytest.raises(Crash):
            doomed(nodes, Doom(crash_at)).protect(scheme)
        seen.add(len(check_that_claims_are_true(nodes)))
        nodes.protect(scheme)
        assert check_that_claims_are_true(nodes) == everybody
        release_later(nodes, scheme, after_s=1)  # Somebody may be writing.
        release_later(nodes, scheme, after_s=UNFINISHED_AGE_S + 1)
        assert look(nodes.members).loose == []
        assert check_that_claims_are_true(nodes) == everybody
        assert of_lineages(nodes) == before
    assert {0, scheme.set_size - 1} <= seen


@by_scheme
def test_a_crash_before_any_write_of_a_rebuild(scheme: Scheme) -> None:
    nodes = saved(scheme)
    nodes.protect(scheme)
    nodes.save(2)
    nodes.protect(scheme)
    left = look(nodes.members[1:])
    doom = Doom()
    rebuild(left, FaultyTier(MemoryTier("new"), doom))
    for crash_at in range(doom.changes):
        target = MemoryTier("new")
        with pytest.raises(Crash):
            rebuild(left, FaultyTier(target, Doom(crash_at)))
        assert restored_step(target, 0) in (None, 1, 2)
        assert rebuild(left, target).failed == []
        assert restored_step(target, 0) == 2


@by_scheme
def test_a_crash_before_any_delete_of_a_release(scheme: Scheme) -> None:
    start = saved(scheme)
    start.protect(scheme)
    start.save(2)
    start.protect(scheme)
    for node in range(scheme.set_size):
        start.prune(node, keep=1)
    undisturbed, doom = start.copy(), Doom()
    release(look(doomed(undisturbed, doom).members), scheme)
    assert doom.changes > 0
    everybody = list(range(scheme.set_size))
    for crash_at in range(doom.changes):
        nodes = start.copy()
        with pytest.raises(Crash):
            release(look(doomed(nodes, Doom(crash_at)).members), scheme)
        assert check_that_claims_are_true(nodes) == everybody
        release(look(nodes.members), scheme)
        assert check_that_claims_are_true(nodes) == everybody
        assert len(look(nodes.members).stripes) == len(look(undisturbed.members).stripes)
