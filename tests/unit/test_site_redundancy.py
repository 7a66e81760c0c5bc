"""The table on redundancy: what it may say, and the set that a node gets from it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from ckptflow.errors import TierUnavailable
from ckptflow.site.redundancy import RedundancyModel
from ckptflow.store.redundancy.survey import member_of
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier

TABLE = """
scheme = "rs"
set_size = 4
losses = 2
wait = "10s"

[groups.power]
west = ["n0*"]
east = ["n1*"]

[groups.rack]
r0 = ["n00", "n01"]
r1 = ["n02", "n03"]
"""


def model(**changes: Any) -> RedundancyModel:
    return RedundancyModel.model_validate(tomllib.loads(TABLE) | changes)


def test_hosts_belong_to_groups() -> None:
    assert model().groups_of("n01") == {"power": "west", "rack": "r0"}
    assert model().groups_of("n13") == {"power": "east"}
    assert model().groups_of("login") == {}
    assert model().wanted.losses == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "raid6"}, "partner"),
        ({"scheme": "xor"}, "XOR can rebuild one loss, not 2"),
        ({"set_size": 2}, "can rebuild 1 to 1, not 2"),
        ({"set_size": 1000}, "2 to 64 members"),
        ({"wait": "-1s"}, "wait"),
        ({"wait": "soon"}, "wait"),
        ({"sets": 3}, "Extra inputs"),
        ({"groups": {"rack": "r1"}}, "groups"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model(**changes)


def test_every_node_finds_the_same_sets() -> None:
    tiers = {
        f"n{number:02}": MemoryTier(f"n{number:02}") for number in (0, 1, 2, 3, 10, 11, 12, 13)
    }
    ids = {member_of(tier).id: host for host, tier in tiers.items()}
    found = set()
    for host, own in tiers.items():
        others = {name: tier for name, tier in tiers.items() if name != host}
        one = model().open_set(own, others, host=host)
        assert one is not None
        assert one.own.id == member_of(own).id
        assert one.wait_s == 10
        found.add(frozenset(ids[member.id] for member in one.members))
    assert sorted(map(len, found)) == [4, 4]
    for hosts in found:  # Two of each power supply, and no rack twice.
        assert sum(host.startswith("n0") for host in hosts) == 2
        assert len(hosts & {"n00", "n01"}) == len(hosts & {"n02", "n03"}) == 1


def test_who_does_not_answer_is_left_out() -> None:
    def silent(_operation: str, _key: str) -> None:
        raise TierUnavailable("no route to host")

    notes: list[str] = []
    others = {"b": MemoryTier("b"), "c": FaultyTier(MemoryTier("c"), silent)}
    one = model().open_set(MemoryTier("a"), others, host="a", note=notes.append)
    assert one is not None
    assert len(one.members) == 2
    assert notes == [
        "Node 'c' was left out: no route to host",
        "2 nodes make one set, smaller than the 4 wanted.",
    ]


def test_alone_there_is_no_set() -> None:
    notes: list[str] = []
    assert model().open_set(MemoryTier("a"), {}, host="a", note=notes.append) is None
    assert notes == ["1 node: redundancy needs at least 2."]
