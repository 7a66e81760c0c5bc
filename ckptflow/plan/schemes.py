"""Which redundancy there could be between nodes, and what each would cost and survive.

``tests/unit/test_plan_tune.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from ckptflow.errors import ConfigError
from ckptflow.plan.sources import Sourced, node_tier
from ckptflow.policy.failures.survival import Redundancy
from ckptflow.policy.multilevel.costs import Reaction, Workload
from ckptflow.site import Site
from ckptflow.site.tiers import RedundantModel
from ckptflow.store.redundancy.scheme import Scheme

Wanted: TypeAlias = Literal["site", "none", "auto", "partner", "xor", "rs"]
WANTED: Final = ("site", "none", "auto", "partner", "xor", "rs")

CANDIDATES: Final = {
    "partner": Scheme(name="partner", set_size=2),
    "xor": Scheme(name="xor", set_size=8),
    "rs": Scheme(name="rs", set_size=8, losses=2),
}
LEVEL: Final = 2
DEFAULT_NAME: Final = "redundant"


def schemes(site: Site, wanted: str, *, nodes: int) -> tuple[Scheme | None, ...]:
    """Return the schemes to compare; ``None`` stands for no redundancy.

    Args:
        site: which may have a redundant tier.
        wanted: one of `WANTED`.
        nodes: that run together: redundancy takes two.

    Raises:
        ConfigError: nobody knows what is wanted.
    """
    if wanted not in WANTED:
        raise ConfigError(f"There is no redundancy {wanted!r}; there are {', '.join(WANTED)}.")
    model = redundant_model(site)
    if nodes < 2 or wanted == "none" or (wanted == "site" and model is None):
        return (None,)
    if wanted == "site" and model is not None:
        return (Scheme(name=model.scheme, set_size=model.set_size, losses=model.losses),)
    if wanted == "auto":
        return (None, *CANDIDATES.values())
    return (CANDIDATES[wanted],)


def redundant_model(site: Site) -> RedundantModel | None:
    """Return the redundant tier of a site, if it has one."""
    return next((one for one in site.tiers if isinstance(one, RedundantModel)), None)


def label(scheme: Scheme | None) -> str:
    """Return what a scheme is called: ``none``, ``partner``, ``xor 8``, ``rs 8-2``."""
    if scheme is None:
        return "none"
    losses = f"-{scheme.losses}" if scheme.losses > 1 else ""
    return f"{scheme.name} {scheme.set_size}{losses}"


def storage_factor(scheme: Scheme, *, nodes: int) -> float:
    """Return how many bytes are stored for each byte that is protected, itself among them."""
    members = min(scheme.set_size, nodes)
    losses = scheme.losses_of(members)
    data = scheme.data_count(members)
    return (data + losses) / data


def redundant_tier(
    site: Site, scheme: Scheme, tiers: Sequence[Sourced], *, nodes: int
) -> Sourced:
    """Return the costs of level 2: what the node's own tier takes to protect what it holds.

    What is there already is read and sent, and what protects others is written beside it. The
    network between nodes is taken to be faster than their tiers.

    Raises:
        ConfigError: nodes have no tier of their own.
    """
    own = node_tier(tiers)
    if own is None:
        raise ConfigError(
            "Redundancy between nodes needs a tier that each node has for itself, of level 0 "
            "or 1; the site has none: leave --redundancy out."
        )
    model = redundant_model(site)
    factor = storage_factor(scheme, nodes=nodes)
    write_shared, read_shared = own.write_shared_bytes_per_s, own.read_shared_bytes_per_s
    costs = replace(
        own,
        name=model.name if model else DEFAULT_NAME,
        level=LEVEL,
        write_bytes_per_s=_protecting(own.write_bytes_per_s, own.read_bytes_per_s, factor),
        write_shared_bytes_per_s=_protecting(
            write_shared or math.inf, read_shared or math.inf, factor
        )
        if write_shared or read_shared
        else None,
        storage_factor=own.storage_factor * factor,
    )
    return Sourced(costs, "derived", f"{label(scheme)} on {own.name!r} of other nodes")


def _protecting(write_bytes_per_s: float, read_bytes_per_s: float, factor: float) -> float:
    """Return at which rate all ``factor`` bytes of one come to be there, by these rates."""
    return factor / ((factor - 1) / write_bytes_per_s + 1 / read_bytes_per_s)


def survival(
    scheme: Scheme, costs: Sourced, workload: Workload, reaction: Reaction
) -> tuple[Redundancy, float]:
    """Return what a scheme survives, and the chance that a second loss is one too many.

    The second loss is one during the recovery from the first: of the other nodes, those of
    the same set are one too many if the set can rebuild one loss only.
    """
    members = max(2, min(scheme.set_size, workload.nodes))
    losses = max(1, scheme.losses_of(members))
    each = workload.state_bytes / workload.writers
    window_s = reaction.before_restore_s(LEVEL) + costs.costs.read_s(
        each, readers=workload.writers_per_node
    )
    redundancy = Redundancy(set_size=members, losses=losses, window_s=window_s)
    return redundancy, (members - 1) / (workload.nodes - 1) if losses == 1 else 0.0
