"""Workflows on real Slurm, and what happens to allocations: each ends with the same bits.

Most of a scenario is waiting, so they run at once, a few at a time, each on nodes of its own
(`scenarios.py`, `disturbed_run.py`); each test waits for one, and looks at what remains of it.
Where the way in which Slurm tracks processes decides who hears a signal, a scenario runs under
both. With ``SCENARIO_RECORDS=FILE`` what was measured is written there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from disturbed_run import DisturbedRun, Result
from scenarios import SCENARIOS, Scenario
from slurm_cluster import SlurmCluster, running, why_not
from slurm_conf import Settings

AT_ONCE = 4
RECORDS = os.environ.get("SCENARIO_RECORDS")

# A fixture runs them all, so the first test may wait for long.
pytestmark = [pytest.mark.timeout(1500), pytest.mark.xdist_group("slurm-scenarios")]

Id = tuple[str, str]
EVERY: list[Id] = [
    *((name, "linuxproc") for name in SCENARIOS),
    *((name, "cgroup") for name, one in SCENARIOS.items() if one.signals),
]


def is_fast(which: Id) -> bool:
    name, proctrack = which
    return SCENARIOS[name].fast and (proctrack == "cgroup") == SCENARIOS[name].signals


def case(which: Id):
    marks = [] if is_fast(which) else [pytest.mark.slow]
    return pytest.param(which, id="-".join(which), marks=marks)


def settings_for(
    scenarios: list[Scenario], proctrack: str
) -> tuple[Settings, dict[str, list[int]]]:
    """Return a cluster with nodes enough, and which nodes each scenario has."""
    numbers, first = {}, 1
    for one in scenarios:
        numbers[one.name] = list(range(first, first + one.plan.nodes))
        first += one.plan.nodes
    settings = Settings(
        nodes=first - 1, proctrack=proctrack, partitions=numbers, kill_wait_s=5, grace_s=5
    )
    return settings, numbers


def play(one: Scenario, cluster: SlurmCluster, numbers: list[int], folder: Path) -> Result:
    run = DisturbedRun(one.name, one.plan, cluster, numbers, folder)
    try:
        return run.result(one.act(run))
    finally:
        run.close()


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Id, Future[Result]]]:
    """What remains of each scenario whose test was asked for, when it is over."""
    wanted = {
        item.callspec.params["which"]
        for item in request.session.items
        if item.path == request.path and not list(item.iter_markers("skip"))
    }
    futures: dict[Id, Future[Result]] = {}
    pool = ThreadPoolExecutor(AT_ONCE)
    clusters = []
    try:
        for proctrack in ("linuxproc", "cgroup"):
            mine = [
                SCENARIOS[name]
                for name, how in EVERY
                if how == proctrack and (name, how) in wanted
            ]
            if not mine or why_not(proctrack):
                continue
            settings, numbers = settings_for(mine, proctrack)
            folder = tmp_path_factory.mktemp(proctrack)
            clusters.append(running(folder / "cluster", settings))
            cluster = clusters[-1].__enter__()
            for one in mine:
                arguments = (one, cluster, numbers[one.name], folder / one.name)
                futures[one.name, proctrack] = pool.submit(play, *arguments)
        yield futures
    finally:
        pool.shutdown(cancel_futures=True)
        for context in clusters:
            context.__exit__(None, None, None)
        done = [
            future for future in futures.values() if future.done() and not future.cancelled()
        ]
        records = [future.result().as_json() for future in done if not future.exception()]
        if RECORDS:
            Path(RECORDS).write_text(json.dumps(records, indent=1))


def result_of(results: dict[Id, Future[Result]], which: Id) -> Result:
    if reason := why_not(which[1]):
        pytest.skip(reason)
    return results[which].result()


def every(*names: str) -> pytest.MarkDecorator:
    """Parametrise a test by scenarios of these names, under each way to track."""
    chosen = [which for which in EVERY if not names or which[0] in names]
    return pytest.mark.parametrize("which", [case(which) for which in chosen])


@every()
def test_it_ends_with_the_same_bits(which: Id, results: dict[Id, Future[Result]]) -> None:
    result = result_of(results, which)
    print(json.dumps(result.as_json(), indent=1))
    assert result.digests == result.expected


@every()
def test_nothing_is_lost_that_was_durable(which: Id, results: dict[Id, Future[Result]]) -> None:
    for failure in result_of(results, which).failures:
        assert failure.resumed_step >= failure.durable_step, failure


@every("undisturbed")
def test_an_undisturbed_run_has_no_failures(
    which: Id, results: dict[Id, Future[Result]]
) -> None:
    result = result_of(results, which)
    assert (result.failures, result.allocations) == ([], 1)


@every(*(name for name in SCENARIOS if name != "undisturbed"))
def test_the_failure_was_one(which: Id, results: dict[Id, Future[Result]]) -> None:
    """Otherwise the scenario would show nothing."""
    assert result_of(results, which).failures


@every("warned", "allocation_cancelled", "requeued", "preempted")
def test_whoever_is_asked_to_stop_saves_first(
    which: Id, results: dict[Id, Future[Result]]
) -> None:
    result = result_of(results, which)
    assert [failure.lost_steps for failure in result.failures] == [0] * len(result.failures)


@every("walltime_shorter_than_the_task")
def test_no_end_of_an_allocation_costs_a_step(
    which: Id, results: dict[Id, Future[Result]]
) -> None:
    result = result_of(results, which)
    assert result.allocations >= 3
    assert [failure.lost_steps for failure in result.failures] == [0] * len(result.failures)


@every("node_frozen")
def test_a_woken_node_is_fenced(which: Id, results: dict[Id, Future[Result]]) -> None:
    result = result_of(results, which)
    assert result.notes["fenced"] == sorted(result.notes["taken_over_at"])


@every("interchange_killed")
def test_a_dead_interchange_ends_the_run_with_an_error(
    which: Id, results: dict[Id, Future[Result]]
) -> None:
    assert result_of(results, which).notes["said"] is True


@every("scheduler_away")
def test_a_scheduler_that_is_away_is_not_asked_in_a_storm(
    which: Id, results: dict[Id, Future[Result]]
) -> None:
    """A minute; the site asks once a second, and may do so."""
    result = result_of(results, which)
    assert result.notes["submissions_meanwhile"] <= 60
    assert result.allocations == 2
