"""The compiled core refuses what would leave its buffers, whoever calls it and however."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "ckptflow" / "native"


@pytest.fixture
def core() -> ModuleType:
    return pytest.importorskip("ckptflow.native._core", reason="the compiled core is not here")


def u64(count: int) -> np.ndarray:
    return np.zeros(count, np.uint64)


def scan_arguments() -> dict[str, object]:
    """What a scan of 100 bytes in chunks of 32 and cells of 16 takes: 4 chunks, 7 cells."""
    return {
        "data": bytes(100),
        "chunk_bytes": 32,
        "cell_bytes": 16,
        "old_chunks": u64(2),
        "old_cells": None,
        "chunks": u64(8),
        "index": u64(7),
        "digest": u64(14),
        "kind": bytearray(7),
        "pattern": u64(7),
        "given": False,
        "variant": 0,
        "threads": 1,
    }


def test_what_fits_is_done(core: ModuleType) -> None:
    assert core.scan(*scan_arguments().values()) == 7


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("chunk_bytes", 0, "multiples of 8 bytes from 16 on"),
        ("chunk_bytes", 36, "multiples of 8 bytes from 16 on"),
        ("cell_bytes", 0, "multiples of 8 bytes from 16 on"),
        ("cell_bytes", -16, "multiples of 8 bytes from 16 on"),
        ("cell_bytes", 24, "cells divide chunks"),
        ("cell_bytes", 64, "cells divide chunks"),
        ("old_chunks", u64(3), "one aligned digest for each chunk"),
        ("old_cells", memoryview(bytes(24))[1:17], "one aligned digest for each chunk"),
        ("chunks", u64(6), "one aligned digest for each chunk"),
        ("chunks", u64(10), "one aligned digest for each chunk"),
        ("index", u64(6), "room for every cell"),
        ("digest", u64(12), "room for every cell"),
        ("kind", bytearray(6), "room for every cell"),
        ("pattern", u64(6), "room for every cell"),
        ("variant", -1, "no such variant"),
        ("variant", 99, "no such variant"),
        ("threads", 0, "at least 1"),
    ],
)
def test_scan(core: ModuleType, name: str, bad: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        core.scan(*(scan_arguments() | {name: bad}).values())


def find_arguments() -> dict[str, object]:
    return {
        "digests": u64(6),
        "kinds": bytearray(b"\1\1\1"),
        "ids": u64(3),
        "log": u64(10),
        "count": 2,
        "slots": u64(16),
        "first_id": 0,
    }


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("digests", u64(4), "one entry for each cell"),
        ("kinds", bytearray(2), "one entry for each cell"),
        ("ids", u64(2), "one entry for each cell"),
        ("log", u64(8), "no room for all"),
        ("log", u64(11), "the log holds aligned digests"),
        ("count", -1, "the log holds aligned digests"),
        ("count", 3, "no room for all"),
        ("count", 6, "no room for all"),
        ("slots", u64(0), "a power of two"),
        ("slots", u64(8), "a power of two"),
        ("slots", u64(24), "a power of two"),
    ],
)
def test_find_or_add(core: ModuleType, name: str, bad: object, message: str) -> None:
    assert core.find_or_add(*find_arguments().values()) == (3, 3)
    with pytest.raises(ValueError, match=message):
        core.find_or_add(*(find_arguments() | {name: bad}).values())


def test_fill_table(core: ModuleType) -> None:
    core.fill_table(u64(2 * 10), u64(16))
    for log, slots, message in (
        (u64(2 * 11), u64(16), "too small for the log"),
        (u64(3), u64(16), "the log holds aligned digests"),
        (u64(2), u64(20), "a power of two"),
    ):
        with pytest.raises(ValueError, match=message):
            core.fill_table(log, slots)


@pytest.mark.parametrize("short", range(8))
def test_collect_runs(core: ModuleType, short: int) -> None:
    columns = [u64(2), bytearray(2), u64(2), u64(2), bytearray(2), u64(2), u64(2), u64(2)]
    columns[short] = columns[short][:1]
    with pytest.raises(ValueError, match="one aligned entry for each cell"):
        core.collect_runs(*columns[:4], 16, 64, *columns[4:])


@pytest.mark.parametrize("short", range(6))
def test_find_repeats(core: ModuleType, short: int) -> None:
    columns = [u64(6), u64(6), np.zeros(6, np.uint32), *(np.zeros(2, np.int64) for _ in "rpc")]
    assert core.find_repeats(*columns) == 1
    columns[short] = columns[short][: 5 if short else 7 // 2]
    if short >= 3:
        columns[short] = columns[short][:1]
    with pytest.raises(ValueError, match="one entry for each row"):
        core.find_repeats(*columns)


def test_ranges(core: ModuleType) -> None:
    one, eight = np.ones(1, np.uint64), bytearray(8)
    far = np.array([2**64 - 1], np.uint64)
    with pytest.raises(ValueError, match="at least one byte"):
        core.repeat_ranges(eight, one, u64(1), one)
    for bad in ((far, one, one), (one, one, far), (one, one, u64(2)), (u64(2), one, one)):
        with pytest.raises(ValueError, match="outside of its buffer"):
            core.repeat_ranges(eight, *bad)
        with pytest.raises(ValueError, match="outside of its buffer"):
            core.ranges_equal(eight, eight, *bad, bytearray(1))
    with pytest.raises(ValueError, match="outside of its buffer"):
        core.ranges_equal(eight, eight, one, far, one, bytearray(1))


def test_the_headers_are_free_of_undefined_behaviour(tmp_path: Path) -> None:
    """Run ``diff_check.cpp`` under the sanitizers."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is here")
    program = tmp_path / "check"
    command = [compiler, "-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += ["-fsanitize=undefined,address", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    command += [str(HERE / "diff_check.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find -l" in built.stderr or "libclang_rt" in built.stderr:
        pytest.skip("the sanitizers' libraries are not here")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "0 wrong\n"), ran.stderr
