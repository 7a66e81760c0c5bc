"""Announcements: what a node says comes back, and nonsense is left out with a word."""

from __future__ import annotations

import json

import pytest

from ckptflow.store.redundancy import announce as announcing
from ckptflow.store.redundancy.announce import (
    PEERS,
    Announcement,
    announce,
    announced,
)
from ckptflow.tiers.memory import MemoryTier

STORES = [f"{number:032x}" for number in range(3)]


def one(store: str, **changes: object) -> Announcement:
    fields = {"host": "node7", "port": 4711, "groups": {"row": "w1", "rack": "r1"}}
    return Announcement(store=store, **{**fields, **changes})  # type: ignore[arg-type]


def test_who_takes_part_is_found_again() -> None:
    tier = MemoryTier()
    for store in reversed(STORES):
        announce(tier, one(store))
    assert announced(tier) == [one(store) for store in STORES]
    assert list(announced(tier)[0].groups) == ["row", "rack"]  # The widest stays first.


def test_a_node_that_comes_back_replaces_what_it_said() -> None:
    tier = MemoryTier()
    announce(tier, one(STORES[0]))
    announce(tier, one(STORES[0], host="node9", port=1))
    assert [found.address for found in announced(tier)] == ["node9:1"]


def test_addresses_of_ipv6_have_brackets() -> None:
    assert one(STORES[0], host="fe80::1").address == "[fe80::1]:4711"


SOUND = {"store": STORES[0], "host": "n", "port": 1, "groups": {}, "since": ""}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        json.dumps({**SOUND, "store": STORES[1]}).encode(),
        json.dumps({**SOUND, "host": "a b"}).encode(),
        json.dumps({**SOUND, "host": ""}).encode(),
        json.dumps({**SOUND, "port": 0}).encode(),
        json.dumps({**SOUND, "port": 1 << 16}).encode(),
        json.dumps({**SOUND, "port": "1"}).encode(),
        json.dumps({**SOUND, "groups": {"rack": 3}}).encode(),
        json.dumps({**SOUND, "groups": {"rack": "r" * 1000}}).encode(),
        json.dumps({**SOUND, "groups": {str(n): "" for n in range(99)}}).encode(),
        json.dumps({**SOUND, "since": 5}).encode(),
        json.dumps({key: value for key, value in SOUND.items() if key != "port"}).encode(),
    ],
)
def test_nonsense_is_left_out_with_a_word(data: bytes) -> None:
    tier, notes = MemoryTier(), list[str]()
    announce(tier, one(STORES[1]))
    tier.put(f"{PEERS}/{STORES[0]}.json", [data])
    tier.put(f"{PEERS}/notes.txt", [b"somebody else's"])
    assert [found.store for found in announced(tier, note=notes.append)] == [STORES[1]]
    assert len(notes) == 1
    assert STORES[0] in notes[0]


@pytest.mark.parametrize("host", ["a:b", "a..b", ".", ".a", "a" * 64, "fe80::1%eth0", "::1::"])
def test_hosts_that_nobody_can_ask_for_are_nonsense(host: str) -> None:
    tier, notes = MemoryTier(), list[str]()
    announce(tier, one(STORES[0], host=host))
    announce(tier, one(STORES[1], host="10.0.0.7"))
    announce(tier, one(STORES[2], host="fe80::1"))
    assert [found.store for found in announced(tier, note=notes.append)] == STORES[1:]
    assert len(notes) == 1


def test_only_so_many_announcements_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "ANNOUNCEMENTS_MAX", 2)
    tier, notes = MemoryTier(), list[str]()
    for store in STORES[:2]:
        announce(tier, one(store))
    assert len(announced(tier, note=notes.append)) == 2
    assert notes == []
    announce(tier, one(STORES[2]))
    assert len(announced(tier, note=notes.append)) == 2
    assert "More than 2 nodes are announced" in notes[0]
