"""A steward and its ranks on a real socket: who belongs to a launch, and who does not."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ckptflow.errors import ConfigError, FormatError, RankLost
from ckptflow.workflow.ranks import wire
from ckptflow.workflow.ranks.steward import Steward
from ckptflow.workflow.ranks.wire import Whereabouts


@pytest.fixture
def steward() -> Iterator[Steward]:
    with Steward(2, {"app": "train"}, b"data", near=True) as found:
        yield found


def hello(rank: int = 0, world: int = 2) -> dict[str, Any]:
    return {"rank": rank, "world": world, "host": "n1", "pid": 1, "port": 7}


def says(connection: socket.socket) -> dict[str, Any]:
    got = wire.receive(connection)
    assert got is not None
    return got[0]


def test_a_rank_is_welcomed_with_what_all_are_told(steward: Steward) -> None:
    connection, welcome, data = wire.connect(steward.where, hello())
    with connection:
        assert (welcome["app"], data) == ("train", b"data")


def test_all_go_when_all_are_here(steward: Steward) -> None:
    one, *_ = wire.connect(steward.where, hello(0))
    two, *_ = wire.connect(steward.where, hello(1))
    with one, two:
        go = {"is": "go", "address": "127.0.0.1", "port": 7}
        assert (says(one), says(two)) == (go, go)


def test_who_does_not_know_the_secret_is_told_nothing(steward: Steward) -> None:
    where = Whereabouts(steward.where.hosts, steward.where.port, "another")
    with pytest.raises(RankLost, match="somebody else is there"):
        wire.connect(where, hello())
    assert steward.endings == []


def test_a_steward_that_does_not_know_the_secret_is_no_steward() -> None:
    """Somebody listens where a steward did: the rank tells who it is, and no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import socket, sys; from ckptflow.workflow.ranks import wire\n"
            "where = wire.Whereabouts(('127.0.0.1',), int(sys.argv[1]), 's')\n"
            "wire.connect(where, {})"
        )
        rank = subprocess.Popen(
            [sys.executable, "-c", code, str(server.getsockname()[1])],
            stderr=subprocess.PIPE,
            text=True,
        )
        other, _ = server.accept()
        with other:
            wire.send(other, {"version": wire.VERSION, "nonce": "n"})
            assert says(other)["proof"] == wire.proof("s", "rank", "n")
            wire.send(other, {"proof": wire.proof("guessed", "steward", "n")})
            _, said = rank.communicate(timeout=60)
    assert "RankLost" in said
    assert "somebody else is there" in said


@pytest.mark.parametrize(
    ("who", "match"),
    [
        (hello(world=3), "The app says ranks=2, but 3 were started"),
        (hello(rank=2), "Rank 2 is here already"),
        ({"world": 2}, "in other words than this version"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused(
    steward: Steward, who: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        wire.connect(steward.where, who)


def test_two_ranks_of_one_number(steward: Steward) -> None:
    connection, *_ = wire.connect(steward.where, hello(1))
    with connection, pytest.raises(ConfigError, match="Rank 1 is here already"):
        wire.connect(steward.where, hello(1))


def test_nonsense_from_a_stranger_harms_nobody(steward: Steward) -> None:
    with socket.create_connection((steward.where.hosts[0], steward.where.port)) as stranger:
        stranger.sendall(b"\xff" * 64)
        while stranger.recv(4096):
            pass
    connection, *_ = wire.connect(steward.where, hello())
    connection.close()


def test_a_rank_that_is_gone_ends_the_others(steward: Steward) -> None:
    one, *_ = wire.connect(steward.where, hello(0))
    two, *_ = wire.connect(steward.where, hello(1))
    with two:
        says(two)
        one.close()
        over = says(two)
    assert over == {"is": "over", "reason": "rank 0 (process 1 on n1) is gone"}
    assert steward.wait_gone(60.0)
    assert [(one.rank, one.kind) for one in steward.endings] == [(0, "lost")]


def test_who_has_stopped_leaves_when_all_have(steward: Steward) -> None:
    one, *_ = wire.connect(steward.where, hello(0))
    two, *_ = wire.connect(steward.where, hello(1))
    with one, two:
        says(one), says(two)
        end = {"is": "end", "kind": "preempted", "record": {}}
        wire.send(one, end)
        wire.send(one, {"is": "joined", "attempt": 7})
        one.settimeout(0.3)
        assert wire.receive(one) is None  # Nothing yet: a time-out reads like an end.
        one.settimeout(60.0)
        wire.send(two, end)
        assert (says(one), says(two)) == ({"is": "bye"}, {"is": "bye"})
    assert steward.attempt == 7


def test_the_secret_is_not_shown(steward: Steward) -> None:
    text = steward.where.as_text()
    assert Whereabouts.of(text) == steward.where
    assert text.split("@")[0] not in repr(steward.where)


@pytest.mark.parametrize("text", ["", "secret", "secret@port@host", "@1@host", "secret@1@"])
def test_a_variable_that_somebody_else_has_set(text: str) -> None:
    with pytest.raises(ConfigError, match="was not set by ckptflow"):
        Whereabouts.of(text)


@pytest.mark.parametrize("text", [b"[]", b"{", b"\xff"])
def test_a_frame_without_an_object(text: bytes) -> None:
    with pytest.raises(FormatError, match="A frame with"):
        wire.parsed(text)


def test_a_frame_that_is_too_long() -> None:
    with pytest.raises(FormatError, match="at most"):
        wire.sizes(wire.HEAD.pack(1 << 30, 0))
