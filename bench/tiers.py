"""Put and get of every tier, against plain files, memory, and boto3; save and restore by level.

Memory and a folder are always measured; S3 if the server of ``tests/services`` can be started
here; any other tier through ``--spec``, with its spec or address, such as
``--spec sftp://host/path``. What is compared is done in one run and in turn. Client time is
the processor time of this process, all threads together; a server on the same computer takes
its own, so rates over loopback say what the computer can do, not what a network can.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "services"))
from report import Claim, Row, finish, parser, ratio, require, show
from s3_server import S3Server, find_weed

from ckptflow.checkpointer import Checkpointer
from ckptflow.data.digest import chunk_digests
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.objectstore import PART_BYTES, PARTS_AT_ONCE
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import KIB, MIB

BUCKET = "bench"
CHUNK_BYTES = 4 * KIB
ROUNDS = 3
Action = Callable[[], object]
Seconds = dict[str, list[float]]


def main() -> None:
    given = parser(__doc__, quick="about half a minute")
    given.add_argument("--spec", action="append", default=[], help="another tier, see above")
    args = given.parse_args()
    sizes = [1 * MIB, 64 * MIB] if args.quick else [64 * KIB, 16 * MIB, 1024 * MIB]
    state_bytes = min(sizes[-1], 256 * MIB)
    with contextlib.ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="ckptflow-bench-")
        folder = Path(stack.enter_context(name))
        server = stack.enter_context(running_server(folder)) if find_weed() else None
        tiers = tiers_to_measure(folder, server, args.spec)
        rows: list[Row] = []
        for size_bytes in sizes:
            rows += put_and_get(folder, tiers, server, size_bytes, ROUNDS)
        show("put and get", [without_rounds(one) for one in rows])
        levels, claims = save_and_restore(folder, tiers, state_bytes, ROUNDS)
        claims += claims_against_boto3(rows) if server else []
    finish(
        f"save to durable and restore, {state_bytes // MIB} MiB of random doubles",
        levels,
        claims,
        args.json,
        details=rows,
    )


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder / "server")
    try:
        server.start()
        server.make_bucket(BUCKET)
        os.environ.update(server.environment)
        yield server
    finally:
        server.stop()


def tiers_to_measure(folder: Path, server: S3Server | None, more: list[str]) -> dict[str, Tier]:
    tiers: dict[str, Tier] = {
        "memory": MemoryTier(),
        "posix": PosixTier(folder / "posix"),
    }
    if server is not None:
        tiers["s3"] = open_tier(spec_of(f"s3://{BUCKET}/tier"))
    for text in more:
        spec = json.loads(text) if text.startswith("{") else spec_of(text)
        tiers[text.partition("?")[0]] = open_tier(spec)
    return tiers


def in_turn(actions: Mapping[str, Action], rounds: int) -> tuple[Seconds, Seconds]:
    """Return wall and processor seconds of each action by round; a first round warms up."""
    wall: Seconds = {name: [] for name in actions}
    cpu: Seconds = {name: [] for name in actions}
    for count in range(rounds + 1):
        for name, action in actions.items():
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            action()
            if count:
                wall[name].append(time.perf_counter() - began_s)
                cpu[name].append(time.process_time() - began_cpu_s)
    return wall, cpu


def put_and_get(
    folder: Path,
    tiers: Mapping[str, Tier],
    server: S3Server | None,
    size_bytes: int,
    rounds: int,
) -> list[Row]:
    """Measure one size; small values are put and got several times each."""
    times = max(1, min(32, 4 * MIB // size_bytes))
    data = np.random.default_rng(size_bytes).bytes(size_bytes)
    target = bytearray(size_bytes)
    pieces = [memoryview(data)[a : a + 3 * MIB] for a in range(0, size_bytes, 3 * MIB)]
    puts: dict[str, Action] = {
        "memcpy": lambda: memoryview(target).__setitem__(slice(None), data),
        "write + fsync": lambda: write_synced(folder / "raw", data),
    }
    gets: dict[str, Action] = {
        "memcpy": lambda: memoryview(target).__setitem__(slice(None), data),
        "read of a file": lambda: read_file(folder / "raw", target),
    }
    for name, tier in tiers.items():
        puts[name] = lambda tier=tier: tier.put("value", pieces)
        gets[name] = lambda tier=tier: tier.read_into("value", target)
    with contextlib.ExitStack() as stack:
        if server is not None:
            put, get = stack.enter_context(boto3_actions(server, data))
            puts["boto3"], gets["boto3"] = put, get
        measured = {
            "put": in_turn({name: repeated(use, times) for name, use in puts.items()}, rounds),
            "get": in_turn({name: repeated(use, times) for name, use in gets.items()}, rounds),
        }
    for name, tier in tiers.items():
        require(tier.get("value") == data, f"{name} gives back what was put")
        tier.delete("value")
    return [
        {"what": verb, "tier": name, "KiB": size_bytes // KIB}
        | timing(size_bytes * times, wall[name], cpu[name])
        for verb, (wall, cpu) in measured.items()
        for name in wall
    ]


def repeated(action: Action, times: int) -> Action:
    def repeat() -> None:
        for _ in range(times):
            action()

    return repeat


def timing(moved_bytes: int, wall: list[float], cpu: list[float]) -> Row:
    """Return medians, and each round for comparisons."""
    return {
        "median_s": statistics.median(wall),
        "MB_per_s": moved_bytes / statistics.median(wall) / 1e6,
        "client_cpu_s": statistics.median(cpu),
        "runs": len(wall),
        "walls": json.dumps(wall),
        "cpus": json.dumps(cpu),
    }


def without_rounds(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in {"walls", "cpus"}}


@contextlib.contextmanager
def boto3_actions(server: S3Server, data: bytes) -> Iterator[tuple[Action, Action]]:
    """Give put and get through boto3's own parallel transfers, with parts as large as ours."""
    import boto3
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(
        multipart_threshold=PART_BYTES + 1,
        multipart_chunksize=PART_BYTES,
        max_concurrency=PARTS_AT_ONCE,
    )
    where: dict[str, Any] = {"Bucket": BUCKET, "Key": "boto3"}
    client = boto3.client("s3", endpoint_url=server.endpoint)
    with contextlib.closing(client):
        yield (
            lambda: client.upload_fileobj(io.BytesIO(data), Config=config, **where),
            lambda: client.download_fileobj(Fileobj=io.BytesIO(), Config=config, **where),
        )


def save_and_restore(
    folder: Path, tiers: Mapping[str, Tier], size_bytes: int, rounds: int
) -> tuple[list[Row], list[Claim]]:
    """Measure save to durable and restore on each tier, beside put and get of as much."""
    state = {"w": np.random.default_rng(2).standard_normal(size_bytes // 8)}
    raw, target = state["w"].data.cast("B"), {"w": np.zeros_like(state["w"])}
    saves: dict[str, Action] = {"write + fsync": lambda: write_synced(folder / "raw", raw)}
    restores: dict[str, Action] = {
        "read of a file": lambda: read_file(folder / "raw", target["w"]),
        "digests of the state": lambda: chunk_digests(raw, CHUNK_BYTES),
    }
    with contextlib.ExitStack() as stack:
        for name, tier in tiers.items():
            made = Checkpointer([tier], rng=False, keep=1, budget_bytes=4 * size_bytes)
            saves[f"save, {name}"] = saver(stack.enter_context(made), state)
            saves[f"raw put, {name}"] = lambda tier=tier: tier.put("raw", [raw])
            restores[f"restore, {name}"] = restorer(tier, target)
            restores[f"raw get, {name}"] = getter(tier, target)
        saved, saved_cpu = in_turn(saves, rounds)
        os.sync()  # Nobody's reads shall wait for the writes of another.
    read, read_cpu = in_turn(restores, rounds)
    for name in tiers:
        restores[f"restore, {name}"]()
        require(is_up_to_sign(target["w"], state["w"]), f"{name} restores what was saved")
    rows: list[Row] = [
        without_rounds({"what": name} | timing(size_bytes, wall, (saved_cpu | read_cpu)[name]))
        for name, wall in (saved | read).items()
    ]
    claims: list[Claim] = []  # What a save makes of a disk is the claim of `durable.py`.
    if "s3" in tiers:
        times = ratio(read["restore, s3"], read["raw get, s3"])
        claims.append(Claim("restore_s3_over_raw_get", times, "<=", 1.3))
    for name in sorted({*tiers} & {"posix", "s3"}):  # The first reads from the page cache.
        share_pct = 100 * ratio(read["digests of the state"], read[f"restore, {name}"])
        claims.append(Claim(f"digests_pct_of_restore_{name}", share_pct, "<=", 10.0))
    return rows, claims


def saver(checkpointer: Checkpointer, state: dict[str, Any]) -> Action:
    steps = itertools.count()

    def save() -> None:
        state["w"] *= -1.0  # All chunks are new: every save is a full one.
        checkpointer.save(next(steps), state).wait()

    return save


def is_up_to_sign(a: Any, b: Any) -> bool:
    """Tell whether one is the other or its negative: each save turned the sign."""
    return np.array_equal(a, b) or np.array_equal(a, -b)


def restorer(tier: Tier, target: dict[str, Any]) -> Action:
    def restore() -> None:
        target["w"][::4096] = 0
        with Checkpointer([tier], rng=False) as checkpointer:
            checkpointer.restore(target)

    return restore


def getter(tier: Tier, target: dict[str, Any]) -> Action:
    return lambda: tier.read_into("raw", target["w"])


def claims_against_boto3(rows: list[Row]) -> list[Claim]:
    """Compare the largest size, round by round."""
    largest = max(int(one["KiB"]) for one in rows)
    claims = []
    for verb in ("put", "get"):
        found = {
            one["tier"]: one for one in rows if one["what"] == verb and one["KiB"] == largest
        }
        ours, theirs = found["s3"], found["boto3"]
        rate = ratio(json.loads(str(theirs["walls"])), json.loads(str(ours["walls"])))
        cpu = ratio(json.loads(str(ours["cpus"])), json.loads(str(theirs["cpus"])))
        claims.append(Claim(f"s3_{verb}_rate_over_boto3", rate, ">=", 1.0))
        claims.append(Claim(f"s3_{verb}_client_cpu_over_boto3", cpu, "<=", 1.0))
    return claims


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a new file and put it in the old one's place, as whoever means it would."""
    new = path.with_suffix(".new")
    with new.open("wb", buffering=0) as file:
        view, done = memoryview(data), 0
        while done < len(view):
            done += file.write(view[done:])
        os.fsync(file.fileno())
    new.replace(path)


def read_file(path: Path, target: Any) -> None:
    view, done = memoryview(target).cast("B"), 0
    with path.open("rb", buffering=0) as file:
        while done < len(view):
            done += file.readinto(view[done:])


if __name__ == "__main__":
    main()
