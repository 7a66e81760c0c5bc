"""What to write into a site file, so that tasks follow a pattern.

``tests/unit/test_plan_tune.py``.
"""

from __future__ import annotations

import math

from ckptflow.plan.schemes import DEFAULT_NAME, LEVEL, redundant_model
from ckptflow.plan.tune import Answer
from ckptflow.policy.multilevel.costs import Reaction
from ckptflow.policy.multilevel.system import Pattern, System
from ckptflow.site import Site
from ckptflow.store.redundancy.scheme import Scheme

_DIGITS = 4


def site_lines(site: Site, answer: Answer) -> str:
    """Return the lines of TOML for an answer, with the redundant tier if the site needs one."""
    aim = answer.request.aim
    every = "multilevel" if aim == "fast" else f"multilevel,{aim}"
    work_s = answer.request.workload.work_s
    work = "" if work_s is None else f'work = "{work_s:.10g}s"\n'
    queue_s = answer.request.reaction.queue_s
    queue = "" if queue_s == Reaction().queue_s else f'queue = "{queue_s:.10g}s"\n'
    policy = (
        f"[policy]\n"
        f'every = "{every}"\n'
        f"pattern = {pattern_text(answer.tuning.system, answer.pattern)}\n"
        f"{work}{queue}"
    )
    return policy + _redundancy_lines(site, answer)


def pattern_text(system: System, pattern: Pattern) -> str:
    """Return a pattern as a table on one line; levels that are not used are left out."""
    interval_s = rounded_up(pattern.interval_s)
    counts = [
        f"{level.name} = {count}"
        for level, count in zip(system.levels, pattern.every, strict=True)
        if count
    ]
    return f'{{ interval = "{interval_s:.10g}s", {", ".join(counts)} }}'


def rounded_up(interval_s: float) -> float:
    """Return an interval with four digits, a little longer if need be.

    The best one is often the shortest at which copies come to be there in time.
    """
    step = 10.0 ** (math.floor(math.log10(interval_s)) + 1 - _DIGITS)
    return max(0.001, float(f"{math.ceil(interval_s / step - 1e-9) * step:.6g}"))


def _redundancy_lines(site: Site, answer: Answer) -> str:
    """Return the lines for the tier of level 2, if it is used and the site lacks it."""
    scheme = answer.way.scheme
    places = [
        at for at, level in enumerate(answer.tuning.system.levels) if level.number == LEVEL
    ]
    if scheme is None or not places or not answer.pattern.every[places[0]]:
        return ""
    model = redundant_model(site)
    if model is not None and scheme == Scheme(
        name=model.scheme, set_size=model.set_size, losses=model.losses
    ):
        return ""
    flush = "" if site.flush.agent else "\n[flush]\nagent = true\n"
    instead = f"  # instead of what tier {model.name!r} is now" if model is not None else ""
    losses = f"losses = {scheme.losses}\n" if scheme.losses > 1 else ""
    return (
        f"{flush}\n[[tiers]]{instead}\n"
        f'kind = "redundant"\n'
        f'name = "{model.name if model is not None else DEFAULT_NAME}"\n'
        f"level = {LEVEL}\n"
        f'scheme = "{scheme.name}"\n'
        f"set_size = {scheme.set_size}\n"
        f"{losses}"
    )
