"""A function of the script travels with what it uses of the script, and names its modules."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any

import dill
import pytest

from ckptflow.workflow.attempt import TaskFunction
from ckptflow.workflow.identity import Identity

SCRIPT = """
import heavy

FACTOR = 6

def scaled(value):
    return FACTOR * heavy.double(value)

def task(value):
    return [scaled(one) for one in (value,)][0]
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a script has defined that was started as the main program.

    Its module lies in a source tree, and holds something that cannot be pickled.
    """
    (tmp_path / "heavy.py").write_text("def double(value):\n    return 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    main = types.ModuleType("__main__")
    exec(compile(SCRIPT, "script.py", "exec"), main.__dict__)
    sys.modules["heavy"].stream = (one for one in ())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main.__dict__


def test_a_function_of_the_script_brings_what_it_uses(
    script: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    function = TaskFunction(script["task"], Identity("task"))
    packed = dill.dumps(function)
    sys.modules["__main__"] = types.ModuleType("__main__")  # The worker has another one.
    assert dill.loads(packed)._function(7) == 84
    assert caplog.records == []
    del sys.modules["heavy"]


def test_many_threads_pack_functions_while_others_print(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A task on a thread, or one with ranks, packs its function when it starts."""
    before_s = sys.getswitchinterval()
    out, packed = sys.stdout, []
    barrier = threading.Barrier(5)

    def pack() -> None:
        barrier.wait()
        for _ in range(50):
            packed.append(TaskFunction(script["task"], Identity("task")).packed())

    def tell() -> None:
        barrier.wait()
        for number in range(2000):
            print(number)

    threads = [threading.Thread(target=one) for one in (pack, pack, pack, tell)]
    sys.setswitchinterval(1e-6)
    try:
        for one in threads:
            one.start()
        barrier.wait()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before_s)
    assert sys.stdout is out
    assert capsys.readouterr().out == "".join(f"{number}\n" for number in range(2000))
    sys.modules["__main__"] = types.ModuleType("__main__")
    assert [dill.loads(one)(7) for one in packed] == [84] * 150
    del sys.modules["heavy"]
