"""Sets and placements: nobody twice, groups apart wherever they can be, and always the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import ConfigError
from ckptflow.policy.groups import Node, choose_data, choose_sets, place_parity

racks = st.lists(st.integers(0, 5), min_size=2, max_size=40)


def cluster(racks_of: list[int]) -> list[Node]:
    """Nodes in racks; two racks share a switch."""
    return [
        Node(f"n{number:02}", {"switch": f"s{rack // 2}", "rack": f"r{rack}"})
        for number, rack in enumerate(racks_of)
    ]


@given(racks, st.integers(2, 8), st.randoms(use_true_random=False))
def test_sets_divide_the_nodes_evenly_whatever_their_order(
    racks_of: list[int], size: int, shuffle: random.Random
) -> None:
    nodes = cluster(racks_of)
    chosen = choose_sets(nodes, size=size)
    assert sorted(one for members in chosen.sets for one in members) == [n.id for n in nodes]
    sizes = {len(members) for members in chosen.sets}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(size, len(nodes))
    mixed = list(nodes)
    shuffle.shuffle(mixed)
    assert choose_sets(mixed, size=size) == chosen


@given(racks, st.integers(2, 8))
def test_no_set_has_more_of_a_group_than_it_must(racks_of: list[int], size: int) -> None:
    nodes = {node.id: node for node in cluster(racks_of)}
    sets = choose_sets(list(nodes.values()), size=size).sets
    for kind in ("switch", "rack"):
        of_group = Counter(node.groups[kind] for node in nodes.values())
        for members in sets:
            here = Counter(nodes[one].groups[kind] for one in members)
            assert all(here[name] <= -(-of_group[name] // len(sets)) for name in here)


def test_too_few_groups_are_said() -> None:
    chosen = choose_sets(cluster([0, 0, 0, 2]), size=4, losses=2)
    assert chosen.reasons == (
        "4 nodes make 1 sets of 4 members or more.",
        "Set 0 has 3 members of switch 's0' and can rebuild 2: it does not survive the loss of "
        "that switch.",
        "Set 0 has 3 members of rack 'r0' and can rebuild 2: it does not survive the loss of "
        "that rack.",
    )
    assert choose_sets(cluster([0, 2, 4, 1]), size=4).reasons[1:] == (
        "Set 0 has 2 members of switch 's0' and can rebuild 1: it does not survive the loss of "
        "that switch.",
    )


def test_few_nodes() -> None:
    assert choose_sets([], size=4).sets == ()
    assert choose_sets([Node("a")], size=4).reasons == ("1 node: redundancy needs at least 2.",)
    small = choose_sets([Node("a"), Node("b")], size=4)
    assert small.sets == (("a", "b"),)
    assert "smaller than the 4 wanted" in small.reasons[0]


@pytest.mark.parametrize(
    ("size", "losses", "message"),
    [(1, 1, "2 to 64 members"), (65, 1, "2 to 64"), (4, 0, "1 to 3"), (4, 4, "1 to 3, not 4")],
)
def test_sets_that_cannot_be(size: int, losses: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_sets([Node("a"), Node("b")], size=size, losses=losses)


def test_ids_are_unique() -> None:
    with pytest.raises(ConfigError, match="same id"):
        choose_sets([Node("a"), Node("a")], size=2)


@given(
    st.lists(st.integers(0, 7), min_size=2, max_size=8),
    st.integers(1, 3),
    st.integers(1, 6),
    st.lists(st.integers(0, 100), min_size=8, max_size=8),
)
def test_no_member_has_two_pieces_and_groups_are_apart_when_they_can_be(
    racks_of: list[int], losses: int, count: int, sizes: list[int]
) -> None:
    nodes = [Node(f"n{i}", {"rack": f"r{rack}"}) for i, rack in enumerate(racks_of)]
    losses = min(losses, len(nodes) - 1)
    count = min(count, len(nodes) - losses)
    wishes = {node.id: size for node, size in zip(nodes, sizes, strict=False)}
    data = choose_data(nodes, wishes, count)
    placed = place_parity(nodes, data, losses)
    members = [*data, *placed.holders]
    assert len(set(members)) == len(members) == count + losses
    rack_of = {node.id: node.groups["rack"] for node in nodes}
    if len(set(racks_of)) >= count + losses:
        assert len({rack_of[one] for one in members}) == count + losses
        assert placed.reasons == ()


def test_parity_goes_where_the_least_lies() -> None:
    nodes = [Node(name) for name in "abcd"]
    load = {"b": 10, "c": 0, "d": 5}
    assert place_parity(nodes, ["a"], 2, load_bytes=load).holders == ("c", "d")
    with pytest.raises(ConfigError, match="3 parity pieces need 3 members besides the 2"):
        place_parity(nodes, ["a", "b"], 3)


def test_the_largest_objects_come_together() -> None:
    nodes = [Node(name) for name in "abcd"]
    wishes = {"a": 1, "b": 50, "c": 40, "d": 45}
    assert choose_data(nodes, wishes, 3) == ("b", "d", "c")
    assert choose_data(nodes, {"a": 1}, 3) == ("a",)
