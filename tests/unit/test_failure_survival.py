"""Which losses redundancy does not survive: the formula and a simulation agree.

The simulation has nodes, racks and the sets that `choose_sets` makes of them, and counts the
losses after which a set lacks more members than it can rebuild.
"""

from __future__ import annotations

import math
import random

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.survival import Redundancy, beyond_redundancy_per_s
from ckptflow.policy.groups import Node, choose_sets

EVENTS = 20_000


def simulated_part(redundancy: Redundancy, nodes: int) -> float:
    """Return which part of the losses, one a second on average, no set survives."""
    r = random.Random(1)
    group = {one: one // redundancy.group_nodes for one in range(nodes)}
    cluster = [Node(f"{one:03}", {"rack": f"{group[one]:03}"}) for one in range(nodes)]
    sets = choose_sets(cluster, size=redundancy.set_size).sets
    may_lose = [min(redundancy.losses, len(members) - 1) for members in sets]
    set_of = {int(one): number for number, members in enumerate(sets) for one in members}
    now_s, beyond = 0.0, 0
    lost: dict[int, set[int]] = {}
    last_s: dict[int, float] = {}
    for _ in range(EVENTS):
        now_s += r.expovariate(1.0)
        first = r.randrange(nodes)
        takes_others = r.random() < redundancy.taking_others
        hit = [one for one in group if group[one] == group[first]] if takes_others else [first]
        for number in {set_of[one] for one in hit}:
            if now_s - last_s.get(number, -math.inf) > redundancy.window_s:
                lost[number] = set()
        for one in hit:
            if one not in lost[set_of[one]]:
                lost[set_of[one]].add(one)
                last_s[set_of[one]] = now_s
        if any(len(lost[set_of[one]]) > may_lose[set_of[one]] for one in hit):
            beyond += 1
            lost, last_s = {}, {}  # All begin again, from farther out.
    return beyond / EVENTS


@pytest.mark.parametrize(
    ("nodes", "redundancy"),
    [
        (16, Redundancy(set_size=4, window_s=0.5)),
        (18, Redundancy(set_size=4, window_s=0.5)),
        (5, Redundancy(set_size=4, losses=2, window_s=1.0)),
        (24, Redundancy(set_size=8, losses=2, window_s=1.5)),
        (4, Redundancy(set_size=8, losses=6, window_s=2.0)),
    ],
)
def test_losses_that_come_one_by_one(nodes: int, redundancy: Redundancy) -> None:
    simulated = simulated_part(redundancy, nodes)
    noise = math.sqrt(simulated / EVENTS)
    assert simulated > 0.005
    formula = beyond_redundancy_per_s(redundancy, nodes, 1.0)
    assert formula == pytest.approx(simulated, abs=4 * noise, rel=0.05)


@pytest.mark.parametrize(
    ("nodes", "redundancy"),
    [
        # Racks of four over six sets: one member of each.
        (24, Redundancy(set_size=4, window_s=0.3, taking_others=0.2, group_nodes=4)),
        # Racks of eight over four sets: two of each.
        (32, Redundancy(set_size=8, window_s=0.3, taking_others=0.1, group_nodes=8)),
        (32, Redundancy(set_size=8, losses=2, window_s=0.3, taking_others=0.2, group_nodes=8)),
        (32, Redundancy(set_size=8, losses=3, window_s=0.5, taking_others=1.0, group_nodes=8)),
        # Racks of three over ten sets, which overlap in part.
        (60, Redundancy(set_size=6, window_s=0.1, taking_others=0.5, group_nodes=3)),
    ],
)
def test_losses_that_take_others(nodes: int, redundancy: Redundancy) -> None:
    """The formula may take sets for worse off than they are, and hardly for better."""
    simulated = simulated_part(redundancy, nodes)
    noise = math.sqrt(simulated / EVENTS)
    formula = beyond_redundancy_per_s(redundancy, nodes, 1.0)
    assert 0.95 * simulated - 4 * noise < formula < 1.2 * simulated + 4 * noise


def test_a_rare_second_loss_follows_the_formula_of_raid() -> None:
    """m λ (m − 1) λ window, of each of the sets."""
    lost_per_s, window_s = 64 / 1e7, 600.0
    found = beyond_redundancy_per_s(Redundancy(set_size=8, window_s=window_s), 64, lost_per_s)
    assert found == pytest.approx(8 * 8 * 7 * 1e-14 * window_s, rel=0.01)


def test_a_rack_that_takes_too_many_of_a_set_breaks_it_at_once() -> None:
    given = {"set_size": 8, "window_s": 0.0, "taking_others": 0.25}
    rack = Redundancy(**given, group_nodes=8)
    assert beyond_redundancy_per_s(rack, 32, 4.0) == pytest.approx(1.0)
    assert beyond_redundancy_per_s(Redundancy(**given, group_nodes=4), 32, 4.0) == 0.0
    assert beyond_redundancy_per_s(Redundancy(**given, group_nodes=1), 32, 4.0) == 0.0
    whole = Redundancy(**given, group_nodes=99)
    assert beyond_redundancy_per_s(whole, 32, 4.0) == pytest.approx(1.0)


def test_one_node_is_rebuilt_by_nobody() -> None:
    assert beyond_redundancy_per_s(Redundancy(set_size=2, window_s=0.0), 1, 3.0) == 3.0
    assert beyond_redundancy_per_s(Redundancy(set_size=2, window_s=0.0), 2, 3.0) == 0.0
    assert beyond_redundancy_per_s(Redundancy(set_size=2, window_s=9.0), 2, 0.0) == 0.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"set_size": 1}, "A redundancy set has 2 to 64 members, not 1"),
        ({"losses": 4}, "can rebuild 1 to 3, not 4"),
        ({"window_s": -1.0}, "window_s, until redundancy is whole again, is 0 s or more"),
        ({"window_s": math.inf}, "finite, got inf s"),
        ({"taking_others": 1.5}, "a part of all losses of nodes, 0 to 1, got 1.5"),
        ({"taking_others": math.nan}, "a part of all losses of nodes, 0 to 1, got nan"),
        ({"group_nodes": 0}, "A failure group has 1 node or more, not 0"),
    ],
)
def test_redundancy_that_makes_no_sense(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Redundancy(**{"set_size": 4, "window_s": 1.0, **wrong})  # type: ignore[arg-type]
