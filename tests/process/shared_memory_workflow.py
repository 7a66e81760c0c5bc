"""A workflow on workers whose site has shared memory first, for `test_shared_memory.py`.

Its task kills its own worker as soon as a checkpoint is in memory, long before one is due on
disk. Prints the attempt that came to the end, where it resumed, its sum, and what is on disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import ckptflow as cf
from ckptflow.site import load_site
from ckptflow.tiers.posix import PosixTier

SITE = """
[[tiers]]
kind = "shared_memory"
name = "ram"
capacity = "8 MiB"

[[tiers]]
kind = "posix"
name = "disk"
path = "store"
level = 3

[executor]
workers = 1
heartbeat_period = "1s"

[policy]
every = 1
flush_every = { disk = 100 }
"""


@cf.python_app(key=())
def killed(steps, ckpt):
    """Kills its own worker in the first attempt, after step 3."""
    state = ckpt.restore({"i": 0, "w": np.ones(100)})
    while state["i"] < steps:
        state["i"] += 1
        state["w"] *= 1.5
        ckpt.save(state["i"], state).wait(0)
        if state["i"] == 3 and ckpt.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return [ckpt.attempt, ckpt.restored_step, float(state["w"].sum())]


def main() -> None:
    Path("mine.toml").write_text(SITE)
    with cf.run("killed", site="mine.toml", retries=2) as run:
        result = killed(6).result()
        ram = run.site.open_tiers()[0]
    on_disk = [key for key in PosixTier("store").iter_keys("") if "/manifests/" in key]
    try:
        print(json.dumps({"result": result, "on_disk": on_disk, "file": str(ram.file)}))
        assert ram.file == load_site("mine.toml").open_tiers()[0].file
    finally:
        ram.remove()


if __name__ == "__main__":
    sys.exit(main())
