"""What is called durable is still there after a kill, a power cut, or on a full disk.

Method: `disk_trouble.py` makes a save die before each of its changes of the file system, in
every way that this machine allows; here its reports are judged. Kills and limits on file sizes
always work. Power cuts need a loop-mounted ext4 file system, full disks a tmpfs, both in a
mount namespace of their own; where that is not allowed the tests are skipped and say why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Of the changes of a save with its flush, those to die at: one in so many.
STRIDE = "1" if os.environ.get("SLOW", "") not in {"", "0"} else "18"
PROGRAM = Path(__file__).with_name("disk_trouble.py")


def trials(*arguments: str, namespace: list[str] | None = None) -> list[Any]:
    """Run the program and return its reports; skip the test if it could not mount."""
    command = [*(namespace or []), sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    for report in reports:
        if "skip" in report:
            pytest.skip(f"cannot mount here: {report['skip']}")
    assert reports, done.stderr
    assert done.returncode == 0, done.stderr
    return reports


@pytest.fixture
def namespace() -> list[str]:
    """A command that runs another where mounts are its own and vanish with it."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    command = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace here: {tried.stderr.strip()}")
    return command


@pytest.fixture
def ext4(namespace: list[str]) -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    return namespace


def judge(reports: list[Any], saves_before: int) -> None:
    """A save becomes visible at one instant, whole; before it there is the one before."""
    *interrupted, last = reports
    seen = [report["restored"] for report in reports]
    assert all(report["bits"] for report in reports)
    assert [report["newest"] for report in reports] == seen
    assert seen == sorted(seen)
    assert set(seen) == {saves_before, saves_before + 1}
    for report in reports:
        assert all(step <= report["restored"] for step in report["durable"])
    assert (last["status"], last["durable"]) == (0, [saves_before + 1])
    assert all(report["status"] == -9 for report in interrupted)
    assert len(interrupted) > 15


@pytest.mark.parametrize("saves_before", [0, 2])
def test_killed_before_any_change_of_the_file_system(tmp_path: Path, saves_before: int) -> None:
    reports = trials("kills", str(tmp_path), str(saves_before))
    judge(reports, saves_before)
    calls = [report["call"] for report in reports[:-1]]
    assert set(calls) >= {"open", "writev", "fsync", "link", "rename", "unlink"}
    first = next(number for number, one in enumerate(reports) if one["restored"] > saves_before)
    assert calls[first - 1] == "rename"  # The commit.
    for report in reports:
        assert report["later"] == report["restored"] + 1
        assert report["end"] == {
            "restored": report["later"],
            "newest": report["later"],
            "bits": True,
        }


@pytest.mark.parametrize("saves_before", [0, 2])
def test_power_cut_before_any_change_of_the_file_system(
    tmp_path: Path, ext4: list[str], saves_before: int
) -> None:
    """In the end just after the save was called durable: then it must be there."""
    judge(trials("cuts", str(tmp_path), str(saves_before), namespace=ext4), saves_before)


def judge_both(reports: list[Any]) -> None:
    """A save, its flush, the prunes of both: the near tier has it first, then the far one."""
    *interrupted, last = reports
    for report in reports:
        far = report["far"]
        assert report["bits"]
        assert far["bits"]
        assert report["restored"] == report["newest"]
        assert far["restored"] == far["newest"] <= report["restored"]
        assert {report["restored"], far["restored"]} <= {3, 4}
        assert all(step <= far["restored"] for step in report["durable"])
    assert (last["status"], last["durable"]) == (0, [4])
    assert all(report["status"] == -9 for report in interrupted)


def test_killed_during_save_flush_and_prune_on_two_tiers(tmp_path: Path) -> None:
    reports = trials("kills-on-both", str(tmp_path), STRIDE)
    judge_both(reports)
    for report in reports:
        assert report["later"] == report["restored"] + 1
        assert report["end"]["far"]["restored"] == report["later"]
        assert report["end"]["far"]["bits"]
    assert len(reports) > (40 if STRIDE == "1" else 2)


def test_power_cut_during_save_flush_and_prune_on_two_tiers(
    tmp_path: Path, ext4: list[str]
) -> None:
    judge_both(trials("cuts-on-both", str(tmp_path), STRIDE, namespace=ext4))


def test_the_power_cut_is_one(tmp_path: Path, ext4: list[str]) -> None:
    """Without fsync the same cut takes what was called durable, so it would show the lack."""
    (report,) = trials("unsynced", str(tmp_path), namespace=ext4)
    assert report["durable"] == [3]
    assert report["restored"] != 3


@pytest.mark.parametrize("what", ["blocks", "files"])
def test_a_disk_that_is_really_full(tmp_path: Path, namespace: list[str], what: str) -> None:
    """Full from step 4 to 5: those two are lost, and told; nothing else is."""
    (report,) = trials("full", str(tmp_path / "disk"), what, namespace=namespace)
    assert (report["durable"], report["errors"]) == ([1, 2, 3, 6, 7, 8], [4, 5])
    assert report["kinds"] == ["TierFull"]
    told = [text for text in report["texts"] if "The task goes on" in text]
    # A prune that the disk filled up under may find no room either, not even for its notice.
    assert len([text for text in told if "/guards/" not in text]) == 2, told
    assert report["partial"] == []
    assert (report["restored"], report["bits"]) == (8, True)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    (report,) = trials("limited", str(tmp_path))
    assert "No room to write 'lineages/default/main/packs/" in report["message"]
    assert "File too large (errno 27)" in report["message"]
    assert report["partial"] == []
    assert (report["restored"], report["bits"]) == (1, True)
