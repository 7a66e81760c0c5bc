"""What the callbacks of frameworks share: states that come late, saves that are put off."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ckptflow import Checkpointer, MemoryTier
from ckptflow.bridges.late import Late, StepEnds, refuse_several
from ckptflow.errors import ConfigError
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage


def saved(tier: MemoryTier) -> list[int]:
    found = Lineage([tier], LineageId("default", "main")).valid()
    return sorted(one.id.step for one in found)


def test_a_save_that_may_not_be_now_is_made_at_the_next_step() -> None:
    tier, n = MemoryTier(), Late(lambda: {"n": 1}, lambda _: None)
    n.begun = True
    with Checkpointer(tier, every=5, keep="all", n=n) as ckpt:
        steps = StepEnds(ckpt)
        for step in range(1, 19):
            steps.end(step, may_save=step not in {5, 15, 16})
        steps.finish(18)
        steps.finish(18)
    assert saved(tier) == [6, 11, 17, 18]


def test_what_comes_late_takes_any_state_and_gives_none_before() -> None:
    tier, got = MemoryTier(), list[Any]()
    old = Late(lambda: {"rows": [1, 2], "name": "x"}, got.append)
    old.begun = True
    with Checkpointer(tier, late=old) as ckpt:
        ckpt.save(1)
    new = Late(lambda: pytest.fail("asked too early"), got.append)
    with Checkpointer(tier, late=new) as ckpt:
        assert ckpt.resume() == 2
    assert got == [{"rows": [1, 2], "name": "x"}]


def test_several_processes_are_refused() -> None:
    refuse_several(1, "Lightning")
    with pytest.raises(ConfigError, match="and 4 take part"):
        refuse_several(4, "Lightning")


def test_frameworks_are_imported_when_they_are_asked_for() -> None:
    program = (
        "import sys, ckptflow; ckptflow.Checkpointer\n"
        "assert 'torch' in dir(ckptflow)\n"
        "assert not {'torch', 'transformers', 'pytorch_lightning'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("face", "missing"),
    [("lightning", ["lightning", "pytorch_lightning"]), ("huggingface", ["transformers"])],
)
def test_a_framework_that_is_missing_is_named(face: str, missing: list[str]) -> None:
    program = (
        f"import sys, importlib\nfor name in {missing!r}: sys.modules[name] = None\n"
        f"importlib.import_module('ckptflow.{face}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"pip install 'ckptflow[{face}]'" in done.stderr
