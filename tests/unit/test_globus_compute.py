"""Calls on their way to an endpoint, and what comes back: sizes, refusals, outcomes, texts."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import threading
import tomllib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import dill
import jsonschema
import numpy as np
import pytest
from globus_compute_sdk.serialize import (
    AllCodeStrategies,
    ComputeSerializer,
    DillCode,
    PureSourceDill,
)
from hypothesis import given
from hypothesis import strategies as st
from parsl.executors import GlobusComputeExecutor

import ckptflow as cf
from ckptflow.errors import (
    ConfigError,
    Preempted,
    RemoteTaskError,
    TaskExited,
    TaskLost,
    TooLarge,
    WorkflowError,
)
from ckptflow.site import Site, load_site
from ckptflow.store.descriptor import store_id
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.globus_compute import calls, executor, failures, outcomes, worker
from ckptflow.workflow.globus_compute.sizes import (
    RESULT_BYTES_MAX,
    SUBMISSION_BYTES_MAX,
    answered_bytes,
    submitted_bytes,
)
from ckptflow.workflow.globus_compute.trampoline import run_task
from ckptflow.workflow.tasks import Tasks

ENDPOINT = "6c54cade-bde5-45c1-bdea-f4bd71dba2cc"
SITE = {
    "name": "there",
    "tiers": [{"kind": "posix", "name": "shared", "path": "/scratch", "level": 3}],
    "executor": {
        "kind": "globus_compute",
        "allocation": {"provider": "globus_compute", "endpoint": ENDPOINT},
    },
}


def answered(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a call there and back, as the SDK would, and return or raise what came of it."""
    call = calls.pack(function, args, kwargs)
    outcome = run_task(call.function, call.arguments, call.sender)
    serializer = ComputeSerializer()
    return outcomes.opened(serializer.deserialize(serializer.serialize(outcome)))


# --- sizes ---


@given(st.integers(0, 400))
def test_sizes_are_those_of_the_sdk(size: int) -> None:
    value = b"x" * size
    pickled = len(dill.dumps(value))
    text = ComputeSerializer().serialize(value)
    assert answered_bytes(pickled) == len(text) - len("00\n")
    assert submitted_bytes(pickled) == len(json.dumps(text)) - len('"00\\n"')


def test_what_just_fits_in_an_answer_is_less_than_the_limit() -> None:
    """With ids and names, as the engine measures it."""
    fits, too_large = 7_000_000, 8_000_000
    while too_large - fits > 1000:
        size = (fits + too_large) // 2
        if outcomes.of_value(b"x" * size, task="t")["status"] == "finished":
            fits = size
        else:
            too_large = size
    outcome = outcomes.of_value(b"x" * fits, task="t")
    room = RESULT_BYTES_MAX - len(ComputeSerializer().serialize(outcome))
    assert 0 < room < 80_000


def test_a_call_that_does_not_fit_names_what_is_large() -> None:
    def add(small: int, array: Any) -> None: ...

    with pytest.raises(TooLarge, match=r"add\(\) needs .* is array\. Pass a reference"):
        calls.pack(add, (1,), {"array": np.zeros(1_000_000)})


def test_what_the_function_brings_along_counts_too() -> None:
    table = b"x" * 8_000_000
    with pytest.raises(TooLarge, match="is the function, with what it uses of the script"):
        calls.pack(lambda: len(table), (), {})


@given(st.lists(st.integers(1, 9_900_000), max_size=12))
def test_requests_are_in_order_whole_and_within_the_limit(sizes: list[int]) -> None:
    spans = list(executor._requests(sizes))
    assert [number for first, last in spans for number in range(first, last)] == [
        *range(len(sizes))
    ]
    for first, last in spans:
        assert sum(sizes[first:last]) <= SUBMISSION_BYTES_MAX
    for (first, last), (_, end) in itertools.pairwise(spans):
        assert last < end
        assert sum(sizes[first : last + 1]) > SUBMISSION_BYTES_MAX - 100_000  # None to spare.


def test_an_executor_that_was_not_used_ends_without_asking_the_service() -> None:
    class Client:
        """Answers nothing."""

    unused = executor.TaskExecutor(endpoint_id=ENDPOINT, client=Client())
    before = threading.active_count()
    GlobusComputeExecutor(unused).shutdown()
    assert threading.active_count() <= before


# --- what cannot be sent ---


def test_a_future_is_refused_by_name() -> None:
    def add(left: int, right: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"right of add\(\) is a future"):
        calls.pack(add, (1, [Future()]), {})


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise ValueError("not me")

    def add(left: int, right: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"right of add\(\) cannot be sent .* not me"):
        calls.pack(add, (1, Stubborn()), {})


# --- there and back ---


@pytest.mark.parametrize("strategy", [DillCode, PureSourceDill, AllCodeStrategies])
def test_the_trampoline_travels_in_every_way_that_the_sdk_has(strategy: Any) -> None:
    serializer = ComputeSerializer(strategy_code=strategy())
    there = serializer.deserialize(serializer.serialize(run_task))
    call = calls.pack(lambda x: x + 1, (41,), {})
    assert outcomes.opened(there(call.function, call.arguments, call.sender)) == 42


def test_results_come_back() -> None:
    assert answered(lambda x: {"x": x}, 3) == {"x": 3}
    assert answered(lambda: np.arange(3)).tolist() == [0, 1, 2]


def test_a_stop_in_time_comes_back_with_its_steps() -> None:
    def stops() -> None:
        raise Preempted("stopped", task="r/t", step=7, resumed_step=3, block="2", started=False)

    with pytest.raises(Preempted, match="stopped") as caught:
        answered(stops)
    stop = caught.value
    assert (stop.task, stop.step, stop.resumed_step) == ("r/t", 7, 3)
    assert (stop.started, stop.block) == (False, None)  # Blocks are the endpoint's business.


def test_errors_come_back_with_their_causes() -> None:
    def fails() -> None:
        try:
            {}["k"]
        except KeyError as error:
            raise ValueError("no k") from error

    with pytest.raises(ValueError, match="no k") as caught:
        answered(fails)
    assert isinstance(caught.value.__cause__, KeyError)


def test_leaving_by_exit_is_an_outcome() -> None:
    def leaves() -> None:
        raise SystemExit(3)

    with pytest.raises(TaskExited, match=r"leaves left by SystemExit\(3\)"):
        answered(leaves)


def test_an_error_as_large_as_its_array_is_told_in_words() -> None:
    def fails() -> None:
        raise ValueError(np.zeros(2_000_000))

    with pytest.raises(RemoteTaskError, match="fails raised ValueError"):
        answered(fails)


def test_outcomes_are_plain() -> None:
    """They are what the service keeps; nothing in them needs ckptflow to be looked at."""

    def fails() -> None:
        raise ValueError("no")

    for function in (fails, lambda: 3):
        call = calls.pack(function, (), {})
        outcome = run_task(call.function, call.arguments, call.sender)
        assert {type(value) for value in outcome.values()} <= {str, bytes, int, type(None)}


def test_what_is_no_outcome_is_an_error() -> None:
    with pytest.raises(WorkflowError, match="is no outcome of a task"):
        outcomes.opened({"state": "odd"})


# --- a worker that does not fit ---


@pytest.mark.parametrize(("part", "other"), [("python", "3.7"), ("ckptflow", "0.0.1")])
def test_another_version_is_refused_before_anything_is_unpickled(part: str, other: str) -> None:
    sender = {**calls.sender({}), part: other}
    outcome = worker.answer(b"not a pickle", b"not a pickle", json.dumps(sender))
    with pytest.raises(ConfigError, match=rf"has {part} .*, and the workflow {other}"):
        outcomes.opened(outcome)


@cf.python_app(every=1)
def saves(ckpt: Any) -> int:
    ckpt.save(1, {"x": np.ones(3)})
    return 5


def spec_of(store: Path) -> bytes:
    fields = {**SITE, "tiers": [{"kind": "posix", "name": "s", "path": str(store), "level": 3}]}
    tasks = Tasks(
        "exp",
        Site.model_validate(fields),
        session="s",
        home=("elsewhere", 1),
        alone=True,
        note=lambda *_args, **_fields: None,
        trail=store.parent / "trail",
    )
    return tasks.spec_for(saves)


def test_the_same_store_is_used_and_another_one_under_the_same_path_is_not(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    call = calls.pack(saves.function, (), {"ckpt": spec_of(store)})
    first = store_id(PosixTier(store))
    assert json.loads(call.sender)["stores"] == {"s": first}
    outcome = run_task(call.function, call.arguments, call.sender)
    assert outcomes.opened(outcome) == 5

    there = json.dumps(calls.sender({"s": "0" * 32}))
    outcome = run_task(call.function, call.arguments, there)
    with pytest.raises(ConfigError, match="Tier 's' is another store on"):
        outcomes.opened(outcome)


def test_the_time_limit_of_the_endpoint_is_the_end_of_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what was there before is put back: workers are used again."""

    def ends() -> str:
        return os.environ["CKPTFLOW_ENDS_AT"]

    monkeypatch.setenv("GC_TASK_TIMEOUT", "3600")
    monkeypatch.setenv("CKPTFLOW_ENDS_AT", "1000.0")
    assert answered(ends) == "1000.0"
    monkeypatch.setenv("CKPTFLOW_ENDS_AT", "9e12")
    assert float(answered(ends)) < 9e12
    assert os.environ["CKPTFLOW_ENDS_AT"] == "9e12"
    monkeypatch.delenv("CKPTFLOW_ENDS_AT")
    assert float(answered(ends)) < 9e12
    assert "CKPTFLOW_ENDS_AT" not in os.environ


# --- what an endpoint says ---

LOST = """
--------------------------------------------------------------------------------
parsl.executors.high_throughput.errors.{kind}: Task failure due to loss of worker 0 on host n1
--------------------------------------------------------------------------------
"""


@pytest.mark.parametrize("kind", ["WorkerLost", "ManagerLost"])
def test_a_loss_is_known_by_its_text(kind: str) -> None:
    error = failures.of_text(LOST.format(kind=kind))
    assert isinstance(error, TaskLost)
    assert "loss of worker 0 on host n1" in str(error)


def test_workers_without_ckptflow_are_a_mistake_with_its_remedy() -> None:
    error = failures.of_text("...\nModuleNotFoundError: No module named 'ckptflow'\n")
    assert isinstance(error, ConfigError)
    assert f"install ckptflow=={cf.__version__}" in str(error)


def test_other_texts_are_kept() -> None:
    error = failures.of_text("Traceback ...\n  File x\nbuiltins.OSError: no space\n")
    assert isinstance(error, RemoteTaskError)
    assert (error.type_name, str(error)) == (
        "builtins.OSError",
        "The endpoint could not run the task: builtins.OSError: no space",
    )
    assert isinstance(failures.of_text(""), RemoteTaskError)


def test_a_refused_answer_of_the_engine_is_too_large() -> None:
    text = "Task result of 15581488B exceeded current limit of 10485760B"
    assert isinstance(failures.of_text(text), TooLarge)


@pytest.mark.parametrize("error", [TooLarge("x"), TaskLost("x")])
def test_the_new_errors_can_be_pickled(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == "x"


# --- the site ---


def test_the_shipped_site_is_one_of_its_kind() -> None:
    site = load_site("globus_compute", overrides={"executor.allocation.endpoint": ENDPOINT})
    assert str(site.executor.allocation.endpoint) == ENDPOINT


def test_the_site_file_in_the_guide_is_one(repository: Path) -> None:
    page = (repository / "docs" / "guides" / "globus-compute.md").read_text()
    data = tomllib.loads(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    site = Site.model_validate(data)
    schema = "site_configs/globus_compute_endpoint/user_config_schema.json"
    jsonschema.validate(
        site.executor.allocation.options, json.loads((repository / schema).read_text())
    )


def test_the_guide_names_every_option_of_the_template(repository: Path) -> None:
    page = (repository / "docs" / "guides" / "globus-compute.md").read_text()
    table = page.split("| option |")[1].split("\n\n")[0]
    named = {
        one
        for row in re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE)
        for one in re.findall(r"`(\w+)`", row)
    }
    schema = "site_configs/globus_compute_endpoint/user_config_schema.json"
    assert named == set(json.loads((repository / schema).read_text())["properties"])


@pytest.mark.parametrize(
    ("tiers", "why"),
    [
        ([{"kind": "posix", "name": "a", "path": "here", "level": 3}], "absolute path"),
        ([{"kind": "posix", "name": "a", "path": "/local", "level": 1}], "of level 3"),
        ([{"kind": "memory", "name": "a", "level": 0}], "outside of memory"),
    ],
)
def test_tiers_that_an_endpoint_cannot_see_are_refused(tiers: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Site.model_validate({**SITE, "tiers": tiers})


def test_kind_and_provider_belong_together() -> None:
    with pytest.raises(ValueError, match="belong together"):
        Site.model_validate({**SITE, "executor": {"kind": "globus_compute"}})


def test_a_run_needs_an_endpoint_and_a_store_that_it_can_see() -> None:
    with pytest.raises(ConfigError, match="There is no endpoint"):
        cf.globus_compute.run("exp")
    for run in (cf.run, cf.globus_compute.run):
        with pytest.raises(ConfigError, match="is a relative folder"):
            run("exp", site="globus_compute", store="store")
    with pytest.raises(ConfigError, match="is of kind htex"):
        cf.globus_compute.run("exp", site="local")
