"""Sizes and durations: what people write is read, anything else is named in the message."""

from __future__ import annotations

import pytest

from ckptflow.errors import ConfigError
from ckptflow.units import brief, format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0), (0, 0), ("512", 512), ("512 B", 512), ("64 MiB", 64 << 20),
        ("64MiB", 64 << 20), ("1.5GB", 1_500_000_000), (" 2 TiB ", 2 << 40),
        ("1 kB", 1000), ("1 KB", 1000),
        (2**63 - 1, 2**63 - 1), ("9223372036854775807", 2**63 - 1), ("0.5 KiB", 512),
    ],
)  # fmt: skip
def test_sizes(text: str | int, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a size; write for example '64 MiB'"),
        ("-1", "'-1' is not a size"),
        (-1, "A size must not be negative, got -1"),
        ("nan", "'nan' is not a size"),
        ("1e9", "'1e9' is not a size"),
        (True, "'True' is not a size"),
        ("5 min", "'5 min' has the unit 'min'; a size is written in B, kB"),
        ("5 mb", "has the unit 'mb'"),
        ("1 2 MiB", "is not a size"),
    ],
)
def test_what_is_no_size(text: str | int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("120s", 120), ("5min", 300), ("5m", 300), ("1h30min", 5400), ("1h 30min", 5400),
        ("250 ms", 0.25), ("2d", 172_800), ("1.5h", 5400), ("120", 120), (0, 0), (2.5, 2.5),
        ("01:30:00", 5400), ("1-12:00:00", 129_600), ("100:00:00", 360_000), (" 5 min ", 300),
    ],
)  # fmt: skip
def test_durations(text: str | float, duration_s: float) -> None:
    assert parse_seconds(text) == pytest.approx(duration_s, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a duration; write for example '5min'"),
        ("soon", "'soon' is not a duration"),
        ("5 MiB", "'5 MiB' has the unit 'MiB'; a duration is written in ms, s, min, m, h, d"),
        ("5min30", "mixes numbers with and without a unit"),
        ("-5s", "'-5s' is not a duration"),
        ("1h -30min", "is not a duration"),
        ("01:75:00", "'01:75:00' is not a duration"),
        ("1.2.3s", "is not a duration"),
        (-1, "must be finite and not negative, got -1"),
        (float("nan"), "must be finite and not negative, got nan"),
        (float("inf"), "must be finite and not negative, got inf"),
        (False, "'False' is not a duration"),
    ],
)
def test_what_is_no_duration(text: str | float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536 << 10, "1.50 MiB"),
        (1000 << 10, "1000 KiB"), (50 << 20, "50.0 MiB"), (3 << 60, "3072 PiB"),
        (-2048, "-2.00 KiB"),
    ],
)  # fmt: skip
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0 ms"), (0.085, "85 ms"), (0.9996, "1.0 s"), (12.34, "12.3 s"), (59.97, "1min00s"),
        (61, "1min01s"), (3599.7, "1h00min"), (7500, "2h05min"),
    ],
)  # fmt: skip
def test_durations_for_people(duration_s: float, text: str) -> None:
    assert format_seconds(duration_s) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "<1s"), (0.99, "<1s"), (1, "1s"), (59.9, "59s"), (60, "1m00s"), (3599, "59m59s"),
        (3600, "1h00m"), (86399, "23h59m"), (273_600, "3d04h"),
    ],
)  # fmt: skip
def test_brief_durations_are_cut_not_rounded(duration_s: float, text: str) -> None:
    assert brief(duration_s) == text
