"""Programs inside bash apps: they attach to the attempt, restore, save, and are stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from parsl.app.errors import BashExitFailure

import ckptflow as cf
from ckptflow.errors import ConfigError, Preempted
from ckptflow.flush import Flushing
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.attempt import TaskSpec, begin_attempt, tiers_as_text
from ckptflow.workflow.command import TaskCommand
from ckptflow.workflow.identity import identity_of

COUNT = """
    import sys
    import numpy as np
    import ckptflow

    with ckptflow.attach() as ckpt:
        state = ckpt.restore({"i": 0, "w": np.ones(10)})
        while state["i"] < int(sys.argv[1]):
            state["i"] += 1
            state["w"] *= 1.5
            ckpt.step(state["i"], state)
"""


def program(folder: Path, code: str = COUNT) -> str:
    path = folder / f"program{len(list(folder.glob('program*')))}.py"
    path.write_text(textwrap.dedent(code))
    return f"PYTHONPATH={Path(__file__).parents[2]} {sys.executable} {path}"


@cf.bash_app(key=("name",), every=1, keep="all")
def shell(name: str, command: str, ckpt: Any, stderr: str | None = None) -> str:
    return command


def run(store: Path, **options: Any) -> Any:
    return cf.run("exp", site="local_threads", store=store, **options)


def lineage(store: Path, task: str = "shell-name=a") -> Lineage:
    return Lineage([PosixTier(store, level=3)], LineageId("exp", task))


def test_a_program_saves_in_the_name_of_the_attempt(tmp_path: Path) -> None:
    with run(tmp_path) as the_run:
        assert shell("a", f"{program(tmp_path)} 3").result() == 0
    attempts = lineage(tmp_path).attempts()
    assert [found.id.attempt for found in lineage(tmp_path).checkpoints()] == [1, 1, 1]
    assert attempts[0].end is not None
    assert attempts[0].end["step"] == 3
    assert the_run.exit_code == 0
    assert the_run.summary().tasks[0].state_bytes > 0


def test_a_retry_goes_on_where_the_program_was(tmp_path: Path) -> None:
    fails_once = f"{program(tmp_path)} 4 && test -e flag || (touch flag; exit 9)"
    with run(tmp_path, retries=1) as the_run:
        assert shell("a", f"cd {tmp_path} && {fails_once}").result() == 0
    assert the_run.summary().tasks[0].resumed_steps == [None, 4]


def test_a_second_program_of_the_command_goes_on_after_the_first(tmp_path: Path) -> None:
    one = program(tmp_path)
    with run(tmp_path) as the_run:
        assert shell("a", f"{one} 2 && {one} 5").result() == 0
    (attempt,) = lineage(tmp_path).attempts()
    assert attempt.resume is not None
    assert attempt.resume["step"] is None  # Where the attempt began, not its second program.
    assert [found.id.step for found in lineage(tmp_path).valid()] == [5, 4, 3, 2, 1]
    assert the_run.exit_code == 0


def test_the_deadline_reaches_the_program(tmp_path: Path) -> None:
    endless = COUNT.replace("int(sys.argv[1])", "10**9").replace("import sys", "")

    @cf.bash_app(key=(), every=10**6)
    def goes_on(ckpt: Any) -> str:
        return f"{program(tmp_path, endless.replace('1.5', '1.0'))}; exit $?"

    limits = {"executor.walltime": 8, "executor.margin": 1}
    with run(tmp_path, overrides=limits) as the_run:
        error = goes_on().exception(timeout=60)
    assert isinstance(error, Preempted)
    assert "the time of the run ends in" in str(error)
    assert the_run.exit_code == 7
    assert lineage(tmp_path, "goes_on").valid()[0].id.step == error.step


def test_a_program_that_fails_fails_the_app(tmp_path: Path) -> None:
    broken = program(
        tmp_path, "import ckptflow\nwith ckptflow.attach():\n    raise ValueError('x')"
    )
    with run(tmp_path, retries=0):
        assert isinstance(shell("a", broken).exception(timeout=60), BashExitFailure)
    (attempt,) = lineage(tmp_path).attempts()
    assert attempt.end is not None
    assert attempt.end["outcome"] == "failed"


def test_without_ckpt_nothing_is_claimed(tmp_path: Path) -> None:
    @cf.bash_app
    def plain(text: str) -> str:
        return f"test -z $CKPTFLOW_ATTEMPT && echo {text} > {tmp_path}/said"

    with run(tmp_path):
        assert plain("hello").result() == 0
    assert (tmp_path / "said").read_text() == "hello\n"
    assert not (tmp_path / "lineages").exists()


def test_attaching_elsewhere_says_where_it_works() -> None:
    with pytest.raises(ConfigError, match=r"in a program that a ckptflow\.bash_app"):
        cf.attach()


def test_policies_reach_the_program_as_short_forms(tmp_path: Path) -> None:
    @cf.bash_app(key=(), every=cf.EverySteps(2), keep=cf.Retention(newest=1))
    def every_second(ckpt: Any) -> str:
        return f"{program(tmp_path)} 7"

    with run(tmp_path):
        assert every_second().result() == 0
    assert [one.id.step for one in lineage(tmp_path, "every_second").valid()] == [6]


def test_a_stop_signal_is_passed_on_to_programs_that_handle_it(tmp_path: Path) -> None:
    """Handlers live in main threads, so this test is the worker, and a child is the sender."""
    ready = tmp_path / "ready"
    slow = program(
        tmp_path,
        COUNT.replace("ckpt.step(", f"open({str(ready)!r}, 'w').close(); ckpt.step("),
    )

    def command(ckpt: Any) -> str:
        # The second program has no handler: it would die of the signal.
        return (
            f"sleep 60 & sleeper=$!; {slow} 1000000; status=$?; kill -0 $sleeper || exit 3; "
            f"kill $sleeper; exit $status"
        )

    site = cf.load_site("local_threads").with_store(tmp_path / "store")
    spec = TaskSpec(
        run="exp",
        app="command",
        session="s",
        tiers=tiers_as_text(site.tiers),
        every=1000,
        keep=1,
        packing=None,
        capture=None,
        flush_every={},
        flushing=Flushing(),
        ends_at_s=None,
        margin_s=0,
        home=("elsewhere", 0),
        alone=True,
    )
    sender = subprocess.Popen(
        [
            "bash",
            "-c",
            f"while ! test -e {ready}; do sleep 0.05; done; kill -USR1 $PPID",
        ]
    )
    task = TaskCommand(command, identity_of(command, ()))
    with (
        begin_attempt(spec, lambda: "command") as attempt,
        pytest.raises(Preempted, match="SIGUSR2"),
    ):
        task._run(spec, attempt, (), {})
    sender.wait()
    assert attempt.watch.signals.received is signal.SIGUSR1
    newest = Lineage(
        [PosixTier(tmp_path / "store", level=3)], LineageId("exp", "command")
    ).valid()
    assert newest[0].id.step >= 1
