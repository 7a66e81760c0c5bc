"""Peers: what goes over the wire, what a stranger gets (nothing), and what breaks a session.

Real sockets on the loopback. Strangers speak the first words of the protocol by hand.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import pickle
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from typing_extensions import Buffer

from ckptflow.errors import ConfigError, TierDenied, TierError, TierFull, TierUnavailable
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers import peer_server, peer_wire
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.peer import PeerTier
from ckptflow.tiers.peer_server import PeerServer
from ckptflow.tiers.peer_wire import MAGIC, PeerError, Session, greet, welcome
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE, StoreKey

KEY, OTHER = StoreKey(bytes(range(32))), StoreKey(bytes(32))


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def served() -> MemoryTier:
    tier = MemoryTier("there", level=1)
    tier.put("a/key", [b"value"])
    return tier


@pytest.fixture
def server(served: MemoryTier, notes: list[str]) -> Iterator[PeerServer]:
    with PeerServer(served, KEY, note=notes.append) as server:
        yield server


@pytest.fixture
def peer(server: PeerServer) -> Iterator[PeerTier]:
    tier = PeerTier(server.address, KEY, name="node7")
    yield tier
    tier.close()


def call(server: PeerServer) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer_of(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    while data := connection.recv(1 << 16):
        received += data
    return received


# --- values ---


def test_large_values_go_in_pieces(peer: PeerTier, served: MemoryTier) -> None:
    value = bytes(range(256)) * (5 << 12) + b"odd"  # 5 MiB and a bit: by way of a file.
    peer.put("large", [value[:1000], value[1000:]])
    assert served.get("large") == value
    assert peer.get("large") == value
    target = bytearray(3 << 20)
    peer.read_into("large", target, start_bytes=12345)
    assert target == value[12345 : 12345 + len(target)]


def test_many_keys_come_in_several_answers(peer: PeerTier, served: MemoryTier) -> None:
    keys = [f"many/{number:06d}-{'x' * 60}" for number in range(3000)]
    for key in keys:
        served.put(key, [b""])
    assert list(peer.iter_keys("many")) == keys


def test_several_threads_at_once(peer: PeerTier) -> None:
    right: list[int] = []

    def use(number: int) -> None:
        for turn in range(20):
            key, value = f"t{number}/{turn}", bytes([number]) * (1000 * turn)
            peer.put(key, [value])
            right.append(peer.get(key) == value)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 160


@pytest.mark.parametrize("error", [TierFull, TierUnavailable, TierDenied, TierError])
def test_errors_of_the_tier_come_across(notes: list[str], error: type[TierError]) -> None:
    def fail(operation: str, _key: str) -> None:
        if operation in ("put", "size"):
            raise error(f"{operation} says no")

    with PeerServer(FaultyTier(MemoryTier(), fail), KEY, note=notes.append) as server:
        peer = PeerTier(server.address, KEY, name="node7")
        for use in (lambda: peer.put("k", [b"x"]), lambda: peer.size("k")):
            with pytest.raises(error, match=r"Tier 'node7': .* says no") as raised:
                use()
            assert type(raised.value) is error
        assert list(peer.iter_keys("")) == []  # The session went on.
        peer.close()
    assert notes == []


def test_changes_may_be_narrowed_to_one_folder(served: MemoryTier) -> None:
    with PeerServer(served, KEY, writable_below="redundancy") as server:
        peer = PeerTier(server.address, KEY)
        peer.put("redundancy/x/y", [b"1"])
        for use in (
            lambda: peer.put("a/key", [b"x"]),
            lambda: peer.put("redundancy", [b"x"]),
            lambda: peer.create("a/claim", b"x"),
            lambda: peer.delete("a/key"),
        ):
            with pytest.raises(TierDenied, match="below 'redundancy' only"):
                use()
        peer.delete("redundancy/x/y")
        assert peer.get("a/key") == b"value"
        peer.close()
    assert list(served.iter_keys("")) == ["a/key"]


# --- who may ---


def test_another_key_gets_nothing(server: PeerServer, notes: list[str]) -> None:
    stranger = PeerTier(server.address, OTHER, name="node7")
    with pytest.raises(TierUnavailable, match=rf"not to this key \({OTHER.key_id}\)"):
        stranger.get("a/key")
    server.close()
    assert notes == ["A connection was ended: A client has not got the key of the store."]


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\r\n" * 40,
        bytes(64),
        MAGIC + bytes(56),
        b"\xff" * 5000,
    ],
)
def test_a_stranger_is_told_a_nonce_and_nothing_else(
    server: PeerServer, peer: PeerTier, words: bytes
) -> None:
    with call(server) as connection:
        try:
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            received = answer_of(connection)
        except OSError as error:  # It did not even read all of that, and has hung up.
            if error.errno not in {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}:
                raise
            received = b""
    assert len(received) in (0, len(MAGIC) + 32)
    assert peer.get("a/key") == b"value"


def test_a_proof_cannot_be_used_again(server: PeerServer) -> None:
    """What a client said on one connection is worth nothing on another one."""
    with call(server) as one, call(server) as two:
        nonces = [bytes(connection.recv(40)[8:]) for connection in (one, two)]
        assert nonces[0] != nonces[1]
        mine = bytes(range(32))
        message = b"client\0" + nonces[0] + mine
        proof = hmac.digest(KEY.derive(b"peer proof"), message, hashlib.sha256)
        two.sendall(mine + proof)
        assert answer_of(two) == b""
        one.sendall(mine + proof)
        assert len(one.recv(100)) == 32


def test_a_proof_cannot_be_reflected(server: PeerServer) -> None:
    """The server's own words are no proof: the roles are part of them."""
    with call(server) as connection:
        nonce = bytes(connection.recv(40)[8:])
        message = b"server\0" + nonce + nonce
        proof = hmac.digest(KEY.derive(b"peer proof"), message, hashlib.sha256)
        connection.sendall(nonce + proof)
        assert answer_of(connection) == b""


def test_a_server_without_the_key_is_not_believed() -> None:
    with (
        PeerServer(MemoryTier(), OTHER) as server,
        pytest.raises(TierUnavailable, match="does not answer, or not to this key"),
    ):
        PeerTier(server.address, KEY).get("a")


def imposter(answer: Callable[[socket.socket], None]) -> tuple[socket.socket, threading.Thread]:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return listening, thread


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2 and so on, for 40 bytes", "no peer of ckptflow"),
        (MAGIC + bytes(32) + bytes(32), "has not got the key"),
        (MAGIC, "has closed the connection"),
    ],
)
def test_who_only_looks_like_a_server(words: bytes, message: str) -> None:
    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # The client may hang up at any moment.
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            answer_of(connection)

    listening, thread = imposter(answer)
    with listening:
        port = listening.getsockname()[1]
        with pytest.raises(TierUnavailable, match=message):
            PeerTier(f"127.0.0.1:{port}", KEY).size("a")
    thread.join()


# --- sessions ---


@pytest.fixture
def sessions() -> Iterator[tuple[Session, Session]]:
    """A client's and a server's end of one connection."""
    a, b = socket.socketpair()
    a.settimeout(20)
    b.settimeout(20)
    result: list[Session] = []
    thread = threading.Thread(target=lambda: result.append(welcome(b, KEY)))
    thread.start()
    client = greet(a, KEY)
    thread.join()
    b.settimeout(20)
    yield client, result[0]
    client.close()
    result[0].close()


def frame_of(session: Session, message: dict[str, object]) -> bytes:
    """The bytes that a session would send now."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        real, session.connection = session.connection, ours
        session.send(message)
        session.connection = real
        return theirs.recv(1 << 16)


def test_messages_come_through(sessions: tuple[Session, Session]) -> None:
    client, server = sessions
    client.send({"do": "x"})
    client.send_data(b"abc")
    assert server.receive() == {"do": "x"}
    target = bytearray(3)
    server.receive_data(memoryview(target))
    server.send({"done": True})
    assert target == b"abc"
    assert client.receive() == {"done": True}


def test_a_frame_cannot_be_sent_twice(sessions: tuple[Session, Session]) -> None:
    client, server = sessions
    frame = frame_of(client, {"do": "delete"})
    client.connection.sendall(frame + frame)
    assert server.receive() == {"do": "delete"}
    with pytest.raises(PeerError, match="not authentic"):
        server.receive()


def test_a_frame_cannot_be_left_out(sessions: tuple[Session, Session]) -> None:
    client, server = sessions
    frame_of(client, {"first": 1})
    client.connection.sendall(frame_of(client, {"second": 2}))
    with pytest.raises(PeerError, match="not authentic"):
        server.receive()


def test_a_frame_cannot_be_turned_round(sessions: tuple[Session, Session]) -> None:
    client, _ = sessions
    frame = frame_of(client, {"done": True})
    sessions[1].connection.sendall(frame)
    with pytest.raises(PeerError, match="not authentic"):
        client.receive()


@pytest.mark.parametrize("place", [0, 3, 5, 9, -1, -32])
def test_no_byte_of_a_frame_can_be_changed(
    sessions: tuple[Session, Session], place: int
) -> None:
    client, server = sessions
    frame = bytearray(frame_of(client, {"do": "something"}))
    frame[place] ^= 1
    client.connection.sendall(frame)
    client.connection.shutdown(socket.SHUT_WR)
    with pytest.raises((PeerError, EOFError)):
        server.receive()


@pytest.mark.parametrize(
    "head", [struct.pack("<BI", 1, 1 << 31), struct.pack("<BI", 2, 4), struct.pack("<BI", 9, 4)]
)
def test_sizes_are_limits(sessions: tuple[Session, Session], head: bytes) -> None:
    client, server = sessions
    client.connection.sendall(head + bytes(100))
    with pytest.raises(PeerError, match="out of turn"):
        server.receive()


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b"[" * 5000])
def test_messages_are_objects(sessions: tuple[Session, Session], body: bytes) -> None:
    client, server = sessions
    client._send(1, body)
    with pytest.raises(PeerError, match="no JSON object"):
        server.receive()


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"do": "format"},
        {"do": ["get"]},
        {"do": "get"},
        {"do": "get", "key": "a", "start": -1},
        {"do": "get", "key": "a/key", "start": 0, "size": 1 << 63},
        {"do": "put", "key": "a", "size": True},
        {"do": "put", "key": "a", "size": 1 << 50},
        {"do": "create", "key": "a", "size": 1 << 30},
        {"do": "keys", "prefix": None},
    ],
)
def test_requests_that_make_no_sense_end_the_session(
    server: PeerServer, notes: list[str], peer: PeerTier, request_: dict[str, object]
) -> None:
    with call(server) as connection:
        session = greet(connection, KEY)
        session.send(request_)
        assert answer_of(connection) == b""
    assert peer.get("a/key") == b"value"
    assert len(notes) == 1


def test_keys_that_climb_out_are_refused_by_the_server_too(server: PeerServer) -> None:
    with call(server) as connection:
        session = greet(connection, KEY)
        for request in (
            {"do": "get", "key": "../x", "start": 0, "size": None},
            {"do": "size", "key": "/etc/passwd"},
            {"do": "delete", "key": "a/../../b"},
            {"do": "keys", "prefix": "../"},
        ):
            session.send(request)
            assert session.receive()["error"] == "config"


def test_there_is_a_limit_of_connections(
    served: MemoryTier, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "CONNECTIONS_MAX", 2)
    with (
        PeerServer(served, KEY, note=notes.append) as server,
        call(server) as one,
        call(server) as two,
    ):
        assert len(one.recv(100)) == len(two.recv(100)) == 40
        with call(server) as three:
            assert answer_of(three) == b""
    assert any("2 are open already" in note for note in notes)


def test_who_does_not_prove_anything_is_dropped(
    served: MemoryTier, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (peer_server, peer_wire):
        monkeypatch.setattr(module, "PROOF_TIMEOUT_S", 0.05)
    with PeerServer(served, KEY, note=notes.append) as server, call(server) as connection:
        assert len(answer_of(connection)) == 40
    assert notes == ["A connection was ended: timed out"]


def test_a_node_that_went_down_and_came_back(served: MemoryTier) -> None:
    server = PeerServer(served, KEY)
    host, port = server.address.split(":")
    peer = PeerTier(server.address, KEY, name="node7")
    assert peer.get("a/key") == b"value"
    server.close()
    with pytest.raises(TierUnavailable, match=f"'node7' at {server_address(host, port)}"):
        peer.get("a/key")
    with PeerServer(served, KEY, port=int(port)):
        assert peer.get("a/key") == b"value"
        peer.close()


def server_address(host: str, port: str) -> str:
    return f"{host}:{port}"


def test_a_server_needs_a_free_port(server: PeerServer) -> None:
    port = int(server.address.split(":")[1])
    with pytest.raises(ConfigError, match=f"Nothing can listen on 127.0.0.1:{port}"):
        PeerServer(MemoryTier(), KEY, port=port)


# --- specs ---


def test_a_peer_is_opened_from_its_spec_without_a_secret_in_it(
    server: PeerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(bytes(range(32)).hex())
    key_file.chmod(0o600)
    spec = spec_of(f"peer://{server.address}") | {
        "peer_key_file": str(key_file),
        "name": "node7",
    }
    tier = open_tier(spec)
    assert tier.get("a/key") == b"value"
    assert tier.spec == spec
    secret = bytes(range(32)).hex()
    assert secret not in f"{tier!r} {json.dumps(tier.spec)}"
    with pytest.raises(TypeError):
        pickle.dumps(tier)
    tier.close()
    del spec["peer_key_file"]
    with pytest.raises(ConfigError, match=f"'node7' needs the key.*{KEY_FILE_VARIABLE}"):
        open_tier(spec)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file))
    again = open_tier(spec)
    assert again.get("a/key") == b"value"
    again.close()


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "a@b:1", "host:1/x", ":1"])
def test_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="no address of a peer"):
        PeerTier(address, KEY)


def test_posix_tiers_are_served_with_their_privacy(tmp_path: Path) -> None:
    with PeerServer(PosixTier(tmp_path / "s"), KEY, spool=tmp_path) as server:
        peer = PeerTier(server.address, KEY)
        peer.put("large", [bytes(6 << 20)])
        peer.close()
    assert (tmp_path / "s" / "large").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("ckptflow")] == []


# --- what went wrong once ---


class FullTier(MemoryTier):
    """Has no room, and looks into what it was given when it says so."""

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part).cast("B") for part in parts]
        raise TierFull(f"no room for {key!r} in {len(views)} parts")


@pytest.mark.parametrize("size_bytes", [100, 5 << 20], ids=["small", "large"])
def test_that_there_is_no_room_comes_across(notes: list[str], size_bytes: int) -> None:
    with PeerServer(FullTier("full"), KEY, note=notes.append) as server:
        peer = PeerTier(server.address, KEY, name="node7")
        for _ in range(2):
            with pytest.raises(TierFull, match="no room for 'a'"):
                peer.put("a", [bytes(size_bytes)])
        peer.close()
    assert notes == []


def test_descriptors_from_1024_on(peer: PeerTier) -> None:
    """As in a process with that many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("this process may not have so many descriptors")
    assert peer.get("a/key") == b"value"
    if soft != resource.RLIM_INFINITY and soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    try:
        (session,) = peer._idle
        low = session.connection
        high = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1100))
        high.settimeout(low.gettimeout())
        low.close()
        session.connection = high
        assert peer.get("a/key") == b"value"
        assert [one.connection for one in peer._idle] == [high]
        peer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Dripping:
    """A connection on which a byte comes each second, of a clock of its own."""

    def __init__(self) -> None:
        self.now_s, self.words = 0.0, iter(MAGIC + bytes(1000))
        self.limit_s: float | None = None

    def settimeout(self, limit_s: float | None) -> None:
        self.limit_s = limit_s

    def recv_into(self, target: memoryview) -> int:
        self.now_s += 1.0
        if self.limit_s is not None and self.limit_s < 1.0:
            raise TimeoutError("timed out")
        target[:1] = bytes([next(self.words)])
        return 1

    def sendall(self, data: bytes) -> None:
        pass


def test_a_server_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Dripping()
    clock = SimpleNamespace(monotonic=lambda: connection.now_s)
    monkeypatch.setattr(peer_wire, "time", clock)
    with pytest.raises(TimeoutError):
        greet(connection, KEY)  # type: ignore[arg-type]
    assert connection.now_s <= peer_wire.PROOF_TIMEOUT_S + 1.0


FORKS = """\
import json, os, sys
from ckptflow.tiers.opening import open_tier
tier = open_tier(json.loads(sys.argv[1]))
tier.put("parent", [b"1"])
child = os.fork()
if child == 0:
    tier.put("child", [tier.get("parent")])
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tier.put("again", [tier.get("child")])
print(*tier.iter_keys(""))
"""


def test_a_forked_child_has_connections_of_its_own(
    server: PeerServer, notes: list[str], key_file: Path
) -> None:
    spec = spec_of(f"peer://{server.address}") | {"peer_key_file": str(key_file)}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, json.dumps(spec)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (result.stdout, result.stderr) == ("a/key again child parent\n", "")
    server.close()
    assert notes == []


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("given", ["~/key", "key"])
def test_the_file_of_the_key_may_be_relative(
    key_file: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HOME", str(key_file.parent))
    monkeypatch.chdir(key_file.parent)
    tier = open_tier(spec_of("peer://host:1") | {"peer_key_file": given})
    assert tier.spec["peer_key_file"] == str(key_file)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".x"])
def test_a_name_that_cannot_be_one_is_nobody(host: str) -> None:
    with pytest.raises(TierUnavailable, match="does not answer"):
        PeerTier(f"{host}:80", KEY).size("a")


@pytest.mark.parametrize("address", ["u:SECRET@h:1", ":SECRET@h:1", "h:1?key=SECRET"])
def test_what_may_be_a_secret_in_an_address_is_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="no address of a peer") as caught:
        PeerTier(address, KEY)
    assert "SECRET" not in str(caught.value)


def test_an_address_with_half_brackets() -> None:
    with pytest.raises(ConfigError, match="no address of a peer"):
        PeerTier("[a:b:c]:80", KEY)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="IPv6 is missing here")
def test_ipv6(served: MemoryTier) -> None:
    with PeerServer(served, KEY, host="::1") as server:
        assert server.address.startswith("[::1]:")
        peer = PeerTier(server.address, KEY)
        assert peer.get("a/key") == b"value"
        peer.close()
