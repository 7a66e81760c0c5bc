"""What the package prints it can read again, to the figures it printed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import ConfigError
from ckptflow.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@given(st.integers(0, 2**70))
def test_a_printed_size_is_read_back_within_half_a_percent(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.005)


@given(st.floats(0.1, 1e7))
def test_a_printed_duration_is_read_back_within_five_percent(duration_s: float) -> None:
    assert parse_seconds(format_seconds(duration_s)) == pytest.approx(duration_s, rel=0.05)


@given(st.integers(0, 2**80))
def test_whole_bytes_are_exact(size_bytes: int) -> None:
    assert parse_bytes(size_bytes) == parse_bytes(str(size_bytes)) == size_bytes


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_config_error(text: str) -> None:
    try:
        answer = str(parse_bytes(text))
    except ConfigError as error:
        answer = str(error)
    assert answer.isdigit() or repr(text) in answer


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_config_error(text: str) -> None:
    answer = 0.0
    with contextlib.suppress(ConfigError):
        answer = parse_seconds(text)
    assert answer >= 0
