"""``agent``, ``flushes``, ``scavenge``: copies outward, who makes them, and the last ones.

``tests/process/test_agent_cli.py``.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from ckptflow.cli import naming, output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.errors import TierUnavailable
from ckptflow.flush.agent.asking import ANSWER_S, ask, folder_of
from ckptflow.flush.agent.folder import LOG, make_agent_folder
from ckptflow.flush.agent.ledger import Ledger
from ckptflow.flush.agent.process import run_agent
from ckptflow.flush.options import Flushing
from ckptflow.flush.scavenge import scavenge
from ckptflow.site import load_site
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes, format_seconds, parse_seconds

_WAIT_S = 3600.0


class Action(enum.StrEnum):
    """What `agent` does."""

    RUN = "run"
    STATUS = "status"
    STOP = "stop"


GraceOption = Annotated[
    str | None,
    typer.Option("--grace", help="Time for the last copies, such as 30s."),
]


@output.reports_errors
def agent(
    action: Annotated[
        Action, typer.Argument(help="Be the agent, show it, or end it.")
    ] = Action.RUN,
    *,
    grace: GraceOption = None,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> int:
    """Be the process of this node that copies checkpoints outward; or show or end it."""
    tiers = naming.open_store(store, site)
    options = _options(store, site, grace)
    if action is Action.RUN:
        folder = make_agent_folder([tier.spec for tier in tiers])
        if run_agent(folder, tiers, options):
            return ExitCode.OK
        output.note(f"an agent runs already in {folder}")
        return ExitCode.TAKEN
    if action is Action.STOP:
        answer = ask(folder_of(tiers), "stop", grace_s=options.grace_s)
        output.show(
            {"pid": answer["pid"]},
            lambda console: console.print(f"agent {answer['pid']} ends"),
            as_json=json_output,
        )
        return ExitCode.OK
    document = _status(tiers)
    output.show(document, lambda console: _print_status(console, document), as_json=json_output)
    return ExitCode.OK


@output.reports_errors
def flushes(
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when nothing is on its way any more.")
    ] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> int:
    """List copies on their way from this node, and those that failed: then it ends with 5."""
    tiers = naming.open_store(store, site)
    if wait:
        with contextlib.suppress(TierUnavailable):  # Nobody who could do anything about it.
            ask(folder_of(tiers), "wait", within_s=_WAIT_S + ANSWER_S, timeout_s=_WAIT_S)
    document = _status(tiers)
    output.show(document, lambda console: _print_copies(console, document), as_json=json_output)
    return ExitCode.STORAGE if document["failures"] else ExitCode.OK


@output.reports_errors
def scavenge_command(
    *,
    grace: GraceOption = None,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> int:
    """Copy outward, newest first, what can make it in time. Ends with 7 if not all did."""
    tiers = naming.open_store(store, site)
    options = _options(store, site, grace)
    try:
        within_s = options.grace_s + ANSWER_S
        answer = ask(
            folder_of(tiers), "scavenge", within_s=within_s, deadline_s=options.grace_s
        )
        report = answer["report"]
    except TierUnavailable:
        report = output.plain(scavenge(tiers, options.grace_s, options=options))
    output.show(report, lambda console: _print_report(console, report), as_json=json_output)
    saved = all(one["outcome"] == "copied" for one in report["rescues"])
    complete = saved and not report["problems"] and not report["unseen"]
    return ExitCode.OK if complete else ExitCode.UNFINISHED


def _options(store: list[str] | None, site: str | None, grace: str | None) -> Flushing:
    if not store and not os.environ.get(naming.STORE_VARIABLE):
        site = site or os.environ.get(naming.SITE_VARIABLE, naming.DEFAULT_SITE)
    options = load_site(site, purpose="tiers").flush.options if site is not None else Flushing()
    return options if grace is None else replace(options, grace_s=parse_seconds(grace))


def _status(tiers: list[Tier]) -> dict[str, Any]:
    """Return what the agent says, or what its ledger says if none runs."""
    folder = folder_of(tiers)
    try:
        answer = ask(folder, "status")
    except TierUnavailable:
        ledger = Ledger(folder) if folder.exists() else None
        pending = ledger.pending() if ledger else []
        return {
            "agent": None,
            "progress": [{**entry.as_json(), "state": "pending"} for entry in pending],
            "failures": [entry.as_json() for entry in ledger.failures()] if ledger else [],
            "consolidations": [],
        }
    agent_facts = {"pid": answer["pid"], "since": answer["since"], "log": str(folder / LOG)}
    return {
        "agent": agent_facts,
        "progress": answer["progress"],
        "failures": answer["failures"],
        "consolidations": answer.get("consolidations", []),  # Older agents send none.
    }


def _print_status(console: Console, document: dict[str, Any]) -> None:
    facts = document["agent"]
    left = sum(one["state"] in _LEFT for one in document["progress"])
    if facts is None:
        console.print("no agent runs on this node for these tiers")
    else:
        since = format_seconds(time.time() - facts["since"])
        console.print(f"agent {facts['pid']}, for {since}; its log is {facts['log']}")
    console.print(f"{left} on their way, {len(document['failures'])} failed")
    for failure in document["failures"]:
        console.print(f"failed: {failure['error']}", markup=False)
    for one in document["consolidations"]:
        console.print(_consolidation(one), markup=False)


def _consolidation(one: dict[str, Any]) -> str:
    what = f"{one['lineage']}@{one['step']}.{one['attempt']} on tier {one['tier']!r}"
    if one["error"]:
        return f"not consolidated: {what}: {one['error']}"
    packs = f"{one['packs_before']} -> {one['packs_after']} packs"
    return f"consolidated: {what}, {packs}, wrote {format_bytes(one['written_bytes'])}"


_LEFT = ("queued", "copying", "waiting", "pending")


def _print_copies(console: Console, document: dict[str, Any]) -> None:
    table = output.table(
        "CHECKPOINT", "TIER", "STATE", "DONE", "OF", "FOR", "", numbers=("DONE",)
    )
    for one in document["progress"]:
        lineage = one.get("lineage") or f"{one['run']}/{one['task']}"
        output.add_row(
            table,
            [
                f"{lineage}@{one['step']}.{one['attempt']}",
                one["target"],
                one["state"],
                format_bytes(one.get("done_bytes", 0)),
                format_bytes(one.get("total_bytes", 0)),
                format_seconds(max(0.0, time.time() - one["since"])),
                one.get("error"),
            ],
        )
    console.print(table if table.row_count else "nothing is on its way")
    for failure in document["failures"]:
        console.print(f"failed: {failure['error']}", markup=False)


def _print_report(console: Console, report: dict[str, Any]) -> None:
    table = output.table(
        "CHECKPOINT", "TIER", "MISSING", "OUTCOME", "WHY", numbers=("MISSING",)
    )
    for one in report["rescues"]:
        output.add_row(
            table,
            [
                f"{one['lineage']}@{one['step']}.{one['attempt']}",
                one["target"],
                format_bytes(one["missing_bytes"]),
                one["outcome"],
                one["reason"],
            ],
            style=None if one["outcome"] == "copied" else "red",
        )
    console.print(table if table.row_count else "everything was safe already")
    for problem in report["problems"]:
        console.print(f"problem: {problem}", markup=False)
    if report["unseen"]:
        console.print("time was up before everything had been looked at")
