"""What the speed of steps and saves depends on, in short: elsewhere an estimate means nothing.

``tests/unit/test_pace.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import psutil

from ckptflow.tiers.tier import Tier

_GIB = 1 << 30


def surroundings(tiers: Sequence[Tier]) -> str:
    """Return 16 hex digits for the kind of machine and the tiers.

    Two nodes of one kind have the same: host names do not count, but the processor, the number
    of cores that this process may use, and the memory, to a GiB.

    Args:
        tiers: where checkpoints go, inner ones first; their kinds count, not where they lie.
    """
    what = {
        "machine": [platform.machine(), _processor(), len(os.sched_getaffinity(0))],
        "memory": round(psutil.virtual_memory().total / _GIB),
        "tiers": [[tier.name, tier.level, tier.spec.get("kind", "")] for tier in tiers],
    }
    text = json.dumps(what, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def boot_id() -> str:
    """Return what tells this start of this node from all others; empty if nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@cache
def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")
