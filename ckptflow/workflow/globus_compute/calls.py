"""A call on its way to an endpoint: packed, and small enough.

Functions and arguments are packed as Parsl packs them, so what works on its other executors
works here. What does not fit is refused before anything is sent, and named: the service would
refuse the whole request, with all other calls in it.

``tests/unit/test_globus_compute.py``.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from parsl.serialize import deserialize, serialize

import ckptflow
from ckptflow.errors import ConfigError, TooLarge
from ckptflow.units import format_bytes
from ckptflow.workflow.attempt import TaskSpec
from ckptflow.workflow.globus_compute.sizes import (
    ENVELOPE_BYTES,
    SUBMISSION_BYTES_MAX,
    submitted_bytes,
)
from ckptflow.workflow.globus_compute.stores import store_ids
from ckptflow.workflow.identity import CKPT

_FUNCTION = "the function, with what it uses of the script"


@dataclass(frozen=True, slots=True)
class Call:
    """A packed call.

    Attributes:
        function: what to call.
        arguments: its arguments.
        sender: JSON that says who packed it, and which stores are meant.
    """

    function: bytes
    arguments: bytes
    sender: str

    @property
    def request_bytes(self) -> int:
        """What it needs of a request."""
        return submitted_bytes(len(self.function) + len(self.arguments) + len(self.sender))


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Pack a call for `unpack` on a worker.

    Raises:
        ConfigError: something in it cannot be sent.
        TooLarge: it is more than the service takes.
    """
    name = name_of(function)
    named = {_FUNCTION: function, **_named(function, args, kwargs)}
    for what, value in named.items():
        # It would travel, and never be done over there.
        if any(isinstance(one, Future) for one in (value, *_members(value))):
            raise ConfigError(
                f"{what} of {name}() is a future, or has one in it: pass its result. (Tasks "
                f"that wait for others are Parsl's: use ckptflow.run with this site.)"
            )
    sender_text = _sender(kwargs)
    try:
        packed = Call(serialize(function), serialize((tuple(args), dict(kwargs))), sender_text)
    except Exception as error:  # Pickling runs the user's code.
        raise ConfigError(_not_to_be_sent(name, named, error)) from error
    if packed.request_bytes > SUBMISSION_BYTES_MAX - ENVELOPE_BYTES:
        raise TooLarge(_too_large(name, named, packed.request_bytes))
    return packed


def unpack(function: bytes, arguments: bytes) -> tuple[Callable[..., Any], Any, Any]:
    """Return function, arguments and keyword arguments of a packed call."""
    args, kwargs = deserialize(arguments)
    return deserialize(function), args, kwargs


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, for messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def sender(stores: Mapping[str, str]) -> dict[str, Any]:
    """Return who packs calls here, and the stores that are meant."""
    return {
        "ckptflow": ckptflow.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "stores": dict(stores),
    }


def _sender(kwargs: Mapping[str, Any]) -> str:
    spec = kwargs.get(CKPT)
    tiers = TaskSpec.unpacked(spec).tiers if isinstance(spec, bytes) else None
    return _sender_text(tiers)


@functools.lru_cache(maxsize=32)
def _sender_text(tiers: str | None) -> str:
    return json.dumps(sender({} if tiers is None else store_ids(tiers, make=True)))


def _named(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments by the names that the user knows."""
    try:
        names = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        names = []
    names += [f"argument {number}" for number in range(len(names), len(args))]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: value for name, value in given.items() if name != CKPT}


def _not_to_be_sent(name: str, named: Mapping[str, Any], error: Exception) -> str:
    for what, value in named.items():
        try:
            serialize(value)
        except Exception as found:  # noqa: BLE001  Pickling runs the user's code.
            return f"{what} of {name}() cannot be sent to an endpoint: {found}"
    return f"A call of {name}() cannot be sent to an endpoint: {error}"


def _members(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _too_large(name: str, named: Mapping[str, Any], request_bytes: int) -> str:
    sizes = {what: submitted_bytes(len(serialize(value))) for what, value in named.items()}
    largest = max(sizes, key=lambda what: sizes[what])
    return (
        f"A call of {name}() needs {format_bytes(request_bytes)} of a request, and Globus "
        f"Compute takes {format_bytes(SUBMISSION_BYTES_MAX)}. Most of it, "
        f"{format_bytes(sizes[largest])}, is {largest}. Pass a reference: let a task return "
        f"ckpt.export(state), and load what it refers to with ckptflow.load."
    )
