"""A process that competes: for cores, for memory, and for the disk in the given folder."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np


def copies() -> None:
    source, target = np.ones(4_000_000), np.empty(4_000_000)
    while True:
        np.copyto(target, source)


def writes(folder: Path) -> None:
    data = bytes(16 << 20)
    while True:
        with (folder / "competitor").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    threading.Thread(target=copies, daemon=True).start()
    writes(Path(sys.argv[1]))
