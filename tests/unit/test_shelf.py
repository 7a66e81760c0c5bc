"""A shelf counts what it holds, whatever is put, replaced and removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import AlreadyExists, NotFoundError, TierFull
from ckptflow.tiers.shelf import Shelf


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans())))
def test_it_holds_no_more_than_its_capacity_and_knows_how_much(
    story: list[tuple[str, int, bool]],
) -> None:
    shelf: Shelf[str] = Shelf("ram", 12)
    model: dict[str, int] = {}
    for key, size, removes in story:
        if removes:
            shelf.remove(key)
            model.pop(key, None)
        elif sum({**model, key: size}.values()) <= 12:
            shelf.store(key, key.upper(), size)
            model[key] = size
        else:
            with pytest.raises(TierFull, match=f"no room for '{key}'"):
                shelf.store(key, key, size)
        assert shelf.used_bytes == sum(model.values())
        assert shelf.keys("") == sorted(model)
    for key, size in model.items():
        assert shelf.value(key) == (key.upper(), size)


def test_what_may_not_be_replaced_is_not() -> None:
    shelf: Shelf[int] = Shelf("ram", None)
    shelf.store("a", 1, 5, replace=False)
    with pytest.raises(AlreadyExists, match="'ram' already holds 'a'"):
        shelf.store("a", 2, 7, replace=False)
    assert shelf.value("a") == (1, 5)
    with pytest.raises(NotFoundError, match="'ram' holds no 'b'"):
        shelf.value("b")
