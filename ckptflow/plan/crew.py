"""The writers of a measurement, each a process, as writers are; and orders to several at once.

They leave the session of whoever starts them, so Ctrl-C meets the starter only, which has them
end: they delete what they have written when their input ends.
``tests/process/test_calibrate.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from ckptflow.errors import ConfigError, TierError

END_S = 20.0  # So long they may take to delete what they have written.
_SAID_BYTES = 500


class Crew(Protocol):
    """Who obeys orders."""

    def order(
        self, count: int, order: Mapping[str, Any], *, limit_s: float
    ) -> list[dict[str, Any]]:
        """Have the first ``count`` writers obey at the same time, and return their answers.

        Raises:
            ConfigError: the tier cannot be here.
            TierError: it failed, or did not answer within ``limit_s``.
        """
        ...


class Processes:
    """Writers in processes of their own; they start when they are needed.

    Use it as a context manager: leaving it ends them.
    """

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def order(
        self, count: int, order: Mapping[str, Any], *, limit_s: float
    ) -> list[dict[str, Any]]:
        """See `Crew.order`."""
        members = self._first(count)
        ends_s = time.monotonic() + limit_s
        for one in members:
            one.send(order)
        return checked([one.answer(ends_s, limit_s) for one in members])

    def close(self) -> None:
        """Have all of them delete what they have written, and end."""
        for one in self._members:
            one.dismiss()
        ends_s = time.monotonic() + END_S
        for one in self._members:
            one.end(ends_s)
        self._members.clear()

    def _first(self, count: int) -> list[_Member]:
        for number, one in enumerate(self._members):
            if not one.is_alive:
                one.end(0.0)
                self._members[number] = _Member(number)
        while len(self._members) < count:
            self._members.append(_Member(len(self._members)))
        return self._members[:count]


class _Member:
    """One process."""

    def __init__(self, number: int) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  It lives as long.
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ckptflow.plan.writer", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env=_environment(),
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it can be given orders."""
        return self._process.poll() is None

    def send(self, order: Mapping[str, Any]) -> None:
        """Give it an order."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Its answer says why.
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def answer(self, ends_s: float, limit_s: float) -> dict[str, Any]:
        """Return what it answers; an error, if it does not."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()  # `select` takes no descriptor above 1023.
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._rest:
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                self._process.kill()
                return _failed(
                    f"The tier did not answer within {limit_s:.0f} s; --seconds gives it more."
                )
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return _failed(self._why_it_ended())
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def dismiss(self) -> None:
        """Tell it that no more orders come."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self, ends_s: float) -> None:
        """Wait until it has ended, and kill it if it has not by then."""
        self.dismiss()
        try:
            self._process.wait(max(0.0, ends_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # It hangs in the kernel.
                self._process.wait(1.0)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()

    def _why_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        said = lines[-1][:_SAID_BYTES] if lines else "it said nothing"
        return f"A writer ended with status {self._process.returncode}: {said}"


def checked(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return answers if none of them tells of an error.

    Raises:
        ConfigError: the tier cannot be here.
        TierError: it failed.
    """
    for one in answers:
        if "error" in one:
            raise (ConfigError if one["kind"] == ConfigError.kind else TierError)(one["error"])
    return list(answers)


def _failed(text: str) -> dict[str, Any]:
    return {"kind": TierError.kind, "error": text}


def _environment() -> dict[str, str]:
    ours = str(Path(__file__).parents[2])
    paths = [ours, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
