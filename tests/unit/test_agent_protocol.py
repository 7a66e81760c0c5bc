"""Frames between a client and an agent: what is cut, too long or foreign is no message."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import FlushError, FormatError, TierDenied, TierUnavailable
from ckptflow.flush.agent.asking import ask
from ckptflow.flush.agent.ledger import Entry
from ckptflow.flush.agent.protocol import (
    FRAME_BYTES_MAX,
    VERSION,
    connect,
    peer_uid,
    receive,
    send,
    with_name,
)
from ckptflow.flush.agent.server import _Client
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_messages_arrive_one_by_one(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    for number in range(3):
        send(one, {"op": "status", "text": "ü" * number})
    one.close()
    for number in range(3):
        message = receive(other)
        assert message == {"version": VERSION, "op": "status", "text": "ü" * number}
    assert receive(other) is None


@given(data=st.binary(max_size=60))
def test_noise_is_refused_or_the_end(data: bytes) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(data)
        one.close()
        with contextlib.suppress(FormatError):
            assert receive(other) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack(">I", FRAME_BYTES_MAX + 1), "at most"),
        (framed(b"{"), "no JSON"),
        (framed(b"\xff\xfe"), "no JSON"),
        (framed(b"[]"), "not of version"),
        (framed(json.dumps({"version": VERSION + 1}).encode()), "not of version"),
        (framed(b"{}"), "not of version"),
    ],
)
def test_what_is_no_message(
    pair: tuple[socket.socket, socket.socket], data: bytes, message: str
) -> None:
    one, other = pair
    one.sendall(data)
    with pytest.raises(FormatError, match=message):
        receive(other)


def test_a_message_that_is_cut_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(framed(b'{"version": 1}')[:-3])
    one.close()
    assert receive(other) is None


def test_the_kernel_says_who_is_at_the_other_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert peer_uid(pair[0]) == os.geteuid()


def test_a_folder_with_a_long_name_has_a_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with_name(folder, listener.bind)
        listener.listen()
        with connect(folder):
            pass
    with pytest.raises(TierUnavailable, match="No agent answers"):
        connect(folder)


def test_where_there_is_no_folder_or_an_unsafe_one(tmp_path: Path) -> None:
    with pytest.raises(TierUnavailable, match="There is no agent"):
        connect(tmp_path / "missing")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(TierDenied, match="mode 755"):
        connect(tmp_path / "open")


def test_nothing_follows_a_message_that_went_out_by_half(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 10_000))
    client = _Client(one)
    copy = Entry(LineageId("exp", "task"), CheckpointId(1, 1), "far", Retention(), 1.0)
    while client.tell(copy, FlushError("x" * 3000)):  # Until no more fits: nobody reads.
        pass
    other.settimeout(10.0)
    while receive(other) is not None:
        pass
    assert not client.tell(copy, None)


def test_an_agent_of_another_version_is_told_from_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            receive(connection)
            connection.sendall(framed(json.dumps({"version": 2, "ok": False}).encode()))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with_name(tmp_path, listener.bind)
        listener.listen()
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(FlushError, match=r"another version of ckptflow.* but of 2\."):
            ask(tmp_path, "status")
        thread.join()
