"""Where a run is: its folder, its tiers, and whether its main process lives. Reads only.

``tests/process/test_seeing.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ckptflow.errors import CheckpointError, NotFoundError
from ckptflow.model import LineageId
from ckptflow.site import Site
from ckptflow.store.catalog import lineages
from ckptflow.tiers.tier import Tier
from ckptflow.workflow.lock import RunLock
from ckptflow.workflow.restart import plan
from ckptflow.workflow.run import JOURNAL, LOCK
from ckptflow.workflow.script import site_of
from ckptflow.workflow.seeing.events import Event, Reader
from ckptflow.workflow.seeing.facts import Facts, TaskFacts, newest_steps, read_facts
from ckptflow.workflow.seeing.model import RunStory
from ckptflow.workflow.seeing.story import tell

_DONE = frozenset({"task-finished", "task-reused"})


@dataclass
class RunPlace:
    """A run that somebody wants to see.

    Attributes:
        run: its name.
        folder: its own files.
        site: the machine, as `ckptflow.run` saw it.
        tiers: where its checkpoints are, inner ones first.
    """

    run: str
    folder: Path
    site: Site
    tiers: list[Tier]
    _events: list[Event] = field(default_factory=list)
    _done: dict[str, TaskFacts] = field(default_factory=dict)
    _reader: Reader | None = None

    def events(self) -> list[Event]:
        """Return all events so far; what was read before is not read again."""
        if self._reader is None:
            self._reader = Reader(self.folder)
        self._events += self._reader.new()
        return self._events

    def is_alive(self) -> bool | None:
        """Tell whether the main process of the run lives; ``None`` if there never was one."""
        return RunLock(self.folder / LOCK, run=self.run, session="").is_held()

    def story(
        self, *, manifests: bool = True, clock: Callable[[], float] = time.time
    ) -> RunStory:
        """Return what is known of the run now.

        Args:
            manifests: read the manifests of all checkpoints, and not of the newest only.
                Without it, finished tasks that were looked at before are not looked at again.
            clock: tells the time.
        """
        is_alive = self.is_alive()  # First: who is dead by now has written all it ever will.
        heard_s = RunLock(self.folder / LOCK, run=self.run, session="").renewed_s()
        events = self.events()
        facts = self._facts(events, manifests=manifests)
        plans = {
            one.task: f"{one.action}: {one.reason}" for one in plan(events, newest_steps(facts))
        }
        return tell(
            self.run,
            events,
            facts,
            now_s=clock(),
            is_alive=is_alive,
            heard_s=heard_s,
            plans=plans,
        )

    def _facts(self, events: list[Event], *, manifests: bool) -> Facts:
        known = {} if manifests else self._done
        found = read_facts(
            self.tiers,
            self.run,
            is_wanted=lambda task: task not in known,
            manifests=manifests,
        )
        if manifests:
            return found
        last: dict[str, str] = {}
        for event in events:
            if isinstance(event.get("task"), str) and event["event"].startswith("task-"):
                last[event["task"]] = event["event"]
        everything = {**known, **found.tasks}
        self._done = {
            task: facts for task, facts in everything.items() if last.get(task) in _DONE
        }
        return Facts(everything, found.tiers, found.notes)


def find_run(
    name: str, *, site: str | None = None, store: str | Path | None = None
) -> RunPlace:
    """Return a run that exists.

    Args:
        name: the run.
        site: name or file of its site, as for `ckptflow.run`; ``local`` if not given.
        store: folder or address of its checkpoints, if it was given one.

    Raises:
        NotFoundError: there is no such run; the message names those that there are.
        ConfigError: the name or the site is wrong.
    """
    LineageId(name, "task")  # Refuses a name that cannot be one.
    chosen = site_of(site, store)
    folder = chosen.runs_folder / name
    tiers = chosen.open_tiers()
    if not (folder / JOURNAL).is_file() and not _has_checkpoints(tiers, name):
        known = sorted(path.parent.name for path in chosen.runs_folder.glob(f"*/{JOURNAL}"))
        raise NotFoundError(
            f"There is no run {name!r} in {chosen.runs_folder}; there is "
            f"{', '.join(known) or 'nothing'}. If it is elsewhere, say --site or --store."
        )
    return RunPlace(name, folder, chosen, tiers)


def _has_checkpoints(tiers: list[Tier], run: str) -> bool:
    for tier in tiers:
        try:
            if lineages([tier], run):
                return True
        except CheckpointError:
            continue
    return False


def plans_of(story: RunStory) -> Mapping[str, str]:
    """Return what a restart does with each task that is not finished."""
    done = ("finished", "reused")
    return {one.name: one.next for one in story.tasks if one.state not in done and one.next}
