"""How stores and checkpoints are named on the command line.

A store is given by ``--store PLACE``, a folder or an address, several times for several tiers,
inner ones first; or by ``--site SITE``, whose tiers are taken; or by ``CKPTFLOW_STORE`` or
``CKPTFLOW_SITE`` in the environment, as for `ckptflow.run`; or it is that of the site
``local``, in the current folder.

A checkpoint is ``RUN/TASK``, the newest, or ``RUN/TASK@STEP``, or, where two attempts saved
the same step, ``RUN/TASK@STEP.ATTEMPT``. ``tests/unit/test_cli_naming.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ckptflow.errors import ConfigError, NotFoundError
from ckptflow.model import LineageId, Shard
from ckptflow.site import load_site
from ckptflow.site.tiers import TierModel, model_at, open_tiers, place_of
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Found, Lineage, lineages
from ckptflow.store.descriptor import check_store
from ckptflow.store.find import find_checkpoint, find_lineage, find_run
from ckptflow.store.places import names_and_levels
from ckptflow.store.sharding.launch import saved_together
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.tiers.tier import Tier

STORE_VARIABLE, SITE_VARIABLE = "CKPTFLOW_STORE", "CKPTFLOW_SITE"
DEFAULT_SITE = "local"

StoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        help="Folder or address of a store (s3://bucket/prefix); repeat for several tiers, "
        "inner first.",
    ),
]
SiteOption = Annotated[
    str | None, typer.Option("--site", help="Name of a site, or its TOML file: use its tiers.")
]

_CHECKPOINT = re.compile(r"([^/@]+)/([^/@]+)(?:@(\d+)(?:\.(\d+))?)?")


@dataclass(frozen=True, slots=True)
class Name:
    """A lineage, and which of its checkpoints is meant."""

    lineage: LineageId
    step: int | None = None
    attempt: int | None = None


def parse_name(text: str) -> Name:
    """Read ``RUN/TASK``, ``RUN/TASK@STEP`` or ``RUN/TASK@STEP.ATTEMPT``.

    Raises:
        ConfigError: it is none of these.
    """
    match = _CHECKPOINT.fullmatch(text)
    if not match:
        raise ConfigError(
            f"{text!r} names no checkpoint; write RUN/TASK for the newest, or RUN/TASK@STEP."
        )
    run, task, step, attempt = match.groups()
    return Name(
        LineageId(run, task),
        None if step is None else int(step),
        None if attempt is None else int(attempt),
    )


def open_store(
    stores: Sequence[str | Path] | None,
    site: str | None,
    *,
    is_store: Callable[[Tier], bool] = check_store,
) -> list[Tier]:
    """Return the tiers to look at, inner ones first. At least one of them is a store.

    Args:
        stores: folders or addresses, from the command line.
        site: name of a site, or its file.
        is_store: tells whether a tier is a store; it may mend the tier.

    Raises:
        ConfigError: both a store and a site are given, or the site file is wrong.
        NotFoundError: there is no store.
        FormatError: a store is of a newer version.
        TierError: a folder cannot be read.
    """
    stores, site = _with_environment(stores, site)
    if stores:
        models = _models(stores)
        places = {
            model.name: place_of(store) for model, store in zip(models, stores, strict=True)
        }
        tiers = open_tiers(models)
        for tier in tiers:
            if not is_store(tier):
                raise NotFoundError(f"There is no store in {places[tier.name]}.")
        return tiers
    tiers = load_site(site or DEFAULT_SITE, purpose="tiers").open_tiers()
    exist = [is_store(tier) for tier in tiers]
    if not any(exist):
        raise NotFoundError(
            f"There is no store yet on the tiers of site {site or DEFAULT_SITE!r} "
            f"({', '.join(map(repr, tiers))}). Name a store with --store PLACE, or in the "
            f"environment as {STORE_VARIABLE}."
        )
    return tiers


def tiers_to_probe(
    stores: Sequence[str | Path] | None, site: str | None
) -> tuple[list[Tier], str]:
    """Return tiers to try out, whether or not they are stores, and why none if none.

    What was named is tried; the default store only if it exists, since a probe would make it.

    Raises:
        ConfigError: both a store and a site are given, or the site file is wrong.
    """
    stores, site = _with_environment(stores, site)
    if stores:
        return open_tiers(_models(stores)), ""
    tiers = load_site(site or DEFAULT_SITE, purpose="tiers").open_tiers()
    exist = [check_store(tier) for tier in tiers]
    if site or any(exist):
        return tiers, ""
    return [], "none tried: name one with --store or --site"


def site_named(site: str | None) -> str:
    """Return the site of an option, or of the environment, or else the usual one."""
    return site or os.environ.get(SITE_VARIABLE) or DEFAULT_SITE


def _with_environment(
    stores: Sequence[str | Path] | None, site: str | None
) -> tuple[Sequence[str | Path], str | None]:
    """Return what the options say, or else the environment."""
    if stores and site:
        raise ConfigError("Give --store or --site, not both: a site names its tiers.")
    if not stores and not site:
        site = os.environ.get(SITE_VARIABLE)
        if store := os.environ.get(STORE_VARIABLE):
            return [store], None
    return stores or (), site


def _models(stores: Sequence[str | Path]) -> list[TierModel]:
    roles = names_and_levels(len(stores))
    return [
        model_at(store, name=name, level=level)
        for store, (name, level) in zip(stores, roles, strict=True)
    ]


def open_lineages(
    tiers: Sequence[Tier], text: str | None, *, note: Callable[[str], None]
) -> list[Lineage]:
    """Return the lineages that ``RUN`` or ``RUN/TASK`` names, or all there are.

    Raises:
        NotFoundError: there is none of that name.
        ConfigError: it is no name.
    """
    if text is None:
        found = lineages(tiers)
    elif "/" in text:
        lineage = lineage_of(text)
        if (sets := ShardSets(tiers, lineage, note=note)).worlds():
            return [sets.shard(rank, world) for world in sets.worlds() for rank in range(world)]
        return [find_lineage(tiers, lineage, note=note)]
    else:
        found = find_run(tiers, text)
    return [Lineage(tiers, one, note=note) for one in found]


def lineage_of(text: str) -> LineageId:
    """Return the lineage that ``RUN/TASK`` names.

    Raises:
        ConfigError: it is no name, or names one checkpoint.
    """
    name = parse_name(text)
    if name.step is not None:
        raise ConfigError(f"{text!r} names one checkpoint; here it takes RUN or RUN/TASK.")
    return name.lineage


def open_checkpoint(
    tiers: Sequence[Tier], text: str, *, note: Callable[[str], None]
) -> tuple[Lineage, Found]:
    """Return the checkpoint that ``text`` names.

    Raises:
        NotFoundError: there is none of that name.
        ConfigError: it is no name.
    """
    name = parse_name(text)
    lineage = find_lineage(tiers, name.lineage, note=note)
    if (world := saved_together(lineage)) is not None and lineage.id.shard is None:
        one = Shard(lineage.id, 0, world).lineage
        raise ConfigError(
            f"{lineage.id} was saved by {world} ranks together; this command takes the "
            f"checkpoints of one process, as those of one rank are: {one}."
        )
    return lineage, find_checkpoint(lineage, step=name.step, attempt=name.attempt)


def open_arrays(
    tiers: Sequence[Tier], text: str, *, note: Callable[[str], None]
) -> tuple[StoredArrays, StoredArrays]:
    """Return the state and the random states of the checkpoint that ``text`` names.

    Raises:
        NotFoundError: there is none of that name.
        ConfigError: it is no name.
        CorruptionError: no copy of its manifest is sound.
    """
    lineage, found = open_checkpoint(tiers, text, note=note)
    manifest = lineage.manifest(found)
    return (
        StoredArrays(lineage, manifest, note=note),
        StoredArrays(lineage, manifest, part="rng", note=note),
    )
