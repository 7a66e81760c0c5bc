"""The plan of a restart: a run's journal, its store and its files are read; nothing is started.

Code is compared by its text, so the plan knows which functions have changed before the script
runs. Which arguments a task will get, only the script can say: those are compared when it is
launched. Where the run ran before and will run now is part of the plan, and what of it the new
site does not see.

``tests/unit/test_planning.py``, ``tests/process/test_cli_runs.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptflow.errors import CheckpointError, ConfigError, NotFoundError
from ckptflow.site import Site
from ckptflow.site.tiers import TierModel, known_models, open_those_that_open
from ckptflow.store.catalog import fence_tier
from ckptflow.store.newest import Newest, newest_of_run
from ckptflow.tiers.tier import Tier
from ckptflow.workflow import journal
from ckptflow.workflow.changes import DEFAULT, parse_on_change
from ckptflow.workflow.definition import AUTO_VERSION, Differences, changed_parts
from ckptflow.workflow.restart import PlannedTask, plan
from ckptflow.workflow.run import JOURNAL
from ckptflow.workflow.script import (
    AS_IT_IS,
    CHANGE_VARIABLE,
    Launch,
    UserLayer,
    last_launch,
    last_start,
    site_of,
)
from ckptflow.workflow.sources import parts_in

_NAMES = frozenset({"name", "level", "key_file", "encrypt"})  # Not what a tier is, or where.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a run runs.

    Attributes:
        site: name of the site.
        workers: how many tasks run at once on a node; ``None`` if not recorded.
        nodes: how many nodes an allocation has; ``None`` if not recorded.
        tiers: names of its tiers, inner ones first.
        host: where the script ran; ``None`` for where it will.
    """

    site: str
    workers: int | None
    nodes: int | None
    tiers: tuple[str, ...]
    host: str | None = None

    def __str__(self) -> str:
        parts = [f"site {self.site}"]
        parts += [f"{self.workers} workers a node"] if self.workers is not None else []
        parts += [f"{self.nodes} nodes an allocation"] if self.nodes is not None else []
        parts += [f"tiers {', '.join(self.tiers)}"] if self.tiers else []
        parts += [f"from {self.host}"] if self.host else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart of a run will do.

    Attributes:
        run: its name.
        launch: how it is started.
        tasks: what happens to each of its tasks, and why.
        before: where it ran the last time.
        now: where it will run, unless the script chooses another site by itself.
        unseen: what the new site does not see of the old one, one sentence each.
    """

    run: str
    launch: Launch
    tasks: tuple[PlannedTask, ...]
    before: Surroundings
    now: Surroundings
    unseen: tuple[str, ...] = ()


def plan_restart(
    name: str,
    *,
    site: str | None = None,
    store: str | Path | None = None,
    layer: UserLayer = AS_IT_IS,
    on_change: str | None = None,
) -> RestartPlan:
    """Return what starting a run again will do; nothing is started.

    Args:
        name: the run.
        site: name or file of its site, as for `execute`; ``local`` if not given.
        store: folder or address of its checkpoints, if it was given one.
        layer: what is laid on top of its site.
        on_change: what is done with tasks that have changed; what the script says if ``None``.

    Raises:
        NotFoundError: there is no such run.
        ConfigError: it was not started from a script, so it cannot be started again here.
    """
    place = site_of(site, store, layer)
    events = list(journal.read(place.runs_folder / name / JOURNAL))
    tiers = place.open_tiers()
    newest = newest_of_run(tiers, name)
    if not events:
        raise no_journal(name, place, list(newest))
    started = last_start(events)
    chosen = on_change or os.environ.get(CHANGE_VARIABLE) or started.get("on_change", DEFAULT)
    tasks = plan(
        events,
        {task: one.step if one else None for task, one in newest.items()},
        changed=_changed(events),
        on_change=parse_on_change(chosen),
    )
    return RestartPlan(
        name,
        last_launch(events, name),
        tuple(tasks),
        before=_before(started),
        now=_now(place),
        unseen=tuple(_unseen(name, started, place, newest, tasks)),
    )


def no_journal(name: str, place: Site, found: Sequence[str]) -> NotFoundError | ConfigError:
    """Return what is wrong with a run that has no journal."""
    if found:
        return ConfigError(
            f"Run {name!r} has checkpoints, but no journal in {place.runs_folder}: it was not "
            f"started by ckptflow.run(). Start its program again: that is the restart."
        )
    known = sorted(path.parent.name for path in place.runs_folder.glob(f"*/{JOURNAL}"))
    return NotFoundError(
        f"There is no run {name!r} in {place.runs_folder}; there is "
        f"{', '.join(known) or 'nothing'}. If it is elsewhere, say --site or --store."
    )


def _changed(events: Sequence[Mapping[str, Any]]) -> dict[str, Differences]:
    """Return, for each task of which the code has changed since its last launch, how."""
    codes: dict[str, Mapping[str, Any]] = {}
    places: dict[str, Mapping[str, Any]] = {}
    used: dict[str, str] = {}
    for event in events:
        if event["event"] == "app-defined" and isinstance(event.get("code"), str):
            codes[event["code"]] = places[str(event.get("app"))] = event
        elif event["event"] == "task-launched" and isinstance(event.get("code"), str):
            used[str(event.get("task"))] = event["code"]
    found = {
        digest: _compared(codes[digest], places[str(codes[digest].get("app"))])
        for digest in set(used.values())
        if digest in codes
    }
    return {task: found[digest] for task, digest in used.items() if found.get(digest)}


def _compared(then: Mapping[str, Any], place: Mapping[str, Any]) -> Differences:
    """Compare the code that was used with what its file says now."""
    match then, place:
        case (
            {"parts": dict(parts), "version": version},
            {"file": str(file), "name": str(name), "folder": str(folder)},
        ):
            auto = isinstance(version, str) and version.startswith(f"{AUTO_VERSION}:")
            if version is None or auto:
                now = parts_in(Path(file), name, Path(folder))
                return Differences(tuple(changed_parts(parts, now)), version=auto)
    return Differences()


def _before(started: Mapping[str, Any]) -> Surroundings:
    def number(name: str) -> int | None:
        value = started.get(name)
        return value if isinstance(value, int) else None

    host = started.get("host")
    return Surroundings(
        str(started.get("site")),
        number("workers"),
        number("nodes"),
        tuple(str(spec.get("name")) for spec in _specs(started)),
        host if isinstance(host, str) else None,
    )


def _now(place: Site) -> Surroundings:
    return Surroundings(
        place.name,
        place.executor.workers,
        getattr(place.executor.allocation, "nodes", None),
        tuple(tier.name for tier in place.tiers),
    )


def _specs(started: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tiers = started.get("tiers")
    return [one for one in tiers if isinstance(one, dict)] if isinstance(tiers, list) else []


def _unseen(
    run: str,
    started: Mapping[str, Any],
    place: Site,
    newest: Mapping[str, Newest | None],
    tasks: Sequence[PlannedTask],
) -> list[str]:
    """Return what the new site does not see: tiers, and checkpoints that only they have."""
    here = [_what(tier.spec) for tier in place.sealed_tiers]
    gone = [spec for spec in _specs(started) if _what(spec) not in here]
    if not gone:
        return []
    texts = [
        f"Tier {spec.get('name')!r} ({spec.get('kind')}) of site {started.get('site')!r} is no "
        f"part of site {place.name!r}: a checkpoint that is only there is not seen."
        for spec in gone
    ]
    opened = _opened(gone)
    if not opened:
        return texts
    both = sorted([*opened, *place.open_tiers()], key=lambda tier: tier.level)
    fence = fence_tier(both)
    if fence in opened:
        texts.append(
            f"The claims of attempts were on tier {fence.name!r}: what is void cannot be told "
            f"without it, and a process of the old site that lives on is not fenced."
        )
    try:
        there = newest_of_run(both, run)
    except CheckpointError as error:
        return [*texts, f"What the old tiers hold cannot be told: {error}"]
    for one in tasks:
        was, will = there.get(one.task), newest.get(one.task)
        if one.action != "reuse" and was and was.step > (will.step if will else -1):
            texts.append(
                f"{one.task}: its checkpoint of step {was.step} is on {', '.join(was.tiers)} "
                f"only. It will go on from {f'step {will.step}' if will else 'the beginning'}; "
                f"to keep it, flush it outward first."
            )
    return texts


def _opened(specs: Sequence[Mapping[str, Any]]) -> list[Tier]:
    """Return those tiers of another site that can be looked at from here: folders."""
    said: list[str] = []
    try:
        models: list[TierModel] = known_models(specs, note=said.append)
        folders = [model for model in models if model.folder is not None]
        return list(open_those_that_open(folders, note=said.append)) if folders else []
    except CheckpointError:
        return []


def _what(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in _NAMES}
