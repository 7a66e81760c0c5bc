"""The multi-level policy on real Slurm, with all five levels in use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import steered
from disturbed_run import HERE, LIMIT_S, REPOSITORY, DisturbedRun, Line, Plan
from s3_server import S3Server
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("slurm-policy")]

RUN = "steered"
SIZE, PAUSE_S = 4_000_000, 0.1
STATE_BYTES = 8 * SIZE
NODES = 2
MEAN_TIMES_S = {
    "process": 3600.0, "reboot": 10800.0, "node": 10800.0, "system": 10800.0,
    "filesystem": 14400.0,
}  # fmt: skip
TIERS = ("shm", "node", "partner", "shared", "s3")
COSTS = ("node:latency=120ms", "shared:latency=300ms", "s3:latency=1s")

SITE = """
name = "steered"

[[tiers]]
kind = "shared_memory"
name = "shm"
capacity = "400 MiB"
level = 0

[[tiers]]
kind = "posix"
name = "node"
path = "/local/ckptflow"
level = 1

[[tiers]]
kind = "redundant"
name = "partner"
scheme = "partner"
set_size = 2
peer_key_file = "key"

[[tiers]]
kind = "posix"
name = "shared"
path = "store"
level = 3

[[tiers]]
kind = "object"
name = "s3"
url = "{s3}"
level = 4

[flush]
agent = true
idle = "10min"

[executor]
workers = 1
address = "127.0.0.1"
walltime = "10min"
margin = "10s"
heartbeat_period = "1s"
heartbeat_threshold = "6s"
strategy_period = "1s"
worker_init = "mkdir -p -m 700 /local/run && export XDG_RUNTIME_DIR=/local/run"

[executor.allocation]
provider = "slurm"
partition = "debug"
nodes = {nodes}
poll = "1s"

[failures]
source = "assumed"
{failures}

{policy}
queue = "10s"
keep = 4
"""


class SteeredRun(DisturbedRun):
    """A run whose saves a plan decides."""

    def __init__(self, cluster: SlurmCluster, folder: Path, s3: str) -> None:
        self._s3, self.policy = s3, '[policy]\nevery = "multilevel"'
        plan = Plan(nodes=NODES, nodes_per_block=NODES, tasks=2, partition="debug")
        super().__init__(RUN, plan, cluster, [1, 2], folder)
        key = folder / "key"
        key.write_bytes(bytes(range(32)))
        key.chmod(0o600)

    def site(self) -> str:
        failures = [f'{name}_mtbf = "{one:g}s"' for name, one in MEAN_TIMES_S.items()]
        return SITE.format(
            s3=self._s3, nodes=NODES, failures="\n".join(failures), policy=self.policy
        )

    @property
    def words(self) -> list[str]:
        arguments = [str(self.folder / "tasks"), str(SIZE), str(PAUSE_S)]
        return [
            *self.ckptflow("run", str(HERE / "steered.py")),
            *("--site", str(self.folder / "site.toml"), "--", *arguments),
        ]

    def ckptflow(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "ckptflow.cli", *words]

    def tune(self) -> dict[str, Any]:
        """Have the site tuned, and take over what is to be written into its file."""
        costs = [word for one in COSTS for word in ("--tier", one)]
        done = subprocess.run(
            self.ckptflow(
                *("tune", "--site", "site.toml", "--state", f"{NODES * STATE_BYTES}"),
                *("--nodes", f"{NODES}", "--changed", "0.02", *costs, "--json"),
            ),
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        self.policy = answer["toml"].strip()
        (self.folder / "site.toml").write_text(self.site())
        return answer

    def events(self) -> list[dict[str, Any]]:
        """Return what attempts have told, in the order of time."""
        found = []
        for path in sorted((self.folder / "store/runs" / RUN / "trail").glob("*.jsonl")):
            whole, _, _ = path.read_text().rpartition("\n")
            found += [json.loads(text) for text in whole.splitlines()]
        return sorted(found, key=lambda one: one["time"])

    def told(self, event: str, task: str = "count-name=task0", attempt: int = 0) -> list[dict[str, Any]]:
        return [
            one
            for one in self.events()
            if (one["event"], one["task"]) == (event, task)
            and one["attempt"] >= attempt
        ]

    def wait_durable(self, count: int, *, task: str = "task0", attempt: int = 1) -> Line:
        """Wait until an attempt knows of so many saves that they are where they were to go."""

        def found() -> Line | None:
            mine = [
                line
                for line in self.lines(task)
                if line.event == "durable" and line.attempt >= attempt
            ]
            return mine[-1] if len(mine) >= count else None

        line: Line = self.wait(found, f"waits for {count} saves of {task}")
        return line


@pytest.fixture
def run(slurm: SlurmCluster, tmp_path: Path, s3_url: str) -> Iterator[SteeredRun]:
    made = SteeredRun(slurm, tmp_path / "run", s3_url)
    try:
        yield made
    finally:
        made.close()


def test_dev(run: SteeredRun) -> None:
    import time
    t0 = time.monotonic()
    def stamp(*what): print(f"{time.monotonic()-t0:6.1f}", *what, flush=True)
    answer = run.tune()
    stamp(run.policy)
    run.start()
    line = run.wait_durable(2)
    for attempt in range(1, 5):
        line = run.wait_durable(2, attempt=attempt)
        stamp("kill", line)
        if attempt == 4: break
        run.kill_process(line, line.pid)
    line = run.wait_durable(6, attempt=4)
    run.enough.touch()
    run.wait(lambda: len([one for one in run.lines() if one.event == "end"]) == 2, "ends")
    stamp("ended")
    for at in ("login", 0):
        m = run.login if at == "login" else run.nodes[at].machine
        out = run.folder/f"explain-{at}"
        with out.open("wb") as f:
            p = m.popen(run.ckptflow("policy", "explain", f"{RUN}/count-name=task0", str(line.step), "--site", "site.toml", "--json"), env={**run.environment, "XDG_RUNTIME_DIR": "/local/run"} , cwd=run.folder, stdout=f, stderr=f)
            p.wait()
        print(out.read_text())
    stamp("explained")
    (run.folder / "tasks/over").touch()
    printed = run.finish()
    stamp("finished")
    for one in run.told("policy-planned"): print(json.dumps(one))
    for e in run.events():
        if e["event"] in ("checkpoint-taken", "checkpoint-stored") and e["task"] == "count-name=task0":
            if e["event"] == "checkpoint-taken":
                print(e["time"][11:23], e["attempt"], "taken", e["step"], e["blocked_s"], [(p["tier"], p["goes"], p["reason"]) for p in e["placements"]])
            else: print(e["time"][11:23], e["attempt"], "stored", e["step"], e["tier"], e.get("stored_bytes"))
    print(run.errors)
    print(printed)
