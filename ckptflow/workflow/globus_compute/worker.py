"""What a worker of an endpoint does with a packed call.

First it looks whether it fits: the same Python, since functions travel as byte code, which
another version crashes on; the same ckptflow, whose objects travel, too; and the stores that
are meant. Then it calls, and makes an outcome of whatever happens.

``tests/process/test_globus_compute.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from typing import Any

from parsl.app.errors import RemoteExceptionWrapper

from ckptflow.workflow.attempt import TaskSpec
from ckptflow.workflow.blocks.time_left import ENDS_AT
from ckptflow.workflow.globus_compute import calls, outcomes
from ckptflow.workflow.globus_compute.stores import other_stores
from ckptflow.workflow.identity import CKPT

TIMEOUT = "GC_TASK_TIMEOUT"  # Seconds after which the endpoint interrupts a task; 0 is never.


def answer(function: bytes, arguments: bytes, sender: str) -> dict[str, Any]:
    """Run a packed call; return its outcome, whatever happens.

    Args:
        function: what to call, packed.
        arguments: with what, packed.
        sender: JSON that says who packed them, and which stores are meant.
    """
    meant, here = json.loads(sender), calls.sender({})
    for part in ("python", "ckptflow"):
        if meant[part] != here[part]:
            return outcomes.refusal(
                f"The worker on {platform.node()} has {part} {here[part]}, and the workflow "
                f"{meant[part]}. Install the same one in the environment that the endpoint's "
                f"worker_init activates."
            )
    name = "a task"
    try:
        called, args, kwargs = calls.unpack(function, arguments)
        name = calls.name_of(called)
        wrong = _wrong_store(kwargs, meant["stores"])
        if wrong is not None:
            return outcomes.refusal(wrong)
        with _told_of_the_timeout():
            value = called(*args, **kwargs)
        if isinstance(value, RemoteExceptionWrapper):  # Parsl's way to raise.
            return outcomes.of_error(value.e_value, task=name)
        return outcomes.of_value(value, task=name)
    except BaseException as error:  # noqa: BLE001  Everything has to reach who waits.
        return outcomes.of_error(error, task=name)


def _wrong_store(kwargs: Mapping[str, Any], meant: Mapping[str, str]) -> str | None:
    spec = kwargs.get(CKPT)
    if not isinstance(spec, bytes):
        return None
    wrong = other_stores(meant, TaskSpec.unpacked(spec).tiers)
    if not wrong:
        return None
    return (
        f"Tier {wrong[0]!r} is another store on {platform.node()} than on the side of the "
        f"workflow: the same path leads elsewhere there. Checkpoints would not be found again. "
        f"Use a store that both see, such as a bucket."
    )


@contextlib.contextmanager
def _told_of_the_timeout() -> Iterator[None]:
    """Let the task know when the endpoint will interrupt it, so that it saves before."""
    before = os.environ.get(ENDS_AT)
    limit_s = _number(os.environ.get(TIMEOUT)) or 0.0
    if limit_s <= 0:
        yield
        return
    ends_at_s = time.time() + limit_s
    known_s = _number(before)
    os.environ[ENDS_AT] = str(ends_at_s if known_s is None else min(ends_at_s, known_s))
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENDS_AT]
        else:
            os.environ[ENDS_AT] = before


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
