"""Schemes: what they promise, and those that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from ckptflow.errors import ConfigError
from ckptflow.store.redundancy.scheme import Scheme


@pytest.mark.parametrize(
    ("name", "losses", "members", "data", "parity"),
    [
        ("partner", 1, 8, 1, 1),
        ("partner", 3, 8, 1, 3),
        ("xor", 1, 8, 7, 1),
        ("xor", 1, 2, 1, 1),
        ("rs", 2, 8, 6, 2),
        ("rs", 2, 2, 1, 1),
        ("rs", 2, 1, 1, 0),
    ],
)
def test_stripes_fit_the_members_that_answer(
    name: Any, losses: int, members: int, data: int, parity: int
) -> None:
    scheme = Scheme(name=name, losses=losses)
    assert (scheme.data_count(members), scheme.losses_of(members)) == (data, parity)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "raid"}, "no scheme 'raid'.*partner, xor or rs"),
        ({"name": "xor", "losses": 2}, "XOR can rebuild one loss, not 2"),
        ({"name": "rs", "set_size": 3, "losses": 3}, "can rebuild 1 to 2, not 3"),
        ({"set_size": 1}, "2 to 64 members, not 1"),
    ],
)
def test_schemes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheme(**options)
