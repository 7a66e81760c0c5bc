"""Published failure rates: they add up, and the tuned policy hears of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.known import KNOWN, known
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.failures.survival import Redundancy
from ckptflow.policy.interval import EverySteps, parse_interval
from ckptflow.policy.tuned import Tuned
from ckptflow.site import load_site
from ckptflow.site.failures import FailuresModel

DAY_S = 86_400.0


def rates(**given: str) -> FailuresModel:
    return FailuresModel.model_validate({**given, "source": "somebody"})


def test_rates_of_nodes_and_of_what_they_share_add_up() -> None:
    both = rates(node_mtbf="300d", system_mtbf="10d")
    assert both.mtbf_s(30) == pytest.approx(5 * DAY_S)
    assert rates(node_mtbf="300d").mtbf_s() == pytest.approx(300 * DAY_S)
    assert rates(system_mtbf="10d").mtbf_s(1000) == pytest.approx(10 * DAY_S)
    assert FailuresModel().mtbf_s() is None


def test_everything_that_interrupts_counts() -> None:
    every = rates(
        process_mtbf="100d", reboot_mtbf="200d", node_mtbf="300d", system_mtbf="10d",
        filesystem_mtbf="20d",
    )  # fmt: skip
    per_day = 8 / 100 + 2 / 200 + 2 / 300 + 1 / 10 + 1 / 20
    assert every.mtbf_s(2, 8) == pytest.approx(DAY_S / per_day)
    assert every.mtbf_s(2) == pytest.approx(DAY_S / (per_day - 6 / 100))
    told = parse_interval(every.inform("auto", nodes=2, processes=8))
    assert isinstance(told, Tuned)
    assert told.mtbf_s == pytest.approx(DAY_S / per_day)


def test_rates_are_told_by_class() -> None:
    model = rates(node_mtbf="300d", system_mtbf="10d", filesystem_mtbf="20d")
    assert model.rates(nodes=30).per_s == pytest.approx(
        (0, 0, 0.1 / DAY_S, 0.1 / DAY_S, 0.05 / DAY_S)
    )
    rack = Redundancy(set_size=8, window_s=0.0, taking_others=0.5, group_nodes=30)
    assert model.rates(nodes=30, redundancy=rack).per_s == pytest.approx(
        (0, 0, 0.05 / DAY_S, 0.15 / DAY_S, 0.05 / DAY_S)
    )
    assert FailuresModel().rates(nodes=30) == Rates((0.0,) * 5)


@pytest.mark.parametrize("name", KNOWN)
def test_a_preset_has_its_source(name: str) -> None:
    model = FailuresModel.model_validate({"preset": name})
    assert model.times == known(name).times
    assert model.mtbf_s() is not None


def test_single_keys_come_before_the_preset() -> None:
    model = rates(preset="ai-h100", node_mtbf="10d", filesystem_mtbf="90d")
    assert model.times.node_mtbf_s == 10 * DAY_S
    assert model.times.filesystem_mtbf_s == 90 * DAY_S
    assert model.times.process_mtbf_s == known("ai-h100").times.process_mtbf_s


def test_presets_are_asked_for_in_a_site_file_by_name() -> None:
    site = load_site("local", overrides={"failures.preset": "blue-waters"})
    assert site.failures.mtbf_s() == pytest.approx(261 / 39 * DAY_S)
    with pytest.raises(ConfigError, match=r"'titan'; there are ai-h100, meta-rsc1"):
        load_site("local", overrides={"failures.preset": "titan"})


def test_the_tuned_rule_is_told_and_keeps_its_bound() -> None:
    told = parse_interval(rates(node_mtbf="10d").inform("auto,overhead<=2%"))
    assert told == Tuned(fraction=0.02, mtbf_s=10 * DAY_S)
    assert parse_interval(rates(node_mtbf="10d").inform(None)) == replace(
        Tuned(), mtbf_s=10 * DAY_S
    )


@pytest.mark.parametrize(
    "every", ["auto,mtbf=6h", "10min", "mtbf=1h", "never", 5, EverySteps(3)]
)
def test_what_the_user_said_stays(every: object) -> None:
    assert rates(node_mtbf="10d").inform(every) == every  # type: ignore[arg-type]


def test_without_rates_nothing_changes() -> None:
    assert FailuresModel().inform("auto") == "auto"
    assert FailuresModel().inform(None) is None


def test_where_rates_are_from_has_to_be_said() -> None:
    for key in ("node_mtbf", "process_mtbf", "reboot_mtbf", "filesystem_mtbf"):
        with pytest.raises(ConfigError, match="say in source where"):
            load_site("local", overrides={f"failures.{key}": "10d"})
    with pytest.raises(ConfigError, match="say in source where"):
        load_site(
            "local", overrides={"failures.preset": "ai-h100", "failures.node_mtbf": "10d"}
        )


def test_tasks_of_a_run_are_told() -> None:
    import ckptflow
    from ckptflow.workflow.attempt import TaskSpec

    @ckptflow.python_app(every="auto")
    def work(ckpt: object = None) -> None:
        """Do nothing."""

    told = {"failures.node_mtbf": "10d", "failures.source": "somebody"}
    run = ckptflow.run("exp", site="local", overrides=told)
    spec = TaskSpec.unpacked(run.tasks.spec_for(work))
    assert parse_interval(spec.every) == Tuned(mtbf_s=10 * DAY_S)
