"""An SFTP server that vanishes, falls silent, fills up, or is not who it should be.

Method: real servers in processes of their own, and a proxy that cuts at a byte that is known.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from cutting_proxy import CuttingProxy
from sftp_service import SftpServer, openssh_sftp_server

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import (
    CorruptionError,
    NotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.sftp import SftpTier
from ckptflow.tiers.sftp_connection import SftpAddress
from ckptflow.units import MIB

DAYS_LATER_S = 4e9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    with SftpServer(tmp_path_factory.mktemp("server")).running() as server:
        yield server


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[SftpServer]:
    """A server that a test may kill."""
    with SftpServer(tmp_path / "server").running() as server:
        yield server


def through(proxy: CuttingProxy, server: SftpServer) -> dict[str, object]:
    """Return what leads a tier through ``proxy``, where the same host key is expected."""
    known = server.folder / f"known_hosts_{proxy.port}"
    known.write_text(f"[127.0.0.1]:{proxy.port} {(server.folder / 'host_key.pub').read_text()}")
    return {"port": proxy.port, "known_hosts": str(known)}


# --- whole values ----------------------------------------------------------------------


def test_large_values_in_odd_parts(server: SftpServer, tmp_path: Path) -> None:
    value = os.urandom(20 * MIB + 77)
    view = memoryview(value)
    parts = [
        view[:1],
        view[1 : 9 * MIB + 5],
        view[9 * MIB + 5 : 9 * MIB + 6],
        view[9 * MIB + 6 :],
    ]
    with server.tier(tmp_path / "store") as tier:
        tier.put("big", parts)
        assert tier.get("big") == value
        target = bytearray(11 * MIB)
        tier.read_into("big", target, start_bytes=3 * MIB + 1)
    assert target == value[3 * MIB + 1 : 14 * MIB + 1]


def test_files_and_folders_are_private(server: SftpServer, tmp_path: Path) -> None:
    with server.tier(tmp_path / "store") as tier:
        tier.put("a/b/key", [b"x"])
        tier.create("a/claim", b"x")
    for path in (tmp_path / "store").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_what_other_people_put_there_is_left_alone(server: SftpServer, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with server.tier(store) as tier:
        tier.put("a/key", [b"x"])
        theirs = [b"\xff\xfe", b"a b", b"mine.partial", "ä".encode()]
        for name in theirs:
            Path(os.fsdecode(os.fsencode(store / "a") + b"/" + name)).write_bytes(b"")
        assert list(tier.iter_keys("")) == ["a/key", "a/mine.partial"]
        assert tier.sweep("", now_s=DAYS_LATER_S) == 0
    assert set(os.listdir(os.fsencode(store / "a"))) == {b"key", *theirs}  # noqa: PTH208 (bytes)


def test_a_link_out_of_the_store_is_no_value(server: SftpServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with server.tier(tmp_path / "store") as tier:
        tier.put("here", [b"x"])
        (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")
        (tmp_path / "store" / "folder").symlink_to(tmp_path)
        assert list(tier.iter_keys("")) == ["here"]
        assert list(tier.iter_folders("")) == []
        with pytest.raises(NotFoundError, match="'link'"):
            tier.get("link")


@pytest.mark.parametrize("stall", [False, True], ids=["cut", "killed"])
def test_a_put_that_breaks_off_shows_nothing(
    mortal: SftpServer, tmp_path: Path, stall: bool
) -> None:
    """The connection is cut in the middle of a value, or the server is killed there."""
    store = tmp_path / "store"
    PosixTier(store).put("a/key", [b"before"])
    proxy = CuttingProxy(mortal.port, limit_bytes=3 * MIB, stall=stall)
    with proxy.running(), mortal.tier(store, **through(proxy, mortal)) as tier:
        killer = threading.Thread(target=lambda: (proxy.reached.wait(), mortal.kill()))
        if stall:
            killer.start()
        with pytest.raises(TierUnavailable, match=r"write 'a/key' on tier 'far'.*sftp://"):
            tier.put("a/key", [bytes(12 * MIB)])
        assert proxy.reached.is_set()
        if stall:
            killer.join()
            mortal.start()
    left = [path.name for path in (store / "a").iterdir() if path.name != "key"]
    assert len(left) == 1, "what was written of the value, under another name"
    with mortal.tier(store) as tier:
        assert list(tier.iter_keys("")) == ["a/key"]
        assert tier.get("a/key") == b"before"
        assert tier.sweep("") == 0, "its writer may be alive"
        assert tier.sweep("", now_s=DAYS_LATER_S) == 1
        tier.put("a/key", [b"after"])
        assert tier.get("a/key") == b"after"
    assert [path.name for path in (store / "a").iterdir()] == ["key"]


CUTS = 16


@pytest.mark.parametrize("answers", [False, True], ids=["requests", "answers"])
def test_a_connection_cut_anywhere(server: SftpServer, tmp_path: Path, answers: bool) -> None:
    """A value that is written anew is the old one or the new one, and a claim has one winner.

    Method: count the bytes of an undisturbed trial, then repeat it, cut at places that are
    evenly spread over them, so in the handshake, in requests, and between them.
    """

    def trial(store: Path, limit_bytes: int | None) -> tuple[int, list[str]]:
        PosixTier(store).put("key", [b"before"])
        proxy = CuttingProxy(server.port, limit_bytes=limit_bytes, answers=answers)
        done = []
        with proxy.running(), server.tier(store, **through(proxy, server)) as tier:
            for name, work in (
                ("put", lambda: tier.put("key", [b"after" * 100])),
                ("create", lambda: tier.create("claim", b"mine")),
            ):
                try:
                    work()
                except TierUnavailable:
                    break
                done.append(name)
        return proxy.passed[int(answers)], done

    total_bytes, done = trial(tmp_path / "undisturbed", None)
    assert done == ["put", "create"]
    seen = set()
    for number in range(CUTS):
        store = tmp_path / f"{number}"
        _, done = trial(store, 1 + number * total_bytes // CUTS)
        value = PosixTier(store).get("key")
        assert value in {b"before", b"after" * 100}
        assert ("put" not in done) or value != b"before"
        claims = [key for key in PosixTier(store).iter_keys("") if key == "claim"]
        assert ("create" not in done) or claims
        assert all(PosixTier(store).get(key) == b"mine" for key in claims)
        seen.add((len(done), value[:6]))
    assert len(seen) >= 2, "cuts at different places"


def test_a_server_that_lies_about_sizes(tmp_path: Path) -> None:
    """It gets no memory for it, and what it does not have is not read as if it were there."""
    server = SftpServer(tmp_path / "server", ["--lying"])
    with server.running(), server.tier(tmp_path / "store") as tier:
        tier.put("key", [b"value"])
        assert tier.size("key") == 1 << 62
        assert tier.get("key") == b"value"
        assert tier.get("key", start_bytes=1 << 40) == b""
        with pytest.raises(CorruptionError, match=r"'key'.*ends after 5 bytes; 9 bytes"):
            tier.read_into("key", bytearray(9))


def test_a_server_that_sends_more_than_it_was_asked_for(tmp_path: Path) -> None:
    PosixTier(tmp_path / "store").put("key", [b"value" * 100])
    server = SftpServer(tmp_path / "server", ["--generous"])
    with server.running(), server.tier(tmp_path / "store") as tier:
        for target in (bytearray(5), bytearray(500)):
            with pytest.raises(TierError, match="'key'"):
                tier.read_into("key", target)


def test_a_server_that_answers_probes_and_no_request(tmp_path: Path) -> None:
    """The daemon is there, and the file system below it is not."""
    PosixTier(tmp_path / "store").put("key", [b"value"])
    server = SftpServer(tmp_path / "server", ["--hanging"])
    with (
        server.running(),
        server.tier(tmp_path / "store", timeout_s=1.0) as tier,
        pytest.raises(TierUnavailable, match="'key' on tier 'far'"),
    ):
        tier.get("key")


# --- connections -----------------------------------------------------------------------


def test_a_server_that_is_gone_and_comes_back(mortal: SftpServer, tmp_path: Path) -> None:
    with mortal.tier(tmp_path / "store") as tier:
        tier.put("key", [b"value"])
        mortal.kill()
        with pytest.raises(TierUnavailable, match=r"read 'key' on tier 'far'"):
            tier.get("key")
        with pytest.raises(TierUnavailable, match=r"refused|Connect"):
            tier.put("other", [b"x"])
        mortal.start()
        assert tier.get("key") == b"value"
        assert list(tier.iter_keys("")) == ["key"]


def test_a_server_that_says_nothing_any_more(mortal: SftpServer, tmp_path: Path) -> None:
    with mortal.tier(tmp_path / "store", timeout_s=2.0) as tier:
        tier.put("key", [b"value"])
        os.kill(mortal.pid, signal.SIGSTOP)
        try:
            with pytest.raises(TierUnavailable, match=r"read 'key' on tier 'far'"):
                tier.get("key")
        finally:
            os.kill(mortal.pid, signal.SIGCONT)
        assert tier.get("key") == b"value"


def test_connections_are_shared_and_limited(server: SftpServer, tmp_path: Path) -> None:
    proxy = CuttingProxy(server.port)
    with proxy.running():
        address = server.address(**through(proxy, server))
        tier = SftpTier(address, str(tmp_path / "store"), connections=2)
        threads = [
            threading.Thread(target=tier.put, args=(f"a/{number}", [b"x" * number]))
            for number in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(tier.iter_keys(""))) == 12
        tier.close()
    assert proxy.accepted <= 2


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


def test_a_forked_child_has_connections_of_its_own(server: SftpServer, tmp_path: Path) -> None:
    spec = SftpTier(server.address(), str(tmp_path / "store")).spec
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, json.dumps(spec)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (result.stdout, result.stderr) == ("again child parent\n", "")


# --- who is who ------------------------------------------------------------------------


def test_a_server_with_another_host_key_gets_nothing(
    server: SftpServer, tmp_path: Path
) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {other}")
    with (
        server.tier(tmp_path / "store", known_hosts=str(known)) as tier,
        pytest.raises(TierDenied, match=r"host key of the server.*known_hosts"),
    ):
        tier.put("key", [b"x"])
    assert not (tmp_path / "store").exists()


def test_a_server_that_nobody_knows_gets_nothing(server: SftpServer, tmp_path: Path) -> None:
    with (
        server.tier(tmp_path / "store", known_hosts=None) as tier,
        pytest.raises(TierDenied, match=r"none is there.*connect once with ssh"),
    ):
        tier.put("key", [b"x"])
    assert not (tmp_path / "store").exists()


def write_config(server: SftpServer, **more: str) -> None:
    fields = {
        "HostName": "127.0.0.1",
        "Port": str(server.port),
        "User": "somebody",
        "IdentityFile": str(server.folder / "identity"),
        **more,
    }
    lines = "".join(f"  {name} {value}\n" for name, value in fields.items())
    folder = Path.home() / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "config").write_text(f"Host archive\n{lines}")


def test_the_check_of_host_keys_cannot_be_switched_off(
    server: SftpServer, tmp_path: Path
) -> None:
    write_config(server, UserKnownHostsFile="none")
    tier = SftpTier(SftpAddress("archive"), str(tmp_path / "store"))
    with pytest.raises(TierDenied, match=r"'archive' \(UserKnownHostsFile none\)"):
        tier.put("key", [b"x"])


def test_what_ssh_config_says_is_used(server: SftpServer, tmp_path: Path) -> None:
    write_config(server)
    known = (server.folder / "known_hosts").read_text()
    (Path.home() / ".ssh" / "known_hosts").write_text(known)
    tier = open_tier(spec_of(f"sftp://archive{tmp_path}/store"))
    tier.put("key", [b"x"])
    assert (tmp_path / "store" / "key").read_bytes() == b"x"
    tier.close()


def test_a_stranger_is_not_let_in(server: SftpServer, tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(tmp_path / "stranger")
    with (
        server.tier(tmp_path / "store", identity=str(tmp_path / "stranger")) as tier,
        pytest.raises(TierDenied, match=r"lets nobody in with the keys"),
    ):
        tier.put("key", [b"x"])


def test_a_key_with_a_passphrase_belongs_into_the_agent(
    server: SftpServer, tmp_path: Path
) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    locked = key.export_private_key("pkcs8-pem", passphrase="open sesame")
    (tmp_path / "locked").write_bytes(locked)
    with (
        server.tier(tmp_path / "store", identity=str(tmp_path / "locked")) as tier,
        pytest.raises(TierDenied, match=r"(?i)passphrase.*agent"),
    ):
        tier.put("key", [b"x"])


# --- no room ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(params=["asyncssh", "openssh"])
def any_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SftpServer]:
    """Servers differ in how they say that a disk is full: OpenSSH's says "failure"."""
    arguments = []
    if request.param == "openssh":
        program = openssh_sftp_server()
        if program is None:
            pytest.skip("OpenSSH's sftp-server is not installed (openssh-sftp-server)")
        arguments = ["--sftp-server", program]
    with SftpServer(tmp_path / "server", arguments).running() as server:
        yield server


def test_a_full_disk_and_one_that_is_read_only(
    any_server: SftpServer, small_disk: Path
) -> None:
    with any_server.tier(small_disk / "store") as tier:
        tier.put("a/key", [b"before"])
        with pytest.raises(TierFull, match=r"No room to write 'a/key' on tier 'far'"):
            tier.put("a/key", [bytes(6 * MIB)])
        assert [path.name for path in (small_disk / "store" / "a").iterdir()] == ["key"]
        assert tier.get("a/key") == b"before"
        tier.put("a/other", [bytes(MIB)])
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.raises(TierDenied, match=r"write 'a/more' on tier 'far'"):
            tier.put("a/more", [bytes(MIB)])
        assert tier.get("a/key") == b"before"


# --- the whole road --------------------------------------------------------------------


def test_checkpoints_flushed_to_a_server_are_restored_from_there(
    server: SftpServer, tmp_path: Path
) -> None:
    with server.tier(tmp_path / "far") as tier:
        with Checkpointer([PosixTier(tmp_path / "near"), tier], task="t", rng=False) as ckpt:
            for step in (1, 2, 3):
                ckpt.save(step, {"i": step, "w": bytearray([step]) * 10_000})
        again = Checkpointer([PosixTier(tmp_path / "empty"), tier], task="t", rng=False)
        restored = again.restore({"i": 0, "w": bytearray(10_000)})
    assert (restored["i"], set(restored["w"])) == (3, {3})
