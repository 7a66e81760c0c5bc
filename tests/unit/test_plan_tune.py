"""From a site to a pattern: where costs and rates are from, which redundancy, what to write."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ckptflow.errors import ConfigError, NoProgress
from ckptflow.plan import schemes
from ckptflow.plan.site_lines import rounded_up, site_lines
from ckptflow.plan.sources import parse_tier, sourced_tiers
from ckptflow.plan.tune import Answer, Request, reaction_of, tune_site, workload_of
from ckptflow.policy.failures.known import known
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.policy.multilevel.typical import TYPICAL, typical
from ckptflow.site import Site
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.units import parse_seconds

NVME = {"kind": "posix", "name": "nvme", "path": "/nvme", "level": 1}
PFS = {"kind": "posix", "name": "pfs", "path": "/pfs", "level": 3}
S3 = {"kind": "object", "name": "s3", "level": 4, "url": "s3://bucket/x"}
REDUNDANT = {
    "kind": "redundant",
    "name": "partners",
    "scheme": "rs",
    "set_size": 6,
    "losses": 2,
}
FAILURES = {
    "process_mtbf": "400d", "node_mtbf": "260d", "system_mtbf": "7d", "filesystem_mtbf": "90d",
    "source": "made up",
}  # fmt: skip


def site(*tiers: dict[str, Any], **tables: Any) -> Site:
    given = {"failures": FAILURES, "executor": {"workers": 8}} | tables
    return Site.model_validate({"name": "there", "tiers": tiers or (NVME, PFS, S3), **given})


def asked(where: Site, **options: Any) -> Request:
    load = {"state_bytes": 40e12, "nodes": 1024, "changed": 0.3}
    load |= {name: options.pop(name) for name in list(options) if name in _OF_WORKLOAD}
    return Request(workload=workload_of(where, **load), reaction=reaction_of(where), **options)


_OF_WORKLOAD = ("state_bytes", "nodes", "writers_per_node", "work_s", "changed")


def tuned(where: Site, **options: Any) -> Answer:
    measured, refine = options.pop("measured", None), options.pop("refine", False)
    near = (parse_tier("s3:level=4,write=500MB,shared=100GB,read-shared=100GB"),)
    request = asked(where, **{"tiers": near} | options)
    return tune_site(where, request, measured=measured, surrogate=shipped(), refine=refine)


@dataclass(frozen=True)
class Saves:
    capture_bytes_per_s: float = 1e9
    unchanged_bytes_per_s: float = 3e9
    interference: float = 0.07


@dataclass(frozen=True)
class Calibrated:
    costs: tuple[TierCosts, ...]
    saves: Saves | None = None
    date: datetime = datetime(2026, 11, 30, tzinfo=UTC)

    def tier_costs(self) -> tuple[TierCosts, ...]:
        return self.costs

    def stale(self, site: Site) -> tuple[str, ...]:
        return (f"Of {site.name} it is old.",)


MEASURED_NVME = TierCosts(
    name="nvme", level=1, write_bytes_per_s=2e9, read_bytes_per_s=4e9, spread=0.2
)

# --- where costs are from ---


def test_what_is_given_counts_before_what_was_measured_and_that_before_what_is_typical() -> (
    None
):
    tiers, notes = sourced_tiers(
        site(),
        nodes=16,
        measured=Calibrated((MEASURED_NVME,)),
        given=[parse_tier("pfs:write=5GB,shared=70GB/s,latency=2s,price=0.1")],
    )
    assert [(one.costs.name, one.origin) for one in tiers] == [
        ("nvme", "measured"), ("pfs", "given"), ("s3", "typical"),
    ]  # fmt: skip
    assert tiers[0].costs == MEASURED_NVME
    assert tiers[0].detail == "measured 2026-11-30"
    pfs = tiers[1].costs
    assert (pfs.write_bytes_per_s, pfs.write_shared_bytes_per_s) == (5e9, 70e9)
    assert (pfs.write_latency_s, pfs.price_per_gb) == (2.0, 0.1)
    assert pfs.read_bytes_per_s == TYPICAL["filesystem"].read_bytes_per_s
    assert notes[0] == "Of there it is old."
    assert "Not calibrated: typical values of s3." in notes[1]
    assert "ckptflow calibrate --site there" in notes[1]


def test_a_tier_can_be_given_that_the_site_lacks() -> None:
    tiers, notes = sourced_tiers(
        site(PFS), nodes=2, given=[parse_tier("far:level=4,write=1GB,capacity=2TB,factor=1.5")]
    )
    assert tiers[1].costs == TierCosts(
        name="far", level=4, write_bytes_per_s=1e9, read_bytes_per_s=1e9, capacity_bytes=2e12,
        storage_factor=1.5,
    )  # fmt: skip
    assert notes[0] == "Tier 'far' is none of the site's: add it to its [[tiers]]."
    with pytest.raises(
        ConfigError, match="'far' is none of the site's: say its level and write"
    ):
        sourced_tiers(site(PFS), nodes=2, given=[parse_tier("far:read=1GB")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvme", "'nvme' tells nothing of a tier; write NAME:KEY=VALUE"),
        ("nvme:", "tells nothing of a tier"),
        (
            "nvme:speed=2GB",
            "Tier 'nvme', 'speed=2GB': there is no 'speed'; there are level, write",
        ),
        ("nvme:write=-2GB", "'nvme', 'write=-2GB': '-2GB' is not a size"),
        ("nvme:latency=2GB", "has the unit 'GB'; a duration"),
        ("nvme:level=low", "'low' is no number"),
        ("nvme:price=", "'' is no number"),
    ],
)
def test_a_tier_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_tier(text)


@pytest.mark.parametrize("text", ["nvme:write=0GB", "nvme:factor=0.5", "nvme:price=-1"])
def test_a_number_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Tier 'nvme': "):
        sourced_tiers(site(), nodes=1, given=[parse_tier(text)])


def test_each_kind_of_tier_has_typical_values_with_a_source() -> None:
    assert all(one.source for one in TYPICAL.values())
    assert typical("posix", 1) is typical("peer", 2) is TYPICAL["node"]
    assert typical("posix", 3) is TYPICAL["filesystem"]
    assert typical("shared_memory", 0) is TYPICAL["memory"]
    kinds = ("object", "fsspec", "globus", "sftp")
    assert len({typical(kind, 4).what for kind in kinds}) == 3
    one, many = (TYPICAL["filesystem"].costs("pfs", 3, nodes=n) for n in (1, 9408))
    assert one.write_shared_bytes_per_s == 1e9
    assert many.write_shared_bytes_per_s == pytest.approx(4.6e12)
    assert TYPICAL["object"].costs("s3", 4, nodes=99).write_shared_bytes_per_s == 825e6


def test_what_is_lost_with_its_process_is_left_out_and_room_is_taken_over() -> None:
    memory = {"kind": "memory", "name": "ram", "level": 0}
    shared = {"kind": "shared_memory", "name": "shm", "level": 0, "capacity": "8GB"}
    tiers, notes = sourced_tiers(site(memory, shared, PFS), nodes=1)
    assert [one.costs.name for one in tiers] == ["shm", "pfs"]
    assert tiers[0].costs.capacity_bytes == 8e9
    assert "'ram' is lost with its process" in notes[0]


def test_what_a_save_costs_is_what_was_measured() -> None:
    load = workload_of(site(), state_bytes=1e12, measured=Calibrated((), Saves()))
    assert (load.nodes, load.writers_per_node) == (1, 8)
    assert (load.capture_bytes_per_s, load.encode_bytes_per_s, load.interference) == (
        1e9, 3e9, 0.07,
    )  # fmt: skip


# --- rates ---


def test_rates_are_the_sites_or_those_of_a_name_or_of_a_mean_time() -> None:
    of_site = tuned(site())
    assert of_site.way.rates.per_s[0] == pytest.approx(8 * 1024 / (400 * 86400))
    assert of_site.failures == "made up"
    named = tuned(site(), failures="ai-h100")
    times = known("ai-h100").times
    assert named.way.rates.per_s[2] == pytest.approx(1024 / times.node_mtbf_s)
    assert named.failures.startswith("ai-h100: Llama Team")
    assert any("'s3' is left out: nothing is known of failures" in one for one in named.notes)
    given = tuned(site(), mtbf_s=7200.0)
    assert given.way.rates.mtbf_s() == pytest.approx(7200)
    shares = [
        a / b for a, b in zip(given.way.rates.per_s, of_site.way.rates.per_s, strict=True) if b
    ]
    assert max(shares) == pytest.approx(min(shares))
    assert given.failures == "one every 2h00min, as given; made up"


def test_where_only_the_mean_time_is_known_the_classes_are_said_to_be_borrowed() -> None:
    where = site(NVME, PFS, failures={})
    answer = tuned(where, mtbf_s=3600.0)
    assert answer.way.rates.mtbf_s() == pytest.approx(3600)
    assert "in classes as in hpc-cpu" in answer.failures
    with pytest.raises(
        ConfigError, match=r"Nobody knows how often things fail on site 'there'.*ai-h100"
    ):
        tuned(where)
    assert tuned(where, aim="spot").way.rates.total_per_s == 0  # That preset brings its own.


@pytest.mark.parametrize("mtbf_s", [0.0, -1.0, math.inf])
def test_a_mean_time_that_makes_no_sense_is_refused(mtbf_s: float) -> None:
    with pytest.raises(ConfigError, match="mean time between failures must be above 0 s"):
        asked(site(), mtbf_s=mtbf_s)


def test_failures_are_noticed_as_the_executor_says() -> None:
    where = site(executor={"heartbeat_threshold": "90s"})
    assert reaction_of(where).detection_s == 90
    assert reaction_of(where, detection_s=5, queue_s=7).before_restore_s(3) == 5 + 10 + 60 + 7


# --- answers ---


def test_the_answer_is_the_best_of_its_system_and_can_be_written_into_a_site_file() -> None:
    answer = tuned(site(NVME, PFS), refine=True, work_s=500 * 3600, tiers=())
    pattern = answer.tuning.pattern
    assert answer.tuning.efficiency == efficiency(answer.tuning.system, pattern)
    for factor in (0.7, 1.4):
        other = replace(pattern, interval_s=pattern.interval_s * factor)
        assert efficiency(answer.tuning.system, other) < answer.tuning.efficiency
    written = tomllib.loads(site_lines(site(), answer))["policy"]
    assert site(policy=written).policy.work_s == 500 * 3600
    assert written["every"] == "multilevel"
    shown = written["pattern"]
    interval_s = parse_seconds(shown.pop("interval"))
    assert 0 <= interval_s - pattern.interval_s < 1e-3 * interval_s
    names = [level.name for level in answer.tuning.system.levels]
    assert shown == {n: c for n, c in zip(names, pattern.every, strict=True) if c}


def test_the_preset_decides_and_is_written_down() -> None:
    answer = tuned(site(), aim="safe")
    assert tomllib.loads(site_lines(site(), answer))["policy"]["every"] == "multilevel,safe"
    assert answer.tuning.system.mtbf_s == pytest.approx(answer.way.rates.mtbf_s() / 3)
    with pytest.raises(ConfigError, match="no preset 'best'; there are fast, safe"):
        asked(site(), aim="best")


@pytest.mark.parametrize(
    ("interval_s", "expected"),
    [
        (14.553856, 14.56),
        (95.0, 95.0),
        (0.0123456, 0.01235),
        (123456.7, 123500.0),
        (1e-9, 1e-3),
    ],
)
def test_an_interval_is_written_with_four_digits_and_never_shorter(
    interval_s: float, expected: float
) -> None:
    assert rounded_up(interval_s) == pytest.approx(expected)


def test_no_answer_is_an_answer_with_a_reason() -> None:
    with pytest.raises(
        NoProgress, match="No configuration makes progress: failures come every 5 s"
    ):
        tuned(site(), mtbf_s=5.0)


def test_too_little_room_is_told_with_numbers() -> None:
    given = (parse_tier("nvme:capacity=1GB"),)
    with pytest.raises(ConfigError, match="'nvme' has room for 954 MiB on each node, one"):
        tuned(site(), tiers=given)


def test_doubts_are_larger_where_nothing_was_measured() -> None:
    costs = [
        replace(MEASURED_NVME, spread=0.0),
        TierCosts(name="pfs", level=3, write_bytes_per_s=1e9, read_bytes_per_s=1e9,
                  write_shared_bytes_per_s=0.5e12, read_shared_bytes_per_s=0.6e12),
    ]  # fmt: skip
    two = site(NVME, PFS)
    guessed, measured = tuned(two), tuned(two, measured=Calibrated(tuple(costs)))
    width = [one.tuning.high - one.tuning.low for one in (guessed, measured)]
    assert width[0] > width[1] > 0


# --- redundancy ---


def agent_site(*tiers: dict[str, Any]) -> Site:
    return site(*tiers, flush={"agent": True}, executor={"workers": 8})


def test_the_schemes_to_compare() -> None:
    with_it = agent_site(NVME, REDUNDANT, PFS)
    rs = Scheme(name="rs", set_size=6, losses=2)
    assert schemes.schemes(with_it, "site", nodes=8) == (rs,)
    assert schemes.schemes(site(), "site", nodes=8) == (None,)
    assert schemes.schemes(with_it, "none", nodes=8) == (None,)
    assert schemes.schemes(with_it, "auto", nodes=1) == (None,)
    compared = schemes.schemes(site(), "auto", nodes=8)
    assert [schemes.label(one) for one in compared] == ["none", "partner 2", "xor 8", "rs 8-2"]
    assert [schemes.storage_factor(one, nodes=8) for one in compared if one] == [
        2,
        8 / 7,
        8 / 6,
    ]
    assert schemes.storage_factor(rs, nodes=3) == 3
    with pytest.raises(ConfigError, match="no redundancy 'raid'; there are site, none, auto"):
        schemes.schemes(site(), "raid", nodes=8)


def test_redundancy_moves_losses_of_nodes_and_is_compared() -> None:
    plain, auto = tuned(site()), tuned(site(), redundancy="auto")
    assert (plain.tuning.redundancy, plain.way.scheme) == ("none", None)
    assert auto.way.scheme is not None
    assert auto.tuning.efficiency > plain.tuning.efficiency
    assert auto.way.rates.total_per_s == pytest.approx(plain.way.rates.total_per_s)
    assert auto.way.rates.per_s[3] > plain.way.rates.per_s[3]
    named = {one.name: count for one, count in
             zip(auto.tuning.system.levels, auto.pattern.every, strict=True)}  # fmt: skip
    assert named["redundant"] == named["nvme"] == 1  # What is protected is on the node first.
    written = tomllib.loads(site_lines(site(), auto))
    assert written["tiers"][0]["kind"] == "redundant"
    assert written["tiers"][0]["scheme"] == auto.way.scheme.name
    assert written["flush"] == {"agent": True}
    data = {"name": "x", "tiers": [NVME, *written["tiers"], PFS, S3], "flush": written["flush"]}
    assert Site.model_validate(data | {"policy": written["policy"]}).policy.pattern


def test_what_is_protected_is_on_the_node_first_even_if_no_failure_needs_that() -> None:
    failures = {"node_mtbf": "260d", "system_mtbf": "7d", "source": "made up"}
    answer = tuned(site(NVME, PFS, failures=failures), redundancy="xor", tiers=())
    before, now = answer.tuning.pattern, answer.pattern
    assert (before.every[:2], now.every[:2]) == ((0, 1), (1, 1))
    assert now.interval_s == before.interval_s
    assert "Level 1 (nvme) holds what redundancy between nodes protects." in answer.reasons
    assert not any("(nvme) is not used" in one for one in answer.reasons)


def test_a_site_that_has_the_scheme_needs_no_lines_for_it() -> None:
    where = agent_site(NVME, REDUNDANT, PFS)
    answer = tuned(where)
    assert answer.tuning.redundancy == "rs 6-2"
    lines = site_lines(where, answer)
    assert "partners = 1" in lines
    assert "[[tiers]]" not in lines
    other = site_lines(where, tuned(where, redundancy="xor"))
    assert "instead of what tier 'partners' is now" in other
    tomllib.loads(other)


def test_protecting_reads_what_is_there_and_writes_the_rest() -> None:
    tiers, _ = sourced_tiers(site(), nodes=64)
    for scheme, more in ((Scheme(name="partner"), 1), (Scheme(name="xor", set_size=8), 1 / 7)):
        made = schemes.redundant_tier(site(), scheme, tiers, nodes=64).costs
        took_s = made.write_s(1e9, writers=1)
        assert took_s == pytest.approx(more / 3.7 + 1 / 8)
    with pytest.raises(ConfigError, match="needs a tier that each node has for itself"):
        tuned(site(PFS), redundancy="xor")


def test_a_second_loss_is_one_too_many_only_where_one_can_be_rebuilt() -> None:
    tiers, _ = sourced_tiers(site(), nodes=64)
    load = workload_of(site(), state_bytes=1e12, nodes=64)
    chances = []
    for name in ("partner", "xor", "rs"):
        scheme = schemes.CANDIDATES[name]
        made = schemes.redundant_tier(site(), scheme, tiers, nodes=64)
        redundancy, chance = schemes.survival(scheme, made, load, reaction_of(site()))
        assert redundancy.window_s > 60
        chances.append(chance)
    assert chances == [1 / 63, 7 / 63, 0.0]
