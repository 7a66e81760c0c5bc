"""``policy explain``: why checkpoints are where they are, and how the plan has changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import SiteOption, StoreOption
from ckptflow.errors import CheckpointError, ConfigError, NotFoundError
from ckptflow.model import LineageId
from ckptflow.policy.retention import retention_by_tier
from ckptflow.store.catalog import Lineage
from ckptflow.store.prune import plan_prune
from ckptflow.units import format_seconds

if TYPE_CHECKING:
    from ckptflow.workflow.seeing.model import RunStory, Task
    from ckptflow.workflow.seeing.place import RunPlace
    from ckptflow.workflow.seeing.placed import Explained, OnTier, PlanTold

_NOW = {"there": "there", "gone": "deleted since", "never": "-", "unknown": "nobody looked"}


@output.reports_errors
def explain(
    name: Annotated[
        str, typer.Argument(metavar="RUN[/TASK]", help="A run, or one of its tasks.")
    ],
    step: Annotated[
        int | None, typer.Argument(help="Of the checkpoint; without it the plans are shown.")
    ] = None,
    *,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> None:
    """Say why a checkpoint is where it is; without STEP, how often tasks save and why.

    With a step: why it was saved then, for each tier why it went there or did not, whether it
    is there now, and what keeps it.
    """
    from ckptflow.workflow.seeing.place import find_run
    from ckptflow.workflow.seeing.placed import explained, plans_told

    run, _, task_name = name.partition("/")
    place = find_run(run, site=site, store=store)
    story = place.story()
    tasks = _tasks(story, task_name)
    if step is None:
        plans = {task.name: plans_told(place.events(), task.name) for task in tasks}
        output.show(
            {"run": run, "plans": plans},
            lambda console: _print_plans(console, plans),
            as_json=json_output,
        )
        return
    found: list[Explained] = []
    for task in tasks:
        if any(one.step == step for one in task.checkpoints) or len(tasks) == 1:
            found += explained(place.events(), task, step, _stays(place, task))
    if not found:
        raise NotFoundError(f"No task of run {run!r} has a checkpoint of step {step}.")
    output.show(
        {"run": run, "checkpoints": found},
        lambda console: _print_explained(console, found),
        as_json=json_output,
    )


def _tasks(story: RunStory, name: str) -> list[Task]:
    if not name:
        return list(story.tasks)
    tasks = [one for one in story.tasks if one.name == name]
    if not tasks:
        known = ", ".join(one.name for one in story.tasks[:8]) or "none"
        raise NotFoundError(f"Run {story.run!r} has no task {name!r}; it has {known}.")
    return tasks


def _stays(place: RunPlace, task: Task) -> Mapping[tuple[str, int, int], str]:
    """Return why checkpoints are kept, by what the site's policy would keep now."""
    found: dict[tuple[str, int, int], str] = {}
    retention = retention_by_tier(place.site.policy.keep, [tier.name for tier in place.tiers])
    lineage = Lineage(place.tiers, LineageId(place.run, task.name))
    for tier in place.tiers:
        try:
            verdicts = plan_prune(lineage, tier, retention[tier.name]).verdicts
        except (CheckpointError, ConfigError) as error:
            output.note(f"What stays on {tier.name!r} is not known: {error}")
            continue
        for one in verdicts:
            kept = "kept" if one.keep else "may go"
            text = f"{kept}: {', '.join(one.reasons)}" if one.reasons else kept
            found[tier.name, one.id.step, one.id.attempt] = text
    return found


def _print_explained(console: Console, found: list[Explained]) -> None:
    for one in found:
        title = f"{one.task}, step {one.step}, attempt {one.attempt}"
        console.print(Text(title, style="bold"))
        when = f" ({_clock(one.taken_s)})" if one.taken_s else ""
        console.print(Text(f"saved{when}: {one.why or 'nobody has told why'}"))
        if one.plan is not None:
            console.print(Text(f"by the plan of step {one.plan.step}: {_pattern(one.plan)}"))
        table = output.table("TIER", "LEVEL", "SENT", "WHY", "NOW", "STAYS")
        for tier in one.tiers:
            output.add_row(table, [*_row(tier)])
        console.print(table)


def _row(tier: OnTier) -> tuple[str, ...]:
    sent = "" if tier.goes is None else "yes" if tier.goes else "no"
    now = _NOW[tier.now]
    if tier.now == "never" and tier.goes:
        now = "did not arrive"
    level = "" if tier.level is None else str(tier.level)
    return tier.tier, level, sent, tier.reason, now, tier.stays


def _print_plans(console: Console, plans: Mapping[str, list[PlanTold]]) -> None:
    for task, told in plans.items():
        console.print(Text(task, style="bold"))
        if not told:
            console.print(
                Text("no plan was told: it has no multi-level policy, or did not save")
            )
        for one in told:
            when = _clock(one.at_s) if one.at_s else ""
            console.print(
                Text(f"{when} attempt {one.attempt}, from step {one.step} on: {_pattern(one)}")
            )
            if one.before_interval_s is not None:
                before = _counts(one.before_counts)
                was = format_seconds(one.before_interval_s)
                console.print(Text(f"  before: every {was}, {before}", style="dim"))
            for reason in one.reasons:
                console.print(Text(f"  {reason}"))


def _clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _pattern(plan: PlanTold) -> str:
    expected = "" if plan.efficiency is None else f"; expected efficiency {plan.efficiency:.4f}"
    return f"a save every {format_seconds(plan.interval_s)}, {_counts(plan.counts)}{expected}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count or 'none'}" for name, count in counts.items())
