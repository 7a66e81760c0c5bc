"""What callers give to a checkpointer, checked before anything is touched."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.model import STEP_MAX, LineageId
from ckptflow.policy.placement import TierRule
from ckptflow.policy.retention import Keep, Retention, retention_by_tier
from ckptflow.store.catalog import Lineage
from ckptflow.store.packing import Packing
from ckptflow.store.places import names_and_levels, spec_at
from ckptflow.tiers.opening import open_store, open_tier
from ckptflow.tiers.tier import Placed, Tier


def tiers_of(store: str | Path | Tier | Sequence[str | Path | Tier]) -> list[Tier]:
    """Return the tiers that ``store`` means, inner ones first.

    Folders and addresses in a list are opened as on the command line: they are called
    ``store1``, ``store2`` by their places in it, and the last one is taken for shared.

    Raises:
        ConfigError: there are none, two have one name, or it is the address of something else.
    """
    if isinstance(store, str | Path):
        return [open_store(store)]
    given = [store] if isinstance(store, Tier) else list(store)
    if not given:
        raise ConfigError("A checkpointer needs at least one tier.")
    roles = names_and_levels(len(given))
    tiers = [_tier_of(one, *role) for one, role in zip(given, roles, strict=True)]
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise ConfigError(f"Tiers are told apart by their names, and these are {names}.")
    return sorted(tiers, key=lambda tier: tier.level)


def _tier_of(given: object, name: str, level: int) -> Tier:
    if isinstance(given, str | Path):
        return open_tier(spec_at(given, name=name, level=level))
    if not isinstance(given, Tier):
        raise ConfigError(f"{given!r} is neither a tier nor the folder or address of one.")
    return given


def notes_of(tiers: Sequence[Tier]) -> list[str]:
    """Return what is not as it was asked for, of all tiers that can tell."""
    return [note for tier in tiers if isinstance(tier, Placed) for note in tier.notes]


def rules_of(tiers: Sequence[Tier], flush_every: Mapping[str, int]) -> list[TierRule]:
    """Return how often checkpoints go to each tier: always, unless ``flush_every`` says so.

    Raises:
        ConfigError: it names a tier that is not there, or an impossible number.
    """
    names = [tier.name for tier in tiers]
    if unknown := sorted(set(flush_every) - set(names)):
        raise ConfigError(f"flush_every names {unknown[0]!r}; the tiers are {names}.")
    for name, every in flush_every.items():
        if every < 1:
            raise ConfigError(f"Tier {name!r}: every must be 1 or more, got {every}.")
    return [
        TierRule(tier.name, tier.level, every=flush_every.get(tier.name, 1)) for tier in tiers
    ]


def kept_on(lineage: Lineage, keep: Keep) -> dict[str, Retention]:
    """Return what stays, by the name of the tier.

    Raises:
        ConfigError: it is no short form, or names a tier that is not there.
    """
    return retention_by_tier(keep, [tier.name for tier in lineage.tiers])


def check_budget(budget_bytes: int | None) -> None:
    """Raise a `ConfigError` unless there can be such a budget."""
    if budget_bytes is not None and budget_bytes < 0:
        raise ConfigError(f"budget_bytes must not be negative, got {budget_bytes}.")


def step_of(step: Any) -> int:
    """Return a step, of any integer type, as an ``int``.

    Raises:
        ConfigError: it is no integer, or negative, or too large for a key.
    """
    if isinstance(step, bool) or not hasattr(step, "__index__") or not 0 <= step <= STEP_MAX:
        raise ConfigError(f"A step is an integer from 0 to {STEP_MAX}, not {step!r}.")
    return operator.index(step)


def check_grows(lineage: LineageId, step: int, last: int | None) -> None:
    """Raise a `ConfigError` unless a step comes after the last one."""
    if last is not None and step <= last:
        raise ConfigError(
            f"{lineage}: the save of step {step} comes after step {last}. Steps must grow; to "
            f"go back, restore(step=...) first."
        )


def metrics_of(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Return metrics, of any real type, as floats.

    Raises:
        ConfigError: a name is no text, or a value no number.
    """
    given: Mapping[Any, Any] = metrics or {}
    for name, value in given.items():
        if not isinstance(value, Real) or not isinstance(name, str):
            raise ConfigError(f"Metric {name!r} is {value!r}; metrics are numbers by name.")
    return {name: float(value) for name, value in given.items()}


def checked_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects that make the state.

    Raises:
        ConfigError: one is no object, but an option of `Packing` at the wrong place.
    """
    if misplaced := sorted(set(objects) & {field.name for field in fields(Packing)}):
        name = misplaced[0]
        raise ConfigError(
            f"{name} is no object of the state; give packing=Packing({name}={objects[name]!r})."
        )
    return dict(objects)


def state_of(given: Any, objects: Mapping[str, Any]) -> Any:
    """Return what is to be saved: what was given, or the objects given at construction.

    Raises:
        ConfigError: there is neither.
    """
    if given is None and not objects:
        raise ConfigError("save() needs a state: none was given, here or at construction.")
    return objects if given is None else given


def is_state(value: Any) -> bool:
    """Tell whether a value that can be called is a state all the same: a module, an array."""
    return hasattr(value, "state_dict") or hasattr(value, "__array__")


def may_be_walked(state: Any) -> bool:
    """Tell whether a state may be looked at before it is saved: nobody's own code runs then."""
    if isinstance(state, Mapping):
        return all(may_be_walked(value) for value in state.values())
    if isinstance(state, list | tuple):
        return all(may_be_walked(value) for value in state)
    module = type(state).__module__.partition(".")[0]
    return module in {"torch", "numpy", "builtins"} or not hasattr(state, "state_dict")
