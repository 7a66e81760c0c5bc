"""Save, flush, prune, die and go on; then the power goes, on a disk that loses all it may.

Method: a *history* is the life of a task over several processes, each of which may be killed
before any of its system calls. `RecordingDisk` keeps all calls. Then the power is cut before
some call, again and again, and each time the disk's state is drawn from all those that POSIX
allows (`simulated_disk.py`). What was called durable before that call, and not given up since,
has to be there with all its bits; whatever has a manifest has to be whole. All is drawn from
the seed that a failure names.

The same with `durable` made wrong in six ways shows that the simulation would notice.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from simulated_disk import (
    DiskThatSyncsAfterTheRename,
    DiskThatSyncsNoFile,
    DiskThatSyncsNoFolder,
    DiskThatSyncsNoNewFolder,
    DiskThatSyncsNoRemoval,
    DiskThatTrustsWhatItFinds,
    Log,
    RecordingDisk,
    after_power_cut,
    as_tier,
)

from ckptflow.data.regions import flatten
from ckptflow.errors import CheckpointError
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import NamedRegion
from ckptflow.store.moving.carry import copy_run
from ckptflow.store.prune import plan_prune, prune
from ckptflow.store.repair import repair
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import Crash
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("run", "task")
KEEP = Retention(newest=2)
TIERS = (("near", 1), ("far", 3))
CUTS_PER_HISTORY = 25
SLOW = bool(os.environ.get("SLOW", "") not in {"", "0"})
SCHEDULES = 3_000 if SLOW else 500


@dataclass
class Promise:
    """From one call on, until another, a checkpoint is durable on a tier."""

    tier: str
    id: CheckpointId
    since: int
    until: int | None = None


@dataclass
class History:
    """What happened, and what was promised."""

    log: Log
    promises: list[Promise] = field(default_factory=list)
    bits: dict[CheckpointId, bytes] = field(default_factory=dict)


class Process:
    """One life of the task. Any call may raise `Crash`."""

    def __init__(self, history: History, disk: RecordingDisk, rng: random.Random) -> None:
        self.history, self.log, self.rng = history, history.log, rng
        self.tiers = [
            PosixTier(self.log.root / name, name=name, level=level, disk=disk)
            for name, level in TIERS
        ]
        self.lineage = Lineage(self.tiers, LINEAGE)

    def live(self) -> None:
        self.attempt = self.lineage.claim()
        found = restore_newest(self.lineage, None)
        self.state = found.state if found else {"a": np.zeros(900, np.uint8)}
        self.start, self.recorded = found.id if found else None, False
        self.step, self.base = (found.id.step if found else 0), None
        self.newest: Manifest | None = None
        for _ in range(self.rng.randint(1, 4)):
            self.save()
            if self.rng.random() < 0.5:
                self.flush()

    def before_commit(self) -> None:
        self.lineage.check_fence(self.attempt)
        if not self.recorded:
            self.lineage.record_resume(self.attempt, self.start)
            self.recorded = True

    def save(self) -> None:
        self.step += 1
        numbers = np.random.default_rng(self.rng.randrange(2**32))
        begin = self.rng.randrange(800)
        self.state["a"][begin : begin + 100] = numbers.integers(0, 255, 100, np.uint8)
        checkpoint = CheckpointId(self.step, self.attempt)
        self.history.bits[checkpoint] = self.state["a"].tobytes()
        flat = flatten(self.state)
        self.base = write_checkpoint(
            self.tiers[0],
            LINEAGE,
            checkpoint,
            structure=flat.structure,
            regions=[
                NamedRegion(one.name, one.data.data, one.item_bytes) for one in flat.regions
            ],
            base=self.base,
            chunk_bytes=64,
            before_commit=self.before_commit,
        )
        self.promise(self.tiers[0], checkpoint)
        self.newest = self.base.manifest
        self.prune(self.tiers[0])

    def flush(self) -> None:
        assert self.newest is not None
        copy_checkpoint(self.tiers, self.tiers[1], LINEAGE, self.newest)
        self.promise(self.tiers[1], self.newest.id)
        self.prune(self.tiers[1])

    def promise(self, tier: Tier, checkpoint: CheckpointId) -> None:
        self.history.promises.append(Promise(tier.name, checkpoint, len(self.log.calls)))

    def prune(self, tier: Tier) -> None:
        plan = plan_prune(self.lineage, tier, KEEP)
        given_up = {verdict.id for verdict in plan.verdicts if not verdict.keep}
        for one in self.history.promises:
            if one.tier == tier.name and one.id in given_up and one.until is None:
                one.until = len(self.log.calls)
        prune(self.lineage, tier, KEEP)


def make_history(root: Path, seed: int, kind: type[RecordingDisk]) -> History:
    rng = random.Random(seed)
    history = History(Log(root))
    for name, _ in TIERS:  # The user's folders, which were there long before.
        kind(history.log).make_folder(root / name)
    history.log.add("sync", history.log.folders[root])
    for _ in range(rng.randint(1, 4)):
        dies_at = rng.randrange(250) if rng.random() < 0.7 else None
        try:
            Process(history, kind(history.log, dies_at=dies_at), rng).live()
        except Crash:
            continue
    return history


def bits_on(tier: Tier, manifest: Manifest) -> bytes:
    buffer = bytearray(manifest.regions[0].size_bytes)
    read_checkpoint([tier], manifest, [memoryview(buffer)])
    return bytes(buffer)


def check(history: History, at: int, rng: random.Random) -> None:
    """Raise if the power cut shows a broken promise, or a manifest without all its bytes."""
    files = after_power_cut(history.log, at, rng)
    for name, level in TIERS:
        tier = as_tier(files, name, level)
        lineage = Lineage([tier], LINEAGE)
        here = {found.id for found in lineage.checkpoints_on(tier)}
        for checkpoint in here:
            assert (
                bits_on(tier, lineage.manifest_on(tier, checkpoint))
                == (history.bits[checkpoint])
            )
        for one in history.promises:
            if one.tier == name and one.since <= at and (one.until is None or at <= one.until):
                assert one.id in here, f"{one} is lost"


def broken(tmp_path: Path, seeds: range, kind: type[RecordingDisk]) -> list[str]:
    """Return what goes wrong, one text for each power cut that shows something."""
    found = []
    for seed in seeds:
        history = make_history(tmp_path / f"{kind.__name__}-{seed}", seed, kind)
        for cut in range(CUTS_PER_HISTORY):
            rng = random.Random(f"{seed} {cut}")
            at = rng.randint(0, len(history.log.calls))
            try:
                check(history, at, rng)
            except (AssertionError, CheckpointError) as error:
                found.append(f"seed {seed}, cut {cut}, before call {at}: {error!r:.300}")
    return found


@pytest.mark.parametrize("part", range(5))
def test_what_was_promised_survives_a_power_cut(tmp_path: Path, part: int) -> None:
    each = SCHEDULES // CUTS_PER_HISTORY // 5
    assert broken(tmp_path, range(part * each, (part + 1) * each), RecordingDisk) == []


@pytest.mark.parametrize(
    "kind",
    [
        DiskThatSyncsNoFile,
        DiskThatSyncsNoFolder,
        DiskThatSyncsAfterTheRename,
        DiskThatSyncsNoNewFolder,
        DiskThatSyncsNoRemoval,
        DiskThatTrustsWhatItFinds,
    ],
)
def test_the_simulation_would_notice(tmp_path: Path, kind: type[RecordingDisk]) -> None:
    """Within a few schedules, most of them within the first; one is rare, and begins later."""
    start = 115 if kind is DiskThatTrustsWhatItFinds else 0
    seeds = range(start, start + 400)
    assert any(broken(tmp_path, seeds[first : first + 5], kind) for first in seeds[::5])


def test_what_is_restored_after_a_cut_is_the_newest_that_was_promised(tmp_path: Path) -> None:
    """By the road that a task takes, over both tiers at once."""
    for seed in range(10):
        history = make_history(tmp_path / str(seed), seed, RecordingDisk)
        for cut in range(10):
            rng = random.Random(f"{seed} {cut}")
            at = rng.randint(0, len(history.log.calls))
            files = after_power_cut(history.log, at, rng)
            lineage = Lineage([as_tier(files, *tier) for tier in TIERS], LINEAGE)
            promised = [one.id for one in history.promises if one.since <= at]
            valid = {found.id for found in lineage.valid()}
            found = restore_newest(lineage, None)
            if found is None:
                assert not valid
                assert not promised
            else:
                assert found.id == max(valid)
                assert not found.skipped
                assert bytes(found.state["a"].tobytes()) == history.bits[found.id]


class DiskOfOneKilledInPacks(RecordingDisk):
    """Its process dies when a pack has its name, and the name is not durable."""

    def sync_folder(self, path: Path) -> None:
        if path.name == "packs":
            raise Crash("the process was killed")
        super().sync_folder(path)


def copied(near: Tier, far: Tier) -> None:
    lineage = Lineage([near], LINEAGE)
    copy_checkpoint([near], far, LINEAGE, lineage.manifest(lineage.checkpoints()[0]))


def repaired(near: Tier, far: Tier) -> None:
    lineage = Lineage([near, far], LINEAGE)
    repair(lineage, lineage.checkpoints(), everywhere=True)


def carried(near: Tier, far: Tier) -> None:
    copy_run([near], LINEAGE.run, far)


@pytest.mark.parametrize("bring", [copied, repaired, carried])
def test_a_pack_that_a_killed_process_put_is_durable_before_a_manifest_names_it(
    tmp_path: Path, bring: Callable[[Tier, Tier], None]
) -> None:
    near, log = MemoryTier("near", level=1), Log(tmp_path / "disk")
    ensure_store(near)
    flat = flatten({"a": np.random.default_rng(1).integers(0, 255, 900, np.uint8)})
    regions = [NamedRegion(one.name, one.data.data) for one in flat.regions]
    checkpoint = CheckpointId(1, 1)
    made = write_checkpoint(
        near,
        LINEAGE,
        checkpoint,
        structure=flat.structure,
        regions=regions,
        base=None,
        chunk_bytes=64,
    ).manifest

    def bring_on(kind: type[RecordingDisk]) -> None:
        bring(near, PosixTier(log.root / "far", name="far", level=3, disk=kind(log)))

    with pytest.raises(Crash):
        bring_on(DiskOfOneKilledInPacks)
    bring_on(RecordingDisk)
    for seed in range(50):
        files = after_power_cut(log, len(log.calls), random.Random(seed))
        left = as_tier(files, "far", 3)
        manifest = Lineage([left], LINEAGE).manifest_on(left, checkpoint)
        assert bits_on(left, manifest) == bits_on(near, made), seed
