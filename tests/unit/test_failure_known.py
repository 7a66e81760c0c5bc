"""Published rates: the arithmetic from what their sources count, and that they are honest."""

from __future__ import annotations

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.known import KNOWN, LLAMA_3_STOPS, known
from ckptflow.policy.failures.rates import MeanTimes, rates_of

DAY_S = 86_400.0


def test_the_stops_of_llama_3_are_all_there() -> None:
    assert sum(LLAMA_3_STOPS.values()) == 419
    rates = rates_of(known("ai-h100").times, nodes=2048, processes=16_384)
    counts = [rate_per_s * 54 * DAY_S for rate_per_s in rates.per_s]
    assert counts == pytest.approx([63, 0, 356, 0, 0])
    per_node_day = rates.total_per_s * DAY_S / 2048
    assert 1000 * per_node_day == pytest.approx(3.79, abs=0.005)
    mapping = known("ai-h100").mapping
    gpu = ("faulty GPU", "GPU HBM3 memory", "GPU SRAM memory", "GPU system processor",
           "silent data corruption", "GPU thermal interface and sensor")  # fmt: skip
    assert f"GPUs ({sum(LLAMA_3_STOPS[one] for one in gpu)})" in mapping
    assert 268 + 21 + 35 + 32 == 356


@pytest.mark.parametrize(
    ("name", "field", "mtbf_s"),
    [
        ("meta-rsc1", "node_mtbf_s", 1000 / 6.50 * DAY_S),
        ("meta-rsc2", "node_mtbf_s", 1000 / 2.34 * DAY_S),
        ("hpc-cpu", "node_mtbf_s", 1024 * 130.4 * 3600),
        ("hpc-cpu", "system_mtbf_s", 649 * 3600),
        ("blue-waters", "filesystem_mtbf_s", 9 * DAY_S),
        ("blue-waters", "system_mtbf_s", 26.1 * DAY_S),
    ],
)
def test_mean_times_are_those_of_the_sources(name: str, field: str, mtbf_s: float) -> None:
    assert getattr(known(name).times, field) == pytest.approx(mtbf_s, rel=1e-3)


def test_what_was_not_read_is_not_called_checked() -> None:
    assert {name for name, one in KNOWN.items() if one.checked} == {"ai-h100", "blue-waters"}
    for one in KNOWN.values():
        assert one.times != MeanTimes()
        assert one.source
        assert one.mapping
        unread = "from memory" in one.source or "without a source" in one.source
        assert unread != one.checked
        assert str(one).endswith("Not checked.") != one.checked


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(
        ConfigError, match=r"'summit'; there are ai-h100, meta-rsc1, .* worksta"
    ):
        known("summit")
