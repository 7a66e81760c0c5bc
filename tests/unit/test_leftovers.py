"""Leftovers of dead sessions are ended; those of living ones, and strangers, are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ckptflow.workflow.leftovers import end_leftovers, mark

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"


@contextmanager
def process(code: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_only_what_belongs_to_a_session_that_is_over_is_ended(tmp_path: Path) -> None:
    other = tmp_path / "other"
    with (
        process(WAIT, mark(tmp_path, "dead")) as dead,
        process(WAIT, mark(tmp_path, "alive")) as alive,
        process(WAIT, mark(other, "dead")) as elsewhere,
        process(WAIT, {}) as stranger,
    ):
        ended = end_leftovers(tmp_path, lambda session: session == "dead")
        assert [(left.pid, left.session) for left in ended] == [(dead.pid, "dead")]
        assert not psutil.pid_exists(dead.pid)
        assert [one.poll() for one in (alive, elsewhere, stranger)] == [None] * 3


def test_what_does_not_listen_is_killed(tmp_path: Path) -> None:
    with process(STUBBORN, mark(tmp_path, "dead")) as child:
        end_leftovers(tmp_path, lambda _: True, grace_s=0.1)
        assert not psutil.pid_exists(child.pid)


def test_this_process_and_its_parents_are_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from pathlib import Path; import sys\n"
        "from ckptflow.workflow.leftovers import end_leftovers\n"
        "assert end_leftovers(Path(sys.argv[1]), lambda _: True, grace_s=0.1) == []\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **mark(tmp_path, "dead"),
        },
    )
    assert done.returncode == 0, done.stderr
