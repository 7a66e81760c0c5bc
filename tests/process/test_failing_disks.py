"""Real processes whose system calls fail: the next tier takes over, and it is told once.

Method: strace makes the n-th call of one kind fail, in each thread of `failing_disk.py`. The
thread that writes is the only one that gets so far. The errors are those of full disks, quotas
(also found at ``close``, as NFS does), broken disks, and file servers that went away.
"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("failing_disk.py")

FAULTS = [
    ("fsync", "EIO", "failing"),
    ("writev", "ENOSPC", "full"),
    ("close", "EDQUOT", "full"),
    ("openat", "EROFS", "denied"),
    ("writev", "EIO", "failing"),
    ("writev", "EDQUOT", "full"),
    ("rename", "ESTALE", "failing"),
    ("fsync", "ETIMEDOUT", "failing"),
    ("fsync", "ENOSPC", "full"),
    ("rename", "EACCES", "denied"),
    ("writev", "EKEYEXPIRED", "denied"),
    ("fsync", "EHOSTDOWN", "failing"),
]


@pytest.fixture(scope="module")
def strace(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    log = tmp_path_factory.mktemp("strace") / "log"
    tried = subprocess.run([program, "-o", str(log), "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("strace may not trace here")
    return program


def traced(strace: str, folder: Path, call: str, inject: str) -> tuple[int, dict[str, Any]]:
    """Save under strace; return the exit status, and what was said with what is found."""
    command = [strace, "-f", "-o", str(folder / "log"), "-e", f"trace={call}"]
    command += [
        "-e",
        f"inject={call}:{inject}",
        sys.executable,
        str(PROGRAM),
        "save",
        str(folder),
    ]
    saved = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    command = [sys.executable, str(PROGRAM), "find", str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    said = json.loads(saved.stdout) if saved.returncode == 0 else {"stderr": saved.stderr}
    return saved.returncode, said | json.loads(found.stdout)


@pytest.mark.parametrize(
    ("call", "error", "condition"),
    [
        pytest.param(*fault, id="-".join(fault[:2]), marks=[pytest.mark.slow] * (number > 2))
        for number, fault in enumerate(FAULTS)
    ],
)
def test_one_call_fails(
    tmp_path: Path, strace: str, call: str, error: str, condition: str
) -> None:
    """Of the many, a late one: no checkpoint is lost, and one word is said."""
    # Counted for each thread. That of the near tier gets there in its sixth save or seventh;
    # that of the far tier, which takes over, does not get so far any more.
    at = {"openat": 75, "close": 60, "fsync": 33}.get(call, 13)
    code, report = traced(strace, tmp_path, call, f"error={error}:when={at}")
    assert code == 0, report["stderr"]
    assert f"{error} " in (tmp_path / "log").read_text()
    assert report["durable"] == list(range(1, 9))
    assert (report["restored"], report["bits"], report["partial"]) == (8, True, [])
    (trouble,) = report["troubles"]
    assert (trouble["tier"], trouble["condition"]) == ("near", condition)
    assert len(report["told"]) == 1
    assert f"(errno {getattr(errno, error)})" in report["told"][0]
    assert 0 < len(report["near"]) < 8  # After that it was left alone.
    assert trouble["missed"] == 8 - len(report["near"])


def test_every_call_fails_from_one_on(tmp_path: Path, strace: str) -> None:
    """Both tiers are broken: each checkpoint is lost and told, and the older ones stay."""
    saving = subprocess.Popen(
        [sys.executable, str(PROGRAM), "save", str(tmp_path), "4"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert saving.stdout is not None
    assert saving.stdout.readline() == "paused\n"
    command = [strace, "-f", "-p", str(saving.pid), "-o", str(tmp_path / "log")]
    command += ["-e", "trace=fsync", "-e", "inject=fsync:error=EIO"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:
        assert tracing.stderr is not None
        if "attached" not in tracing.stderr.readline():
            saving.kill()
            pytest.skip("strace may not attach to a process here")
        said, _ = saving.communicate("go on\n", timeout=200)
        tracing.stderr.read()
    assert saving.returncode == 0
    report = json.loads(said)
    assert (report["durable"], report["lost"]) == ([1, 2, 3], [4, 5, 6, 7, 8])
    assert {one["tier"] for one in report["troubles"]} == {"near", "far"}
    command = [sys.executable, str(PROGRAM), "find", str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (found["restored"], found["bits"], found["partial"]) == (3, True, [])


@pytest.mark.parametrize(
    "call",
    [
        "fsync",
        "rename",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("writev", "link", "unlink", "mkdir")
        ),
    ],
)
def test_killed_in_a_call(tmp_path: Path, strace: str, call: str) -> None:
    """By the kernel, inside the call: what the next attempt finds is whole."""
    times = {"fsync": 22, "rename": 7, "writev": 9, "link": 2, "unlink": 2, "mkdir": 3}
    code, found = traced(strace, tmp_path, call, f"signal=KILL:when={times[call]}")
    assert code in {137, -9}, found["stderr"]
    assert found["bits"]
    assert found["restored"] == found["newest"]
