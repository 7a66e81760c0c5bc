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


LEVEL = (1e-4, 1.0, 20.0, 0.1, 30.0, 0.1, 0.1, 2.0)


def levels(**changed: float) -> np.ndarray:
    """Two levels; the second with one number changed, by its column."""
    rows = np.array([LEVEL, LEVEL])
    for column, value in changed.items():
        rows[1, int(column.removeprefix("c"))] = value
    return rows


def pattern_arguments() -> dict[str, object]:
    return {
        "levels": levels(),
        "interval_s": np.array([100.0, 50.0]),
        "every": np.array([[1, 2], [1, 4]]),
        "out": np.zeros(2),
    }


BAD_LEVELS = [
    np.zeros(0),
    np.zeros((6, 8)),
    levels()[:, :7].copy(),
    levels().view(np.uint8).reshape(-1)[:-1].copy(),
    *(levels(**{f"c{column}": bad}) for column in range(8) for bad in (-1.0, np.nan, np.inf)),
    levels(c5=1.5),
    levels(c6=1.5),
    levels(c7=0.0),
    levels(c7=1e7),
]
BAD_EVERY = [[[1, 2], [1, 0]], [[1, 2], [2, 4]], [[1, 2], [1, -4]], [[1, 2], [1, 2**40]]]


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        *(("levels", bad, "no such levels") for bad in BAD_LEVELS),
        *(("every", np.array(bad), "no such pattern") for bad in BAD_EVERY),
        *(
            ("interval_s", np.array([100.0, bad]), "no such pattern")
            for bad in (0.0, -1.0, np.nan, np.inf)
        ),
        ("interval_s", np.array([100.0]), "arrays of different lengths"),
        ("every", np.array([[1, 2, 4], [1, 2, 4]]), "arrays of different lengths"),
        ("out", np.zeros(3), "arrays of different lengths"),
        ("out", np.zeros(2, np.float32), "arrays of different lengths"),
        ("out", memoryview(bytearray(24))[1:17], "arrays of different lengths"),
    ],
)
def test_pattern_efficiencies(core: ModuleType, name: str, bad: object, message: str) -> None:
    good = pattern_arguments()
    core.pattern_efficiencies(*good.values())
    assert (good["out"] > 0).all()
    with pytest.raises(ValueError, match=message):
        core.pattern_efficiencies(*(good | {name: bad}).values())


def simulation_arguments() -> dict[str, object]:
    """Laws have scale, shape, begin, end and place; preemptions, which never come, are last."""
    return {
        "levels": levels(),
        "interval_s": 100.0,
        "every": np.array([1, 2]),
        "laws": np.array([[1e3, 1.0, 0, 0, 0], [0, 1.0, 0, 2, 1], [0, 1.0, 0, 0, 0]]),
        "times_s": np.array([50.0, 70.0]),
        "surroundings": np.array([0, 0, 0, 0, 0, -1.0, 0, 99, 99, 0, 1]),
        "seed": 1,
        "batch": 10,
        "events": 1000,
        "out": np.zeros((3, 21)),
    }


def changed(name: str, at: tuple[int, ...], value: float) -> tuple[str, np.ndarray]:
    array = np.array(simulation_arguments()[name])
    array[at] = value
    return name, array


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("levels", np.zeros((6, 8))), "no such levels"),
        (("interval_s", 0.0), "no such pattern"),
        (("interval_s", float("nan")), "no such pattern"),
        (("every", np.array([1, 2, 4])), "no such pattern"),
        (("every", np.array([2, 4])), "no such pattern"),
        (("batch", 0), "no such pattern"),
        (("batch", 2**62), "no such pattern"),
        (("laws", np.zeros((0, 5))), "no such laws"),
        (("laws", np.ones((7, 5))), "no such laws"),
        (("laws", np.ones((3, 4))), "no such laws"),
        (changed("laws", (0, 0), -1), "no such laws"),
        (changed("laws", (0, 0), np.nan), "no such laws"),
        (changed("laws", (0, 1), 0), "no such laws"),
        (changed("laws", (1, 2), -1), "no such laws"),
        (changed("laws", (1, 2), np.nan), "no such laws"),
        (changed("laws", (1, 3), 3), "no such laws"),
        (changed("laws", (1, 4), 2), "no such laws"),
        (changed("laws", (1, 4), -1), "no such laws"),
        (("times_s", np.zeros(1)), "no such laws"),
        (("surroundings", np.zeros(10)), "no such surroundings"),
        (changed("surroundings", (0,), -1), "no such surroundings"),
        (changed("surroundings", (2,), np.nan), "no such surroundings"),
        (changed("surroundings", (5,), -2), "no such surroundings"),
        (changed("surroundings", (7,), 1e300), "no such surroundings"),
        (changed("surroundings", (10,), 2), "no such surroundings"),
        (("surroundings", np.array([5.0, 4, 0, 1, 0, -1, 0, 9, 9, 0, 0])), "no such surround"),
        (("out", np.zeros(22)), "no room for whole accounts"),
    ],
)
def test_simulate_pattern(core: ModuleType, bad: tuple[str, object], message: str) -> None:
    good = simulation_arguments()
    assert core.simulate_pattern(*good.values()) == 3
    name, value = bad
    with pytest.raises(ValueError, match=message):
        core.simulate_pattern(*(good | {name: value}).values())


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
