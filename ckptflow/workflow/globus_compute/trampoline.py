"""The one function that endpoints run.

It is importable and plain, so whatever way the SDK has to send functions works for it, and it
is registered with the service once: decorated functions, closures and apps travel as bytes in
its arguments. Nothing of ckptflow is imported before it runs.
"""

from __future__ import annotations

from typing import Any


def run_task(function: bytes, arguments: bytes, sender: str) -> dict[str, Any]:
    """Run a packed call on a worker; return its outcome, see `outcomes`.

    Args:
        function: what to call, packed by `calls.pack`.
        arguments: with what, packed likewise.
        sender: JSON that says who packed them, and which stores are meant.
    """
    from ckptflow.workflow.globus_compute.worker import answer

    return answer(function, arguments, sender)
