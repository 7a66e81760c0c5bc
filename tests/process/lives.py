"""Trainings that are killed and go on, each process of them a fork of one that imported torch.

A program defines ``train(store, step, moment)``, which sends the process SIGKILL at a moment of
a step by `die_if`, and calls `run`. A *life* is a list of deaths, ``7:backward,9:saved``: one
process after the other trains and dies so; the last comes to the end and says what its state
has come to. On stdout: ``run``, then ``resumed``, ``final`` and ``signal`` with their values.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

Train = Callable[[str, int, str], None]


def run(train: Train, folder: str, lives: Sequence[str]) -> None:
    """Live all lives, each in a store of its own."""
    torch.optim.SGD([torch.zeros(1)])  # Imports what every fork would import.
    for number, deaths in enumerate(lives):
        say("run", number)
        for death in [*filter(None, deaths.split(",")), "-1:"]:
            step, _, moment = death.partition(":")
            say("signal", _in_a_process(train, f"{folder}/{number}", int(step), moment))


def _in_a_process(train: Train, store: str, step: int, moment: str) -> int:
    """Train in a fork; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(store, step, moment)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, "it failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def digest(value: Any) -> str:
    """Return the SHA-256, in hex, of every tensor and number in a tree of containers."""
    total = hashlib.sha256()
    _add(total, value)
    return total.hexdigest()


def _add(total: Any, value: Any) -> None:
    if isinstance(value, dict):
        _add(total, list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            _add(total, item)
    elif isinstance(value, torch.Tensor):
        total.update(f"{value.dtype} {tuple(value.shape)} {value.device}".encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    else:
        total.update(repr(value).encode())
