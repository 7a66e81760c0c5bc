"""Loops whose workers die or hang, for `test_resumable_data.py`, and what is said of it.

Torch raises from a signal handler, wherever the program is, so this is a program of its own:
``lost_workers.py FOLDER dies|hangs|waits [persistent]``. With "waits" it prints the process ids
of its workers, for somebody else to kill them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ckptflow.data import ResumableLoader, ResumableSampler
from ckptflow.errors import LoaderFailed


class Deadly:
    """Ten samples. The worker that loads sample 5 dies or hangs, if there is no flag."""

    def __init__(self, folder: Path, how: str) -> None:
        self.flag, self.how = folder / "flag", how

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if self.how == "waits":
            time.sleep(0.02)
        elif index == 5 and not self.flag.exists():
            if self.how == "dies":
                self.flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return int(index)


def loader_of(folder: Path, how: str, *, persistent: bool) -> ResumableLoader[Any]:
    dataset = Deadly(folder, how)
    loader = DataLoader(
        dataset,
        batch_sampler=ResumableSampler(dataset, batch=1),
        num_workers=2,
        persistent_workers=persistent,
        timeout=1 if how == "hangs" else 0,
    )
    return ResumableLoader(loader)


def main(folder: Path, how: str, *, persistent: bool) -> None:
    loader = loader_of(folder, how, persistent=persistent)
    found: list[int] = []
    began_s = time.monotonic()
    try:
        while loader.epoch < (1 if how != "waits" else 1000):
            for numbers in loader:
                found += numbers.tolist()
                if how == "waits" and len(found) == 1:
                    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
                    print("workers", children, flush=True)
    except LoaderFailed as error:
        print(f"LoaderFailed after {time.monotonic() - began_s:.1f} s: {error}", flush=True)
    if how != "dies":
        return
    again = loader_of(folder, how, persistent=persistent)
    again.load_state_dict(loader.state_dict())
    found += [number for numbers in again for number in numbers.tolist()]
    print("served", *sorted(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], persistent="persistent" in sys.argv)
