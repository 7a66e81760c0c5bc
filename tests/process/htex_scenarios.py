"""A workflow in which each task meets another misfortune; a script, run by test_parsl_htex.

Prints one JSON object: per task its result, or the kind and text of its error.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np

import ckptflow as cf
from ckptflow.checkpointer import Checkpointer
from ckptflow.workflow.run import last_run


class Mine(Exception):
    """Defined by the script; the worker has a copy of it only."""


class Thing:
    def __init__(self, x: int) -> None:
        self.x = x


def advance(state):
    """Used by the apps; Parsl alone would not send it along."""
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
    after = signal.getsignal(number)
    return [ckpt.attempt, ckpt.restored_step, callable(after), float(state["w"].sum())]


@cf.python_app
def beside():
    """Uses a module that lies beside the script, as the script itself could."""
    import module_beside

    return module_beside.NAME


@cf.python_app(key=())
def handlers():
    """Runs on a worker that ran the others: what did they leave?"""
    return [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)]


def only_on_the_worker(name, *bases):
    """Return a class of a module that the submitting process lacks."""
    import types

    module = types.ModuleType("worker_only")
    kind = type(name, bases, {"__module__": "worker_only"})
    setattr(module, name, kind)
    sys.modules["worker_only"] = module
    return kind


@cf.python_app
def odd_error():
    raise only_on_the_worker("Odd", Exception)("strange")


@cf.python_app
def odd_result():
    return only_on_the_worker("Thing")()


@cf.python_app
def my_error():
    raise Mine("from the script")


@cf.python_app
def my_thing():
    return Thing(3)


@cf.python_app
def leaves():
    raise SystemExit(3)


@cf.python_app
def mistaken():
    return None + 1


@cf.python_app
def unlucky():
    raise ValueError("again and again")


@cf.python_app(every=1)
def overtaken(store, ckpt):
    ckpt.save(1, start())
    ckpt.wait()
    newer = Checkpointer(store, run=ckpt.run, task=ckpt.task)
    assert newer.attempt > ckpt.attempt
    ckpt.save(2, start())
    ckpt.wait()
    return "not reached"


@cf.python_app(every=1)
def swallows(store, ckpt):
    """Does not look at what its saves say; being overtaken must not get lost."""
    ckpt.save(1, start())
    ckpt.wait()
    assert Checkpointer(store, run=ckpt.run, task=ckpt.task).attempt == ckpt.attempt + 1
    ckpt.save(2, start())
    return "not a result"


@cf.bash_app(key=("steps",), every=1)
def program(steps, script, python, ckpt, stdout=None):
    return f"{python} {script} {steps}"


@cf.bash_app
def fails():
    return "exit 3"


@cf.bash_app
def plain(text, stdout=None):
    return f"echo {text}"


@cf.python_app(key=("which",))
def add(which, *values):
    return sum(values)


def outcome(future):
    try:
        value = future.result()
    except Mine as error:
        return {"caught": "Mine", "text": str(error)}
    except Exception as error:  # noqa: BLE001
        return {"error": type(error).__name__, "text": str(error)}
    return {"value": f"Thing({value.x})" if isinstance(value, Thing) else value}


def main() -> None:
    store, program_script = sys.argv[1:3]
    overrides = {"executor.workers": 2, "executor.heartbeat_period": 1}
    with cf.run(
        "misfortunes", site="local", store=store, retries=2, overrides=overrides
    ) as run:
        futures = {
            "killed": killed("a", 9),
            "usr1": signalled(signal.SIGUSR1),
            "usr2": signalled(signal.SIGUSR2),
            "term": signalled(signal.SIGTERM),
            "odd_error": odd_error(),
            "odd_result": odd_result(),
            "my_error": my_error(),
            "my_thing": my_thing(),
            "leaves": leaves(),
            "mistaken": mistaken(),
            "unlucky": unlucky(),
            "overtaken": overtaken(store),
            "swallows": swallows(store),
            "program": program(9, program_script, sys.executable),
            "fails": fails(),
            "plain": plain("hello", stdout=f"{store}/hello.txt"),
        }
        outcomes = {name: outcome(future) for name, future in futures.items()}
        outcomes["beside"] = outcome(beside())
        outcomes["handlers"] = outcome(handlers())
        outcomes["chained"] = outcome(add("x", add("y", 1, 2), add("z", 3, 4)))
    assert last_run() is run
    print(json.dumps({"outcomes": outcomes, "summary": run.summary().as_json()}))


if __name__ == "__main__":
    main()
