"""Published failure rates: they add up, and the tuned policy hears of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptflow.errors import ConfigError
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
    with pytest.raises(ConfigError, match="say in source where"):
        load_site("local", overrides={"failures.node_mtbf": "10d"})


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
