"""For arbitrary states: the device finds what the CPU finds, and that is all that is needed.

The states are made of few different pieces, so that cells repeat within a state, between
regions and over time; ends are cut anywhere.
"""

from __future__ import annotations

import numpy as np
from emulated import EmulatedDevice, aligned, on_device
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from twin import Twin

from ckptflow.data.scan import Kind
from ckptflow.gpu.plan import Shape

Bytes = NDArray[np.uint8]
SHAPE = Shape(72, 24)
PIECES = [
    bytes(24), b"\1" * 24, b"abcdefgh" * 3, b"abcdefg" * 3 + b"xyz", bytes(range(24)),
    bytes(range(100, 172)), bytes(72), b"q",
]  # fmt: skip

states = st.builds(
    lambda pieces, end: np.frombuffer(b"".join(pieces) + end, np.uint8),
    st.lists(st.sampled_from(PIECES), max_size=14),
    st.binary(max_size=30),
)
steps = st.lists(st.tuples(states, states, st.booleans()), min_size=1, max_size=4)


@given(steps=steps, seed=st.integers(0, 3), limit=st.integers(1, 30), offset=st.integers(0, 8))
def test_the_device_finds_what_the_cpu_finds(
    steps: list[tuple[Bytes, Bytes, bool]], seed: int, limit: int, offset: int
) -> None:
    twin = Twin(EmulatedDevice(SHAPE, blocks_max=2, seed=seed), history_limit=limit)
    for *regions, keep in steps:
        for name, data in zip("ab", regions, strict=True):
            twin.diff(data, on_device(aligned(data, offset)), name)
        twin.commit() if keep else twin.rollback()


@given(steps=steps)
def test_runs_and_new_bytes_rebuild_the_state(steps: list[tuple[Bytes, Bytes, bool]]) -> None:
    cells: dict[int, bytes] = {}  # by id: what a store would hold
    before: dict[str, bytes] = {"a": b"", "b": b""}
    twin = Twin(EmulatedDevice(SHAPE, blocks_max=2))
    for *regions, _ in steps:
        for name, data in zip("ab", regions, strict=True):
            found = twin.diff(data, on_device(aligned(data)), name)
            payload = found.payload.tobytes()
            for start in range(0, len(payload), SHAPE.cell_bytes):
                number = found.first_id + start // SHAPE.cell_bytes
                cells[number] = payload[start : start + SHAPE.cell_bytes]
            rebuilt = bytearray(before[name].ljust(len(data), b"?")[: len(data)])
            runs = found.runs
            for kind, start, length, ref in zip(
                *(column.tolist() for column in
                  (runs.kind, runs.start_bytes, runs.length_bytes, runs.ref)),
                strict=True,
            ):  # fmt: skip
                count = -(-length // SHAPE.cell_bytes)
                if kind == Kind.FILL:
                    piece = ref.to_bytes(8, "little") * (length // 8)
                else:
                    piece = b"".join(cells[ref + i] for i in range(count))
                assert len(piece) == length
                rebuilt[start : start + length] = piece
            assert rebuilt == data.tobytes()
            before[name] = data.tobytes()
        twin.commit()
