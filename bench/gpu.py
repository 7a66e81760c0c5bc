"""Find what changed in a state on a GPU: each phase against a copy of the state there.

A state of 4 GiB (``--quick``: 512 MiB) in chunks of 4 KiB with cells of 4096, 256 and 64
bytes; *sparse* changes one word in each of 1 % of the chunks, *periodic* makes a quarter of the
state repeats of 64 KiB that it has elsewhere, *dense* changes everything. Kernels are timed by
events of the device, and the scan against reading the state as fast as a copy within the device
moves bytes in the same run. Runs, and the number of new bytes, must be those that were planted.

Without a device it says so, and prints what can be told from the machine code: instructions
for each byte, registers, spills, and what an H200 could issue.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from report import Arguments, Claim, Row, arguments, finish, require

from ckptflow.data.scan import Kind
from ckptflow.errors import ConfigError
from ckptflow.gpu import plan
from ckptflow.gpu.cuda import CudaDevice
from ckptflow.gpu.diff import DeviceDiff
from ckptflow.gpu.plan import Launch, Shape
from ckptflow.testing import gpu_code

CHUNK_BYTES = 4096
CELL_BYTES = (4096, 256, 64)
PERIOD_BYTES = 64 << 10
PHASES = {
    "scan": ("ck_scan_chunks", "ck_list_chunks"),
    "cells": ("ck_scan_cells", "ck_find_fills", "ck_list_cells"),
    "history": ("ck_insert", "ck_resolve", "ck_number"),
    "runs": ("ck_count_runs", "ck_emit_runs", "ck_emit_chunks"),
    "gather": ("ck_gather",),
    "commit": ("ck_commit", "ck_enter_log"),
}
H200_LANES_PER_S = 132 * 128 * 1.98e9  # instructions that all lanes can issue
H200_BYTES_PER_S = 4.3e12  # that its memory can read
H200_BLOCKS = 132 * 3


# --- on a device -----------------------------------------------------------------------------


class TimedDevice(CudaDevice):
    """Puts events around every launch, and counts bytes that go to the host."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.events: list[tuple[str, Any, Any]] = []
        self.fetched_bytes = 0

    def launch(self, launch: Launch) -> None:
        """Start a kernel between two events."""
        start = self.stream.record(_timing_event())
        super().launch(launch)
        self.events.append((launch.kernel, start, self.stream.record(_timing_event())))

    def read(self, source: Any, size_bytes: int) -> Any:
        """Return bytes of the device, and count them."""
        self.fetched_bytes += size_bytes
        return super().read(source, size_bytes)

    def phases_ms(self) -> dict[str, float]:
        """Return the milliseconds of each phase since the last call."""
        import cupy

        found: dict[str, float] = defaultdict(float)
        phase_of = {kernel: phase for phase, names in PHASES.items() for kernel in names}
        for kernel, start, end in self.events:
            end.synchronize()
            elapsed_ms = cupy.cuda.get_elapsed_time(start, end)
            found[phase_of[kernel.removesuffix("_any")]] += elapsed_ms
        self.events.clear()
        return found


def _timing_event() -> Any:
    import cupy

    return cupy.cuda.Event(disable_timing=False)


def copy_bytes_per_s(state: Any, rounds: int) -> float:
    """Return bytes read and written in a second by a copy within the device."""
    import cupy

    target = cupy.empty_like(state)
    seconds = []
    for _ in range(rounds + 1):
        start, end = _timing_event(), _timing_event()
        start.record()
        cupy.copyto(target, state)
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return 2 * int(state.nbytes) / statistics.median(seconds[1:])


def change_sparse(state: Any) -> int:
    """Change one word in every hundredth chunk."""
    import cupy

    words = state.view(cupy.uint64)
    words[7 :: 100 * CHUNK_BYTES // 8] += cupy.uint64(1)
    return len(words[7 :: 100 * CHUNK_BYTES // 8])


def change_periodic(state: Any) -> int:
    """Let the last quarter repeat 64 KiB that have just changed."""
    import cupy

    piece = state[:PERIOD_BYTES]
    piece.view(cupy.uint64)[:] += cupy.uint64(1)
    quarter = state[state.size - state.size // 4 :].reshape(-1, PERIOD_BYTES)
    quarter[:] = piece
    return (state.size // 4 + PERIOD_BYTES) // CHUNK_BYTES


def change_dense(state: Any) -> int:
    """Change every word."""
    import cupy

    state.view(cupy.uint64)[:] += cupy.uint64(0x9E3779B97F4A7C15)
    return int(state.size) // CHUNK_BYTES


CHANGES: dict[str, Callable[[Any], int]] = {
    "sparse": change_sparse,
    "periodic": change_periodic,
    "dense": change_dense,
}


def check(name: str, shape: Shape, found: Any, chunks: int, state: Any) -> None:
    """Require that what was planted was found."""
    cells = chunks if name == "sparse" else chunks * shape.cells_per_chunk
    changed = int(found.runs.length_bytes.sum())
    require(changed == cells * shape.cell_bytes, f"{name}: {changed} bytes in runs")
    new = int(found.runs.length_bytes[found.runs.kind == Kind.NEW].sum())
    expected = PERIOD_BYTES if name == "periodic" else changed
    require(len(found.payload) == new == expected, f"{name}: {new} new bytes")
    if name == "dense":
        middle = state.size // 2
        same = (
            bytes(found.payload[middle : middle + 999])
            == state[middle : middle + 999].get().tobytes()
        )
        require(same, "new bytes are not those of the state")


def measure(size_bytes: int, rounds: int) -> Iterator[Row]:
    """Yield one row for each size of cells and way of changing."""
    import cupy

    for cell_bytes in CELL_BYTES:
        shape = Shape(CHUNK_BYTES, cell_bytes)
        for name, change in CHANGES.items():
            state = cupy.random.default_rng(0).integers(
                0, 1 << 63, size_bytes // 8, dtype=cupy.uint64
            ).view(cupy.uint8)  # fmt: skip
            copy_rate = copy_bytes_per_s(state, rounds)
            device = TimedDevice(shape)
            limit = plan.default_history_limit(shape, size_bytes)
            diff = DeviceDiff(device, history_limit=limit)
            diff.reserve({"": size_bytes})
            diff.diff(state)
            diff.commit()
            device.phases_ms()
            samples, wall_ms = [], []
            for _ in range(rounds):
                chunks = change(state)
                device.fetched_bytes = 0
                cupy.cuda.get_current_stream().synchronize()
                start = time.perf_counter()
                found = diff.diff(state)
                found.wait()
                wall_ms.append(1e3 * (time.perf_counter() - start))
                check(name, shape, found, chunks, state)
                diff.commit()
                samples.append(device.phases_ms())
            phases = {
                phase: statistics.median(sample.get(phase, 0.0) for sample in samples)
                for phase in PHASES
            }
            read_ms = 1e3 * size_bytes / copy_rate  # as fast as the copy moves bytes
            yield {
                "cell": cell_bytes,
                "state": name,
                **{f"{phase}_ms": value for phase, value in phases.items()},
                "diff_wall_ms": statistics.median(wall_ms),
                "scan_of_copy": read_ms / phases["scan"],
                "TB_per_s": size_bytes / sum(phases.values()) / 1e9,
                "extra_memory": diff.memory_bytes / size_bytes,
                "to_host_pct": 100
                * (
                    device.fetched_bytes
                    + len(found.payload)
                    + 25 * len(found.runs)
                    + 24 * chunks
                )
                / size_bytes,
            }
            del diff, state


# --- without one -----------------------------------------------------------------------------


def code_rows(architecture: int) -> list[Row]:
    """Return what the machine code of the kernels that read the state tells."""
    rows: list[Row] = []
    for cell_bytes in CELL_BYTES:
        shape = Shape(CHUNK_BYTES, cell_bytes)
        code = gpu_code.read_code(gpu_code.compile_kernels(shape, architecture))
        kernels = {"ck_scan_chunks": CHUNK_BYTES}
        if cell_bytes != CHUNK_BYTES:
            kernels = {"ck_scan_cells": cell_bytes}
        for name, message_bytes in kernels.items():
            found = code[name]
            each = gpu_code.instructions_per_byte(found, message_bytes)
            loop = found.loops[0]
            rows.append(
                {
                    "kernel": name,
                    "message": message_bytes,
                    "registers": found.registers,
                    "stack_bytes": max(kernel.stack_bytes for kernel in code.values()),
                    "spills": sum(kernel.spills for kernel in code.values()),
                    "loop_instructions": loop.instructions,
                    "loop_loads_16B": loop.loads,
                    "loop_IMAD_WIDE": loop.multiplications,
                    "instructions_per_B": each,
                    "H200_issue_TB_per_s": H200_LANES_PER_S / each / 1e12,
                    "issue_over_memory": H200_LANES_PER_S / each / H200_BYTES_PER_S,
                }
            )
    return rows


def code_claims(rows: list[Row]) -> list[Claim]:
    """Return what the code and the plan of the memory promise."""
    claims = [
        Claim("gpu_issue_over_memory_at_4KiB", float(rows[0]["issue_over_memory"]), ">=", 1.5),
        Claim("gpu_spills", float(sum(int(row["spills"]) for row in rows)), "<=", 0),
    ]
    for cell_bytes, goal in ((4096, 0.02), (256, 0.3)):
        shape, state_bytes = Shape(CHUNK_BYTES, cell_bytes), 64 << 30
        limit = plan.default_history_limit(shape, state_bytes)
        needed = plan.device_bytes(shape, [state_bytes], limit, H200_BLOCKS)
        name = f"gpu_extra_memory_at_{cell_bytes}B_cells"
        claims.append(Claim(name, needed / state_bytes, "<=", goal))
    return claims


@contextmanager
def _named_absence() -> Iterator[None]:
    try:
        yield
    except (ConfigError, gpu_code.NotHere) as error:
        print(error)


def _static(args: Arguments) -> None:
    with _named_absence():
        rows = code_rows(90)
        title = "Machine code for sm_90 in chunks of 4 KiB, against what an H200 can issue"
        finish(title, rows, code_claims(rows), args.json_path)


def main() -> None:
    args = arguments(__doc__)
    size_bytes, rounds = (512 << 20, 5) if args.quick else (4 << 30, 9)
    try:
        device = CudaDevice(Shape(CHUNK_BYTES, CHUNK_BYTES))
    except ConfigError as error:
        print(f"No GPU here, so nothing was timed. {error}")
        _static(args)
        sys.exit()
    _static(Arguments(args.quick, None))
    rows = list(measure(size_bytes, rounds))
    sparse = [row for row in rows if row["state"] == "sparse"]
    claims = [
        Claim("gpu_sparse_TB_per_s_at_4KiB_cells", float(sparse[0]["TB_per_s"]), ">=", 2.0),
        Claim("gpu_extra_memory_4KiB", float(sparse[0]["extra_memory"]), "<=", 0.02),
        Claim("gpu_extra_memory_256B", float(sparse[1]["extra_memory"]), "<=", 0.3),
    ]
    title = f"Diff of {size_bytes >> 20} MiB in 4 KiB chunks on {device.name}"
    finish(title, rows, claims, args.json_path)


if __name__ == "__main__":
    main()
