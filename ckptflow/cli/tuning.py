"""``tune``: how often to save, and to which tiers; for a site, or for what a run has met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptflow.cli import output, tuning_text
from ckptflow.cli.naming import site_named
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import SetOption, SiteOption, StoreOption, UserOption
from ckptflow.cli.tuning_options import (
    ChangedOption,
    DetectionOption,
    FailuresOption,
    MtbfOption,
    NodesOption,
    PlotOption,
    PresetOption,
    QueueOption,
    QuickOption,
    ReallocationOption,
    RedundancyOption,
    RestartOption,
    RunArgument,
    StateOption,
    StoredOption,
    TierOption,
    WorkOption,
    WritersOption,
)
from ckptflow.errors import ConfigError
from ckptflow.plan.calibration import find_calibration
from ckptflow.plan.met import Comparison, Met, compared
from ckptflow.plan.site_lines import site_lines
from ckptflow.plan.sources import parse_tier
from ckptflow.plan.tune import Answer, Request, reaction_of, tune_site, workload_of
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.site import Site, load_site
from ckptflow.site.layers import parse_setting
from ckptflow.units import parse_bytes, parse_seconds


@output.reports_errors
def tune_command(
    run: RunArgument = None,
    *,
    site: SiteOption = None,
    store: StoreOption = None,
    state: StateOption = None,
    nodes: NodesOption = None,
    writers: WritersOption = None,
    changed: ChangedOption = None,
    stored: StoredOption = 1.0,
    work: WorkOption = None,
    preset: PresetOption = "fast",
    failures: FailuresOption = None,
    mtbf: MtbfOption = None,
    redundancy: RedundancyOption = "site",
    tiers: TierOption = None,
    detection: DetectionOption = None,
    restart: RestartOption = None,
    reallocation: ReallocationOption = None,
    queue: QueueOption = None,
    plot: PlotOption = None,
    quick: QuickOption = False,
    user: UserOption = None,
    settings: SetOption = None,
    json_output: JsonOption = False,
) -> None:
    """Find how often to save and to which tiers, and print what to write into the site file.

    Ends with 1 if no configuration makes progress.
    """
    met, chosen = _met(run, site, store, user, settings)
    measured = find_calibration(chosen)
    request = Request(
        workload=workload_of(
            chosen,
            state_bytes=_state_bytes(state, met),
            nodes=nodes,
            writers_per_node=writers,
            changed=_changed(changed, met),
            stored=stored,
            work_s=_seconds(work),
            measured=measured,
        ),
        reaction=reaction_of(
            chosen,
            detection_s=_seconds(detection),
            restart_s=_seconds(restart),
            reallocation_s=_seconds(reallocation),
            queue_s=_seconds(queue),
        ),
        aim=preset,
        failures=failures,
        mtbf_s=_seconds(mtbf),
        redundancy=redundancy,
        tiers=tuple(parse_tier(text) for text in tiers or ()),
    )
    answer = tune_site(
        chosen, request, measured=measured, met=met, surrogate=shipped(), refine=not quick
    )
    _show(chosen, answer, met, plot, as_json=json_output)


def _show(
    site: Site, answer: Answer, met: Met | None, plot: Path | None, *, as_json: bool
) -> None:
    comparison = None if met is None else compared(met, answer.tuning)
    lines = site_lines(site, answer)
    drawn = _plots(answer, plot)
    output.show(
        _document(answer, met, comparison, lines, drawn),
        lambda console: tuning_text.show(console, answer, comparison, lines, drawn),
        as_json=as_json,
    )


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_seconds(text)


def _met(
    run: str | None,
    site: str | None,
    store: str | None,
    user: Path | None,
    settings: list[str] | None,
) -> tuple[Met | None, Site]:
    """Return what a run has met, if one was named, and the site."""
    if run is None:
        if store is not None:
            raise ConfigError(
                "--store says where a run is: name the run, too, or leave it out."
            )
        overrides = dict(parse_setting(text) for text in settings or ())
        return None, load_site(site_named(site), user=user, overrides=overrides, purpose="show")
    if user is not None or settings:
        raise ConfigError("--user and --set are for a site alone; a run has its own.")
    from ckptflow.workflow.seeing.met import met_by
    from ckptflow.workflow.seeing.place import find_run

    name, _, task = run.partition("/")
    place = find_run(name, site=site, store=store)
    met = met_by(place.story(manifests=False), task or None)
    # The site as its file says it, which is what was calibrated; a run has absolute paths.
    return met, place.site if store else load_site(site_named(site), purpose="show")


def _state_bytes(state: str | None, met: Met | None) -> float:
    if state is not None:
        return float(parse_bytes(state))
    if met is None:
        raise ConfigError(
            "How much is to be saved? Give --state, of all processes together, such as 400GB; "
            "or name a run that has saved it."
        )
    return float(met.state_bytes)


def _changed(changed: float | None, met: Met | None) -> float:
    if changed is not None:
        return changed
    return 1.0 if met is None else met.changed


def _plots(answer: Answer, folder: Path | None) -> tuple[Path, ...]:
    if folder is None:
        return ()
    from ckptflow.plan.plots import plot

    return plot(answer, folder)


def _document(
    answer: Answer,
    met: Met | None,
    comparison: Comparison | None,
    lines: str,
    drawn: tuple[Path, ...],
) -> dict[str, Any]:
    """Return what ``--json`` prints; levels by the names of their tiers."""
    tuning = answer.tuning
    names = [level.name for level in tuning.system.levels]
    pattern = answer.pattern
    used = [at for at, count in enumerate(pattern.every) if count]
    return {
        "site": answer.site,
        "pattern": {
            "interval_s": pattern.interval_s,
            "every": dict(zip(names, pattern.every, strict=True)),
            "period_s": {names[at]: pattern.period_s(at) for at in used},
        },
        "redundancy": tuning.redundancy,
        "efficiency": tuning.efficiency,
        "low": tuning.low,
        "high": tuning.high,
        "parts": tuning.parts,
        "sensitivity": tuning.sensitivity,
        "alternatives": tuning.alternatives,
        "reasons": answer.reasons,
        "method": tuning.method,
        "notes": answer.notes,
        "failures": {"per_s": answer.way.rates.per_s, "source": answer.failures},
        "tiers": answer.way.tiers,
        "levels": tuning.system.levels,
        "workload": answer.request.workload,
        "reaction": answer.request.reaction,
        "met": met,
        "comparison": comparison,
        "toml": lines,
        "plots": drawn,
    }
