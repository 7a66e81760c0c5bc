"""Save and restore of one large state, against `numpy.save` and `torch.save`, both with fsync.

Blocked time (until the application may change its state) and durable time (until a power cut
does no harm) stand apart: only ckptflow has two. Files are in a temporary folder of `TMPDIR`;
reads come from the page cache for all alike. Without torch its row is left out.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from report import Claim, Row, arguments, finish, ratio, require, time_in_turn

from ckptflow.checkpointer import Checkpointer

CHANGED_FRACTION = 0.01

State = dict[str, NDArray[np.float64]]


def main() -> None:
    args = arguments(__doc__)
    words = (32 if args.quick else 128) << 20  # Of 8 bytes: 256 MiB or 1 GiB.
    rounds = 3 if args.quick else 5
    state = {"w": np.random.default_rng(0).standard_normal(words)}
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
        rows, claims = measure(Path(folder), state, rounds)
    finish(
        f"save and restore, {words * 8 >> 20} MiB of random doubles",
        rows,
        claims,
        args.json_path,
    )


def measure(folder: Path, state: State, rounds: int) -> tuple[list[Row], list[Claim]]:
    size_bytes = state["w"].nbytes
    rows: list[Row] = []

    def row(what: str, seconds: list[float]) -> None:
        median_s = statistics.median(seconds)
        rate = size_bytes / median_s / 1e9
        rows.append(
            {"what": what, "median_s": median_s, "GB_per_s": rate, "runs": len(seconds)}
        )

    saves = time_saves(folder, state, rounds)
    for what, seconds in saves.items():
        row(what, seconds)
    reads = time_reads(folder, state, rounds)
    for what, seconds in reads.items():
        row(what, seconds)
    blocked = ratio(saves["ckptflow delta 1 %, blocked"], saves["memcpy"])
    restore = ratio(reads["ckptflow restore"], reads["read of the raw file"])
    return rows, [
        Claim("restore_over_raw_read", restore, "<=", 1.5),
        Claim("save_blocked_over_memcpy", blocked, "<=", 1.5),
    ]


def time_saves(folder: Path, state: State, rounds: int) -> dict[str, list[float]]:
    """Time all ways to save in turn; what is written is read back by `time_reads`."""
    copy = np.zeros_like(state["w"])
    actions: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(copy, state["w"]),
        "numpy.save + fsync": lambda: save_synced(folder / "state.npy", state),
    }
    if torch_save := torch_saver(folder / "state.pt", state):
        actions["torch.save + fsync"] = torch_save
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    names = ("full, blocked", "full, durable", "delta 1 %, blocked", "delta 1 %, durable")
    seconds |= {f"ckptflow {name}": [] for name in names}
    rng = np.random.default_rng(1)
    with (
        Checkpointer(folder / "full", rng=False, budget_bytes=4 * copy.nbytes) as full,
        Checkpointer(folder / "delta", rng=False, budget_bytes=4 * copy.nbytes) as delta,
    ):
        for number in range(rounds + 1):
            for name, taken in time_in_turn(actions, rounds=1).items():
                seconds[name] += taken if number else []
            state["w"] += 1.0  # Every chunk is new: a full checkpoint.
            change(state["w"], rng)
            for name, checkpointer in (("full", full), ("delta 1 %", delta)):
                if (
                    name != "full"
                ):  # Its base is made first, then one in a hundred chunks changes.
                    checkpointer.save(2 * number, state).wait()
                    change(state["w"], rng)
                began = time.perf_counter()
                ticket = checkpointer.save(2 * number + 1, state)
                blocked_s = time.perf_counter() - began
                ticket.wait()
                durable_s = time.perf_counter() - began
                if number:
                    seconds[f"ckptflow {name}, blocked"].append(blocked_s)
                    seconds[f"ckptflow {name}, durable"].append(durable_s)
    (folder / "state.raw").write_bytes(state["w"].data)
    os.sync()  # Nobody's reads shall wait for the writes of another.
    return seconds


def time_reads(folder: Path, state: State, rounds: int) -> dict[str, list[float]]:
    target = {"w": np.zeros_like(state["w"])}

    def read_raw() -> None:
        with (folder / "state.raw").open("rb", buffering=0) as file:
            view, done = memoryview(target["w"]).cast("B"), 0
            while done < len(view):
                done += file.readinto(view[done:])

    def restore() -> None:
        target["w"][::4096] = 0
        with Checkpointer(folder / "delta", rng=False) as checkpointer:
            checkpointer.restore(target)

    seconds = time_in_turn(
        {"read of the raw file": read_raw, "ckptflow restore": restore}, rounds=rounds
    )
    require(np.array_equal(target["w"], state["w"]), "the restored state is the saved one")
    return seconds


def change(words: NDArray[np.float64], rng: np.random.Generator) -> None:
    """Change one word in `CHANGED_FRACTION` of the 4 KiB chunks."""
    chunks = len(words) // 512
    chosen = rng.choice(chunks, int(chunks * CHANGED_FRACTION), replace=False)
    words[chosen * 512] += 1.0


def save_synced(path: Path, state: State) -> None:
    with path.open("wb") as file:
        np.save(file, state["w"])
        file.flush()
        os.fsync(file.fileno())


def torch_saver(path: Path, state: State) -> Callable[[], None] | None:
    try:
        import torch
    except ImportError:
        return None
    tensor = torch.from_numpy(state["w"])

    def save() -> None:
        with path.open("wb") as file:
            torch.save({"w": tensor}, file)
            file.flush()
            os.fsync(file.fileno())

    return save


if __name__ == "__main__":
    main()
