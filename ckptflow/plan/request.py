"""What to measure of a site, as plain values, which may travel to a node.

``tests/unit/test_calibration.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ckptflow.errors import ConfigError
from ckptflow.flush.options import Flushing
from ckptflow.plan.calibration import How, TierIdentity, identities
from ckptflow.site import Site
from ckptflow.site.tiers import TierModel, inner_first

DEFAULT_S = 20.0
WRITERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tier to be measured.

    Attributes:
        identity: which one.
        model: as the site has it, variables of nodes not replaced.
        how: in which way the product writes it.
        unseen: why it cannot be measured from where the measuring is; empty if it can.
    """

    identity: TierIdentity
    model: TierModel
    how: How
    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure, as plain values: it may be done on another computer.

    Attributes:
        site: its name.
        tiers: inner ones first.
        seconds: about how long it may take in all.
        writers: the largest number of them, and no more than there are cores.
        flushing: how the site flushes.
    """

    site: str
    tiers: tuple[Wanted, ...]
    seconds: float
    writers: int
    flushing: Flushing


def request_of(
    site: Site, *, seconds: float, writers: int | None = None, on_node: bool = False
) -> Request:
    """Return what is to be measured of a site.

    Args:
        site: which one.
        seconds: about how long it may take.
        writers: the largest number of them; the workers of a node if not given.
        on_node: whether it will be on a node on which tasks run.

    Raises:
        ConfigError: a variable in a path is not set, or a number makes no sense.
    """
    if not seconds > 0:
        raise ConfigError(f"Measuring takes time: more than 0 s, not {seconds} s.")
    if writers is not None and not 1 <= writers <= WRITERS_MAX:
        raise ConfigError(f"There are 1 to {WRITERS_MAX} writers, not {writers}.")
    known = {one.name: one for one in identities(site)}
    models = inner_first(site.at(Path.cwd()).sealed_tiers)
    elsewhere = site.executor.on_other_nodes and not on_node
    return Request(
        site=site.name,
        tiers=tuple(
            Wanted(
                known[model.name],
                model,
                "save" if model is models[0] else "flush",
                _unseen(model, elsewhere=elsewhere),
            )
            for model in models
        ),
        seconds=seconds,
        writers=writers or site.executor.workers,
        flushing=site.flush.options,
    )


def _unseen(model: TierModel, *, elsewhere: bool) -> str:
    if model.kind == "redundant":
        return "Several nodes protect each other there; one node cannot tell how fast they are."
    if elsewhere and model.on_node:
        return (
            f"Each node has its own, and this is none: {model.folder or 'its memory'}. "
            f"Measure with --there."
        )
    return ""
