"""What may be said about flushing, and what is refused."""

from __future__ import annotations

import pytest

from ckptflow.errors import ConfigError
from ckptflow.flush import Flushing, parse_flushing


def test_short_forms() -> None:
    own = Flushing(streams=2)
    assert parse_flushing(None) == Flushing()
    assert parse_flushing("agent") == Flushing(agent=True)
    assert parse_flushing(own) is own
    with pytest.raises(ConfigError, match="'agent' or a Flushing"):
        parse_flushing("agents")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("streams", 0, "1 to 64, not 0"),
        ("streams", 65, "1 to 64, not 65"),
        ("budget_bytes", -1, "0 or more, not -1"),
        ("bandwidth_bytes_per_s", 0, "1 or more, not 0"),
        ("retry_s", -0.5, "0 or more, not -0.5"),
        ("nice", 20, "0 to 19, not 20"),
        ("grace_s", True, "is a number, not True"),
        ("streams", None, "is a number, not None"),
    ],
)
def test_numbers_out_of_range(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} of flushing .*{message}"):
        Flushing(**{field: value})
