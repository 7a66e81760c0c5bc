"""Where the costs of a site's tiers are from: given, measured, or else typical.

``tests/unit/test_plan_tune.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.policy.multilevel.typical import typical
from ckptflow.site import Site
from ckptflow.site.tiers import PROCESS_KINDS
from ckptflow.units import parse_bytes, parse_seconds

_BANDWIDTHS: Final = {
    "write": "write_bytes_per_s",
    "read": "read_bytes_per_s",
    "shared": "write_shared_bytes_per_s",
    "read-shared": "read_shared_bytes_per_s",
    "capacity": "capacity_bytes",
}
_TIMES: Final = {"latency": "write_latency_s", "read-latency": "read_latency_s"}
_NUMBERS: Final = {
    "factor": "storage_factor",
    "price": "price_per_gb",
    "price-month": "price_per_gb_month",
    "egress": "egress_price_per_gb",
}
TIER_KEYS: Final = ("level", *_BANDWIDTHS, *_TIMES, *_NUMBERS)


class Saves(Protocol):
    """What a save costs the process that computes, as it was measured."""

    @property
    def capture_bytes_per_s(self) -> float:
        """State over the time for which a save blocks."""

    @property
    def unchanged_bytes_per_s(self) -> float:
        """State over the time that finding the changes takes."""

    @property
    def interference(self) -> float:
        """By what part computing is slower meanwhile."""


class Measured(Protocol):
    """What was measured of a site; a calibration is one."""

    @property
    def date(self) -> datetime:
        """When."""

    @property
    def saves(self) -> Saves | None:
        """What a save costs; ``None`` if that could not be measured."""

    def tier_costs(self) -> tuple[TierCosts, ...]:
        """Return the tiers that were measured."""

    def stale(self, site: Site) -> tuple[str, ...]:
        """Return why it is no longer true of a site; nothing if it is."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """The costs of a tier, and where they are from.

    Attributes:
        costs: of the tier.
        origin: ``given``, ``measured`` or ``typical``; ``derived`` of redundancy.
        detail: the same in words.
    """

    costs: TierCosts
    origin: str
    detail: str


@dataclass(frozen=True, slots=True)
class GivenTier:
    """What the command line says of a tier: fields of `TierCosts`, level among them."""

    name: str
    fields: Mapping[str, Any]


def parse_tier(text: str) -> GivenTier:
    """Read ``NAME:write=3.7GB,read=8GB,shared=20GB``; rates are for each second.

    Raises:
        ConfigError: it has another form, a key is unknown, or a value is none.
    """
    name, colon, rest = text.partition(":")
    if not name or not colon or not rest:
        raise ConfigError(
            f"{text!r} tells nothing of a tier; write NAME:KEY=VALUE,… with "
            f"{', '.join(TIER_KEYS)}, for example nvme:write=3.7GB,read=8GB."
        )
    fields: dict[str, Any] = {}
    for part in rest.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        try:
            field, number = _field(key, value)
        except ConfigError as error:
            raise ConfigError(f"Tier {name!r}, {part.strip()!r}: {error}") from None
        fields[field] = number
    return GivenTier(name, fields)


def _field(key: str, text: str) -> tuple[str, float]:
    if key in _BANDWIDTHS:
        return _BANDWIDTHS[key], float(parse_bytes(text.removesuffix("/s")))
    if key in _TIMES:
        return _TIMES[key], parse_seconds(text)
    if key not in _NUMBERS and key != "level":
        raise ConfigError(f"there is no {key!r}; there are {', '.join(TIER_KEYS)}.")
    try:
        return _NUMBERS.get(key, key), int(text) if key == "level" else float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no number.") from None


def sourced_tiers(
    site: Site,
    *,
    nodes: int,
    measured: Measured | None = None,
    given: Sequence[GivenTier] = (),
) -> tuple[tuple[Sourced, ...], tuple[str, ...]]:
    """Return the costs of a site's tiers but for redundant ones, and what is to be said.

    Args:
        site: whose tiers.
        nodes: that run together.
        measured: the calibration of the site, if there is one.
        given: by the user; these count for more, and may name tiers that the site lacks.

    Raises:
        ConfigError: a tier that the site lacks was given without its level or bandwidth, or a
            number makes no sense.
    """
    found, notes = _of_site(site, nodes, measured)
    for one in given:
        known = found.get(one.name)
        if known is None:
            notes.append(f"Tier {one.name!r} is none of the site's: add it to its [[tiers]].")
        found[one.name] = Sourced(_overlaid(one, known), "given", "given, where it was given")
    guessed = [name for name, one in found.items() if one.origin == "typical"]
    if guessed:
        notes.append(
            f"Not calibrated: typical values of {', '.join(guessed)}. Measure them: "
            f"ckptflow calibrate --site {site.name}"
        )
    return tuple(sorted(found.values(), key=lambda one: one.costs.level)), tuple(notes)


def _of_site(
    site: Site, nodes: int, measured: Measured | None
) -> tuple[dict[str, Sourced], list[str]]:
    costs = {one.name: one for one in measured.tier_costs()} if measured else {}
    notes = [*(measured.stale(site) if measured else ())]
    found: dict[str, Sourced] = {}
    for model in site.tiers:
        if model.kind in PROCESS_KINDS:
            notes.append(
                f"Tier {model.name!r} is lost with its process: no failure is survived."
            )
        elif model.kind == "redundant":
            continue
        elif model.name in costs and measured is not None:
            cost = replace(costs[model.name], level=model.level)
            found[model.name] = Sourced(cost, "measured", f"measured {measured.date:%Y-%m-%d}")
        else:
            kind = typical(model.kind, model.level)
            cost = kind.costs(model.name, model.level, nodes=nodes)
            room = getattr(model, "capacity_bytes", None)
            cost = cost if room is None else replace(cost, capacity_bytes=float(room))
            found[model.name] = Sourced(cost, "typical", f"typical {kind.what}: {kind.source}")
    return found, notes


def _overlaid(given: GivenTier, known: Sourced | None) -> TierCosts:
    if known is not None:
        return replace(known.costs, **given.fields)
    lacking = [
        key for key in ("level", "write") if _BANDWIDTHS.get(key, key) not in given.fields
    ]
    if lacking:
        raise ConfigError(
            f"Tier {given.name!r} is none of the site's: say its {' and '.join(lacking)}, too."
        )
    read = {"read_bytes_per_s": given.fields["write_bytes_per_s"]}
    return TierCosts(name=given.name, **(read | dict(given.fields)))


def node_tier(tiers: Iterable[Sourced]) -> TierCosts | None:
    """Return the outermost tier that each node has for itself, which others can protect."""
    own = [one.costs for one in tiers if one.costs.level <= 1]
    return max(own, key=lambda one: one.level, default=None)
