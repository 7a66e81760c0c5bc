"""Put the values of a state together, after all bytes are there.

Containers that can be changed stay the same objects; of others a new one is made if anything in
them is new. ``tests/unit/test_regions.py`` keeps it true.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

Build = Callable[[], Any]

_UNSET = object()


def nothing() -> None:
    """Stand for a value that did not fit."""
    raise AssertionError("A plan with mismatches is never carried out.")


def update(target: dict[Any, Any], builds: dict[Any, Build]) -> dict[Any, Any]:
    """Give a dict other items; it stays the same object."""
    for key, build in builds.items():
        value = build()
        if key not in target or target[key] is not value:
            target[key] = value
    return target


def rebuild(old: dict[Any, Any], builds: dict[Any, Build]) -> dict[Any, Any]:
    """Return a dict of the class, and with the attributes, of ``old``."""
    fresh = copy.copy(old)
    fresh.clear()
    for key, build in builds.items():
        fresh[key] = build()
    return fresh


def replace_all(target: Any, items: Any) -> Any:
    """Give a list or a bytearray other items."""
    target[:] = items
    return target


def replace_set(target: set[Any], value: Iterable[Any]) -> set[Any]:
    """Give a set other items."""
    target.clear()
    target.update(value)
    return target


def same_or(old: Any, items: list[Any], make: Callable[[list[Any]], Any]) -> Any:
    """Return ``old`` if it holds exactly these objects, else a new one."""
    if len(old) == len(items) and all(a is b for a, b in zip(old, items, strict=True)):
        return old
    return make(items)


def set_fields(target: Any, builds: dict[str, Build]) -> Any:
    """Set the fields of a dataclass; of a frozen one return a copy, unless nothing is new."""
    values = {name: build() for name, build in builds.items()}
    if all(getattr(target, name, _UNSET) is value for name, value in values.items()):
        return target
    if type(target).__dataclass_params__.frozen:
        target = _twin(target)
    for name, value in values.items():
        object.__setattr__(target, name, value)
    return target


def _twin(old: Any) -> Any:
    """Return a shallow copy without running any code of the class."""
    twin = object.__new__(type(old))
    for cls in type(old).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name != "__weakref__" and hasattr(old, name):
                object.__setattr__(twin, name, getattr(old, name))
    if hasattr(old, "__dict__"):
        twin.__dict__.update(old.__dict__)
    return twin
