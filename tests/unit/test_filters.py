"""Filters refuse what they cannot take, and the compiled ones keep to their memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ckptflow.native
from ckptflow.data import backend
from ckptflow.data.filters import WORD_MAX, Filter, apply, max_bytes, undo
from ckptflow.errors import CorruptionError

NATIVE = Path(ckptflow.native.__file__).parent
HERE = Path(__file__).parent
NUMBERS = np.arange(1, 101, dtype="<u4")


def test_a_shuffle_puts_equal_bytes_side_by_side() -> None:
    assert bytes(apply(Filter.SHUFFLE, 2, b"a1b2c3d4!")) == b"abcd1234!"


def test_a_bit_shuffle_puts_equal_bits_side_by_side() -> None:
    plain = bytes([1, 0] * 8) + b"rest of less than 8"[:5]
    assert bytes(apply(Filter.BITSHUFFLE, 2, plain)) == b"\xff" + bytes(15) + b"rest "


def test_words_keep_what_is_not_zero() -> None:
    plain = np.zeros(16, "<u4")
    plain[[1, 9]] = 0x0102, 0x0304
    stored = apply(Filter.WORDS, 4, plain.tobytes() + b"\0z")
    assert bytes(stored) == b"\x02\x02" + b"\x02\x04\x01\x03" + bytes(4) + b"\0z"


def test_words_are_never_longer_than_announced() -> None:
    full = bytes([1]) * 1003
    assert len(apply(Filter.WORDS, 4, full)) == max_bytes(Filter.WORDS, 4, 1003) == 1003 + 32
    assert max_bytes(Filter.SHUFFLE, 4, 1003) == 1003


def test_no_filter_gives_the_same_memory() -> None:
    view = apply(Filter.NONE, 0, NUMBERS)
    assert np.shares_memory(np.asarray(view), NUMBERS)
    assert np.shares_memory(np.asarray(undo(Filter.NONE, 0, view, plain_bytes=400)), NUMBERS)


def test_no_filter_copies_to_where_it_is_told() -> None:
    target = bytearray(400)
    undo(Filter.NONE, 0, NUMBERS, plain_bytes=400, out=target)
    assert target == NUMBERS.tobytes()


@pytest.mark.parametrize(("filter_", "word"), [(4, 4), (1, 0), (3, WORD_MAX + 1), (0, 1)])
def test_an_unknown_filter_or_word(filter_: int, word: int) -> None:
    with pytest.raises(ValueError, match=f"no filter {filter_} with words of {word} bytes"):
        apply(filter_, word, b"abcd")
    with pytest.raises(CorruptionError, match=f"'p' names the unknown filter {filter_} with"):
        undo(filter_, word, b"abcd", plain_bytes=4, where="'p'")


@pytest.mark.parametrize("filter_", list(Filter))
def test_a_frame_of_another_length(filter_: Filter) -> None:
    word = 0 if filter_ is Filter.NONE else 4
    stored = bytes(apply(filter_, word, NUMBERS))
    for wrong in (0, 399, 401):
        with pytest.raises(CorruptionError, match="A frame of 'p' has a wrong length"):
            undo(filter_, word, stored, plain_bytes=wrong, where="'p'")


def test_a_bitmap_that_marks_words_behind_the_last() -> None:
    stored = bytes(apply(Filter.WORDS, 4, bytes(12)))
    assert stored == b"\0"
    with pytest.raises(CorruptionError, match="1 filtered bytes cannot give 12"):
        undo(Filter.WORDS, 4, b"\x08", plain_bytes=12, where="'p'")


def test_targets_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="A filter of 400 bytes needs 413, not 412"):
        apply(Filter.WORDS, 4, NUMBERS, out=bytearray(412))
    with pytest.raises(ValueError, match="of 400 bytes does not go into 401"):
        undo(Filter.SHUFFLE, 4, NUMBERS, plain_bytes=400, out=bytearray(401))


@pytest.mark.skipif(backend.active().name != "native", reason="no compiled core is here")
def test_the_core_refuses_what_would_leave_its_memory() -> None:
    from ckptflow.native import _core as core

    room = np.zeros(500, np.uint8)
    with pytest.raises(ValueError, match="no such filter, word or variant"):
        core.apply_filter(1, 17, room[:8], room[100:], 0)
    with pytest.raises(ValueError, match="no such filter, word or variant"):
        core.undo_filter(1, 4, room[:8], room[100:108], 99)
    with pytest.raises(ValueError, match="room for the longest result"):
        core.apply_filter(3, 4, room[:32], room[100:132], 0)
    with pytest.raises(ValueError, match="apart from the plain bytes"):
        core.apply_filter(1, 4, room[:32], room[31:63], 0)
    with pytest.raises(ValueError, match="apart from the stored bytes"):
        core.undo_filter(1, 4, room[:32], room[31:63], 0)


def test_the_header_is_free_of_undefined_behaviour(tmp_path: Path) -> None:
    """Run ``filters_check.cpp`` under the sanitizers, over damaged bytes, too."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is here")
    program = tmp_path / "check"
    command = [compiler, "-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += ["-fsanitize=undefined,address", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    command += [str(HERE / "filters_check.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find -l" in built.stderr or "libclang_rt" in built.stderr:
        pytest.skip("the sanitizers' libraries are not here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith("0 wrong")
