"""One task on one node: saves some steps, or restores and says what it found.

``redundant_task.py FOLDER NODE save|restore TASK KEY``: nodes are folders below FOLDER, each
with an agent of its own; ``FOLDER/pfs`` is what all see.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ckptflow import Checkpointer
from ckptflow.errors import NotFoundError
from ckptflow.site import load_site

SITE = """
name = "nodes"
key_file = "{key}"

[[tiers]]
kind = "posix"
name = "nvme"
path = "{folder}/{node}/store"
level = 1

[[tiers]]
kind = "redundant"
name = "neighbours"
scheme = "xor"
set_size = 3
wait = "20s"

[[tiers]]
kind = "posix"
name = "pfs"
path = "{folder}/pfs"
level = 3

[flush]
agent = true
"""
STEPS = 4


def state_of(task: str, step: int) -> dict[str, Any]:
    rng = np.random.default_rng([*task.encode(), step])
    return {"step": step, "w": rng.standard_normal(50_000)}


def site_of(folder: Path, node: str, key: Path) -> Path:
    """Write the site file of a node."""
    path = folder / f"{node}.toml"
    path.write_text(SITE.format(folder=folder, node=node, key=key))
    return path


def main(folder: str, node: str, action: str, task: str, key: str) -> None:
    tiers = load_site(site_of(Path(folder), node, Path(key))).open_tiers()
    options: dict[str, Any] = {"flushing": "agent", "rng": False, "flush_every": {"pfs": 10**6}}
    with Checkpointer(tiers, task=task, every="never", **options) as ckpt:
        if action == "save":
            for step in range(1, STEPS + 1):
                ckpt.save(step, state_of(task, step)).wait(2)
            print("protected")
            return
        try:
            found: dict[str, Any] = ckpt.restore()
        except NotFoundError:
            print("nothing")
            return
        assert (found["w"] == state_of(task, found["step"])["w"]).all()
        print(found["step"])


if __name__ == "__main__":
    main(*sys.argv[1:])
