"""The file of a calibration, when it is stale, what a policy makes of it; and measuring.

Method: measuring runs in this process on tiers that are slow by a clock of their own, so that
what comes out has to be what was put in, however busy this computer is.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ckptflow.errors import ConfigError, FormatError, TierUnavailable
from ckptflow.plan import calibration as file
from ckptflow.plan.calibration import (
    Calibration,
    calibration_file,
    find_calibration,
    identities,
    read_calibration,
    write_calibration,
)
from ckptflow.plan.crew import checked
from ckptflow.plan.measure import measure_with, writer_counts
from ckptflow.plan.one_tier import free_bytes
from ckptflow.plan.request import Request, request_of
from ckptflow.plan.sandbox import Sandbox, SandboxTier
from ckptflow.plan.writer import Writer
from ckptflow.site import Site, load_site
from ckptflow.tiers.arena import ARENA_BYTES_MIN
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.tiers.throttled import ThrottledTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import GIB, MIB

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MB = 10**6


def site(**overrides: Any) -> Site:
    tiers = [
        {"kind": "memory", "name": "fast", "level": 0},
        {"kind": "posix", "name": "disk", "level": 3, "path": "store"},
    ]
    return load_site("local_threads", overrides={"tiers": tiers, **overrides})


def totals(writers: int, write: float, *, spread: float = 0.01, **more: Any) -> dict[str, Any]:
    return {
        "writers": writers,
        "size_bytes": 100 * MB,
        "repetitions": 3,
        "write_bytes_per_s": write,
        "write_spread": spread,
        "read_bytes_per_s": 2 * write,
        "read_spread": spread,
        **more,
    }


def made(of: Site | None = None, *, of_disk: Any = None, **changes: Any) -> Calibration:
    """Return a calibration of which the fast tier was not measured."""
    fast, disk = (one.model_dump() for one in identities(of or site()))
    fields = {
        "site": "local_threads",
        "host": "node1",
        "date": NOW.isoformat(),
        "ckptflow_version": "0.1.0",
        "tiers": [
            {
                "tier": disk,
                "host": "node1",
                "how": "flush",
                "totals": of_disk or [totals(1, 100 * MB)],
                "write_latency_s": 0.0,
                "read_latency_s": 0.0,
                "free_bytes": 5 * GIB,
            }
        ],
        "unmeasured": [{"tier": fast, "reason": "Nobody asked."}],
        **changes,
    }
    return Calibration.model_validate_json(json.dumps(fields))


# --- the file --------------------------------------------------------------------------


def test_what_is_written_is_read_again_and_is_nobody_else_s(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.json"
    write_calibration(path, made())
    assert read_calibration(path) == made()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_calibration(path, made(host="node2"))
    assert read_calibration(path).host == "node2"


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Name another file with --output"):
        write_calibration(tmp_path / "file" / "x.json", made())


def spoilt(key: str, value: Any) -> str:
    return json.dumps({**json.loads(made().model_dump_json()), key: value})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no calibration"),
        (spoilt("colour", "red"), "colour: Extra inputs"),
        (spoilt("host", 7), "host: Input should be a valid string"),
        (spoilt("date", "2026-03-01T00:00:00"), "date: .* timezone"),
        (spoilt("format_version", 0), "format_version"),
        (spoilt("tiers", [{"tier": 1}]), r"tiers\.0\.tier"),
        (made().model_dump_json().replace("100000000.0", "NaN"), "write_bytes_per_s"),
        (made().model_dump_json().replace('"writers":1,', '"writers":2,'), "begin with 1"),
        (" " * (file.FILE_BYTES_MAX + 1), "too large"),
    ],
    ids=lambda text: text[-20:],
)
def test_a_file_that_is_none_says_where_and_what_to_do(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "site.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)
    assert "ckptflow calibrate --site" in str(caught.value)


def test_a_newer_file_is_no_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(spoilt("format_version", 2))
    with pytest.raises(FormatError, match="Install a newer one"):
        read_calibration(tmp_path / "x.json")


def test_each_site_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_calibration(site()) is None
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = calibration_file("local_threads")
    assert path == tmp_path / "data" / "ckptflow" / "calibration" / "local_threads.json"
    assert calibration_file("../a b").parent == path.parent
    write_calibration(path, made())
    assert find_calibration(site()) == made()
    write_calibration(path, made(site="other"))
    with pytest.raises(ConfigError, match="calibration of site 'other'"):
        find_calibration(site())


# --- stale -----------------------------------------------------------------------------


def stale(found: Calibration, of: Site, days: float = 1, version: str = "0.1.9") -> str:
    return " ".join(found.stale(of, now=NOW + timedelta(days=days), version=version))


def test_it_holds_for_a_month_and_a_minor_version() -> None:
    assert stale(made(), site(), days=29.9) == ""
    assert "31 days ago" in stale(made(), site(), days=31)
    assert "0.1.0 has measured it, and this is 0.2.0" in stale(made(), site(), version="0.2.0")


def test_it_holds_for_the_tiers_that_were_measured() -> None:
    assert stale(made(), site(**{"executor.workers": 7})) == ""
    assert "'disk' is another one" in stale(made(), site(**{"tiers.disk.path": "elsewhere"}))
    assert "'disk' is another one" in stale(made(), site(**{"tiers.disk.level": 4}))
    only = site(tiers=[{"kind": "posix", "name": "pfs", "level": 3, "path": "store"}])
    said = stale(made(), only)
    assert "'pfs' is new" in said
    assert "'fast' is no longer in the site" in said


def test_variables_do_not_make_another_tier_on_each_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = site(**{"tiers.disk.path": "$SCRATCH/x"})
    monkeypatch.setenv("SCRATCH", "/scratch/a")
    first = identities(of)
    monkeypatch.setenv("SCRATCH", "/scratch/b")
    assert identities(of) == first


# --- what a policy makes of it -----------------------------------------------------------


def test_what_one_writer_gets_is_told_without_the_latency() -> None:
    found = made()
    latency = {"write_latency_s": 0.5, "read_latency_s": 0.1}
    tier = found.tiers[0].model_copy(update=latency)
    (cost,) = found.model_copy(update={"tiers": (tier,)}).tier_costs()
    assert (cost.name, cost.level, cost.capacity_bytes) == ("disk", 3, 5 * GIB)
    assert cost.write_s(100 * MB) == pytest.approx(1.0)
    assert cost.read_s(100 * MB) == pytest.approx(0.5)
    assert cost.write_shared_bytes_per_s is None


@pytest.mark.parametrize(
    ("of_disk", "limit"),
    [
        ([totals(1, 100), totals(2, 199), totals(4, 390)], None),
        ([totals(1, 100), totals(2, 199), totals(4, 205)], 205),
        ([totals(1, 100), totals(2, 130), totals(4, 90)], 90),
        ([totals(1, 100), totals(2, 101)], 101),
        ([totals(1, 100), totals(2, 125, spread=0.5)], 125),
        ([totals(1, 100, spread=9.0), totals(2, 190, spread=9.0)], None),
    ],
)
def test_a_limit_is_told_where_more_writers_do_not_get_more(
    of_disk: Any, limit: float | None
) -> None:
    (cost,) = made(of_disk=of_disk).tier_costs()
    told = cost.write_shared_bytes_per_s, cost.read_shared_bytes_per_s
    assert told == ((None, None) if limit is None else pytest.approx((limit, 2 * limit)))


# --- measuring -------------------------------------------------------------------------


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class Hands:
    """A crew in this process: one after the other, which a shared link does not notice."""

    def __init__(self, tier: Tier, clock: Clock) -> None:
        self.tier, self.clock = tier, clock
        self.writers: list[Writer] = []

    def opens(self, spec: Mapping[str, Any]) -> Tier:
        if spec["name"] != self.tier.name:
            raise TierUnavailable(f"Tier {spec['name']!r} does not answer.")
        return self.tier

    def order(
        self, count: int, order: Mapping[str, Any], *, limit_s: float
    ) -> list[dict[str, Any]]:
        assert limit_s >= 60
        if order["do"] == "saves":
            return checked([{"kind": "tier", "error": "not by this clock"}])
        while len(self.writers) < count:
            number = len(self.writers)
            self.writers.append(Writer(number, opens=self.opens, clock_s=self.clock))
        return [writer.obey(order) for writer in self.writers[:count]]


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1})


def wanted(of: Site, seconds: float = 0.1) -> Request:
    return request_of(of, seconds=seconds, writers=2)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("latency_s", [0.0, 0.002])
def test_a_known_bandwidth_comes_out_and_one_tier_s_failure_is_its_own(
    latency_s: float,
) -> None:
    clock, inner = Clock(), MemoryTier("disk", level=3)
    slow = ThrottledTier(
        inner,
        write_bytes_per_s=50 * MB,
        read_bytes_per_s=200 * MB,
        latency_s=latency_s,
        clock_s=clock,
        sleep=clock.sleep,
    )
    places: list[Sandbox] = []
    found = measure_with(Hands(slow, clock), wanted(site()), places, now=lambda: NOW)
    (failed,) = found.calibration.unmeasured
    assert (failed.tier.name, failed.failed) == ("fast", True)
    assert "does not answer" in failed.reason
    (cost,) = found.calibration.tier_costs()
    assert cost.name == "disk"
    assert cost.write_bytes_per_s == pytest.approx(50 * MB, rel=0.05)
    assert cost.write_latency_s > 2 * latency_s
    if not latency_s:  # By this clock the latencies of several do not pass at the same time.
        assert cost.write_shared_bytes_per_s == pytest.approx(50 * MB, rel=0.05)
        assert cost.read_bytes_per_s == pytest.approx(200 * MB, rel=0.05)
    assert "could not be measured" in found.notes[0]
    assert list(inner.iter_keys("")) == [], "nothing is left"
    assert not found.calibration.stale(site(), now=NOW, version="0.1.0")


@pytest.mark.usefixtures("two_cores")
def test_a_tier_without_room_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ckptflow.plan.one_tier.free_bytes", lambda _model: 5 * MIB)
    clock, inner = Clock(), MemoryTier("disk", level=3)
    found = measure_with(Hands(inner, clock), wanted(site()), [], now=lambda: NOW)
    reason = found.calibration.unmeasured[-1].reason
    assert "2 writers needs 8.00 MiB of free room" in reason
    assert "tier 'disk' has 5.00 MiB" in reason
    assert list(inner.iter_keys("")) == []


def test_the_room_of_a_tier(tmp_path: Path) -> None:
    memory, disk = site(**{"tiers.fast.capacity": "1MiB"}).at(tmp_path).tiers
    assert free_bytes(memory) == MIB
    assert (free_bytes(disk) or 0) > MIB, "that of the file system, although no folder is there"


def test_numbers_of_writers() -> None:
    assert [writer_counts(most) for most in (1, 2, 3, 8, 9)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4, 8),
        (1, 2, 4, 8, 9),
    ]


def test_what_can_be_measured_from_where(tmp_path: Path) -> None:
    tiers = [
        {"kind": "posix", "name": "node", "level": 1, "path": "/tmp/x"},
        {"kind": "redundant", "name": "peers", "level": 2},
        {"kind": "posix", "name": "pfs", "level": 3, "path": str(tmp_path)},
    ]
    of = load_site("slurm", overrides={"tiers": tiers, "flush.agent": True})
    here = {one.identity.name: one for one in request_of(of, seconds=1).tiers}
    assert "Measure with --there" in here["node"].unseen
    assert "one node cannot tell" in here["peers"].unseen
    assert (here["pfs"].unseen, here["pfs"].how) == ("", "flush")
    there = {one.identity.name: one for one in request_of(of, seconds=1, on_node=True).tiers}
    assert (there["node"].unseen, there["node"].how) == ("", "save")
    assert "one node cannot tell" in there["peers"].unseen


@pytest.mark.parametrize(("seconds", "writers"), [(0, 1), (1, 0), (1, 1000)])
def test_a_request_that_makes_no_sense(seconds: float, writers: int) -> None:
    with pytest.raises(ConfigError, match="not"):
        request_of(site(), seconds=seconds, writers=writers)


def test_a_sandbox_looks_like_a_whole_tier() -> None:
    inner = MemoryTier()
    inner.put("a/b", [b"outside"])
    box = SandboxTier(inner, "probes/box")
    assert list(box.iter_keys("")) == []
    box.put("a/c", [b"in", b"side"])
    box.create("a/d", b"too")
    assert (box.get("a/c"), box.size("a/d")) == (b"inside", 3)
    assert list(box.iter_keys("")) == list(box.iter_keys("a")) == ["a/c", "a/d"]
    assert list(box.iter_folders("")) == ["a"]
    assert box.last_keys("a", 1) == ["a/d"]
    box.delete("a/c")
    assert list(inner.iter_keys("")) == ["a/b", "probes/box/a/d"]
    for use in (box.get, box.size, box.delete):
        with pytest.raises(ConfigError, match="is not a key"):
            use("")


def test_a_sandbox_goes_with_all_that_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    outside = PosixTier(tmp_path)
    outside.put("lineages/run/task/x", [b"kept"])
    place = Sandbox.on(outside.spec, arena_bytes_max=0)
    SandboxTier(outside, place.folder).put("lineages/run/task/x", [b"gone"])
    partial = tmp_path / place.folder / ".killed.partial"
    partial.write_text("half")
    place.clear(note=pytest.fail)
    assert list(outside.iter_keys("")) == ["lineages/run/task/x"]
    assert not (tmp_path / place.folder).exists()


def test_in_shared_memory_a_sandbox_has_an_arena_of_its_own() -> None:
    spec = {
        "kind": "shared_memory",
        "name": "shm",
        "level": 0,
        "capacity_bytes": GIB,
        "arena": "of-a-workflow",
        "path": "/dev/shm",
    }
    place = Sandbox.on(spec, arena_bytes_max=ARENA_BYTES_MIN)
    assert (place.spec["capacity_bytes"], place.spec["name"]) == (ARENA_BYTES_MIN, "shm")
    tier = SharedMemoryTier.from_spec(place.spec)
    assert "of-a-workflow" not in str(tier.file)
    tier.put(f"{place.folder}/x", [b"y"])
    assert tier.file.exists()
    place.clear(note=pytest.fail)
    assert not tier.file.exists()
