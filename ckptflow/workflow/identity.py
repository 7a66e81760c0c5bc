"""Which task a call is: the same name in every retry, rerun and process, for ever.

The name is made of the app's name and of the arguments that the user said tell tasks apart
(``key=``), or of a digest of all arguments. It never holds Parsl's task number, its run id, a
host or a folder, since those differ from one run to the next.

The name is one part of the keys of a store, so it has few characters and is short. What a
key value looks like::

    3  -2  0.5  True  None      as Python writes them
    adam  a.b-c                 text of letters, digits, ``.``, ``_`` and ``-``
    +s3  +s                     text that could be taken for one of the above, or is empty
    a+20b                       text with other characters, bytes as ``+`` and two hex digits
    +h0123456789abcdef          a digest, for all other types

``tests/unit/test_identity.py`` proves that no two keys share a name.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptflow.errors import ConfigError
from ckptflow.workflow.canonical import digest_hex, plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NAME_MAX = 120
CKPT = "ckpt"  # The parameter that receives the task's checkpointer.

# They say where a task runs and where its output goes, not what it computes.
PARSL_PARAMETERS = frozenset(
    {"stdout", "stderr", "walltime", "parsl_resource_specification", "outputs", "label",
     "_parsl_staging_inhibit"}
)  # fmt: skip

_DIGITS = 16
_POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SAFE = re.compile(r"[A-Za-z0-9._-]")
_LOOKS_LIKE_ANOTHER_TYPE = re.compile(
    r"-?(\d+(\.\d+)?(e-?\d+)?|inf|nan)|True|False|None|", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Identity:
    """How an app's calls are told apart.

    Attributes:
        app: name of the app.
        key: names of the parameters that tell tasks apart, or ``None`` for all arguments.
    """

    app: str
    key: tuple[str, ...] | None = None

    def task_name(self, arguments: Mapping[str, Any]) -> str:
        """Return the name of the task that was called with ``arguments``.

        Raises:
            ConfigError: a key field is missing, or an argument has no canonical bytes.
        """
        app = _escape(self.app, keep=re.compile(r"[A-Za-z0-9_]"))
        if self.key is None:
            named = {
                name: arguments[name] for name in arguments if name not in PARSL_PARAMETERS
            }
            return _bounded(f"{app}-{digest_hex(named, digits=_DIGITS)}" if named else app)
        missing = [field for field in self.key if field not in arguments]
        if missing:
            raise ConfigError(f"The key of {self.app}() names {missing}, which the call lacks.")
        fields = [f"{_escape(field)}={_render(arguments[field])}" for field in self.key]
        return _bounded("-".join([app, *fields]))


def identity_of(
    function: Callable[..., Any], key: Sequence[str] | str | None, *, name: str | None = None
) -> Identity:
    """Check ``key=`` against the parameters of ``function`` and return its identity.

    Raises:
        ConfigError: the key names something that is not a parameter.
    """
    app = name or str(getattr(function, "__name__", type(function).__name__))
    if key is None:
        return Identity(app)
    fields = (key,) if isinstance(key, str) else tuple(key)
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [f for f in fields if f not in parameters and not takes_any]
    if unknown or CKPT in fields:
        choice = ", ".join(name for name in parameters if name != CKPT) or "none"
        raise ConfigError(
            f"key={fields!r} of {app}() names {unknown or [CKPT]}; "
            f"its parameters are: {choice}."
        )
    return Identity(app, fields)


def bind(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments by parameter name, defaults filled in, without the checkpointer.

    ``*args`` stay together under their name; ``**kwargs`` are spread.

    Raises:
        TypeError: the call does not fit the signature.
    """
    call = {name: value for name, value in kwargs.items() if name != CKPT}
    if CKPT in signature.parameters:
        call[CKPT] = None
    accepted = {
        name: value
        for name, value in call.items()
        if name not in PARSL_PARAMETERS or _accepts(signature, name)
    }
    bound = signature.bind(*args, **accepted)
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif name != CKPT:
            arguments[name] = value
    return arguments


class Binder:
    """Does what `bind` does, fast for functions and calls without ``*`` and ``**``."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        parameters = signature.parameters.values()
        self._simple = all(parameter.kind is _POSITIONAL_OR_KEYWORD for parameter in parameters)
        self._names = tuple(signature.parameters)
        self._defaults = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.default is not inspect.Parameter.empty
        }

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by parameter name; see `bind`."""
        if self._simple and len(args) <= len(self._names):
            given = dict(zip(self._names, args, strict=False))
            arguments = {**self._defaults, **kwargs, **given}
            arguments[CKPT] = None
            fits = len(arguments) == len(self._names) + (CKPT not in self._names)
            if (
                fits
                and CKPT not in given
                and given.keys().isdisjoint(kwargs)
                and arguments.keys() >= set(self._names)
            ):
                del arguments[CKPT]
                return arguments
        return bind(self._signature, args, kwargs)


def _accepts(signature: inspect.Signature, name: str) -> bool:
    kinds = (parameter.kind for parameter in signature.parameters.values())
    return name in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _render(value: object) -> str:
    value = plain_scalar(value)
    if value is None or type(value) in (bool, int, float):
        return repr(value).replace("e+", "e")
    if type(value) is str:
        text = _escape(value)
        return f"+s{text}" if _LOOKS_LIKE_ANOTHER_TYPE.fullmatch(value) else text
    return f"+h{digest_hex(value, digits=_DIGITS)}"


def _escape(text: str, keep: re.Pattern[str] = _SAFE) -> str:
    return "".join(
        char
        if keep.fullmatch(char)
        else "".join(f"+{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )


def _bounded(name: str) -> str:
    """Return ``name``, or its beginning and a digest if it is too long for a key."""
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[: 2 * _DIGITS]
    return f"{name[: NAME_MAX - len(digest) - 3]}-+l{digest}"
