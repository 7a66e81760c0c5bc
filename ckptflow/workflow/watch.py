"""A thread that looks after a run: shows that it lives, and notices when Parsl's heart stops.

Parsl does not notice when its interchange process dies: every task waits for ever
(https://github.com/Parsl/parsl/issues/3374). This thread looks at the process once a second
and fails the executor when it is gone, so that the futures end and the workflow with them. It
also has the blocks looked at (`workflow.blocks.following`).

``tests/process/test_parsl_htex.py`` kills an interchange.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq
from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    CommandClientTimeoutError,
)

from ckptflow.errors import WorkflowError
from ckptflow.workflow.lock import RENEW_EVERY_S

_LOOK_EVERY_S = 1.0
_ANSWER_POLL_MS = 500
_log = logging.getLogger("ckptflow")


class Watch:
    """Looks after the executors and the lock of a run until it is stopped.

    Args:
        executors: Parsl's executors, by label.
        renew: shows other hosts that this process lives.
        renew_every_s: how often.
        lost: told when an executor was failed because its interchange died.
        look: called once a second.
    """

    def __init__(
        self,
        executors: Mapping[str, Any],
        *,
        renew: Callable[[], None],
        lost: Callable[[str], None],
        look: Callable[[], None] = lambda: None,
        renew_every_s: float = RENEW_EVERY_S,
    ) -> None:
        self._renew_every_s = renew_every_s
        self._executors, self._renew, self._lost = dict(executors), renew, lost
        self._look = look
        self._over = threading.Event()
        for executor in self._executors.values():
            if hasattr(executor, "command_client"):
                _guard_commands(executor)
        self._thread = threading.Thread(target=self._work, name="ckptflow-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; call it before Parsl ends its interchange on purpose."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        renewed_s = time.monotonic()
        while not self._over.wait(_LOOK_EVERY_S):
            if time.monotonic() - renewed_s >= self._renew_every_s:
                self._renew()
                renewed_s = time.monotonic()
            for label, executor in list(self._executors.items()):
                process = getattr(executor, "interchange_proc", None)
                status = process.poll() if process else None
                if status is not None:
                    del self._executors[label]
                    self._fail(label, executor, status)
            self._look()

    def _fail(self, label: str, executor: Any, status: int) -> None:
        text = (
            f"The interchange of executor {label!r} has died (status {status}). Its tasks "
            f"cannot be reached any more; start the workflow again to go on from their "
            f"checkpoints."
        )
        _log.error(text)
        self._lost(text)
        executor.set_bad_state_and_fail_all(WorkflowError(text))


def _guard_commands(executor: Any) -> None:
    """Let calls to the interchange fail when it is dead; Parsl's own would wait for ever.

    One of Parsl's threads makes such calls, and closing Parsl waits for that thread.
    """
    client = executor.command_client

    def run(message: Any, max_retries: int = 3, timeout_s: float | None = None) -> Any:  # noqa: ARG001
        limit_s = None if timeout_s is None else time.monotonic() + timeout_s
        with client._lock:  # noqa: SLF001  All uses of the socket hold it.
            if not client.ok:
                raise CommandClientBadError
            client.zmq_socket.send_pyobj(message, flags=zmq.DONTWAIT)
            while not client.zmq_socket.poll(_ANSWER_POLL_MS):
                late = limit_s is not None and time.monotonic() > limit_s
                if late or executor.interchange_proc.poll() is not None:
                    client.ok = False  # A question without an answer: no other can be asked.
                    raise CommandClientTimeoutError(f"no answer to {message!r}")
            return client.zmq_socket.recv_pyobj()

    client.run = run
