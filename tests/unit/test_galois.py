"""The field and the code are the published ones; the native core does what NumPy does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ckptflow.data import backend, galois
from ckptflow.data.backend import Backend

BACKENDS = [found for found in backend.available() if found.name != "numba"]
HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "ckptflow" / "native"


def test_products_of_the_field() -> None:
    """From the tests of JavaReedSolomon (Backblaze) and of its port by Klaus Post."""
    for a, b, product in ((3, 4, 12), (7, 7, 21), (23, 45, 41)):
        assert galois.multiply(a, b) == product
    for a, exponent, result in ((2, 2, 4), (5, 20, 235), (13, 7, 43)):
        assert galois.power(a, exponent) == result


def test_products_are_those_of_the_polynomials() -> None:
    def by_hand(a: int, b: int) -> int:
        product = 0
        for bit in range(8):
            product ^= (a << bit) * (b >> bit & 1)
        for bit in range(14, 7, -1):
            product ^= (0x11D << (bit - 8)) * (product >> bit & 1)
        return product

    for a in range(256):
        for b in range(0, 256, 7):
            assert galois.multiply(a, b) == by_hand(a, b)
    assert all(galois.multiply(a, galois.inverse(a)) == 1 for a in range(1, 256))
    with pytest.raises(ZeroDivisionError, match="no inverse"):
        galois.inverse(0)


def test_the_published_example_of_five_and_five() -> None:
    """ "One encode", a test of JavaReedSolomon (Backblaze, 2015), found in all of its ports."""
    data = [[0, 1], [4, 5], [2, 3], [6, 7], [8, 9]]
    parity = np.zeros((5, 2), np.uint8)
    for row, factors in zip(parity, galois.coding_matrix(5, 5), strict=True):
        for factor, piece in zip(factors, data, strict=True):
            galois.add_product(int(factor), bytes(piece), row)
    assert parity.tolist() == [[12, 13], [10, 11], [14, 15], [90, 91], [94, 95]]


def test_one_parity_is_xor_and_one_piece_is_copied() -> None:
    assert galois.coding_matrix(7, 1).tolist() == [[1] * 7]
    assert galois.coding_matrix(1, 3).tolist() == [[1]] * 3


@pytest.mark.parametrize(("k", "m"), [(0, 1), (200, 57), (3, -1)])
def test_codes_that_are_none(k: int, m: int) -> None:
    with pytest.raises(ValueError, match=f"no code of {k} data and {m} parity"):
        galois.coding_matrix(k, m)


@pytest.mark.parametrize("have", [[0, 1], [0, 1, 1], [0, 1, 2, 3]])
def test_as_many_pieces_as_data_are_needed(have: list[int]) -> None:
    with pytest.raises(ValueError, match="3 different pieces are needed"):
        galois.recovery_row(3, 2, have, 0)


@pytest.mark.parametrize("chosen", BACKENDS, ids=str)
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64, 1000, 1023, 5000])
def test_sums_of_products(chosen: Backend, size: int, rng: np.random.Generator) -> None:
    source, before = rng.integers(0, 256, (2, size + 3), dtype=np.uint8)
    for factor in (0, 1, 2, 29, 142, 255):
        expected = before.copy()
        for i in range(1, size + 1):
            expected[i] ^= galois.multiply(factor, int(source[i]))
        target = before.copy()
        with backend.use(chosen.name, chosen.detail):
            galois.add_product(factor, source[1 : size + 1], target[1:])
        assert target.tobytes() == expected.tobytes()


def test_targets_that_are_too_short() -> None:
    with pytest.raises(ValueError, match="4 bytes do not fit into 3"):
        galois.add_product(1, bytes(4), bytearray(3))


def test_the_native_function_refuses_nonsense() -> None:
    core = pytest.importorskip("ckptflow.native._core", reason="the compiled core is not here")
    for factor, size, variant in ((-1, 4, 0), (256, 4, 0), (1, 4, 99), (1, 4, -1)):
        with pytest.raises(ValueError, match="no such factor or variant"):
            core.galois_add(factor, bytes(4), bytearray(size), variant)
    with pytest.raises(ValueError, match="shorter than the source"):
        core.galois_add(1, bytes(4), bytearray(3), 0)


def test_the_header_is_free_of_undefined_behaviour(tmp_path: Path) -> None:
    """Run ``galois_check.cpp`` under the sanitizers."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is here")
    program = tmp_path / "check"
    command = [compiler, "-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += ["-fsanitize=undefined,address", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    command += [str(HERE / "galois_check.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find -l" in built.stderr or "libclang_rt" in built.stderr:
        pytest.skip("the sanitizers' libraries are not here")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "0 wrong\n"), ran.stderr
