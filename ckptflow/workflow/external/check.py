"""What a restart file itself shows: its last bytes, and what a command says of it.

``tests/unit/test_external_intake.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from ckptflow.errors import CaptureError
from ckptflow.workflow.external.handle import filled
from ckptflow.workflow.external.image import Bytes
from ckptflow.workflow.external.options import Code
from ckptflow.workflow.external.processes import MARK, mark_of

_SHOWN_BYTES = 300
_LOG_BYTES_MAX = 1 << 20
_NOT_FOUND = (126, 127)


class Check:
    """The checks that an app asks for.

    Args:
        code: what the app says.
        path: the folder with the files.
        own: where the output of the command is kept.
    """

    def __init__(self, code: Code, path: Path, own: Path) -> None:
        self._code, self._path, self._own = code, path, own

    def by_command(self, name: str, step: int) -> None:
        """Let the command of ``valid=`` look at a file.

        Raises:
            CaptureError: it did not end with 0, or not in time.
        """
        if self._code.valid is None:
            return
        command = filled(self._code.valid, folder=self._path, name=name, step=step)
        log = self._own / "valid.log"
        mode = "ab" if log.exists() and log.stat().st_size < _LOG_BYTES_MAX else "wb"
        with log.open(mode) as output:
            began = output.tell()
            status = self._run(command, output.fileno())
        if status == 0:
            return
        text = log.read_bytes()[began:][-_SHOWN_BYTES:].decode(errors="replace").strip()
        what = "was not found" if status in _NOT_FOUND else f"ended with status {status}"
        raise CaptureError(f"{command} {what}: {text or 'it said nothing'}")

    def by_end(self, name: str, data: Bytes) -> None:
        """Compare the last bytes of a file.

        Raises:
            CaptureError: they are others.
        """
        wanted = self._code.ends_with
        if wanted and data[-len(wanted) :].tobytes() != wanted:
            raise CaptureError(
                f"{name} ({len(data)} bytes) does not end with {wanted!r}: it is torn"
            )

    def _run(self, command: str, output: int) -> int:
        environment = {**os.environ, MARK: mark_of(self._path, 0)}
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=self._path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return process.wait(self._code.valid_s)
        except subprocess.TimeoutExpired:
            raise CaptureError(
                f"{command} did not end within {self._code.valid_s:.0f} s"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
