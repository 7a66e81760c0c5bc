"""`attach`: a program that a bash app has started becomes part of its attempt.

Apart from `command`, which needs Parsl: of an app with ranks this runs in every one of them.
``tests/process/test_attach.py``, ``tests/process/test_ranked_tasks.py``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ckptflow.checkpointer.sharded import Check, Replicated
from ckptflow.errors import ConfigError
from ckptflow.store.sharding.search import PerRank
from ckptflow.workflow.ranks.member import AttachedRank, attach_rank
from ckptflow.workflow.ranks.wire import STEWARD

if TYPE_CHECKING:
    from ckptflow.workflow.command import AttachedCheckpointer


def attach(
    *,
    replicated: Replicated = None,
    per_rank: PerRank = "same",
    check: Check = "every",
    **objects: Any,
) -> AttachedCheckpointer | AttachedRank:
    """Return a checkpointer for the attempt of the bash app that runs this program.

    Use it as a context manager::

        with ckptflow.attach() as ckpt:
            state = ckpt.restore({"step": 0, "x": np.zeros(1000)})
            ...

    When the task has to stop, `Checkpointer.step` saves and raises `Preempted`, which leaves
    the block as exit status 75; the app then stops in the same way.

    If the app has ``ranks=``, each of its ranks calls this, and has a `ShardedCheckpointer`. It
    returns when all have; then the environment has what ``torch.distributed`` asks for.

    Args:
        replicated: of an app with ranks: see `ShardedCheckpointer`; so the next two.
        per_rank: whose own leaves a rank gets when their number has changed.
        check: when to compare what is replicated.
        objects: the state, by name, when `save` gets none.

    Raises:
        ConfigError: this program was not started by a bash app that has a ``ckpt`` parameter.
        RankLost: this rank cannot reach the worker that has started it.
    """
    if os.environ.get(STEWARD):
        return attach_rank(objects, replicated=replicated, per_rank=per_rank, check=check)
    if replicated is not None or per_rank != "same" or check != "every":
        raise ConfigError(
            "replicated=, per_rank= and check= are for apps with ranks=, and no such app has "
            "started this program."
        )
    from ckptflow.workflow import command

    return command.attach(**objects)
