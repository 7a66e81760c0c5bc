"""The folder of an agent is for one user alone, or it is not used; locks have one holder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError, TierDenied
from ckptflow.flush.agent import folder as folders
from ckptflow.flush.agent.folder import (
    agent_folder,
    base_folder,
    check_private,
    held,
    is_locked,
    make_agent_folder,
    make_private,
    sweep_leases,
    try_lock,
)

SPECS = [{"kind": "posix", "name": "a", "level": 1, "path": "/a"}]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


def test_it_is_made_for_one_user(runtime: Path) -> None:
    made = make_agent_folder(SPECS)
    assert made == make_agent_folder(SPECS) == agent_folder(SPECS)
    assert made.parent == runtime / "ckptflow"
    assert {path.stat().st_mode & 0o777 for path in (made, made.parent, made / "leases")} == {
        0o700
    }


def test_other_tiers_have_another_agent(runtime: Path) -> None:
    other = [{**SPECS[0], "path": "/b"}]
    assert agent_folder(SPECS) != agent_folder(other)
    assert agent_folder([dict(reversed(SPECS[0].items()))]) == agent_folder(SPECS)
    with pytest.raises(ConfigError, match="cannot be opened elsewhere"):
        make_agent_folder([{"client": object()}])


def test_without_a_runtime_folder_it_lies_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert base_folder() == Path(f"/tmp/ckptflow-{os.geteuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert base_folder() == Path(f"/tmp/ckptflow-{os.geteuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert base_folder() == Path(f"/tmp/ckptflow-{os.geteuid()}")


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701, 0o1777])
def test_a_folder_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(TierDenied, match=f"has mode {mode:o}, not 700.* XDG_RUNTIME_DIR"):
        make_private(place)


def test_links_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    for name in ("link", "dangling", "file"):
        with pytest.raises(TierDenied, match="is no folder"):
            make_private(tmp_path / name)
    with pytest.raises(TierDenied, match="cannot be looked at"):
        check_private(tmp_path / "missing")
    with pytest.raises(TierDenied, match="cannot be made"):
        make_private(tmp_path / "missing" / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(TierDenied, match="belongs to user 12345"):
        make_private(place)


def test_a_lock_has_one_holder_and_leaves_nothing(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "lock", [0], []

    def work() -> None:
        for _ in range(20):
            with held(path, pause=lambda _s: None):
                inside[0] += 1
                most.append(inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) == 80
    assert not path.exists()


def test_a_lock_goes_with_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import pathlib, time\nfrom {folders.__name__} import try_lock\n"
            f"assert try_lock(pathlib.Path({str(path)!r})) is not None\n"
            f"print('held', flush=True)\ntime.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder.stdout as pipe:
        assert pipe.readline() == b"held\n"
    assert is_locked(path)
    assert try_lock(path) is None
    holder.kill()
    holder.wait()
    assert not is_locked(path)
    with held(path):
        assert is_locked(path)


def test_lock_files_of_the_dead_are_swept(runtime: Path) -> None:
    made = make_agent_folder(SPECS)
    (made / "leases" / "dead").write_text("")
    with held(made / "leases" / "alive"):
        sweep_leases(made)
        assert [path.name for path in (made / "leases").iterdir()] == ["alive"]


def test_who_waits_goes_on_when_told_so(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held(path):
        waited: list[float] = []
        with held(path, pause=waited.append, until=lambda: len(waited) == 3):
            assert len(waited) == 3


def test_where_no_lock_can_be_made_work_goes_on(tmp_path: Path) -> None:
    with held(tmp_path / "gone" / "lock"):
        assert not is_locked(tmp_path / "gone" / "lock")
