"""From bytes to times: what saves, copies and restores take, and inputs that make no sense."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.costs import Reaction, Workload, system_of
from ckptflow.policy.multilevel.tier_costs import TierCosts

GB = 1e9
RATES = Rates((1e-5, 2e-6, 3e-6, 4e-6, 5e-7))
NVME = TierCosts(
    name="nvme", level=1, write_bytes_per_s=2 * GB, read_bytes_per_s=4 * GB,
    write_shared_bytes_per_s=4 * GB, read_shared_bytes_per_s=8 * GB, write_latency_s=0.5,
    read_latency_s=0.25,
)  # fmt: skip
PFS = TierCosts(
    name="pfs", level=3, write_bytes_per_s=1 * GB, read_bytes_per_s=1 * GB,
    write_shared_bytes_per_s=20 * GB, read_shared_bytes_per_s=40 * GB,
)  # fmt: skip
# 64 writers of 10 GB each, four on each node.
WORK = Workload(
    state_bytes=640 * GB, nodes=16, writers_per_node=4, capture_bytes_per_s=5 * GB,
    encode_bytes_per_s=2 * GB, interference=0.02,
)  # fmt: skip
AT_ONCE = Reaction(detection_s=0.0, restart_s=0.0, reallocation_s=0.0, queue_s=0.0)


def test_times_follow_from_bandwidths_by_arithmetic() -> None:
    system = system_of([NVME, PFS], RATES, WORK, reaction=AT_ONCE)
    nvme, pfs = system.levels
    assert system.blocked_s == 10 / 5
    # Four writers share the 4 GB/s of a node: 10 s each, longer than the 5 s of encoding.
    assert nvme.latency_s == pytest.approx(0.5 + 10)
    assert nvme.recovery_s == pytest.approx(0.25 + 10 / 2)
    # From there 64 writers share 20 GB/s: 32 s; 40 GB/s back.
    assert pfs.latency_s == pytest.approx(10.5 + 32)
    assert pfs.recovery_s == pytest.approx(16)
    assert (nvme.size_bytes, nvme.interference, nvme.capacity) == (640 * GB, 0.02, None)


def test_a_writer_alone_is_no_faster_than_it_is() -> None:
    """16 writers on 16 nodes could have 1.25 GB/s each of the 20, and write with 1."""
    system = system_of([PFS], RATES, replace(WORK, writers_per_node=1), reaction=AT_ONCE)
    assert system.levels[0].latency_s == pytest.approx(40)


def test_only_changes_are_written_and_all_is_restored() -> None:
    part = replace(WORK, changed=0.1, stored=0.5)
    system = system_of([NVME, PFS], RATES, part, reaction=AT_ONCE)
    nvme, pfs = system.levels
    assert nvme.latency_s == pytest.approx(0.5 + 0.5)  # 0.5 of 10 GB at 1 GB/s; encoding 0.5 s.
    assert pfs.latency_s == pytest.approx(1.0 + 1.6)
    assert nvme.recovery_s == pytest.approx(0.25 + 5 / 2)
    assert pfs.size_bytes == pytest.approx(640 * GB * 0.05)


def test_encoding_may_be_what_takes_longest() -> None:
    slow = replace(WORK, encode_bytes_per_s=0.1 * GB)
    assert system_of([NVME], RATES, slow).levels[0].latency_s == pytest.approx(100)


def test_redundancy_writes_and_keeps_more() -> None:
    partner = replace(
        NVME, name="partner", level=2, storage_factor=2.0, capacity_bytes=200 * GB
    )
    (level,) = system_of([partner], RATES, WORK, reaction=AT_ONCE).levels
    assert level.latency_s == pytest.approx(0.5 + 20)
    assert level.size_bytes == 1280 * GB
    assert level.capacity == 2  # 80 GB on each node.
    assert level.recovery_s == pytest.approx(5.25)


def test_reactions_add_up_by_level() -> None:
    reaction = Reaction(detection_s=1.0, restart_s=20.0, reallocation_s=300.0, queue_s=4000.0)
    assert [reaction.before_restore_s(level) for level in range(5)] == [21, 21, 321, 4321, 4321]


def test_failures_need_the_next_tier_there_is() -> None:
    system = system_of([PFS, NVME], RATES, WORK)
    assert [level.rate_per_s for level in system.levels] == pytest.approx([1.2e-5, 7e-6])
    assert system.lost_rate_per_s == pytest.approx(5e-7)
    assert system.rate_per_s + system.lost_rate_per_s == pytest.approx(RATES.total_per_s)


def test_of_two_tiers_of_a_level_the_faster_counts() -> None:
    other = replace(PFS, name="slow", write_shared_bytes_per_s=1 * GB)
    for tiers in ([PFS, other], [other, PFS]):
        assert [level.name for level in system_of(tiers, RATES, WORK).levels] == ["pfs"]


def test_a_second_loss_concerns_what_rebuilds() -> None:
    partner = replace(NVME, name="partner", level=2)
    system = system_of([NVME, partner, PFS], RATES, WORK, second_loss=0.1)
    assert [level.second_loss for level in system.levels] == [0.0, 0.1, 0.0]


def test_prices_are_those_of_what_is_written() -> None:
    s3 = replace(PFS, name="s3", level=4, price_per_gb=0.05)
    half = replace(WORK, changed=0.5)
    (level,) = system_of([s3], RATES, half).levels
    assert level.price == pytest.approx(0.05 * 320)


def test_what_is_read_back_and_what_is_kept_have_prices_of_their_own() -> None:
    s3 = replace(PFS, name="s3", level=4, egress_price_per_gb=0.09, price_per_gb_month=0.023)
    (level,) = system_of([s3], RATES, replace(WORK, changed=0.5)).levels
    assert level.price == 0
    assert level.restore_price == pytest.approx(0.09 * 640)  # The whole state.
    # One whole, and one more that differs by a half, in seconds of a month of 30 days.
    assert level.keep_price_per_s == pytest.approx(0.023 * (640 + 320) / (30 * 86_400))


def test_a_tier_without_room_for_one_checkpoint_says_how_much_it_takes() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'nvme' has room for 27\.9 GiB on each node, one checkpoint takes 37\.3 GiB",
    ):
        system_of([replace(NVME, capacity_bytes=30 * GB)], RATES, WORK)
    with pytest.raises(ConfigError, match=r"Tier 'pfs' has room for 27\.9 GiB, one checkpoint"):
        system_of([replace(PFS, capacity_bytes=30 * GB)], RATES, WORK)
    one = system_of([replace(NVME, capacity_bytes=41 * GB)], RATES, WORK)
    assert one.levels[0].capacity == 1


def test_a_policy_needs_a_tier() -> None:
    with pytest.raises(ConfigError, match="at least one tier"):
        system_of([], RATES, WORK)


@pytest.mark.parametrize(
    "name",
    [
        "write_bytes_per_s", "read_bytes_per_s", "write_shared_bytes_per_s",
        "read_shared_bytes_per_s", "capacity_bytes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_bandwidths_and_room_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"Tier 'nvme': {name} must be above 0, got {value}"):
        replace(NVME, **{name: value})


@pytest.mark.parametrize(
    "name",
    [
        "write_latency_s", "read_latency_s", "price_per_gb", "price_per_gb_month",
        "egress_price_per_gb", "spread",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_latencies_and_prices_are_not_negative(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"Tier 'nvme': {name} must not be negative"):
        replace(NVME, **{name: value})


def test_a_tier_is_of_a_level_and_stores_at_least_what_it_is_given() -> None:
    with pytest.raises(ConfigError, match="a level is 0 to 4, got 5"):
        replace(NVME, level=5)
    with pytest.raises(ConfigError, match=r"storage_factor is 1 or more, got 0\.5"):
        replace(NVME, storage_factor=0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"state_bytes": 0}, "A state of 0 bytes: it must have some"),
        ({"state_bytes": math.nan}, "A state of nan bytes"),
        ({"nodes": 0}, "0 nodes with 4 writers each cannot save"),
        ({"writers_per_node": 0}, "16 nodes with 0 writers each cannot save"),
        ({"changed": 0.0}, "changed is a part, above 0 and at most 1"),
        ({"stored": 1.5}, "stored is a part, above 0 and at most 1"),
        ({"capture_bytes_per_s": 0.0}, "capture_bytes_per_s must be above 0"),
        ({"encode_bytes_per_s": math.nan}, "encode_bytes_per_s must be above 0"),
        ({"interference": -0.1}, "interference is 0 or more"),
    ],
)
def test_workloads_make_sense(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(WORK, **given)


def test_reactions_take_some_time_or_none() -> None:
    with pytest.raises(ConfigError, match="queue_s is 0 s or more, got -1"):
        Reaction(queue_s=-1.0)


def test_a_capture_that_blocks_for_no_time_blocks_for_none() -> None:
    assert system_of([NVME], RATES, replace(WORK, capture_bytes_per_s=math.inf)).blocked_s == 0
