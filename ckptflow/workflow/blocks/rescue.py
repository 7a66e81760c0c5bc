"""Copy outward what lies on this node only, before the block ends; started by the leader.

It loads what it needs, and waits for a line on its standard input: ``wait S`` has the copies
on their way go on for as long as they need, but S seconds in all; ``haste S`` saves in S
seconds what can make it, the newest of each task first (see `ckptflow.flush.scavenge`). The
first may be followed by the second. The agent of the node does it, if one runs; it knows what
is on its way. ``tests/process/test_ending.py``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ckptflow.errors import CheckpointError, FlushError, TierUnavailable
from ckptflow.flush.agent.asking import ask, folder_of, wait_for_run
from ckptflow.flush.options import Flushing
from ckptflow.flush.scavenge import scavenge
from ckptflow.model import SHARED_LEVEL
from ckptflow.site import Site
from ckptflow.site.executor import LocalAllocation
from ckptflow.site.tiers import open_tiers, tier_model
from ckptflow.tiers.tier import Tier
from ckptflow.workflow.attempt import tiers_as_text

RESCUE = "CKPTFLOW_RESCUE"

_WAIT_MAX_S = 3600.0
_ANSWER_S = 2.0
_POLL_S = 0.2


def rescue_environment(site: Site, run: str) -> dict[str, str]:
    """Return what a rescue has to know; nothing if all that is saved survives the block."""
    levels = [tier.level for tier in site.tiers]
    of_node = min(levels) < SHARED_LEVEL <= max(levels)
    if not of_node or isinstance(site.executor.allocation, LocalAllocation):
        return {}
    fields = {
        "run": run,
        "tiers": tiers_as_text(site.sealed_tiers),
        "options": asdict(site.flush.options),
    }
    return {RESCUE: json.dumps(fields)}


class Rescue:
    """One rescue.

    Args:
        fields: see `rescue_environment`.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._run = str(fields["run"])
        self._options = Flushing(**fields["options"])
        models = [tier_model(one) for one in json.loads(fields["tiers"])]
        self._tiers: Sequence[Tier] = open_tiers(models)
        self.haste = threading.Event()
        self.ends_s = float("inf")

    def go(self) -> None:
        """Wait for copies that are on their way, while there is time; then save the rest."""
        if not self.haste.is_set():
            self._wait()
        left_s = min(self.ends_s - time.monotonic(), self._options.grace_s)
        if left_s > 0:
            self._scavenge(left_s)

    def _wait(self) -> None:
        """Let the agent finish in peace, until the time for haste has come."""
        until_s = min(self.ends_s - self._options.grace_s, time.monotonic() + _WAIT_MAX_S)
        timeout_s = until_s - time.monotonic()
        if timeout_s <= 0:
            return
        waiter = threading.Thread(target=self._ask_for_copies, args=(timeout_s,), daemon=True)
        waiter.start()
        while waiter.is_alive() and not self.haste.is_set():
            waiter.join(_POLL_S)

    def _ask_for_copies(self, timeout_s: float) -> None:
        try:
            for problem in wait_for_run(
                self._tiers, self._run, timeout_s, options=self._options
            ):
                say(problem)
        except CheckpointError as error:
            say(f"what the agent has not copied is unknown: {error}")

    def _scavenge(self, left_s: float) -> None:
        try:
            report = ask(
                folder_of(self._tiers),
                "scavenge",
                within_s=left_s + _ANSWER_S,
                deadline_s=left_s,
            )["report"]
        except (TierUnavailable, FlushError):
            report = asdict(scavenge(self._tiers, left_s, options=self._options))
        for one in report["rescues"]:
            what = f"{one['lineage']}@{one['step']}.{one['attempt']}"
            say(f"{what} {one['outcome']} to tier {one['target']!r} {one['reason']}".rstrip())
        for problem in report["problems"]:
            say(problem)
        if report["unseen"]:
            say("time was up before everything had been looked at")


def say(text: str) -> None:
    """Write a line into the log of the block."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} ckptflow rescue {os.getpid()}: {text}\n")
    sys.stderr.flush()


def main() -> None:
    """Wait for what to do, and do it."""
    rescue = Rescue(json.loads(os.environ[RESCUE]))
    told = threading.Event()

    def listen() -> None:
        # Not by `sys.stdin`, which Python would wait for when this process ends.
        while lines := os.read(0, 4096).decode():
            word, _, within = lines.splitlines()[-1].partition(" ")
            rescue.ends_s = time.monotonic() + float(within)
            if word == "haste":
                rescue.haste.set()
            told.set()

    threading.Thread(target=listen, name="ckptflow-rescue", daemon=True).start()
    told.wait()
    rescue.go()


if __name__ == "__main__":
    main()
