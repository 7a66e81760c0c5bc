"""Puts through Globus that die. `test_globus_resume.py` runs this.

    python globus_deaths.py put BASE_URL FOLDER      # one put, that waits as long as it takes
    python globus_deaths.py sweep BASE_URL FOLDER    # dies before and after each request

A program of its own because it dies: in the sweep each trial is a fork, of a process that has
imported everything and has no threads, which kills itself before it sends its n-th request,
or when the answer has come and nothing has been made of it. A second fork then puts the same
value. Prints one JSON object for each trial.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import requests
from globus_service import REMOTE, STAGING, client

from ckptflow.tiers.globus import GlobusTier
from ckptflow.tiers.globus_carrier import GlobusPlaces
from ckptflow.tiers.globus_tasks import Polling

VALUE = bytes(range(256)) * 40


def put(url: str, folder: Path, key: str) -> None:
    places = GlobusPlaces(REMOTE, "/store", STAGING, folder / "staging" / "ckpt", "/ckpt")
    GlobusTier(places, client=client(url), polling=Polling(120.0, 0.01)).put(key, [VALUE])


def in_a_fork(url: str, folder: Path, key: str, at: int, *, answered: bool) -> int:
    """Put a value and die at the ``at``-th request; return how the fork ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    counter, send = itertools.count(), requests.Session.send

    def dying(session: requests.Session, *args: object, **kwargs: object) -> object:
        last = next(counter) == at
        if last and not answered:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = send(session, *args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    requests.Session.send = dying
    put(url, folder, key)
    os._exit(0)


def sweep(url: str, folder: Path) -> None:
    """Die at every request of a put, of which there are about ten."""
    for answered in (False, True):
        for at in itertools.count():
            if not trial(url, folder, at, answered=answered):
                break


def trial(url: str, folder: Path, at: int, *, answered: bool) -> bool:
    """Die, then put again; false if the put ended before its ``at``-th request."""
    key = f"trial/{answered}-{at}"
    ended = in_a_fork(url, folder, key, at, answered=answered)
    path = folder / "remote" / "store" / key
    seen = path.read_bytes() if path.exists() else b""
    again = in_a_fork(url, folder, key, -1, answered=False)
    result = {
        "died": ended == -signal.SIGKILL,
        "half": seen not in {b"", VALUE},
        "again": again,
        "whole": path.read_bytes() == VALUE,
    }
    print(json.dumps(result), flush=True)
    return result["died"]


if __name__ == "__main__":
    what, url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "put":
        put(url, folder, "a/key")
    else:
        sweep(url, folder)
