"""CKH-128 is what its definition says, whoever computes it.

The oracle below is written from the text in ``ckptflow/native/ckh128.h`` in plain integers.
It shares nothing with the product: even pi comes from a series. Every backend that works
here, and every instruction set of the compiled core, is held against it.

``python tests/unit/test_digest.py`` writes the golden file anew, from the oracle alone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ckptflow.data import ckh128, digest
from ckptflow.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "ckptflow" / "native"
GOLDEN = ROOT / "tests" / "golden" / "ckh128.json"

# --- The oracle ---------------------------------------------------------------------------

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


@cache
def pi_fraction() -> tuple[int, int]:
    """The first two 64-bit words of the fraction of pi, by Machin's formula."""
    bits = 192
    one = 1 << bits

    def arctan_of_inverse(n: int) -> int:
        term, total, k = one // n, 0, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term //= n * n
            k += 1
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    fraction = pi % one
    return fraction >> (bits - 64), (fraction >> (bits - 128)) & M64


@cache
def splitmix64(start: int, i: int) -> int:
    """Number ``i`` of the stream that starts at ``start``."""
    z = (start + 0x9E3779B97F4A7C15 * (i + 1)) & M64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M64
    return z ^ (z >> 31)


@cache
def level0_words() -> list[int]:
    stream = [splitmix64(pi_fraction()[0], i) for i in range(134)]
    return [half for number in stream for half in (number & M32, number >> 32)]


def oracle_final(w: list[int], length: int, tag: bytes) -> tuple[int, int]:
    mark = (length * 0x9E3779B97F4A7C15 + int.from_bytes(tag, "big")) & M64
    w = [(w[0] + mark) & M64, w[1], w[2] ^ mark, w[3]]
    first = (0x9FB21C651E98DF25, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
    for i, factor in enumerate(first):
        w[i] = (w[i] ^ (w[i] >> 32)) * factor & M64
        w[i] ^= w[i] >> 29
    swapped = [(x << 32 | x >> 32) & M64 for x in w]
    lo, hi = (w[0] + swapped[1]) & M64, (w[2] + swapped[3]) & M64
    lo = (lo ^ (lo >> 32)) * 0xE7037ED1A0B428DB & M64
    hi = (hi ^ (hi >> 32)) * 0x8EBC6AF09C88C6E3 & M64
    lo = (lo + (hi << 32 | hi >> 32)) & M64
    hi = (hi + ((lo << 32 | lo >> 32) & M64)) & M64
    lo = (lo ^ (lo >> 29)) * 0x589965CC75374CC3 & M64
    hi = (hi ^ (hi >> 29)) * 0x1D8E4E27C47D124F & M64
    return lo ^ (lo >> 32), hi ^ (hi >> 32)


def oracle_halves(message: bytes) -> tuple[int, int]:
    keys = level0_words()
    all_sums = []
    for start in range(0, max(len(message), 1), 1024):
        block = message[start : start + 1024]
        block += bytes(-len(block) % 8)
        words = [int.from_bytes(block[i : i + 4], "little") for i in range(0, len(block), 4)]
        for p in range(4):
            products = (
                ((words[i] + keys[i + 4 * p]) & M32)
                * ((words[i + 1] + keys[i + 1 + 4 * p]) & M32)
                for i in range(0, len(words), 2)
            )
            all_sums.append(sum(products) & M64)
    if len(message) > 1024:
        totals = []
        for p in range(4):
            total = 0
            for j, number in enumerate(all_sums):
                key = splitmix64(pi_fraction()[1], j + 2 * p)
                total += ((number + key) & M32) * (((number >> 32) + (key >> 32)) & M32)
            totals.append(total & M64)
        all_sums = totals
    return oracle_final(all_sums, len(message), b"leaf")


def oracle_digest(message: bytes) -> bytes:
    lo, hi = oracle_halves(message)
    return lo.to_bytes(8, "little") + hi.to_bytes(8, "little")


def oracle_root(leaves: list[tuple[int, int]]) -> bytes:
    level = leaves or [oracle_halves(b"")]
    while len(level) > 1:
        pairs = zip(level[0::2], level[1::2], strict=False)
        odd = level[-1:] if len(level) % 2 else []
        level = [oracle_final([*left, *right], 0, b"node") for left, right in pairs] + odd
    return b"".join(half.to_bytes(8, "little") for half in level[0])


def golden_message(length: int) -> bytes:
    return bytes((7 * i * i + 3 * i + (i >> 8)) % 256 for i in range(length))


def golden_leaves(count: int) -> list[tuple[int, int]]:
    return [(splitmix64(1, i), splitmix64(2, i)) for i in range(count)]


def golden_from_oracle() -> dict[str, object]:
    lengths = [0, 1, 7, 8, 9, 16, 63, 64, 65, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 65536]
    lengths += [65537, 70000]
    return {
        "source": "the oracle in tests/unit/test_digest.py; see its docstring",
        "message": "byte i is (7 * i * i + 3 * i + (i >> 8)) % 256",
        "digests": {str(n): oracle_digest(golden_message(n)).hex() for n in lengths},
        "leaves": "halves of leaf i: numbers i of the splitmix64 streams from 1 and from 2",
        "roots": {str(n): oracle_root(golden_leaves(n)).hex() for n in (*range(10), 100, 1000)},
    }


# --- Every backend against it -------------------------------------------------------------

BACKENDS = digest.available()
CHUNK_BYTES = [16, 24, 48, 1040, 4096, 65536]


@pytest.fixture(params=BACKENDS, ids=lambda backend: f"{backend.name}-{backend.detail}")
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


@cache
def noise() -> bytes:
    return np.random.default_rng(128).bytes(200_000)


@cache
def messages_of_every_length() -> list[tuple[int, int, bytes]]:
    """Start in `noise`, length, digest by the oracle: no start is aligned on purpose."""
    starts = np.random.default_rng(1).integers(0, 64, 2101).tolist()
    return [(at, n, oracle_digest(noise()[at : at + n])) for n, at in enumerate(starts)]


@cache
def long_messages() -> list[tuple[int, int, bytes]]:
    rng = np.random.default_rng(2)
    lengths = [65535, 65536, 65537, 66561, 70_000, *rng.integers(2101, 70_000, 10).tolist()]
    starts = rng.integers(0, 64, len(lengths)).tolist()
    return [
        (at, n, oracle_digest(noise()[at : at + n]))
        for n, at in zip(lengths, starts, strict=True)
    ]


@cache
def chunks_by_oracle(chunk_bytes: int, size: int) -> list[tuple[int, int]]:
    data = noise()[:size]
    return [oracle_halves(data[i : i + chunk_bytes]) for i in range(0, size, chunk_bytes)]


def test_a_message_of_every_length_to_2100_at_any_address(backend: digest.Backend) -> None:
    data = memoryview(noise())
    wrong = [
        (at, n)
        for at, n, right in messages_of_every_length()
        if digest.digest(data[at : at + n]) != right
    ]
    assert wrong == []


def test_long_messages_at_any_address(backend: digest.Backend) -> None:
    data = memoryview(noise())
    wrong = [
        (at, n) for at, n, right in long_messages() if digest.digest(data[at : at + n]) != right
    ]
    assert wrong == []


@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
@pytest.mark.parametrize("tail", [0, 1, 8, 13])
def test_chunks_of_every_size(backend: digest.Backend, chunk_bytes: int, tail: int) -> None:
    size = max(2 * chunk_bytes, 2_080) // chunk_bytes * chunk_bytes + tail % chunk_bytes
    found = digest.chunk_digests(memoryview(noise())[:size], chunk_bytes)
    assert found.dtype == np.uint64
    assert [tuple(row) for row in found.tolist()] == chunks_by_oracle(chunk_bytes, size)


@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
def test_a_region_shorter_than_a_chunk_is_one_chunk(
    backend: digest.Backend, chunk_bytes: int
) -> None:
    data = memoryview(noise())[3 : 3 + 11]
    found = digest.chunk_digests(data, chunk_bytes)
    assert digest.digest_bytes(found[0]) == oracle_digest(bytes(data))


def test_no_bytes_have_no_chunks_but_a_digest(backend: digest.Backend) -> None:
    assert digest.chunk_digests(b"", 4096).shape == (0, 2)
    assert digest.digest(b"") == oracle_digest(b"")


def test_golden_digests(backend: digest.Backend) -> None:
    golden = json.loads(GOLDEN.read_text())["digests"]
    assert {n: digest.digest(golden_message(int(n))).hex() for n in golden} == golden


def test_digests_go_where_the_caller_wants_them(backend: digest.Backend) -> None:
    out = np.full((5, 2), 7, np.uint64)
    returned = digest.chunk_digests(noise()[: 3 * 16], 16, out=out[1:4])
    assert np.shares_memory(returned, out)
    assert out[[0, 4]].tolist() == [[7, 7], [7, 7]]
    assert [tuple(row) for row in out[1:4].tolist()] == chunks_by_oracle(16, 48)


# --- The golden file and the keys ----------------------------------------------------------


def test_golden_file_is_what_the_oracle_says() -> None:
    assert json.loads(GOLDEN.read_text()) == golden_from_oracle()


def test_key_table_of_the_header_is_derived_from_pi() -> None:
    text = (NATIVE / "ckh128_keys.inc").read_text()
    assert [int(word, 16) for word in re.findall(r"0x([0-9a-f]{8})u", text)] == level0_words()


def test_keys_in_python_are_derived_from_pi() -> None:
    words = level0_words()
    for shift, keys in enumerate(ckh128.level0_keys().tolist()):
        pairs = [half for key in keys for half in (key & M32, key >> 32)]
        assert pairs == words[4 * shift : 4 * shift + 256]
    second = pi_fraction()[1]
    assert ckh128.level1_keys(3).tolist() == [splitmix64(second, j) for j in range(18)]


# --- What may be digested -------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float16).reshape(3, 4),
        np.array(3.5),
        np.zeros((0, 4)),
        np.array([1, 2, 3], dtype=">i4"),
        np.array([(1, 2.0)], dtype=[("a", "i2"), ("b", "f8")]),
        np.arange(5).astype("M8[s]"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_of_every_type_are_their_bytes(array: np.ndarray) -> None:
    assert digest.digest(array) == digest.digest(array.tobytes())


def test_arrays_of_foreign_types_are_their_bytes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(9).astype(ml_dtypes.bfloat16)
    assert digest.digest(array) == digest.digest(array.tobytes())


def test_memory_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="not C-contiguous"):
        digest.digest(np.zeros(8)[::2])
    with pytest.raises(ValueError, match="not C-contiguous"):
        digest.digest(memoryview(b"abcdef")[::2])


@pytest.mark.parametrize("chunk_bytes", [-16, 0, 8, 17, 4095])
def test_chunk_size_is_a_multiple_of_8_from_16(chunk_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"at least 16, got {chunk_bytes}"):
        digest.chunk_digests(b"0123456789abcdef", chunk_bytes)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 2), np.uint64),
        np.empty((3, 2), np.int64),
        np.empty((2, 3), np.uint64).T,
        np.empty(49, np.uint8)[1:].view(np.uint64).reshape(3, 2),
        np.frombuffer(bytes(48), np.uint64).reshape(3, 2),
    ],
    ids=["short", "signed", "transposed", "unaligned", "read-only"],
)
def test_out_has_to_fit(out: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"contiguous uint64 array of shape \(3, 2\)"):
        digest.chunk_digests(bytes(48), 16, out=out)


# --- Who computes ---------------------------------------------------------------------------


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with (
        pytest.raises(ConfigError, match=r"no backend 'fpga' '' here; there is .*numpy"),
        digest.use("fpga"),
    ):
        pass


def test_the_choice_ends_with_its_block() -> None:
    before = digest.active()
    with digest.use("numpy") as chosen:
        assert digest.active() == chosen
        assert chosen.name == "numpy"
    assert digest.active() == before


def active_without(*modules: str) -> list[str]:
    """The active backend, its reason, and whether numba was imported, in a new process."""
    code = f"""
import sys
for module in {modules!r}:
    sys.modules[module] = None
from ckptflow.data import digest
backend = digest.active()
print(backend.name, backend.reason, sys.modules.get("numba") is not None, sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().split("|")


def test_the_fastest_is_active_and_numba_left_alone() -> None:
    if BACKENDS[0].name != "native":
        pytest.skip(f"the compiled core is not here: {digest.active().reason}")
    assert active_without() == ["native", "", "False"]


def test_without_the_compiled_core_numba_is_next() -> None:
    if not any(backend.name == "numba" for backend in BACKENDS):
        pytest.skip("numba is not installed")
    name, reason, _ = active_without("ckptflow.native._core")
    assert name == "numba"
    assert reason.startswith("native is missing (")


def test_without_both_numpy_is_left_and_both_reasons_are_kept() -> None:
    name, reason, _ = active_without("ckptflow.native._core", "numba")
    assert name == "numpy"
    assert re.fullmatch(r"native is missing \(.*\); numba is missing \(.*\)", reason)


# --- The compiled core alone ----------------------------------------------------------------


@pytest.fixture(scope="module")
def core():
    return pytest.importorskip("ckptflow.native._core", reason="the compiled core is not here")


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7, 50])
@pytest.mark.parametrize("size", [16, 17, 16 * 7, 16 * 7 + 5, 2080])
def test_threads_share_the_chunks_without_gap_or_overlap(core, threads: int, size: int) -> None:
    out = np.zeros((-(-size // 16), 2), np.uint64)
    core.digest_chunks(noise()[:size], 16, out, 0, threads)
    assert [tuple(row) for row in out.tolist()] == chunks_by_oracle(16, size)


def test_the_core_never_writes_outside_of_what_it_is_given(core) -> None:
    u64 = np.zeros(4, np.uint64)
    with pytest.raises(ValueError, match="one aligned digest for each chunk"):
        core.digest_chunks(bytes(64), 16, u64, 0, 1)
    with pytest.raises(ValueError, match="no such variant"):
        core.digest_chunks(bytes(32), 16, u64, 99, 1)
    with pytest.raises(ValueError, match="half as many aligned digests"):
        core.digest_parents(np.zeros(12, np.uint64), u64[:0], u64[:0], u64[:2])
    with pytest.raises(ValueError, match="outside of its buffer"):
        core.copy_ranges(bytes(8), bytearray(8), u64[:1], u64[:1], u64[:1] + np.uint64(9))
    with pytest.raises(ValueError, match="outside of its buffer"):
        core.fill_ranges(
            bytearray(8), u64[:1] + np.uint64(M64), u64[:1] + np.uint64(1), u64[:1]
        )


def test_the_headers_are_free_of_undefined_behaviour(tmp_path: Path) -> None:
    """Run ``ckh128_check.cpp`` under the sanitizers: each variant against the plain code."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is here")
    program = tmp_path / "check"
    command = [compiler, "-std=c++17", "-O1", "-g", "-pthread"]
    command += ["-fsanitize=undefined,address", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    command += [str(ROOT / "tests" / "unit" / "ckh128_check.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find -l" in built.stderr or "libclang_rt" in built.stderr:
        pytest.skip("the sanitizers' libraries are not here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith("0 wrong")


# --- beside other threads ---


@pytest.fixture
def short_turns():
    """Who does not let go of the interpreter leaves others a ten-thousandth of a second."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("short_turns")
def test_other_threads_go_on_while_bytes_are_digested() -> None:
    """An uploader that keeps the interpreter to itself makes each step of a training longer.

    Counted is what this thread does in the time of the call, against what it does while
    nobody else does anything. Without the interpreter that would be less than a thirtieth.
    """
    data = np.ones(1 << 27, np.uint8)

    def rate(act: Callable[[], object]) -> float:
        """Count until another thread has done it; return the counts a second."""
        done, count = threading.Event(), 0
        thread = threading.Thread(target=lambda: (act(), done.set()))
        began_s = time.monotonic()
        thread.start()
        while not done.is_set():
            count += 1
        thread.join()
        return count / (time.monotonic() - began_s)

    digest.chunk_digests(data, 4096)  # Whatever is compiled on the way is compiled now.
    alone = rate(lambda: threading.Event().wait(0.1))
    assert rate(lambda: digest.chunk_digests(data, 4096)) > 0.1 * alone


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_from_oracle(), indent=2) + "\n")
