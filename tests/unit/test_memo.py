"""The memo survives every cut and every flipped bit, and its keys never fail."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import struct
import sys
import threading
import time
import types
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsl.data_provider.files import File
from parsl.dataflow.memoization import id_for_memo

from ckptflow.errors import FormatError
from ckptflow.workflow import memo_file as memo_module
from ckptflow.workflow.definition import Definition
from ckptflow.workflow.memo import DurableMemoizer, Facts
from ckptflow.workflow.memo_file import MAGIC, OLD_MAGIC, MemoFile, read_results

KEYS = [f"{number:032x}" for number in range(4)]


@dataclasses.dataclass
class Deck:
    size: int


def work() -> None: ...


def task(*args: object, func: Callable[..., Any] = work, **kwargs: object) -> Any:
    """A task as Parsl hands it over."""
    return {
        "id": 0, "func": func, "func_name": func.__name__, "args": args, "kwargs": kwargs,
        "ignore_for_cache": [], "memoize": True, "hashsum": None, "from_memo": False,
        "app_fu": Future(),
    }  # fmt: skip


def memoizer(path: Path, **options: Any) -> DurableMemoizer:
    memo = DurableMemoizer(path, **options)
    memo.start(run_dir=str(path.parent), config_run_dir=str(path.parent))
    return memo


def remember(memo: DurableMemoizer, record: Any, result: object) -> None:
    assert memo.check_memo(record) is None
    record["app_fu"].set_result(result)
    memo.update_memo_result(record, result)


def contents(path: Path) -> list[tuple[str, bytes]]:
    file = MemoFile(path)
    found = [(key, one.pickled) for key, one in file.results()[0].items()]
    file.close()
    return found


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "memo"
    file = MemoFile(path)
    for number, key in enumerate(KEYS):
        file.add(key, pickle.dumps("x" * number))
    file.close()
    return path


def ends(path: Path) -> list[int]:
    """Where each record ends, by the layout in the module's docstring."""
    data, at, found = path.read_bytes(), len(MAGIC), []
    while at < len(data):
        at += 8 + int.from_bytes(data[at : at + 4], "little")
        found.append(at)
    return found


def test_cut_at_every_byte_it_keeps_the_whole_records_and_goes_on(whole: Path) -> None:
    data, limits = whole.read_bytes(), ends(whole)
    assert limits[-1] == len(data)
    for cut in range(len(data) + 1):
        whole.write_bytes(data[:cut])
        file = MemoFile(whole)
        kept = list(file.results()[0])
        assert kept == KEYS[: sum(end <= cut for end in limits)]
        file.add("f" * 32, b"new")
        file.close()
        assert contents(whole)[-1] == ("f" * 32, b"new")
        assert len(contents(whole)) == len(kept) + 1


def test_a_tail_of_zeros_is_no_record(whole: Path) -> None:
    """After a power cut the file may be longer than what reached the disk."""
    with whole.open("ab") as file:
        file.write(bytes(100))
    assert [key for key, _ in contents(whole)] == KEYS
    assert whole.stat().st_size == ends(whole)[-1]


def test_no_flipped_bit_gives_a_wrong_record(whole: Path) -> None:
    data, right = whole.read_bytes(), contents(whole)
    version = MAGIC.index(b"2")  # Another one is refused.
    for at in (one for one in range(len(data)) if one != version):
        for bit in (0x01, 0x80):
            whole.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            assert set(contents(whole)) < set(right)


def test_a_damaged_result_does_not_take_the_later_ones_with_it(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[ends(whole)[0] - 1] ^= 1
    whole.write_bytes(data)
    assert [key for key, _ in contents(whole)] == KEYS[1:]


def test_a_foreign_file_is_started_anew(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    path.write_bytes(pickle.dumps({"hash": "x", "result": 1}) * 3)
    assert contents(path) == []
    assert path.read_bytes() == MAGIC


def test_a_full_disk_leaves_the_file_as_it_was_and_is_told(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, pwrite = whole.read_bytes(), os.pwrite
    told: list[str] = []
    file = MemoFile(whole, failed=told.append)
    calls = 0

    def fill_up(descriptor: int, data: bytes, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return pwrite(descriptor, data[:5], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fill_up)
    file.add("f" * 32, b"new")
    file.close()
    assert whole.read_bytes() == before
    assert len(told) == 1
    assert "1 results could not be written" in told[0]
    assert "No space left" in told[0]


def test_many_threads_do_not_mix_records(tmp_path: Path) -> None:
    file = MemoFile(tmp_path / "memo")

    def write(thread: int) -> None:
        for number in range(40):
            file.add(f"{thread:016x}{number:016x}", bytes([thread]) * number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    found = contents(tmp_path / "memo")
    assert len({key for key, _ in found}) == 320
    assert all(data == bytes([int(key[:16], 16)]) * int(key[16:], 16) for key, data in found)


def test_a_rerun_finds_the_results(tmp_path: Path) -> None:
    first = memoizer(tmp_path / "memo")
    for number in range(3):
        remember(first, task(number), {"n": number})
    first.close()
    second = memoizer(tmp_path / "memo")
    for number in range(3):
        found = second.check_memo(task(number))
        assert found is not None
        assert found.result() == {"n": number}
    assert second.check_memo(task(3)) is None
    second.close()


def test_within_a_run_the_same_call_is_not_run_again(tmp_path: Path) -> None:
    memo = memoizer(tmp_path / "memo")
    remember(memo, task(1), "one")
    found = memo.check_memo(task(1))
    assert found is not None
    assert found.result() == "one"
    memo.close()


def test_a_result_reaches_the_file_without_being_asked_to(tmp_path: Path) -> None:
    """A SIGKILL a moment later finds it there."""
    memo = memoizer(tmp_path / "memo")
    remember(memo, task(1), "one")
    limit = time.monotonic() + 60
    while (tmp_path / "memo").stat().st_size == len(MAGIC):
        assert time.monotonic() < limit
        time.sleep(0.005)
    memo.close()
    assert len(contents(tmp_path / "memo")) == 1


def test_more_than_memory_should_hold_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo_module, "_WAITING_BYTES_MAX", 1000)
    monkeypatch.setattr(memo_module, "_WRITE_EVERY_S", 3600.0)
    file = MemoFile(tmp_path / "memo")
    file.add(KEYS[0], b"x" * 2000)
    assert (tmp_path / "memo").stat().st_size > 2000
    file.close()


def test_failures_are_not_remembered(tmp_path: Path) -> None:
    memo = memoizer(tmp_path / "memo")
    record = task(1)
    memo.check_memo(record)
    record["app_fu"].set_exception(ValueError("no"))
    memo.update_memo_exception(record, ValueError("no"))
    memo.close()
    again = memoizer(tmp_path / "memo")
    assert again.check_memo(task(1)) is None
    again.close()


@pytest.mark.parametrize(
    "argument",
    [
        b"bytes",
        np.arange(4),
        np.float32(1.5),
        {1, 2},
        frozenset("ab"),
        Deck(3),
        Path("a/b"),
        1j,
        {"x": [Deck(1), (b"a", {2})]},
        {1: "a", "b": 2},
    ],
)
def test_keys_of_types_that_parsl_refuses(tmp_path: Path, argument: object) -> None:
    memo = memoizer(tmp_path / "memo")
    remember(memo, task(argument, name=argument), 1)
    assert memo.check_memo(task(argument, name=argument)) is not None
    assert memo.check_memo(task(argument, name=0)) is None
    memo.close()


def test_an_unknown_type_is_run_and_not_remembered(tmp_path: Path) -> None:
    memo = memoizer(tmp_path / "memo")
    record = task(threading.Lock())
    remember(memo, record, 1)
    assert not memo.remembers(record)
    assert memo.check_memo(task(threading.Lock())) is None
    memo.close()
    assert contents(tmp_path / "memo") == []


def test_a_type_registered_with_parsl_is_asked(tmp_path: Path) -> None:
    class Mesh:
        def __init__(self, name: str) -> None:
            self.name = name

    @id_for_memo.register(Mesh)
    def _mesh(mesh: Mesh, output_ref: bool = False) -> bytes:
        return mesh.name.encode()

    memo = memoizer(tmp_path / "memo")
    remember(memo, task(Mesh("a")), 1)
    assert memo.check_memo(task(Mesh("a"))) is not None
    assert memo.check_memo(task(Mesh("b"))) is None
    memo.close()


def test_a_result_that_cannot_be_pickled_is_noted_and_nothing_is_raised(tmp_path: Path) -> None:
    memo = memoizer(tmp_path / "memo")
    remember(memo, task(1), (number for number in range(3)))
    assert memo.failures == [memo.failures[0]]
    assert memo.failures[0].startswith("The result of work() will not be remembered: ")
    memo.close()


def test_a_result_whose_class_is_gone_is_computed_again(tmp_path: Path) -> None:
    module = types.ModuleType("soon_gone")
    exec("class Thing: pass", module.__dict__)
    sys.modules["soon_gone"] = module
    memo = memoizer(tmp_path / "memo")
    remember(memo, task(1), module.Thing())
    remember(memo, task(2), "plain")
    memo.close()
    del sys.modules["soon_gone"]
    again = memoizer(tmp_path / "memo")
    assert again.check_memo(task(1)) is None
    assert again.check_memo(task(2)) is not None
    again.close()


def test_what_a_task_is_told_about_resources_does_not_count(tmp_path: Path) -> None:
    memo = memoizer(tmp_path / "memo", runs_folder=tmp_path / "runs")
    logs = [str(tmp_path / "runs" / number / "task.out") for number in ("000", "001")]
    remember(memo, task(1, walltime=5, stdout=logs[0]), 1)
    assert memo.check_memo(task(1, walltime=6, stdout=(logs[1], "w"))) is not None
    assert memo.check_memo(task(1, stdout="mine.txt")) is None
    memo.close()


def test_apps_of_one_name_in_two_modules_are_two_apps(tmp_path: Path) -> None:
    def other() -> None: ...

    other.__name__, other.__module__ = "work", "elsewhere"
    memo = memoizer(tmp_path / "memo")
    remember(memo, task(1), 1)
    assert memo.check_memo(task(1, func=other)) is None
    memo.close()


def test_without_cache_nothing_is_remembered(tmp_path: Path) -> None:
    memo = memoizer(tmp_path / "memo")
    record = task(1) | {"memoize": False}
    remember(memo, record, 1)
    assert memo.check_memo(task(1)) is None
    memo.close()


def test_launches_are_told(tmp_path: Path) -> None:
    told: list[bool] = []

    def notice(_record: object, facts: Facts, remembered: object) -> bool:
        told.append(remembered is not None)
        return facts.task == "work" and remembered is not None

    memo = memoizer(tmp_path / "memo", notice=notice)
    remember(memo, task(1), 1)
    assert memo.check_memo(task(1)) is not None
    memo.close()
    assert told == [False, True]


def test_who_is_asked_may_refuse_a_result(tmp_path: Path) -> None:
    first = memoizer(tmp_path / "memo")
    remember(first, task(1), "old")
    first.close()
    second = memoizer(tmp_path / "memo", notice=lambda *_: False)
    remember(second, task(1), "new")
    second.close()
    third = memoizer(tmp_path / "memo")
    found = third.check_memo(task(1))
    assert found is not None
    assert found.result() == "new"
    third.close()


# --- forgetting, versions of the file --------------------------------------------------


def test_what_is_forgotten_runs_again_and_is_remembered_again(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    file = MemoFile(path)
    file.add(KEYS[0], b"1", task="a", code="c1")
    file.add(KEYS[1], b"2", task="b")
    file.add(KEYS[2], b"3", task="a")
    file.forget("a")
    file.add(KEYS[2], b"4", task="a", code="c2")
    file.close()
    found = read_results(path)
    assert {key: (one.pickled, one.task, one.code) for key, one in found.items()} == {
        KEYS[1]: (b"2", "b", None),
        KEYS[2]: (b"4", "a", "c2"),
    }
    file = MemoFile(path)
    assert file.results()[1] == {"a"}
    file.close()


def old_file(path: Path) -> None:
    """A file as version 1 had it, by the layout in the module's docstring."""
    records = []
    for number, key in enumerate(KEYS):
        body = key.encode() + pickle.dumps("x" * number)
        records.append(struct.pack("<II", len(body), zlib.crc32(body)) + body)
    path.write_bytes(OLD_MAGIC + b"".join(records))


def test_a_file_of_version_1_is_read_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    old_file(path)
    assert [pickle.loads(one.pickled) for one in read_results(path).values()] == [
        "", "x", "xx", "xxx",
    ]  # fmt: skip
    assert path.read_bytes().startswith(OLD_MAGIC)
    file = MemoFile(path)
    file.add("f" * 32, b"new", task="a")
    file.close()
    assert path.read_bytes().startswith(MAGIC)
    assert [key for key, _ in contents(path)] == [*KEYS, "f" * 32]


def test_a_result_of_version_1_is_forgotten_with_its_task(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    first = memoizer(path)
    remember(first, task(1), "one")
    first.close()
    ((key, pickled),) = contents(path)
    body = key.encode() + pickled
    path.write_bytes(OLD_MAGIC + struct.pack("<II", len(body), zlib.crc32(body)) + body)
    file = MemoFile(path)
    file.forget("work")
    file.close()
    again = memoizer(path)
    assert again.check_memo(task(1)) is None
    again.close()


def test_a_file_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    path.write_bytes(b"CKPTFLOW-MEMO-3\n" + bytes(100))
    for opened in (MemoFile, read_results):
        with pytest.raises(FormatError, match="written by a newer version"):
            opened(path)
    assert path.stat().st_size == 116


def test_nothing_is_written_into_the_file_of_another_process(whole: Path) -> None:
    before, told = whole.read_bytes(), list[str]()
    file = MemoFile(whole, failed=told.append, is_ours=lambda: False)
    file.add("f" * 32, b"new")
    file.close()
    assert whole.read_bytes() == before
    assert len(told) == 1
    assert "another process has taken the run over" in told[0]


# --- what belongs to the key -----------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "same"),
    [
        (Facts("work", Definition({}, version="1"), {"deck": "d1"}), True),
        (Facts("work", Definition({}, version="2"), {"deck": "d1"}), False),
        (Facts("work", Definition({}, version="1"), {"deck": "d2"}), False),
        (Facts("work", Definition({}, version="1"), {"mesh": "d1"}), False),
        (Facts("work", Definition({}), {"deck": "d1"}), False),
        (
            Facts("work", Definition({"steps": "3"}, code="c", version="1"), {"deck": "d1"}),
            True,
        ),
    ],
)
def test_versions_and_files_belong_to_the_key(tmp_path: Path, facts: Facts, same: bool) -> None:
    known = Facts("work", Definition({}, version="1"), {"deck": "d1"})
    memo = memoizer(tmp_path / "memo", describe=lambda _: known)
    remember(memo, task(1), "one")
    memo.close()
    again = memoizer(tmp_path / "memo", describe=lambda _: facts)
    assert (again.check_memo(task(1)) is not None) == same
    again.close()


def test_a_result_counts_only_while_its_output_is_there(tmp_path: Path) -> None:
    output = tmp_path / "out.dat"
    output.touch()
    record = task(1, outputs=[File(str(output))])
    memo = memoizer(tmp_path / "memo")
    remember(memo, record, "one")
    memo.close()
    output.unlink()
    again = memoizer(tmp_path / "memo")
    assert again.check_memo(task(1, outputs=[File(str(output))])) is None
    output.touch()
    assert again.check_memo(task(1, outputs=[File(str(output))])) is not None
    again.close()
    output.unlink()
    by_name = memoizer(tmp_path / "memo", describe=lambda _: Facts("work", needs_outputs=False))
    assert by_name.check_memo(task(1, outputs=[File(str(output))])) is not None
    by_name.close()
