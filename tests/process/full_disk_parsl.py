"""A run whose node-local disk is full. `test_full_disk_parsl.py` runs it, in a namespace.

Mounts a small tmpfs as the inner tier; the outer one is a folder with room. Prints one JSON
object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ckptflow as cf
from ckptflow.model import LineageId
from ckptflow.site import load_site
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier


@cf.python_app(key=("seed",), every=1, keep=2)
def work(seed: int, ckpt: Any) -> list[Any]:
    """Each step changes all of 200 KiB, so that a disk of 1 MiB is soon full of others."""
    state = ckpt.restore({"i": 0, "w": np.zeros(25_000)})
    began = state["i"]
    while state["i"] < 6:
        state["i"] += 1
        state["w"] += np.random.default_rng([seed, state["i"]]).standard_normal(25_000)
        ckpt.save(state["i"], state).wait()
    return [began, float(state["w"].sum())]


def main(folder: Path) -> None:
    near, far = folder / "near", folder / "far"
    near.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(near)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        sys.stdout.write(json.dumps({"skip": mounted.stderr.strip()}) + "\n")
        return
    (near / "others").write_bytes(bytes(900 << 10))
    tiers = [
        {"kind": "posix", "name": "near", "path": str(near / "store"), "level": 1},
        {"kind": "posix", "name": "far", "path": str(far), "level": 3},
    ]
    site = load_site("local_threads", overrides={"tiers": tiers})
    warnings.simplefilter("ignore", cf.CheckpointWarning)
    with cf.run("exp", site=site) as run:
        results = [future.result() for future in [work(seed) for seed in range(2)]]
    expected = [
        float(
            sum(
                np.random.default_rng([s, i]).standard_normal(25_000) for i in range(1, 7)
            ).sum()
        )
        for s in range(2)
    ]
    steps = [
        [
            found.id.step
            for found in Lineage([tier], LineageId("exp", f"work-seed={seed}")).valid()
        ]
        for tier in (PosixTier(far), PosixTier(near / "store"))
        for seed in range(2)
    ]
    report = {
        "exit_code": run.exit_code,
        "began": [began for began, _ in results],
        "right": bool(np.allclose([value for _, value in results], expected)),
        "steps": steps,
        "summary": str(run.summary()),
        "tiers": [one.tiers for one in run.summary().tasks],
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
