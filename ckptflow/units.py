"""Bytes and seconds: read what people write, print what people read.

Inside the package sizes are ``int`` bytes and times are ``float`` seconds; these
functions stand at the edges (site files, arguments, tables).
"""

from __future__ import annotations

import re
from fractions import Fraction

from ckptflow.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BYTES = {
    "": 1, "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50,
}  # fmt: skip
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Return bytes for ``"64 MiB"``, ``"1.5GB"`` or a plain number of bytes.

    Raises:
        ConfigError: the text is no size, or its unit is not a unit of bytes.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ConfigError(f"A size must not be negative, got {text}.")
        return text
    number, unit = _split(str(text), "size", _BYTES, example="64 MiB")
    return round(number * _BYTES[unit])


def parse_seconds(text: str | float) -> float:
    """Return seconds for ``"120s"``, ``"5min"``, ``"1h30min"``, ``"01:30:00"`` or a number.

    Raises:
        ConfigError: the text is no duration, or its unit is not a unit of time.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        if not 0 <= text < float("inf"):
            raise ConfigError(f"A duration must be finite and not negative, got {text!r}.")
        return float(text)
    text = str(text)
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text.strip())
    if clock:  # Slurm writes walltimes as [days-]hours:minutes:seconds.
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    parts = re.findall(r"[0-9.]+\s*[A-Za-z]*", text) or [text]
    if "".join(parts).replace(" ", "") != text.replace(" ", ""):
        parts = [text]
    total = 0.0
    for part in parts:
        number, unit = _split(part, "duration", {**_SECONDS, "": 1.0}, example="5min")
        if unit == "" and len(parts) > 1:
            raise ConfigError(f"{text!r} mixes numbers with and without a unit of time.")
        total += float(number) * _SECONDS.get(unit, 1.0)
    return total


def format_bytes(size_bytes: float) -> str:
    """Return a size with three figures and a binary unit: ``"1.50 MiB"``."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{size:.0f} B"
    decimals = 2 if abs(size) < 10 else 1 if abs(size) < 100 else 0
    return f"{size:.{decimals}f} {unit}"


def format_seconds(duration_s: float) -> str:
    """Return a duration as people say it: ``"85 ms"``, ``"12.3 s"``, ``"2h05min"``."""
    if duration_s < 0.9995:
        return f"{duration_s * 1e3:.0f} ms"
    if duration_s < 59.95:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes}min{seconds:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}min"


def brief(duration_s: float) -> str:
    """Return a duration in a few characters, for a table: ``"<1s"``, ``"42s"``, ``"3d04h"``."""
    if duration_s < 1:
        return "<1s"
    if duration_s < 60:
        return f"{int(duration_s)}s"
    seconds = int(duration_s)
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"


def _split(
    text: str, noun: str, units: dict[str, float] | dict[str, int], *, example: str
) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ConfigError(f"{text!r} is not a {noun}; write for example {example!r}.")
    number, unit = match.groups()
    if unit not in units:
        known = ", ".join(name for name in units if name)
        raise ConfigError(f"{text!r} has the unit {unit!r}; a {noun} is written in {known}.")
    return Fraction(number), unit  # Exact: sizes beyond 2**53 are not rounded.
