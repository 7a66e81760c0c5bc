"""Names of element types, as they stand in a checkpoint.

============================  =======================================================
name                          means
============================  =======================================================
``<f4`` ``|b1`` ``<M8[ns]``    NumPy's own code: byte order, kind, size
``bfloat16`` ``float8_e5m2``   a type of ml_dtypes, or torch's of the same name
``complex32`` ``float4_…_x2``  a type that only torch has
``longdouble-63``              long double with 63 bits of mantissa: another machine's
                               may have another format in as many bytes
``{"names": …}``               a record, as JSON: names, formats, offsets, itemsize
============================  =======================================================

A name read from a checkpoint is looked up here and nowhere else; it never imports anything
but ml_dtypes. ``tests/unit/test_arrays.py`` keeps it true.
"""

from __future__ import annotations

import functools
import json
from typing import Any, cast

import numpy as np

from ckptflow.errors import FormatError

EXTENDED_BYTES = {
    "bfloat16": 2, "bcomplex32": 4, "complex32": 4,
    "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float6_e2m3fn": 1, "float6_e3m2fn": 1, "float4_e2m1fn": 1, "float4_e2m1fn_x2": 1,
    "int1": 1, "int2": 1, "int4": 1, "uint1": 1, "uint2": 1, "uint4": 1,
    "longdouble-63": 16, "longdouble-105": 16, "longdouble-112": 16,
    "clongdouble-63": 32, "clongdouble-105": 32, "clongdouble-112": 32,
}  # fmt: skip
"""Types that NumPy may lack here, with the bytes one element takes in memory."""

_LONG_MANTISSA_BITS = int(np.finfo(np.longdouble).nmant)
_LONG_IS_OWN = int(np.finfo(np.float64).nmant) != _LONG_MANTISSA_BITS


class Unsupported(Exception):
    """Why one leaf cannot be stored. The walk gathers these into one StateError."""


@functools.lru_cache(maxsize=1024)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which ``dtype`` is stored.

    Raises:
        Unsupported: it holds Python objects, or belongs to a library not known here.
    """
    if dtype.hasobject:
        raise Unsupported(
            f"an array of dtype {dtype} holds Python objects, not bytes; "
            "store a list, or an array of numbers or fixed-size strings"
        )
    if dtype.names is not None:
        return json.dumps(_record(dtype), separators=(",", ":"))
    if dtype.isbuiltin == 2:
        if dtype.type.__module__ == "ml_dtypes" and dtype.name in EXTENDED_BYTES:
            return dtype.name
        raise Unsupported(f"dtype {dtype} is of a library that ckptflow does not know")
    if dtype.char in "gG" and _LONG_IS_OWN:
        if not dtype.isnative:
            raise Unsupported(f"dtype {dtype} is a byte-swapped long double")
        prefix = "longdouble" if dtype.char == "g" else "clongdouble"
        return f"{prefix}-{_LONG_MANTISSA_BITS}"
    return dtype.str


def _record(dtype: np.dtype[Any]) -> dict[str, Any]:
    fields = [dtype.fields[name] for name in dtype.names or ()] if dtype.fields else []
    record: dict[str, Any] = {
        "names": list(dtype.names or ()),
        "formats": [_format(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }
    if any(len(field) > 2 for field in fields):
        record["titles"] = [field[2] if len(field) > 2 else None for field in fields]
    return record


def _format(dtype: np.dtype[Any]) -> object:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_format(base), list(shape)]
    return _record(dtype) if dtype.names is not None else dtype_name(dtype)


@functools.lru_cache(maxsize=1024)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype called ``name``.

    Raises:
        FormatError: there is no such type here; the message says what to install.
    """
    try:
        dtype = _parse_record(json.loads(name)) if name.startswith("{") else _parse(name)
        known = dtype_name(dtype) == name
    except (TypeError, ValueError, KeyError, AttributeError, Unsupported) as error:
        raise FormatError(f"The checkpoint names the dtype {name!r}, no such type.") from error
    if not known:
        raise FormatError(f"The checkpoint names the dtype {name!r}, no such type.")
    return dtype


def _parse(name: str) -> np.dtype[Any]:
    if name not in EXTENDED_BYTES:
        return np.dtype(name)
    kind, _, bits = name.partition("-")
    if bits:
        if bits != str(_LONG_MANTISSA_BITS):
            raise FormatError(
                f"The checkpoint holds {name}, the long double of another kind of machine; "
                f"here it has {_LONG_MANTISSA_BITS} bits of mantissa. Restore it there."
            )
        return np.dtype(kind)
    try:
        import ml_dtypes
    except ImportError as error:
        raise FormatError(
            f"NumPy has no dtype {name!r}: install ml_dtypes to see its values."
        ) from error
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        raise FormatError(f"Neither NumPy nor ml_dtypes has the dtype {name!r}; torch has.")
    return np.dtype(cast("type[np.generic]", scalar))


def _parse_record(record: dict[str, Any]) -> np.dtype[Any]:
    return np.dtype({**record, "formats": [_parse_format(item) for item in record["formats"]]})  # type: ignore[call-overload,no-any-return]


def _parse_format(item: Any) -> Any:
    if isinstance(item, list):
        return (_parse_format(item[0]), tuple(item[1]))
    return _parse_record(item) if isinstance(item, dict) else _parse(item)


def itemsize_bytes(name: str) -> int:
    """Return the bytes of one element, also for types that this machine cannot show."""
    return EXTENDED_BYTES[name] if name in EXTENDED_BYTES else numpy_dtype(name).itemsize
