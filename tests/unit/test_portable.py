"""What a task returns or raises can always be unpickled, whatever the other side lacks."""

from __future__ import annotations

import copyreg
import pickle
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from parsl.app.errors import RemoteExceptionWrapper, wrap_error

from ckptflow.errors import Preempted, RemoteTaskError, TaskExited
from ckptflow.workflow.portable import ErrorParcel, portable_result, raise_portable

OTHER_MODULE = """
class Odd(Exception):
    pass

class Thing:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
"""


class NeedsTwo(Exception):
    """Pickles, but cannot be made again from its args: a classic."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} {right}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that this process has, until `leave` takes it away."""
    module = types.ModuleType("only_on_the_worker")
    exec(OTHER_MODULE, module.__dict__)
    monkeypatch.setitem(sys.modules, "only_on_the_worker", module)
    return module


def leave() -> None:
    del sys.modules["only_on_the_worker"]


def carried(error: BaseException, *, then: object = None) -> BaseException:
    """Raise ``error`` in a task, and send it as Parsl does; return what arrives."""

    def task() -> None:
        try:
            raise error
        except BaseException as raised:  # noqa: BLE001
            raise_portable(raised, task="train-seed=3")

    sent = pickle.dumps(wrap_error(task)())
    if callable(then):
        then()
    received = pickle.loads(sent)
    assert isinstance(received, RemoteExceptionWrapper)
    return received.get_exception()


def returned(value: object, *, then: object = None) -> object:
    sent = pickle.dumps(portable_result(value, task="train-seed=3"))
    if callable(then):
        then()
    return pickle.loads(sent)


def test_an_ordinary_error_arrives_as_itself_with_its_traceback() -> None:
    error = carried(ValueError("boom", 3))
    assert type(error) is ValueError
    assert error.args == ("boom", 3)
    frames = []
    trace = error.__traceback__
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "task" in frames


def test_our_own_errors_keep_their_fields() -> None:
    error = carried(Preempted("saved", task="t", step=7, resumed_step=4))
    assert isinstance(error, Preempted)
    assert (error.task, error.step, error.resumed_step) == ("t", 7, 4)


def test_causes_and_notes_arrive() -> None:
    cause = KeyError("inner")
    error = ValueError("outer")
    error.__cause__ = cause
    error.add_note("seen at step 3")
    received = carried(error)
    assert isinstance(received.__cause__, KeyError)
    assert received.__notes__ == ["seen at step 3"]


def test_a_class_that_only_the_worker_has(only_here: types.ModuleType) -> None:
    error = carried(only_here.Odd("strange"), then=leave)
    assert type(error) is RemoteTaskError
    assert str(error) == "train-seed=3 raised only_on_the_worker.Odd: strange"
    assert error.type_name == "only_on_the_worker.Odd"
    assert "raise error" in error.remote_traceback
    assert "ModuleNotFoundError" in error.__notes__[0]


def test_a_cause_that_only_the_worker_has(only_here: types.ModuleType) -> None:
    error = ValueError("outer")
    error.__cause__ = only_here.Odd("inner")
    received = carried(error, then=leave)
    assert type(received) is RemoteTaskError
    assert received.type_name == "ValueError"
    assert "only_on_the_worker.Odd: inner" in received.remote_traceback


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NeedsTwo(1, 2), "NeedsTwo: 1 2"),
        (ValueError("holds", (i for i in "")), "ValueError: ('holds', <generator"),
        (Unprintable(), "Unprintable: (its text cannot be made: RuntimeError)"),
    ],
)
def test_errors_that_cannot_be_rebuilt_become_text(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tblib, once Parsl has set it up, rebuilds more classes than Python can.
    monkeypatch.delitem(copyreg.dispatch_table, type(error), raising=False)
    received = carried(error)
    if isinstance(error, Unprintable):
        assert type(received) is Unprintable  # It can be rebuilt; only its text cannot be made.
        return
    assert isinstance(received, RemoteTaskError)
    assert text in str(received)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), r"left by SystemExit\(3\)"),
        (SystemExit(), "left by SystemExit "),
        (KeyboardInterrupt(), "left by KeyboardInterrupt"),
        (GeneratorExit(), "left by GeneratorExit"),
    ],
)
@pytest.mark.parametrize("crosses", [True, False])
def test_leaving_by_exit_is_an_error_of_the_task(
    error: BaseException, text: str, crosses: bool
) -> None:
    with pytest.raises(TaskExited, match=text):
        raise_portable(error, task="train-seed=3", crosses=crosses)


def test_inside_one_process_an_error_is_left_alone() -> None:
    error = NeedsTwo(1, 2)
    with pytest.raises(NeedsTwo) as caught:
        raise_portable(error, task="t", crosses=False)
    assert caught.value is error


@pytest.mark.parametrize("crosses", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_causes_that_go_in_a_circle_are_cut(length: int, crosses: bool) -> None:
    """Parsl copies causes, one within the other, until there is none."""
    errors = [ValueError(str(number)) for number in range(length)]
    for number, error in enumerate(errors):
        error.__cause__ = errors[(number + 1) % length]

    def task() -> None:
        try:
            raise errors[0]
        except ValueError as raised:
            raise_portable(raised, task="t", crosses=crosses)

    wrapped = wrap_error(task)()
    received = pickle.loads(pickle.dumps(wrapped)) if crosses else wrapped
    assert isinstance(received, RemoteExceptionWrapper)
    found: BaseException | None = received.get_exception()
    for number in range(length):
        assert str(found) == str(number)
        found = found.__cause__ if found else None
    assert found is None


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.5, 1j, "text", b"bytes", np.arange(4), [1, {"a": (2, None)}], {3}],
)
def test_plain_results_arrive_equal(value: object) -> None:
    assert repr(returned(value)) == repr(value)


@pytest.mark.parametrize("value", [None, 3, "text", np.zeros(3)])
def test_plain_results_are_not_wrapped(value: object) -> None:
    assert portable_result(value, task="t") is value


def test_a_result_of_a_known_class_arrives_as_itself(only_here: types.ModuleType) -> None:
    assert returned(only_here.Thing(3)) == only_here.Thing(3)


def test_a_lambda_arrives() -> None:
    function = returned(lambda x: x + 1)
    assert callable(function)
    assert function(1) == 2


def test_a_result_of_a_class_that_only_the_worker_has(only_here: types.ModuleType) -> None:
    received = returned([only_here.Thing(3)], then=leave)
    assert isinstance(received, RemoteExceptionWrapper)  # Parsl raises what is in it.
    with pytest.raises(
        RemoteTaskError, match="train-seed=3 returned a list that cannot be rebuilt"
    ):
        received.reraise()


def test_a_result_that_cannot_be_pickled_says_so() -> None:
    with pytest.raises(RemoteTaskError, match="returned a generator that cannot be sent back"):
        portable_result((i for i in ""), task="train-seed=3")


def test_a_parcel_that_is_not_sent_still_tells_what_it_holds() -> None:
    try:
        raise_portable(ValueError("boom"), task="t")
    except ErrorParcel as parcel:
        assert str(parcel) == "t raised ValueError: boom"  # noqa: PT017


def test_classes_of_the_script_are_found_by_name(tmp_path: Path) -> None:
    """The worker has copies of them; the script must get its own, so that ``except`` works."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, dill\n"
        "from ckptflow.workflow.portable import portable_error, portable_result\n"
        "class Mine(Exception):\n"
        "    pass\n"
        "class Thing:\n"
        "    pass\n"
        "kinds = dill.loads(dill.dumps((Mine, Thing), byref=False, recurse=True))\n"
        "assert kinds[0] is not Mine\n"
        "sent = pickle.dumps(portable_error(kinds[0]('x'), task='t'))\n"
        "assert type(pickle.loads(sent)) is Mine\n"
        "sent = pickle.dumps(portable_result(kinds[1](), task='t'))\n"
        "assert type(pickle.loads(sent)) is Thing\n"
        "print('ok')\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout == "ok\n", done.stderr


def test_nothing_leaks_past_the_parcel_when_tblib_is_set_up_late() -> None:
    """As on a worker whose task imports a module that makes apps."""
    import tblib.pickling_support

    tblib.pickling_support.install()
    arrived = carried(ValueError("holds", (one for one in ())))
    assert isinstance(arrived, RemoteTaskError)
    assert arrived.type_name == "ValueError"
