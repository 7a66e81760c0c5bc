"""A delta gives the new bytes back, on every backend, and small changes are small numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest
from ckptflow.data.backend import kernels

BACKENDS = digest.available()
XOR, SUBTRACT = 0, 1
WORDS = st.sampled_from([1, 2, 4, 8])


def every_backend():
    for backend in BACKENDS:
        with digest.use(backend.name, backend.detail):
            yield backend


def u64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def expected_delta(new: bytes, old: bytes, op: int, word: int) -> bytes:
    out, modulus = b"", 1 << 8 * word
    whole = len(new) // word * word
    for start in range(0, whole, word):
        a, b = (int.from_bytes(side[start : start + word], "little") for side in (new, old))
        stored = a ^ b
        if op == SUBTRACT:
            signed = (a - b + modulus // 2) % modulus - modulus // 2
            stored = 2 * signed if signed >= 0 else -2 * signed - 1
        out += stored.to_bytes(word, "little")
    return out + bytes(a ^ b for a, b in zip(new[whole:], old[whole:], strict=True))


def placed(data: bytes, offset: int) -> np.ndarray:
    """Return an array of these bytes that starts ``offset`` bytes behind an aligned address."""
    array = np.zeros(len(data) + 64, np.uint8)
    view = array[offset : offset + len(data)]
    view[:] = np.frombuffer(data, np.uint8)
    return view


pairs = st.integers(0, 200).flatmap(
    lambda size: st.tuples(
        st.binary(min_size=size, max_size=size), st.binary(min_size=size, max_size=size)
    )
)
offsets = st.tuples(*[st.integers(0, 9)] * 3)


@given(pairs, st.sampled_from([XOR, SUBTRACT]), WORDS, offsets)
def test_applying_a_delta_gives_the_new_bytes(pair, op: int, word: int, offset) -> None:
    new, old = pair
    for _ in every_backend():
        out = placed(bytes(len(new)), offset[0])
        kernels().make_delta(placed(new, offset[1]), placed(old, offset[2]), out, op, word)
        assert out.tobytes() == expected_delta(new, old, op, word)
        target = placed(b"<" + old + b">", offset[2])
        kernels().apply_delta(target, u64(1), out, u64(0), u64(len(new)), op, word)
        assert target.tobytes() == b"<" + new + b">"


@given(pairs, st.sampled_from([XOR, SUBTRACT]), WORDS, st.data())
def test_ranges_of_a_delta_lie_anywhere(pair, op: int, word: int, data: st.DataObject) -> None:
    new, old = pair
    edges = sorted(data.draw(st.lists(st.integers(0, len(new)), max_size=6)))
    spans = list(zip([0, *edges], [*edges, len(new)], strict=True))
    delta = b"".join(expected_delta(new[a:b], old[a:b], op, word) for a, b in spans)
    order = data.draw(st.permutations(spans))
    start, length = u64(*(a for a, _ in order)), u64(*(b - a for a, b in order))
    for _ in every_backend():
        target = placed(old, 1)
        kernels().apply_delta(target, start, placed(delta, 3), start, length, op, word)
        assert target.tobytes() == new


@pytest.mark.parametrize("word", [1, 2, 4, 8])
@pytest.mark.parametrize("step", [0, 1, -1, 3, -3])
def test_small_steps_of_either_sign_become_small_numbers(word: int, step: int) -> None:
    old = np.array([0, 1, 2**7, 2**7 - 1, 255], f"<u{word}")  # Steps wrap around at both ends.
    new = old + np.array(step).astype(old.dtype)
    for _ in every_backend():
        out = np.empty_like(old)
        sides = new.view(np.uint8), old.view(np.uint8), out.view(np.uint8)
        kernels().make_delta(*sides, SUBTRACT, word)
        assert out.tolist() == [2 * step if step >= 0 else -2 * step - 1] * 5


def test_the_compiled_core_refuses_what_would_leave_its_buffers() -> None:
    core = pytest.importorskip("ckptflow.native._core", reason="the compiled core is not here")
    one, eight = u64(1), bytearray(8)
    for op, word in ((2, 1), (-1, 1), (0, 3), (1, 0), (1, 16)):
        with pytest.raises(ValueError, match=r"0 .xor. or 1 .subtract., on 1, 2, 4 or 8 bytes"):
            core.make_delta(eight, eight, eight, op, word)
        with pytest.raises(ValueError, match=r"0 .xor. or 1 .subtract., on 1, 2, 4 or 8 bytes"):
            core.apply_delta(eight, one, eight, one, one, op, word)
    with pytest.raises(ValueError, match="one length"):
        core.make_delta(eight, bytes(7), eight, XOR, 1)
    for start, delta_start, length in ((8, 0, 1), (0, 8, 1), (0, 0, 9), (2**64 - 1, 0, 2)):
        with pytest.raises(ValueError, match="outside of its buffer"):
            core.apply_delta(
                eight, u64(start), eight, u64(delta_start), u64(length), SUBTRACT, 4
            )
