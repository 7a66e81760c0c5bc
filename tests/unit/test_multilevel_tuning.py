"""The whole answer: pattern, expectation, sensitivity, alternatives, and reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.plan.train import random_system
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.costs import Workload, system_of
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiency
from ckptflow.policy.multilevel.presets import PRESETS
from ckptflow.policy.multilevel.search import best_pattern
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.policy.multilevel.system import Level, System
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.policy.multilevel.tuning import Doubt, parts, scaled, tune

pytestmark = pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not here")

GB = 1e9
TIERS = [
    TierCosts(name="nvme", level=1, write_bytes_per_s=2 * GB, read_bytes_per_s=4 * GB),
    TierCosts(
        name="pfs", level=3, write_bytes_per_s=GB, read_bytes_per_s=GB,
        write_shared_bytes_per_s=50 * GB, read_shared_bytes_per_s=50 * GB,
    ),
]  # fmt: skip
XOR = TierCosts(
    name="xor", level=2, write_bytes_per_s=GB, read_bytes_per_s=GB, storage_factor=1.25
)
PARTNER = replace(XOR, storage_factor=2.0)
RATES = Rates((1e-5, 2e-6, 5e-6, 1e-6, 0.0))
WORK = Workload(state_bytes=64 * 32 * GB, nodes=64)
USUAL = system_of(TIERS, RATES, WORK)


def test_the_answer_is_the_best_pattern_with_all_that_is_to_be_said_of_it() -> None:
    found = tune({"": USUAL}, surrogate=shipped())
    assert found.efficiency == efficiency(USUAL, found.pattern)
    assert found.efficiency == pytest.approx(best_pattern(USUAL).efficiency, abs=1e-5)
    assert "refined by exact evaluation" in found.method
    assert found.low < found.efficiency < found.high < 1
    assert sum(found.parts.values()) == pytest.approx(1)
    assert found.parts["useful"] == found.efficiency
    assert min(found.parts.values()) > 0


def test_parts_of_the_time_without_failures_are_exact() -> None:
    nvme = Level(name="nvme", number=1, rate_per_s=0.0, latency_s=20.0, interference=0.5)
    pfs = Level(name="pfs", number=3, rate_per_s=0.0, blocked_s=8.0, latency_s=20.0)
    system = System((nvme, pfs), blocked_s=2.0)
    pattern = best_pattern(replace(system, lost_rate_per_s=0.0)).pattern
    pattern = replace(pattern, interval_s=100.0, every=(1, 4))
    value = efficiency(system, pattern)
    found = parts(system, pattern, value)
    cycle_s = 4 * (100 + 2 + 10) + 8
    assert found["blocked"] == pytest.approx(16 / cycle_s)
    assert found["interference"] == pytest.approx(40 / cycle_s)
    assert found["failures"] == pytest.approx(0, abs=1e-12)


def test_reasons_speak_of_each_level() -> None:
    cramped = replace(
        USUAL,
        levels=(
            Level(name="shm", number=0, rate_per_s=1e-6, capacity=1),
            *USUAL.levels,
            Level(name="s3", number=4, rate_per_s=0.0, latency_s=1e4, interference=0.05),
        ),
    )
    said = tune({"": cramped}, surrogate=shipped()).reasons
    assert said[0].startswith("A save every ")
    assert "it blocks for 6.4 s, and failures come every 14h37min" in said[0]
    assert (
        said[1] == "Level 0 (shm) is not used: it has room for one checkpoint, and takes two."
    )
    assert said[2].startswith("Level 1 (nvme) gets every save: a copy takes 16.0 s, failures ")
    assert "without it, 0." in said[2]
    assert said[3].startswith("Level 3 (pfs) gets ")
    assert "failures that need it come every 46h17min, recovering takes " in said[3]
    assert said[4].startswith("Level 4 (s3) is not used")


def test_failures_that_nothing_survives_are_told_if_they_cannot_be_counted() -> None:
    lost = replace(USUAL, lost_rate_per_s=1e-6)
    unknown = tune({"": lost}, surrogate=shipped())
    assert any("no level survives come every 277h46min and begin the task again" in reason
               for reason in unknown.reasons)  # fmt: skip
    known = tune({"": replace(lost, work_s=86400.0)}, surrogate=shipped())
    assert not any("no level survives" in reason for reason in known.reasons)
    assert known.efficiency < unknown.efficiency


def test_the_better_redundancy_is_chosen_and_the_other_told() -> None:
    # What XOR does not rebuild is a failure of level 3 instead of 2.
    weak = Rates((1e-5, 2e-6, 4.9e-6, 1.1e-6, 0.0))
    systems = {
        "xor": system_of([*TIERS, XOR], weak, WORK),
        "partner": system_of([*TIERS, PARTNER], RATES, WORK),
        "none": USUAL,
    }
    found = tune(systems, surrogate=shipped())
    best = {name: best_pattern(system).efficiency for name, system in systems.items()}
    assert found.redundancy == max(best, key=best.__getitem__)
    assert found.system == systems[found.redundancy]
    others = {one.redundancy for one in found.alternatives}
    assert others == set(systems)
    (reason,) = (said for said in found.reasons if said.startswith("Redundancy "))
    assert all(name in reason for name in systems)
    values = [one.efficiency for one in found.alternatives]
    assert values == sorted(values, reverse=True)
    assert values[0] <= found.efficiency + 1e-6


def test_a_system_that_makes_no_progress_is_left_out_if_another_does() -> None:
    hopeless = System((Level(name="pfs", number=3, rate_per_s=0.1, recovery_s=1e3),))
    assert tune({"a": hopeless, "b": USUAL}, surrogate=shipped()).redundancy == "b"
    for surrogate in (None, shipped()):
        for refine in (True, False):
            with pytest.raises(ConfigError, match="No configuration makes progress: failures"):
                tune({"a": hopeless}, surrogate=surrogate, refine=refine)


def test_no_level_with_room_is_said_whatever_begins() -> None:
    full = System((Level(name="pfs", number=3, rate_per_s=1e-5, capacity=1),), blocked_s=1.0)
    for surrogate in (None, shipped()):
        with pytest.raises(
            ConfigError, match=r"progress: .* no room for two checkpoints on pfs"
        ):
            tune({"": full}, surrogate=surrogate)


def test_without_a_surrogate_or_beyond_it_the_search_is_exact_and_says_so() -> None:
    alone = tune({"": USUAL})
    assert alone.method == "exact search; there is no surrogate"
    assert alone.efficiency == pytest.approx(
        tune({"": USUAL}, surrogate=shipped()).efficiency, abs=1e-5
    )
    # A machine that fails every 10,000 years.
    calm = scaled(USUAL, rates=1e-9)
    found = tune({"": calm}, surrogate=shipped())
    assert found.method.startswith("exact search; the surrogate was not trained with this: ")
    assert found.efficiency > 0.999


def test_a_proposal_is_taken_as_it_is_if_that_is_asked_for() -> None:
    found = tune({"": USUAL}, surrogate=shipped(), refine=False)
    assert found.method == "the surrogate's proposal"
    assert found.efficiency == efficiency(USUAL, found.pattern)
    assert found.efficiency > best_pattern(USUAL).efficiency - 0.02
    assert (found.sensitivity, found.alternatives) == ((), ())


def test_sensitivity_tells_what_a_wrong_belief_costs() -> None:
    found = tune({"": USUAL}, surrogate=shipped())
    assert {one.what for one in found.sensitivity} == {
        "rates of all failures", "time of a copy to nvme", "time of a copy to pfs",
        "time that a save blocks",
    }  # fmt: skip
    for one in found.sensitivity:
        assert one.kept <= one.tuned + 1e-6
        better = one.factor < 1
        assert (one.tuned >= found.efficiency) == better, one


def test_what_is_known_well_has_a_narrow_range() -> None:
    wide = tune({"": USUAL}, surrogate=shipped(), refine=False)
    none = tune({"": USUAL}, surrogate=shipped(), refine=False, doubt=Doubt(1.0, 1.0))
    assert none.low == pytest.approx(none.efficiency)
    assert none.high == pytest.approx(none.efficiency)
    assert wide.high - wide.low > 0.005
    with pytest.raises(ConfigError, match="A doubt is a factor from 1 on"):
        Doubt(rates=0.5)


@pytest.mark.parametrize("name", ["safe", "spot"])
def test_presets_say_what_they_asked_for(name: str) -> None:
    aim = PRESETS[name]
    system = system_of(TIERS, aim.expected(RATES), WORK)
    (said,) = (one for one in tune({"": system}, aim=aim, surrogate=shipped()).reasons
               if one.startswith("Preset"))  # fmt: skip
    limit = {"safe": "15min00s", "spot": "10min00s"}[name]
    assert said.endswith(f"between checkpoints on level 3 or beyond, at most {limit}.")
    alone = replace(system, levels=system.levels[:1])
    assert tune({"": alone}, aim=aim, surrogate=shipped()).reasons[-1] == (
        f"Preset {name} asks for level 3 or beyond, and there is none."
    )


def test_a_preset_that_copies_are_too_slow_for_says_that() -> None:
    nvme, pfs = USUAL.levels
    slow = replace(USUAL, levels=(nvme, replace(pfs, latency_s=4000.0)))
    said = tune({"": slow}, aim=PRESETS["safe"], surrogate=shipped()).reasons[-1]
    assert said.endswith("15min00s, as it asks for, is more often than copies arrive.")


def test_cheap_says_what_it_gives_up() -> None:
    found = tune({"": USUAL}, aim=PRESETS["cheap"], surrogate=shipped())
    assert found.reasons[-1] == "Preset cheap: up to 1 % of the time for lower cost."
    fast = tune({"": USUAL}, surrogate=shipped())
    assert fast.efficiency - 0.01 <= found.efficiency < fast.efficiency


def test_nothing_to_tune_is_said() -> None:
    with pytest.raises(ConfigError, match="no system was given"):
        tune({})


@pytest.mark.slow
def test_tuned_patterns_are_the_best_of_thorough_searches() -> None:
    """The line for regret: 0.001 on average and 0.01 at the worst, over random systems."""
    rng, regrets = np.random.default_rng(9), []
    while len(regrets) < 25:
        system = random_system(rng)
        try:
            best = tune({"": system}, doubt=Doubt(1.0, 1.0)).efficiency
        except ConfigError:
            continue
        found = tune({"": system}, surrogate=shipped()).efficiency
        regrets.append(max(0.0, best - found))
    assert np.mean(regrets) <= 0.001
    assert max(regrets) <= 0.01
