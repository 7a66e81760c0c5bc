"""Write the arrays of a checkpoint as one file that other programs read.

Two formats. *npz* is NumPy's own; it takes every dtype that NumPy has. *safetensors*
(https://github.com/huggingface/safetensors: eight bytes with the length of a JSON header, the
header, then all arrays without gaps) takes bfloat16 and the 8-bit floats as well. The writer is
our own, so that nothing has to be installed for it; ``tests/unit/test_export.py`` reads its
files with the library of that name.

Arrays go out in C order, one region in memory at a time. Plain values, and which checkpoint
this was, go along as JSON. The file appears under its name when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import math
import os
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.dtypes import numpy_dtype
from ckptflow.data.leaves import encode_plain, is_plain
from ckptflow.errors import ConfigError, FormatError, NotFoundError, TierFull
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.sharding.partial import SetArrays

Format = Literal["npz", "safetensors"]
Arrays = StoredArrays | SetArrays
NPZ_VALUES = "ckptflow.json"  # Member of an npz file with provenance and plain values.

_WRITE_BYTES = 16 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAFETENSORS_TYPES = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8",
    "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32", "<u8": "U64", "<i8": "I64",
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    format: Format
    arrays: tuple[str, ...]
    size_bytes: int


def export(
    stored: Arrays,
    path: Path,
    *,
    file_format: Format | None = None,
    only: Sequence[str] = (),
    overwrite: bool = False,
    on_array: Callable[[str], None] = lambda _name: None,
) -> Exported:
    """Write the arrays of a checkpoint to ``path``.

    Args:
        stored: the checkpoint.
        path: the file; its ending says the format, unless ``file_format`` does.
        file_format: npz or safetensors.
        only: shell patterns (``model/*``); arrays whose name matches none stay out.
        overwrite: replace a file that is there.
        on_array: told the name of each array before it is read.

    Raises:
        ConfigError: the format is not known or cannot hold an array, or the file is there
            or cannot be written. Nothing was written then.
        NotFoundError: no array matches.
        CorruptionError: an array has no sound copy. No file is left then.
        TierFull: there is no room for the file. No file is left then.
    """
    chosen = _format_of(path, file_format)
    names = _matching(stored, only)
    _check_types(stored, names, chosen)
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; say --force to replace it.")
    write = _write_npz if chosen == "npz" else _write_safetensors
    with _complete_or_absent(path) as file:
        write(stored, names, file, on_array)
    return Exported(path, chosen, tuple(names), path.stat().st_size)


def _format_of(path: Path, file_format: str | None) -> Format:
    name = file_format or path.suffix.removeprefix(".")
    for known in get_args(Format):
        if name == known:
            return "npz" if name == "npz" else "safetensors"
    raise ConfigError(
        f"{str(path)!r} does not say a format: let it end in .npz or .safetensors, or name one "
        f"of {', '.join(get_args(Format))}; got {name!r}."
    )


def _matching(stored: Arrays, only: Sequence[str]) -> list[str]:
    patterns = only or ["*"]
    names = [
        name
        for name in stored
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not names:
        asked = f" whose name matches {', '.join(only)}" if only else ""
        raise NotFoundError(
            f"{stored.manifest.lineage} {stored.manifest.id} has no array{asked}."
        )
    return names


def _check_types(stored: Arrays, names: Sequence[str], file_format: Format) -> None:
    def fits(name: str) -> bool:
        dtype = stored.specs[name].dtype
        if file_format == "npz":
            return _is_numpys_own(dtype)
        return _little(dtype) in _SAFETENSORS_TYPES and name != "__metadata__"

    if bad := [f"{name!r} ({stored.specs[name].dtype})" for name in names if not fits(name)]:
        other = "safetensors" if file_format == "npz" else "npz"
        raise ConfigError(
            f"{file_format} cannot hold {', '.join(bad)}. Leave them out with --only, or write "
            f"{other} if that has their types."
        )


def _is_numpys_own(dtype: str) -> bool:
    try:
        return numpy_dtype(dtype).isbuiltin != 2  # 2: a type that another library added.
    except FormatError:
        return False


def _little(dtype: str) -> str:
    """Return the name of a dtype in little-endian order."""
    return "<" + dtype[1:] if dtype.startswith(">") else dtype


@contextlib.contextmanager
def _complete_or_absent(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that gets the name ``path`` when the block ends well, else none."""
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        kind = TierFull if error.errno in _FULL else ConfigError
        raise kind(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _describe(stored: Arrays, names: Sequence[str]) -> dict[str, Any]:
    """Return, as JSON-like values, which checkpoint this is and its plain leaves.

    A leaf that JSON cannot hold, and a set, is written as its ``repr``.
    """
    manifest = stored.manifest
    kinds = {name: stored.specs[name].kind for name in names}
    return {
        "checkpoint": {
            "run": manifest.lineage.run,
            "task": manifest.lineage.task,
            "step": manifest.id.step,
            "attempt": manifest.id.attempt,
            "created": manifest.created,
            "root": manifest.root.hex(),
            "metrics": manifest.metrics,
        },
        "libraries": kinds,
        "values": {name: _json_value(value) for name, value in stored.plain.items()},
    }


def _json_value(value: Any) -> Any:
    node = encode_plain(value) if is_plain(value) else []
    return repr(value) if isinstance(node, list) else node


def _write_npz(
    stored: Arrays,
    names: Sequence[str],
    file: IO[bytes],
    on_array: Callable[[str], None],
) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in names:
            on_array(name)
            array = stored.read(name)
            with archive.open(f"{name or 'state'}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(
                    member, np.asarray(array, order="C"), allow_pickle=False
                )
        archive.writestr(NPZ_VALUES, json.dumps(_describe(stored, names), indent=1))


def _write_safetensors(
    stored: Arrays,
    names: Sequence[str],
    file: IO[bytes],
    on_array: Callable[[str], None],
) -> None:
    # The widest elements first: then each array starts at a multiple of its element size,
    # which readers that map the file need.
    order = sorted(names, key=lambda name: -stored.specs[name].itemsize_bytes)
    header: dict[str, Any] = {
        "__metadata__": {"ckptflow": json.dumps(_describe(stored, names))}
    }
    end = 0
    for name in order:
        spec = stored.specs[name]
        start, end = end, end + math.prod(spec.shape) * spec.itemsize_bytes
        header[name or "state"] = {
            "dtype": _SAFETENSORS_TYPES[_little(spec.dtype)],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        on_array(name)
        _write_elements(file, stored.read(name))


def _write_elements(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write the elements in C order and little-endian."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _WRITE_BYTES):
        file.write(flat[start : start + _WRITE_BYTES].data)
