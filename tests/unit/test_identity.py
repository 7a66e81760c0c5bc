"""Task names: stable, readable, valid in a key, and never shared by two different keys."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import inspect
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsl.data_provider.files import File

from ckptflow.errors import ConfigError
from ckptflow.model import LineageId
from ckptflow.workflow.canonical import digest_hex, encode, encode_call
from ckptflow.workflow.identity import NAME_MAX, Binder, Identity, bind, identity_of

by_seed = Identity("train", ("seed",))

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=150)
    | st.sampled_from(
        ["3", "-1", "1e20", "1e ", "nan", "None", "", "+s", "+h", "a+20b", "a-seed=1"]
    )
)
values = st.recursive(
    scalars | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@dataclasses.dataclass
class Deck:
    name: str
    size: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    x: int
    y: int


def same(left: object, right: object) -> bool:
    """Equality that tells 1, 1.0 and True apart, at any depth."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))  # type: ignore[arg-type]
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)  # type: ignore[attr-defined, index]
    return repr(left) == repr(right)


@given(values, values)
def test_equal_bytes_mean_equal_values(left: Any, right: Any) -> None:
    assert (encode(left) == encode(right)) == same(left, right)


@given(values, values)
def test_no_two_keys_share_a_name(left: Any, right: Any) -> None:
    names = by_seed.task_name({"seed": left}), by_seed.task_name({"seed": right})
    assert (names[0] == names[1]) == same(left, right)


@given(st.tuples(scalars, scalars), st.tuples(scalars, scalars))
def test_no_two_pairs_of_fields_share_a_name(left: Any, right: Any) -> None:
    app = Identity("f", ("a", "b"))
    names = [app.task_name({"a": a, "b": b}) for a, b in (left, right)]
    assert (names[0] == names[1]) == same(left, right)


@given(values, st.text(min_size=1, max_size=150))
def test_every_name_is_the_name_of_a_lineage(value: Any, app: str) -> None:
    for identity in (Identity(app, ("x",)), Identity(app)):
        assert LineageId("run", identity.task_name({"x": value})).task


@given(values)
def test_an_app_with_and_without_key_never_share_a_name(value: Any) -> None:
    names = {Identity("f", key).task_name({"x": value}) for key in (None, ("x",), ())}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        (3, "train-seed=3"),
        (-2, "train-seed=-2"),
        (0.5, "train-seed=0.5"),
        (1e20, "train-seed=1e20"),
        (None, "train-seed=None"),
        (True, "train-seed=True"),
        ("adam", "train-seed=adam"),
        ("a.b-c", "train-seed=a.b-c"),
        ("3", "train-seed=+s3"),
        ("", "train-seed=+s"),
        ("a b", "train-seed=a+20b"),
        ("é", "train-seed=+C3+A9"),
        ("../../etc/passwd", "train-seed=..+2F..+2Fetc+2Fpasswd"),
        (np.int64(3), "train-seed=3"),
        (np.bool_(True), "train-seed=True"),
    ],
)
def test_names_are_readable(seed: object, name: str) -> None:
    assert by_seed.task_name({"seed": seed}) == name


def test_an_empty_key_makes_the_app_one_task() -> None:
    assert Identity("join", ()).task_name({"parts": [1, 2]}) == "join"


def test_long_names_keep_their_beginning() -> None:
    long = by_seed.task_name({"seed": "x" * 500})
    assert len(long) == NAME_MAX
    assert re.fullmatch(r"train-seed=x+-\+l[0-9a-f]{32}", long)
    assert long != by_seed.task_name({"seed": "x" * 501})


def test_without_key_all_arguments_count_but_not_where_output_goes() -> None:
    app = Identity("train")
    name = app.task_name({"seed": 1, "rate": 0.1})
    assert re.fullmatch(r"train-[0-9a-f]{16}", name)
    assert app.task_name({"rate": 0.1, "seed": 1}) == name
    assert app.task_name({"seed": 1, "rate": 0.1, "stdout": "a.txt", "walltime": 9}) == name
    assert app.task_name({"seed": 2, "rate": 0.1}) != name


def test_a_name_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from ckptflow.workflow.canonical import digest_hex\n"
        "print(digest_hex({'b': {3, 'x', 2.5}, 'a': frozenset('abc')}, digits=32))"
    )
    here = digest_hex({"a": frozenset("abc"), "b": {2.5, "x", 3}}, digits=32)
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert there.stdout.strip() == here


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(2), np.array([0.0, -0.0])),
        (np.array([1, 2]), [1, 2]),
        (np.datetime64("1970-01-02"), dt.date(1970, 1, 2)),
        (np.timedelta64(5, "s"), 5),
        (Deck("a", 1), Deck("a", 2)),
        (Deck("a", 1), ("a", 1)),
        (Colour.RED, Colour.BLUE),
        (Colour.RED, 1),
        (Pair(1, 2), (1, 2)),
        (Path("a/b"), "a/b"),
        ({1, 2}, [1, 2]),
        (b"a", "a"),
        (b"a", bytearray(b"a")),
        (range(3), range(4)),
        (slice(1, 2), slice(1, 3)),
        (File("a.txt"), File("b.txt")),
        (Deck, Colour),
        (dt.timedelta(1), dt.timedelta(2)),
        (("a", "b"), ("ab", "")),
        ([[1], [2]], [[1, 2], []]),
    ],
)
def test_different_values_have_different_bytes(left: object, right: object) -> None:
    assert encode(left) != encode(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy(order="C")),
        (np.float64(0.5), 0.5),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({1, 2}, frozenset([2, 1])),
        (Deck("a", 1), Deck("a", 1)),
        (Path("a/b"), Path("a") / "b"),
        (File("a.txt"), File("a.txt")),
    ],
)
def test_equal_values_have_equal_bytes(left: object, right: object) -> None:
    assert encode(left) == encode(right)


def test_a_class_can_say_what_it_is() -> None:
    class Model:
        def __init__(self, width: int) -> None:
            self.width = width

        def __ckptflow_key__(self) -> int:
            return self.width

    assert encode(Model(1)) != encode(Model(2))
    assert encode(Model(1)) == encode(Model(1))


@pytest.mark.parametrize(
    "value", [threading.Lock(), np.array([object()]), object(), [object()]]
)
def test_a_type_without_canonical_bytes_asks_for_a_key(value: object) -> None:
    with pytest.raises(ConfigError, match=r"No canonical bytes for a .*key=\(\.\.\.\)"):
        encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match="contains itself"):
        encode(loop)


def test_the_fallback_is_asked_for_unknown_types_only() -> None:
    assert encode(1, fallback=lambda _: b"x") == encode(1)
    known = functools.partial(encode, fallback=lambda value: b"l" if value else None)
    assert known(threading.Lock()) != known([threading.Lock()])


def test_a_key_must_name_parameters() -> None:
    def train(seed: int, rate: float, ckpt: object = None) -> None: ...

    with pytest.raises(ConfigError, match=r"\['sed'\]; its parameters are: seed, rate\."):
        identity_of(train, ("sed",))
    with pytest.raises(ConfigError, match="ckpt"):
        identity_of(train, "ckpt")
    assert identity_of(train, "seed") == Identity("train", ("seed",))


def test_bind_fills_in_defaults_and_leaves_out_the_checkpointer() -> None:
    def train(
        seed: int, *more: int, rate: float = 0.1, ckpt: object, **options: int
    ) -> None: ...

    signature = inspect.signature(train)
    assert bind(signature, (1, 2, 3), {"depth": 4, "ckpt": "spec"}) == {
        "seed": 1, "more": (2, 3), "rate": 0.1, "depth": 4,
    }  # fmt: skip


def test_bind_lets_parsl_parameters_pass_that_the_function_lacks() -> None:
    def train(seed: int) -> None: ...

    assert bind(inspect.signature(train), (1,), {"walltime": 5}) == {"seed": 1}
    with pytest.raises(TypeError, match="unexpected keyword"):
        bind(inspect.signature(train), (1,), {"sed": 5})


def plain(a: int, b: int = 2, ckpt: object = None) -> None: ...
def no_ckpt(a: int, b: int = 2) -> None: ...
def starred(a: int, *rest: int, ckpt: object) -> None: ...
def keywords(a: int, *, b: int = 2, **more: int) -> None: ...


@pytest.mark.parametrize("function", [plain, no_ckpt, starred, keywords])
@given(
    args=st.lists(st.integers(), max_size=4),
    kwargs=st.dictionaries(st.sampled_from(["a", "b", "c", "ckpt", "walltime"]), st.integers()),
)
def test_the_fast_way_to_bind_agrees_with_the_slow_one(
    function: Any, args: list[int], kwargs: dict[str, int]
) -> None:
    signature = inspect.signature(function)
    try:
        expected = bind(signature, args, kwargs)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            Binder(signature)(args, kwargs)
    else:
        assert Binder(signature)(args, kwargs) == expected


@given(
    st.lists(values, max_size=3), st.lists(values, max_size=3),
    st.dictionaries(st.text(max_size=2), values, max_size=2),
    st.dictionaries(st.text(max_size=2), values, max_size=2),
)  # fmt: skip
def test_equal_bytes_of_calls_mean_equal_calls(
    left: list[Any], right: list[Any], these: dict[str, Any], those: dict[str, Any]
) -> None:
    found = [encode_call(("m", "f"), *call) for call in ((left, these), (right, those))]
    assert (found[0] == found[1]) == (same(left, right) and same(these, those))
