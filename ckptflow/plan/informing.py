"""What a multi-level rule is told of the site: its tiers as they were measured, its failures.

``tests/unit/test_plan_informing.py``.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from ckptflow.checkpointer.health import CheckpointWarning
from ckptflow.errors import CheckpointError
from ckptflow.plan.calibration import find_calibration
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.site import Site


def informed(rule: MultiLevel, site: Site, *, nodes: int = 1, processes: int = 1) -> MultiLevel:
    """Return a rule that knows the calibration of a site, and how often what fails there.

    A calibration that cannot be used is warned of, and left out: tasks measure, too.

    Args:
        rule: what the policy says.
        site: where the task runs.
        nodes: that it runs on.
        processes: that it has.
    """
    rates = site.failures.rates(nodes=nodes, processes=processes)
    return replace(
        rule,
        tiers=rule.tiers or _calibrated(site),
        rates=rule.rates or (rates if rates != _NONE else None),
        nodes=nodes,
    )


_NONE = Rates((0.0, 0.0, 0.0, 0.0, 0.0))


def _calibrated(site: Site) -> tuple[TierCosts, ...]:
    try:
        found = find_calibration(site)
    except CheckpointError as error:
        warnings.warn(
            f"The calibration of {site.name!r} is left out: {error}",
            CheckpointWarning,
            stacklevel=2,
        )
        return ()
    if found is None:
        return ()
    if stale := found.stale(site):
        warnings.warn(
            f"The calibration of {site.name!r} is left out: {' '.join(stale)} Measure again: "
            f"ckptflow calibrate --site {site.name}.",
            CheckpointWarning,
            stacklevel=2,
        )
        return ()
    names = {tier.name for tier in site.tiers}
    return tuple(one for one in found.tier_costs() if one.name in names)
