"""Tasks that meet misfortunes on an endpoint of Globus Compute; a script, run by tests.

    globus_scenarios.py engine STORE                      # an engine in this process, both ways
    globus_scenarios.py service STORE WAY URL ENDPOINT    # through a service; WAY: sdk, parsl

Prints one JSON object: for each way, per task its result, or the kind and text of its error,
and the summary of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ckptflow as cf
from ckptflow.workflow.globus_compute import executor as executors

MIB = 1 << 20


class Mine(Exception):
    """Defined by the script; the worker has a copy of it only."""


def advance(state):
    """Used by the apps; the SDK alone would not send it along."""
    state["i"] += 1
    state["w"] *= 1.5


def start():
    return {"i": 0, "w": np.ones(100)}


@cf.python_app(key=("name",), every=1)
def killed(name, steps, ckpt):
    """Kills its own worker in the first two attempts, after step 3 and after step 6."""
    state = ckpt.restore(start())
    while state["i"] < steps:
        advance(state)
        ckpt.step(state["i"], state)
        if state["i"] == 3 * ckpt.attempt and ckpt.attempt <= 2:
            ckpt.wait()
            os.kill(os.getpid(), signal.SIGKILL)
    return [ckpt.attempt, ckpt.restored_step, float(state["w"].sum())]


@cf.python_app(key=("number",), every=100)
def signalled(number, ckpt):
    """Gets a stop signal in its first two attempts."""
    state = ckpt.restore(start())
    while state["i"] < 10:
        advance(state)
        if state["i"] == 4 * ckpt.attempt and ckpt.attempt <= 2:
            os.kill(os.getpid(), number)
        ckpt.step(state["i"], state)
    return [ckpt.attempt, ckpt.restored_step, float(state["w"].sum())]


@cf.python_app(key=("name",))
def exported(name, ckpt):
    """Hands 16 MiB on, as a reference."""
    return ckpt.export({"x": np.full(2 * MIB, 3.5)})


@cf.python_app(key=("file",), every=1)
def waits(file, ckpt):
    """Stops halfway until there is a file, and says so in another; resumed, it goes on."""
    state = ckpt.restore(start())
    while state["i"] < 6:
        advance(state)
        ckpt.step(state["i"], state)
        if state["i"] == 3:
            ckpt.wait()
            Path(f"{file}.{ckpt.attempt}").touch()
            while not Path(file).exists():
                time.sleep(0.05)
    return [ckpt.attempt, ckpt.restored_step, float(state["w"].sum())]


@cf.python_app
def length(value):
    return len(value)


@cf.python_app
def large(size):
    return b"x" * size


@cf.python_app
def my_error():
    raise Mine("from the script")


@cf.python_app
def odd_error():
    """Raise an error of a module that the submitting process lacks."""
    import types

    module = types.ModuleType("worker_only")
    module.Odd = type("Odd", (Exception,), {"__module__": "worker_only"})
    sys.modules["worker_only"] = module
    raise module.Odd("strange")


@cf.python_app
def leaves():
    raise SystemExit(3)


@cf.python_app
def mistaken():
    return None + 1


@cf.bash_app(key=("text",), every=1)
def command(text, ckpt, stdout=None):
    return f"echo {text}"


def outcome(future):
    try:
        value = future.result()
    except Mine as error:
        return {"caught": "Mine", "text": str(error)}
    except Exception as error:  # noqa: BLE001
        return {"error": type(error).__name__, "text": str(error)}
    if isinstance(value, cf.Export):
        return {"value": float(cf.load(value)["x"].sum())}
    return {"value": value if not isinstance(value, bytes) else len(value)}


def submitted(way: str, store: str) -> dict[str, Any]:
    """Submit one task of each kind; return their futures."""
    return {
        "killed": killed("a", 9),
        "usr1": signalled(signal.SIGUSR1),
        "term": signalled(signal.SIGTERM),
        "exported": exported("x"),
        "argument": length(b"x" * (9 * MIB)),
        "result": large(9 * MIB),
        "fits": large(7 * MIB),
        "my_error": my_error(),
        "odd_error": odd_error(),
        "leaves": leaves(),
        "mistaken": mistaken(),
        "command": command("hello", stdout=f"{store}/{way}.txt"),
    }


@contextlib.contextmanager
def run_of(way: str, store: str, make: Any) -> Iterator[Any]:
    """Enter a run of ``way`` whose executor ``make`` makes."""
    if way == "sdk":
        with cf.globus_compute.run(way, store=store, retries=2, executor=make()) as run:
            yield run
    else:
        executors.executor_for = lambda _allocation: make()
        with cf.run(way, site="globus_compute", store=store, retries=2) as run:
            yield run


def on_engine(store: str) -> dict[str, Any]:
    from engine_endpoint import EngineExecutor, engine

    found = {}
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder), workers=2) as running:
        for way in ("sdk", "parsl", "sdk"):
            with run_of(way, store, lambda: EngineExecutor(running)) as run:
                outcomes = {
                    name: outcome(future) for name, future in submitted(way, store).items()
                }
            name = f"{way} again" if way in found else way
            found[name] = {"outcomes": outcomes, "summary": run.summary().as_json()}
    return found


def through_service(store: str, way: str, url: str, endpoint: str) -> dict[str, Any]:
    from compute_service import client_of

    def make() -> executors.TaskExecutor:
        # The SDK would wait seconds between requests, for the sake of the hosted service.
        return executors.TaskExecutor(
            endpoint_id=endpoint, client=client_of(url), api_burst_limit=8, api_burst_window_s=1
        )

    with run_of(way, store, make) as run:
        outcomes = {"waits": outcome(waits(f"{store}/go-{way}"))}  # The first life ends here.
        futures = {
            "killed": killed("a", 9),
            "usr1": signalled(signal.SIGUSR1),
            "my_error": my_error(),
            **{f"three-{i}": length(bytes([i]) * 3 * MIB) for i in range(4)},
        }
        outcomes |= {name: outcome(future) for name, future in futures.items()}
    return {"outcomes": outcomes, "summary": run.summary().as_json()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "services"))
    mode, *arguments = sys.argv[1:]
    print(json.dumps({"engine": on_engine, "service": through_service}[mode](*arguments)))
