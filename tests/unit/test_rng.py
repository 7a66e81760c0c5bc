"""Random generators go on exactly where they were: draws, and spawned children."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ckptflow.data import rng as rng_module
from ckptflow.data.regions import flatten, plan_restore
from ckptflow.data.rng import BIT_GENERATORS, capture_rng, restore_rng
from ckptflow.errors import FormatError, StateError


def saved(state: Any) -> tuple[Any, list[bytes]]:
    flat = flatten(state)
    copies = [bytes(copy) for copy in flat.copy_into(np.empty(flat.total_bytes, np.uint8))]
    return json.loads(json.dumps(flat.structure)), copies


def restored(stored: tuple[Any, list[bytes]], target: Any = None) -> Any:
    structure, copies = stored
    plan = plan_restore(structure, [len(c) for c in copies], target)
    for buffer, copy in zip(plan.buffers, copies, strict=True):
        buffer[:] = copy
    return plan.finish()


def draws(generator: Any) -> list[Any]:
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1), generator.getrandbits(9)]
    return [*generator.standard_normal(5), generator.bytes(3), *generator.permutation(7)]


def generators() -> list[Any]:
    python = random.Random(5)
    python.gauss(0, 1)  # Leaves a second normal waiting.
    legacy = np.random.RandomState(5)
    legacy.standard_normal(3)
    return [
        python,
        legacy,
        np.random.RandomState(np.random.PCG64(3)),
        *(np.random.Generator(bits(7)) for bits in BIT_GENERATORS.values()),
    ]


@pytest.mark.parametrize("number", range(len(generators())))
@pytest.mark.parametrize("in_place", [True, False])
def test_a_generator_goes_on_where_it_was(number: int, in_place: bool) -> None:
    generator = generators()[number]
    draws(generator)
    stored = saved({"rng": generator})
    expected = draws(generator)
    target = {"rng": generators()[number]} if in_place else None
    own = target and target["rng"]
    back = restored(stored, target)["rng"]
    assert own is None or back is own
    assert draws(back) == expected


def test_children_are_spawned_on() -> None:
    generator = np.random.default_rng(11)
    generator.spawn(3)
    stored = saved(generator)
    expected = [child.random() for child in generator.spawn(2)]
    assert [c.random() for c in restored(stored).spawn(2)] == expected
    again = np.random.default_rng(11)
    assert restored(stored, again) is again
    assert [c.random() for c in again.spawn(2)] == expected


def test_another_kind_of_generator_in_the_state_is_named() -> None:
    stored = saved({"rng": np.random.default_rng(1)})
    other = np.random.Generator(np.random.MT19937(1))
    with pytest.raises(
        StateError, match=r"'rng': a numpy.Generator/PCG64 .* numpy.Generator/MT19937"
    ):
        restored(stored, {"rng": other})
    with pytest.raises(
        StateError, match="'rng': a random generator in the checkpoint, a plain value"
    ):
        restored(stored, {"rng": 5})


def test_generators_outside_the_allow_list_are_refused() -> None:
    class Mine(np.random.PCG64):
        pass

    with pytest.raises(StateError, match="a generator on Mine; known are PCG64"):
        flatten(np.random.Generator(Mine(1)))
    with pytest.raises(StateError, match="SystemRandom"):
        flatten(random.SystemRandom())
    with pytest.raises(FormatError, match=r"'os.system/PCG64', not known here"):
        restored((["rng", "os.system/PCG64", ["dict"]], []))


def test_the_process_goes_on_where_it_was() -> None:
    legacy = np.random.mtrand._rand  # The generator behind np.random.standard_normal and so on.
    random.seed(1)
    legacy.seed(1)
    random.gauss(0, 1)
    legacy.standard_normal()
    stored = saved(capture_rng())
    expected = [random.gauss(0, 1), random.random(), *legacy.standard_normal(3)]
    random.seed(2)
    legacy.seed(2)
    notes = restore_rng(restored(stored))
    assert [random.gauss(0, 1), random.random(), *legacy.standard_normal(3)] == expected
    assert notes == ()


def test_a_state_of_torch_without_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {**capture_rng(), "torch": np.zeros(16, np.uint8)}
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert restore_rng(tree) == (
        "torch's random state was not restored: import torch before restoring.",
    )


def test_nothing_here_imports_torch() -> None:
    name = rng_module.__name__
    code = f"import sys, {name} as r; r.capture_rng(); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
