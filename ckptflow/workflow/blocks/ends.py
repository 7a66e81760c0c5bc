"""How blocks end, and which of these ends tell that it is of no use to ask for more.

``tests/unit/test_block_ends.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parsl.jobs.states import JobState, JobStatus

from ckptflow.errors import WorkflowError

EARLY_S = 300.0  # A block that worked for longer did start well.
_FAILED_STATES = frozenset({"FAILED", "MISSING"})


class BlockStatus(JobStatus):  # type: ignore[misc]
    """What became of a block, with what Parsl's own status does not tell.

    Attributes:
        lasted_s: for how long it ran, if it was seen running.
        lost: whether its nodes were lost, which is nobody's fault here.
    """

    def __init__(
        self,
        state: JobState,
        message: str | None = None,
        *,
        lasted_s: float | None = None,
        lost: bool = False,
        stdout_path: str | None = None,
        stderr_path: str | None = None,
    ) -> None:
        super().__init__(state, message, stdout_path=stdout_path, stderr_path=stderr_path)
        self.lasted_s, self.lost = lasted_s, lost


def give_up_after(blocks: int) -> Callable[[Any, Mapping[str, Any]], None]:
    """Return a block error handler: fail the executor when the last ``blocks`` failed to start.

    A block that worked for a while, or whose nodes were lost, has not failed to start. Parsl's
    default gives up when the only block fails, so that one lost node ends everything.
    """

    def handle(executor: Any, status: Mapping[str, Any]) -> None:
        newest = [status[number] for number in sorted(status, key=int)[-blocks:]]
        failed = [one for one in newest if _failed_to_start(one)]
        if len(failed) < blocks or executor.bad_state_is_set:
            return
        details = "; ".join(filter(None, (_describe(one) for one in failed)))
        executor.set_bad_state_and_fail_all(
            WorkflowError(
                f"The last {blocks} blocks of workers failed to start or died early. "
                f"{details or 'Nothing was printed'}. See {executor.run_dir}/submit_scripts."
            )
        )

    return handle


def _failed_to_start(status: Any) -> bool:
    if status.state.name not in _FAILED_STATES or getattr(status, "lost", False):
        return False
    lasted_s = getattr(status, "lasted_s", None)
    return lasted_s is None or lasted_s < EARLY_S


def _describe(status: Any) -> str:
    parts = [status.message, status.stderr_summary]
    return " ".join(str(part).strip() for part in parts if part)
