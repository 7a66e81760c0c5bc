"""The private Slurm cluster of the tests does what they rely on, with either way to track."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import command_of, environment_of, every_pid, stat_of
from slurm_cluster import FREEZER, SlurmCluster, running, why_not
from slurm_conf import Settings

SCRIPT = Path(__file__).with_name("slurm_cluster.py")
LIMIT_S = 60.0
LOOP = "while :; do sleep 0.02; done"


@pytest.fixture(scope="module", params=["linuxproc", "cgroup"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    if reason := why_not(request.param):
        pytest.skip(reason)
    settings = Settings(
        nodes=2, proctrack=request.param, kill_wait_s=2, node_timeout_s=5, grace_s=2
    )
    with running(tmp_path_factory.mktemp("slurm") / "cluster", settings) as found:
        yield found


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave both nodes idle behind."""
    yield
    if "cluster" in request.fixturenames:
        found = request.getfixturevalue("cluster")
        found.command("scancel", "--user=root")
        for node in found.nodes:
            node.thaw()
            node.start()
        found.wait_idle()


def wait(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def submit(cluster: SlurmCluster, folder: Path, text: str, *options: str) -> int:
    script = folder / "script.sh"
    script.write_text(f"#!/bin/bash\n{text}\n")
    words = ("sbatch", "--parsable", f"--output={folder}/out", *options, str(script))
    return int(cluster.command(*words))


def state_of(cluster: SlurmCluster, job: int) -> str:
    text = cluster.command("scontrol", "show", "job", str(job))
    return text.split("JobState=")[1].split()[0]


def test_each_node_is_a_machine_of_its_own(cluster: SlurmCluster) -> None:
    text = cluster.command(
        "srun", "-N2", "sh", "-c", "echo $(hostname) $(cat /proc/sys/kernel/random/boot_id)"
    )
    names, boots = zip(*(line.split() for line in text.splitlines()), strict=True)
    assert set(names) == {node.name for node in cluster.nodes}
    assert len({*boots, Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 3


def test_what_a_node_keeps_vanishes_with_it(cluster: SlurmCluster, tmp_path: Path) -> None:
    node = cluster.node(1)
    on = ("srun", f"--nodelist={node.name}", "sh", "-c")
    cluster.command(*on, f"touch /local/kept /dev/shm/kept {tmp_path}/kept")
    assert cluster.command(*on, "cat /local/kept && echo yes") == "yes\n"
    assert not Path("/local/kept").exists()
    node.boot()
    assert cluster.command(*on, f"ls /local /dev/shm {tmp_path}").split().count("kept") == 1


def test_a_failed_node_takes_its_job_with_it(cluster: SlurmCluster, tmp_path: Path) -> None:
    steps = f"srun sh -c 'touch {tmp_path}/$(hostname); exec sleep 600'"
    job = submit(cluster, tmp_path, steps, "--nodes=2", "--no-requeue")
    node = cluster.node(2)
    wait((tmp_path / node.name).exists)
    pids = node.machine.pids()
    assert any("sleep 600" in command_of(pid) for pid in pids)
    node.fail()
    assert [pid for pid in pids if (stat_of(pid) or ("dead",))[0] == "alive"] == []
    wait(lambda: state_of(cluster, job) == "NODE_FAIL")


@pytest.mark.slow
def test_a_crash_is_noticed_by_slurm_itself(cluster: SlurmCluster, tmp_path: Path) -> None:
    node = cluster.node(1)
    job = submit(cluster, tmp_path, "exec sleep 600", f"--nodelist={node.name}", "--no-requeue")
    wait(lambda: state_of(cluster, job) == "RUNNING")
    node.kill()
    wait(lambda: state_of(cluster, job) == "NODE_FAIL")


def test_a_frozen_node_stands_still_and_goes_on(cluster: SlurmCluster, tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    node = cluster.node(1)
    loop = f"while :; do echo >>{ticks}; sleep 0.02; done"
    submit(cluster, tmp_path, loop, f"--nodelist={node.name}")
    wait(lambda: ticks.exists() and ticks.stat().st_size > 3)
    node.freeze()
    states = {
        Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        for pid in node.machine.pids()
    }
    assert states <= {"T", "Z"}
    stood = ticks.stat().st_size
    node.thaw()
    wait(lambda: ticks.stat().st_size > stood)


def test_who_hears_a_signal(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The difference for which there are two ways to track: who is not first hears nothing."""
    child = f"trap 'touch {tmp_path}/heard' USR2; touch {tmp_path}/ready; {LOOP}"
    (tmp_path / "child.sh").write_text(child)
    parent = (
        f"trap 'touch {tmp_path}/first' USR2; bash {tmp_path}/child.sh & while :; do wait; done"
    )
    (tmp_path / "parent.sh").write_text(parent)
    job = submit(cluster, tmp_path, f"srun bash {tmp_path}/parent.sh")
    wait((tmp_path / "ready").exists)
    cluster.command("scancel", "--signal=USR2", str(job))
    wait((tmp_path / "first").exists)
    cluster.command("scancel", str(job))
    wait(lambda: state_of(cluster, job) == "CANCELLED")
    assert (tmp_path / "heard").exists() == (cluster.settings.proctrack == "linuxproc")


@pytest.mark.slow
def test_preemption_by_a_higher_partition(cluster: SlurmCluster, tmp_path: Path) -> None:
    options = ("--nodes=2", "--exclusive", "--no-requeue")
    job = submit(cluster, tmp_path, "sleep 600", "--partition=preemptible", *options)
    wait(lambda: state_of(cluster, job) == "RUNNING")
    urgent = submit(cluster, tmp_path, "true", "--partition=urgent", *options)
    wait(lambda: state_of(cluster, job) == "PREEMPTED")
    wait(lambda: state_of(cluster, urgent) == "COMPLETED")


def test_a_killed_program_leaves_what_it_started_and_a_killed_machine_nothing(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    login = cluster.login("login1")
    login.start()
    program = login.popen(["bash", "-c", "sleep 777 & touch there; wait"], cwd=tmp_path)
    wait((tmp_path / "there").exists)
    program.kill_inside()
    left = [pid for pid in login.pids() if "sleep 777" in command_of(pid)]
    assert len(left) == 1
    login.kill()
    assert (stat_of(left[0]) or ("dead",))[0] == "dead"


def processes_of(folder: Path) -> list[int]:
    return [
        pid
        for pid in every_pid()
        if str(folder) in command_of(pid)
        or str(folder) in environment_of(pid).get("SLURM_CONF", "")
        if (stat_of(pid) or ("dead",))[0] == "alive"
    ]


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path / "cluster"
    code = f"""
        import sys, time, pathlib
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        from slurm_cluster import SlurmCluster
        from slurm_conf import Settings
        SlurmCluster(pathlib.Path({str(folder)!r}), Settings(nodes=1)).start()
        print("up", flush=True)
        time.sleep(600)
    """
    program = subprocess.Popen(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    with program.stdout:
        assert program.stdout.readline() == b"up\n"
        assert len(processes_of(folder)) >= 4  # The shell of the head, and the daemons.
        program.send_signal(signal.SIGKILL)
        program.wait()
    wait(lambda: processes_of(folder) == [])


@pytest.mark.parametrize("proctrack", ["linuxproc", "cgroup"])
def test_the_command_line(tmp_path: Path, proctrack: str) -> None:
    if reason := why_not(proctrack):
        pytest.skip(reason)
    folder = tmp_path / "cluster"

    def call(*words: str, env: dict[str, str] | None = None) -> str:
        return subprocess.run(
            words, check=True, capture_output=True, text=True, env={**os.environ, **(env or {})}
        ).stdout

    def script(*words: str) -> str:
        return call(sys.executable, str(SCRIPT), *words)

    printed = script("start", str(folder), "--nodes", "2", "--proctrack", proctrack)
    try:
        assert printed == f"export SLURM_CONF={folder}/slurm.conf\n"
        env = {"SLURM_CONF": f"{folder}/slurm.conf"}
        names = call("srun", "-N2", "hostname", env=env).split()
        script("node", str(folder), "fail", names[0])
        assert "down" in call("sinfo", "-h", "-N", "-n", names[0], "-o", "%T", env=env)
        script("node", str(folder), "start", names[0])
        assert sorted(call("srun", "-N2", "hostname", env=env).split()) == sorted(names)
        port = json.loads((folder / "cluster.json").read_text())["port"]
    finally:
        script("stop", str(folder))
    assert not folder.exists()
    assert processes_of(folder) == []
    assert list(FREEZER.glob(f"slurm_c{port}n*")) == []
