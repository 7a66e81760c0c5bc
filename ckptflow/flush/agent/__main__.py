"""The process of an agent that was started on demand: see `ckptflow.flush.agent.starting`.

All its threads are daemons, so that it ends when it should, although a put may hang: what is
not through is in the ledger.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from ckptflow.errors import CheckpointError
from ckptflow.flush.agent.process import run_agent
from ckptflow.flush.options import Flushing
from ckptflow.tiers.opening import open_tier


def main(folder: str, ready: str) -> None:
    """Read what to serve from standard input, say on ``ready`` how it began, and serve."""
    os.umask(0o077)
    descriptor = int(ready)

    said = False

    def say(text: str) -> None:
        nonlocal said
        if said:  # By now the number may be that of another file.
            return
        said = True
        with contextlib.suppress(OSError):  # It was said before, or nobody listens any more.
            os.write(descriptor, text.encode()[:4000])
            os.close(descriptor)

    try:
        asked = json.load(sys.stdin)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(null, standard)
        tiers = [open_tier(spec) for spec in asked["tiers"]]
        run_agent(Path(folder), tiers, Flushing(**asked["options"]), on_begin=say)
    except CheckpointError as error:
        say(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
