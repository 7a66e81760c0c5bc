"""The multi-level policy on real Slurm: all five levels in use, and a rate that is not true.

The site is tuned by `ckptflow tune`; two tasks (`steered.py`) run by that pattern, each on a
node; and the worker of one is killed far oftener than the site believes. Then they are held
still, so that what the policy says of checkpoints can be compared with what the tiers hold.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import steered
from disturbed_run import HERE, DisturbedRun, Plan
from object_stores import BUCKET
from s3_server import S3Server
from scipy.stats import nbinom
from slurm_cluster import SlurmCluster

from ckptflow.model import CheckpointId
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.search import thorough
from ckptflow.policy.multilevel.system import Level, Pattern, System

# A fixture lets it all happen, so the first test waits for long.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("slurm-policy"),
]

RUN, TASK = "steered", "count-name=task0"
SIZE, PAUSE_S = 2_000_000, 0.05
NODES, KILLS, KEPT = 2, 3, 4
MEAN_TIMES_S = {
    "process": 1200.0, "reboot": 10800.0, "node": 10800.0, "system": 10800.0,
    "filesystem": 14400.0,
}  # fmt: skip
TIERS = ("shm", "node", "partner", "shared", "s3")
COSTS = ("node:latency=120ms", "shared:latency=300ms", "s3:latency=1s")

SITE = """
name = "steered"

[[tiers]]
kind = "shared_memory"
name = "shm"
capacity = "200 MiB"
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
worker_init = "export XDG_RUNTIME_DIR=/dev/shm"  # Not /tmp, which these nodes share.

[executor.allocation]
provider = "slurm"
partition = "debug"
nodes = {nodes}
poll = "1s"

[failures]
source = "assumed"
{failures}

{policy}
keep = {kept}
"""
# On a node: what the policy says of some steps, and besides what the tiers hold.
LOOK = """
import contextlib, io, json, sys
from ckptflow.cli import app
from ckptflow.site import load_site

task, *steps = sys.argv[1:]
explained = {}
for step in steps:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(["policy", "explain", task, step, "--site", "site.toml", "--json"],
            standalone_mode=False)
    explained[step] = json.loads(out.getvalue())
keys = {
    tier.name: sorted(tier.iter_keys(f"lineages/{task}/manifests"))
    for tier in load_site("site.toml").open_tiers()
}
print(json.dumps([explained, keys]))
"""


class SteeredRun(DisturbedRun):
    """A run whose saves a plan decides."""

    def __init__(
        self, cluster: SlurmCluster, folder: Path, server: S3Server, number: int = 1
    ) -> None:
        self._server = server
        self.policy = '[policy]\nevery = "multilevel"\nqueue = "10s"'
        self.prefix = f"policy-{folder.parent.name}"
        plan = Plan(nodes=NODES, nodes_per_block=NODES, tasks=2, partition="debug")
        super().__init__(RUN, plan, cluster, [number, number + 1], folder)
        key = folder / "key"
        key.write_bytes(bytes(range(32)))
        key.chmod(0o600)

    def site(self) -> str:
        failures = [f'{name}_mtbf = "{one:g}s"' for name, one in MEAN_TIMES_S.items()]
        return SITE.format(
            s3=f"s3://{BUCKET}/{self.prefix}", nodes=NODES, failures="\n".join(failures),
            policy=self.policy, kept=KEPT,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self._server.environment}

    @property
    def words(self) -> list[str]:
        arguments = [str(self.folder / "tasks"), str(SIZE), str(PAUSE_S)]
        return [
            *ckptflow("run", str(HERE / "steered.py")),
            *("--site", "site.toml", "--", *arguments),
        ]

    def tune(self) -> dict[str, Any]:
        """Have the site tuned, and write what that says into its file."""
        costs = [word for one in COSTS for word in ("--tier", one)]
        printed = self.printed_by(
            *ckptflow("tune", "--site", "site.toml", "--state", f"{NODES * 8 * SIZE}"),
            *("--nodes", f"{NODES}", "--changed", "0.02", *costs, "--json"),
        )
        answer: dict[str, Any] = json.loads(printed)
        self.policy = answer["toml"].strip()
        (self.folder / "site.toml").write_text(self.site())
        return answer

    def printed_by(self, *words: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def on_node(self, host: str, job: int, *words: str) -> str:
        """Return what a command prints on a node of the allocation."""
        there = ["srun", f"--jobid={job}", "--overlap", f"--nodelist={host}", "--ntasks=1"]
        runtime = "export XDG_RUNTIME_DIR=/dev/shm; exec " + '"$@"'
        return self.printed_by(*there, "--nodes=1", "bash", "-c", runtime, "bash", *words)

    def events(self) -> list[dict[str, Any]]:
        """Return what the attempts of the task have told, in the order of time."""
        found = []
        for path in sorted((self.folder / "store/runs" / RUN / "trail").glob("*.jsonl")):
            whole, _, _ = path.read_text().rpartition("\n")  # The last may be half written.
            found += [json.loads(text) for text in whole.splitlines()]
        return sorted(
            (one for one in found if one["task"] == TASK), key=lambda one: one["time"]
        )

    def told(self, event: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """Return the events of one kind, of all attempts or of one."""
        return [
            one
            for one in self.events()
            if one["event"] == event and attempt in {None, one["attempt"]}
        ]

    def saved(self, attempt: int, count: int = 1) -> bool:
        """Whether an attempt has so many checkpoints."""
        return len({one["step"] for one in self.told("checkpoint-stored", attempt)}) >= count

    def settled(self, attempt: int) -> bool:
        """Whether its plan has no further to go, and was kept for two saves since."""
        plans = self.told("policy-planned")
        if not plans or is_step(plans[-1]):
            return False
        return len([
            one
            for one in self.told("checkpoint-taken", attempt)
            if one["time"] > plans[-1]["time"]
        ]) >= 2  # fmt: skip

    def everywhere(self) -> bool:
        """Whether some checkpoint has arrived on each tier."""
        return {one["tier"] for one in self.told("checkpoint-stored")} == set(TIERS)

    def kill_worker(self, attempt: int) -> None:
        line = [one for one in self.lines("task0") if one.attempt == attempt][-1]
        self.kill_process(line, line.pid)

    def is_quiet(self) -> bool:
        """Whether both tasks have ended, and all that was to arrive has."""
        ends = [one for one in self.lines() if one.event == "end"]
        newest = max((one["attempt"] for one in self.events()), default=0)
        sent = {
            (one["step"], verdict["tier"])
            for one in self.told("checkpoint-taken", newest)
            for verdict in one["placements"]
            if verdict["goes"]
        }
        stored = {(one["step"], one["tier"]) for one in self.told("checkpoint-stored", newest)}
        return len(ends) == 2 and sent == stored


def ckptflow(*words: str) -> list[str]:
    return [sys.executable, "-m", "ckptflow.cli", *words]


def is_step(planned: Mapping[str, Any]) -> bool:
    return any(reason.startswith("a step towards") for reason in planned["reasons"])


def seconds(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


@dataclass
class Record:
    """What remains of the run.

    Attributes:
        tuned: what `ckptflow tune` has said.
        settled_s: the interval of the plan before the first failure.
        events: what the attempts of the task have told.
        explained: by step, what `ckptflow policy explain` says on the node.
        from_login: the same where the workflow was started.
        keys: by tier, the manifests that are there.
        digests: what the tasks have returned.
        last_steps: of each task.
    """

    tuned: dict[str, Any]
    settled_s: float
    events: list[dict[str, Any]]
    explained: dict[int, dict[str, Any]]
    from_login: dict[str, Any]
    keys: dict[str, list[str]]
    digests: dict[str, str]
    last_steps: dict[str, int]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]


@pytest.fixture(scope="module")
def record(
    slurm: SlurmCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Record]:
    """What remains of a run whose worker was killed three times."""
    run = SteeredRun(slurm, tmp_path_factory.mktemp("steered") / "run", s3_server)
    try:
        yield play(run)
    finally:
        run.close()


def play(run: SteeredRun) -> Record:
    tuned = run.tune()
    run.start()
    run.wait(lambda: run.everywhere() and run.settled(1), "waits for the first plans")
    settled_s = run.told("policy-planned")[-1]["interval_s"]
    run.kill_worker(1)
    # The second one has saved nothing: what became of it is told by nobody but its successor.
    run.wait(lambda: [one for one in run.lines("task0") if one.attempt == 2], "waits for it")
    run.kill_worker(2)
    run.wait(lambda: run.saved(3), "waits for a save")
    run.kill_worker(3)
    run.wait(lambda: run.settled(KILLS + 1), "waits for the last plan")
    run.enough.touch()
    run.wait(run.is_quiet, "waits for all copies")
    record = look(run, tuned, settled_s)
    (run.folder / "tasks/over").touch()
    record.digests = json.loads(run.finish().strip().splitlines()[-1])
    return record


def look(run: SteeredRun, tuned: dict[str, Any], settled_s: float) -> Record:
    """Have the policy explain itself, and look at the tiers besides."""
    line = next(one for one in run.lines("task0") if one.event == "end")
    events = run.events()
    taken = [one["step"] for one in events if one["event"] == "checkpoint-taken"]
    everywhere = [
        one["step"]
        for one in events
        if one["event"] == "checkpoint-taken" and one["placements"][-1]["goes"]
    ]
    steps = sorted({taken[0], everywhere[-1], *taken[-3:]})
    script = run.folder / "look.py"
    script.write_text(LOOK)
    asked = [sys.executable, "look.py", f"{RUN}/{TASK}", *map(str, steps)]
    explained, keys = json.loads(run.on_node(line.host, line.job, *asked))
    printed = run.printed_by(
        *ckptflow("policy", "explain", f"{RUN}/{TASK}", str(taken[-1])),
        *("--site", "site.toml", "--json"),
    )
    last_steps = {
        name: max(one.step for one in run.lines(name) if one.event == "end")
        for name in steered.TASKS
    }
    return Record(
        tuned=tuned, settled_s=settled_s, events=events,
        explained={int(step): one for step, one in explained.items()},
        from_login=json.loads(printed), keys=keys, digests={}, last_steps=last_steps,
    )  # fmt: skip


# --- where checkpoints went ---


def test_the_tuned_pattern_uses_all_levels(record: Record) -> None:
    assert all(record.tuned["pattern"]["every"][name] for name in TIERS)
    first = record.of("policy-planned")[0]
    every = record.tuned["pattern"]["every"]
    assert first["before_counts"] == {name: every[name] for name in TIERS}


def test_checkpoints_reach_every_level(record: Record) -> None:
    assert {one["level"] for one in record.of("checkpoint-stored")} == {0, 1, 2, 3, 4}


def test_what_is_sent_to_a_level_arrives_there(record: Record) -> None:
    last = record.events[-1]["attempt"]
    for tier in TIERS:
        sent = [
            one["step"]
            for one in record.of("checkpoint-taken")
            if one["attempt"] == last and goes(one)[tier]
        ]
        stored = [
            one["step"]
            for one in record.of("checkpoint-stored")
            if one["attempt"] == last and one["tier"] == tier
        ]
        assert sorted(stored) == sent, tier


def goes(taken: Mapping[str, Any]) -> dict[str, bool]:
    return {one["tier"]: one["goes"] for one in taken["placements"]}


def test_checkpoints_go_where_the_plan_of_their_time_says(record: Record) -> None:
    plans = [(float("-inf"), record.of("policy-planned")[0]["before_counts"])]
    plans += [(seconds(one), one["counts"]) for one in record.of("policy-planned")]
    since_at: dict[int, dict[str, int]] = {}
    since: dict[str, int] = {}
    for event in record.events:
        if event["event"] == "attempt-resumed":
            since = dict(since_at.get(event["step"], {}))
        if event["event"] != "checkpoint-taken":
            continue
        # One may have been made while the save was.
        before = seconds(event) - event["blocked_s"] - 0.1
        counts = [one for at, one in plans if at <= seconds(event)]
        begun = len([at for at, _ in plans if at <= before])
        since = {name: number + 1 for name, number in since.items()}
        assert any(follows(event, one, since) for one in counts[begun - 1 :]), event
        since |= {name: 0 for name, sent in goes(event).items() if sent}
        since_at[event["step"]] = since


def follows(taken: Mapping[str, Any], counts: dict[str, int], since: dict[str, int]) -> bool:
    """Whether the verdicts on a checkpoint are those of a plan."""
    innermost = next(name for name in TIERS if counts[name])
    for one in taken["placements"]:
        name, reason = one["tier"], one["reason"]
        if not counts[name] or name == innermost:
            due = name == innermost
        elif "on its way" in reason:  # Then the next one goes.
            due = False
        elif "so that a copy exists early" in reason or "through here" in reason:
            due = True
        else:
            due = since[name] >= counts[name]
        if one["goes"] != due:
            return False
    return True


# --- what is said of them ---


def test_each_checkpoint_is_explained_as_it_lies_in_the_store(record: Record) -> None:
    assert len(record.explained) >= 4
    nows = set()
    for step, document in record.explained.items():
        for one in document["checkpoints"]:
            taken = next(
                event
                for event in record.of("checkpoint-taken")
                if (event["step"], event["attempt"]) == (step, one["attempt"])
            )
            assert one["why"] == taken["why"]
            assert [tier["tier"] for tier in one["tiers"]] == list(TIERS)
            for tier, verdict in zip(one["tiers"], taken["placements"], strict=True):
                assert (tier["goes"], tier["reason"]) == (verdict["goes"], verdict["reason"])
                key = CheckpointId(step, one["attempt"]).manifest_key
                is_there = f"lineages/{RUN}/{TASK}/{key}" in record.keys[tier["tier"]]
                assert (tier["now"] == "there") == is_there, (step, tier)
                assert is_there or tier["now"] in {"gone", "never"}
                # What nodes protect for each other goes with the node's own.
                is_judged = is_there and tier["tier"] != "partner"
                assert not is_judged or tier["stays"].startswith("kept")
                nows.add(tier["now"])
    assert nows == {"there", "gone", "never"}


def test_where_the_nodes_are_not_seen_nothing_is_said_of_what_is_there(record: Record) -> None:
    (one,) = record.from_login["checkpoints"]
    now = {tier["tier"]: tier["now"] for tier in one["tiers"] if tier["goes"]}
    assert {now[name] for name in now if name in {"shm", "node", "partner"}} == {"unknown"}
    assert {now[name] for name in now if name in {"shared", "s3"}} <= {"there"}


# --- what was learnt ---


def test_rates_are_those_of_what_was_believed_and_met(record: Record) -> None:
    """By hand: what is believed counts as two failures, or a tenth of that if it was wrong.

    That the other task has met nothing in these seconds is less than can be told apart.
    """
    for planned in record.of("policy-planned"):
        count = planned["attempt"] - 1
        observed_s = observed_until(record, planned)
        believed_s = 2 * MEAN_TIMES_S["process"]
        chance = nbinom.sf(count - 1, 2, believed_s / (believed_s + observed_s))
        weight = 0.1 if count > 1 and chance < 0.01 else 1.0
        assert (weight < 1) == (count > 1)
        expected = (2 * weight + count) / (believed_s * weight + observed_s)
        assert planned["rates_per_s"][0] == pytest.approx(expected, rel=0.03)
        others = [MEAN_TIMES_S[name] for name in ("reboot", "node", "system", "filesystem")]
        assert planned["rates_per_s"][1:] == pytest.approx(
            [2 / (2 * mean_s + observed_s) for mean_s in others], rel=0.01
        )


def observed_until(record: Record, planned: Mapping[str, Any]) -> float:
    """Return in what time failures were met: each attempt's until the save it is known by."""
    observed_s, resumed_s = 0.0, 0.0
    at_step: dict[int, float] = {}
    for event in record.events:
        if event["event"] == "attempt-resumed":
            observed_s, resumed_s = at_step.get(event["step"], 0.0), seconds(event)
        if event["event"] == "checkpoint-taken":
            at_step[event["step"]] = observed_s + seconds(event) - resumed_s
        if event is planned:
            break
    if not any(one is planned for one in record.events):
        raise AssertionError("that was not told")
    return observed_s + max(0.0, seconds(planned) - resumed_s)


def test_a_belief_that_was_wrong_makes_saves_more_frequent(record: Record) -> None:
    last = record.of("policy-planned")[-1]
    assert last["attempt"] == KILLS + 1
    assert last["interval_s"] < 0.75 * record.settled_s


def test_a_plan_follows_another_by_a_factor_of_two_at_the_most(record: Record) -> None:
    for one in record.of("policy-planned"):
        assert 0.4999 < one["interval_s"] / one["before_interval_s"] < 2.0001
    plans = record.of("policy-planned")
    for before, after in itertools.pairwise(plans):
        if before["attempt"] == after["attempt"]:
            assert after["before_interval_s"] == pytest.approx(before["interval_s"])


def test_the_last_plan_is_the_best_for_what_was_met(record: Record) -> None:
    last = record.of("policy-planned")[-1]
    levels = tuple(
        Level(
            name=one["tier"], number=one["level"],
            **{key: value for key, value in one.items() if key not in {"tier", "level"}},
        )
        for one in last["levels"]
    )  # fmt: skip
    system = System(levels, blocked_s=last["blocked_s"])
    counts = tuple(last["counts"][level.name] for level in levels)
    mine = efficiency(system, Pattern(last["interval_s"], counts))
    assert mine == pytest.approx(last["efficiency"], abs=1e-3)  # Of digits that were cut off.
    best = thorough(system)
    assert mine > best.efficiency - 2e-3
    assert last["interval_s"] == pytest.approx(best.pattern.interval_s, rel=0.25)


def test_the_result_has_the_bits_of_an_undisturbed_run(record: Record) -> None:
    assert record.digests == {
        name: steered.undisturbed(name, SIZE, steps)
        for name, steps in record.last_steps.items()
    }
