"""Who may write, what counts, and what is newest, in every order that things can happen."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import (
    AlreadyExists,
    CorruptionError,
    FencedError,
    FormatError,
    StoreDamaged,
    TierUnavailable,
)
from ckptflow.flush import copy_checkpoint
from ckptflow.model import STORE_KEY, CheckpointId, LineageId
from ckptflow.store.catalog import Found, Lineage, lineages
from ckptflow.store.descriptor import check_store, ensure_store
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]

LINEAGE = LineageId("exp", "task")
STATE = {"a": np.arange(100.0)}


def dead(_operation: str, _key: str) -> None:
    raise TierUnavailable("nobody answers")


def contents(tier: Tier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys("")}


def attempt_keys(tier: Tier) -> list[str]:
    prefix = f"{LINEAGE.prefix}/attempts/"
    return [key.removeprefix(prefix) for key in tier.iter_keys(prefix[:-1])]


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier("disk")


@pytest.fixture
def lineage(tier: MemoryTier) -> Lineage:
    return Lineage([tier], LINEAGE)


@pytest.fixture
def commit(save_state: SaveState) -> Callable[[Tier, int, int], None]:
    """Commit without asking whether that is still allowed, as a writer thought dead does."""

    def late(tier: Tier, step: int, attempt: int) -> None:
        save_state(tier, str(LINEAGE), step, STATE, attempt=attempt)

    return late


Commit = Callable[[Tier, int, int], None]


# --- claims ---


def test_attempts_count_from_one(tier: MemoryTier, lineage: Lineage) -> None:
    assert [lineage.claim() for _ in range(3)] == [1, 2, 3]
    assert attempt_keys(tier) == [f"{n:08d}.claim" for n in (1, 2, 3)]
    assert check_store(tier)


def test_a_claim_says_whose_it_is(lineage: Lineage) -> None:
    lineage.claim()
    (record,) = lineage.attempts()
    assert record.claim is not None
    assert {"attempt", "host", "pid", "started"} <= set(record.claim)
    assert (record.attempt, record.resume, record.end) == (1, None, None)


def test_a_claim_is_above_every_checkpoint_although_the_claims_are_lost(
    tier: MemoryTier, lineage: Lineage, commit: Commit
) -> None:
    commit(tier, 10, 7)
    assert lineage.claim() == 8


def test_claims_lie_on_the_innermost_shared_tier() -> None:
    nvme, pfs, cloud = (
        MemoryTier("nvme", level=1),
        MemoryTier("pfs", level=3),
        MemoryTier("s3", level=4),
    )
    Lineage([nvme, pfs, cloud], LINEAGE).claim()
    assert [len(attempt_keys(one)) for one in (nvme, pfs, cloud)] == [0, 1, 0]
    local, partner = MemoryTier("local", level=1), MemoryTier("partner", level=2)
    Lineage([local, partner], LINEAGE).claim()
    assert [len(attempt_keys(one)) for one in (local, partner)] == [0, 1]


def test_threads_never_share_an_attempt(tier: MemoryTier) -> None:
    barrier, claimed = threading.Barrier(8), []

    def claim() -> None:
        mine = Lineage([tier], LINEAGE)
        barrier.wait()
        claimed.extend(mine.claim() for _ in range(5))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, 41))


CLAIMING = """
import sys
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
lineage = Lineage([PosixTier(sys.argv[1])], LineageId("exp", "task"))
sys.stdin.readline()
print([lineage.claim() for _ in range(40)])
"""


def test_processes_never_share_an_attempt(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMING, str(tmp_path / "store")],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    claimed = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert sorted(itertools.chain(*claimed)) == list(range(1, 121))
    assert all(sorted(mine) == mine for mine in claimed)


def test_whoever_never_gets_a_number_is_told(tier: MemoryTier) -> None:
    def taken(operation: str, key: str) -> None:
        if operation == "create" and key.endswith(".claim"):
            raise AlreadyExists(key)

    lineage = Lineage([FaultyTier(tier, taken)], LINEAGE)
    with pytest.raises(FencedError, match="exp/task: 1000 attempts were claimed while"):
        lineage.claim()


def test_an_inner_tier_that_fails_does_not_stop_a_claim() -> None:
    notes: list[str] = []
    tiers = [FaultyTier(MemoryTier("nvme"), dead), MemoryTier("pfs", level=3)]
    assert Lineage(tiers, LINEAGE, note=notes.append).claim() == 1
    assert any("'nvme'" in note and "nobody answers" in note for note in notes)


def test_a_fence_tier_that_fails_does() -> None:
    tiers = [MemoryTier("nvme"), FaultyTier(MemoryTier("pfs", level=3), dead)]
    lineage = Lineage(tiers, LINEAGE)
    with pytest.raises(TierUnavailable, match="nobody answers"):
        lineage.claim()
    with pytest.raises(TierUnavailable, match="nobody answers"):
        lineage.check_fence(1)


# --- fencing ---


def test_an_older_attempt_may_not_commit_once_a_newer_one_is_claimed(lineage: Lineage) -> None:
    assert lineage.claim() == 1
    lineage.check_fence(1)
    assert lineage.claim() == 2
    lineage.check_fence(2)
    with pytest.raises(
        FencedError, match=r"exp/task: attempt 2 has taken over from attempt 1.*stop it"
    ):
        lineage.check_fence(1)


def valid(lineage: Lineage) -> list[tuple[int, int]]:
    return [(found.id.step, found.id.attempt) for found in lineage.valid()]


@pytest.mark.parametrize("late_step", [3, 5, 6, 9])
def test_a_late_commit_does_not_count_in_whatever_order_things_arrive(
    commit: Commit, late_step: int
) -> None:
    """Attempt 2 went on from step 5 of attempt 1, which was not dead and commits once more."""
    events: dict[str, Callable[[Tier, Lineage], object]] = {
        "claim": lambda _tier, lineage: lineage.claim(),
        "resume": lambda _tier, lineage: lineage.record_resume(2, CheckpointId(5, 1)),
        "commit": lambda tier, _lineage: commit(tier, 6, 2),
        "late": lambda tier, _lineage: commit(tier, late_step, 1),
    }
    results = set()
    for order in itertools.permutations(events):
        tier = MemoryTier("".join(order))  # The name keeps the bases of `save_state` apart.
        lineage = Lineage([tier], LINEAGE)
        assert lineage.claim() == 1
        commit(tier, 5, 1)
        for event in order:
            events[event](tier, lineage)
        results.add(tuple(valid(lineage)))
    expected = [(6, 2), (5, 1)] if late_step > 3 else [(6, 2), (5, 1), (3, 1)]
    assert results == {tuple(expected)}


def test_whoever_began_anew_makes_everything_older_void(
    tier: MemoryTier, lineage: Lineage, commit: Commit
) -> None:
    commit(tier, 0, 1)
    commit(tier, 5, 1)
    lineage.record_resume(2, None)
    assert valid(lineage) == []
    commit(tier, 1, 2)
    assert valid(lineage) == [(1, 2)]
    assert [(found.id.step, found.void) for found in lineage.checkpoints()] == [
        (5, True),
        (1, False),
        (0, True),
    ]


def test_the_newest_is_the_greatest_step_of_the_newest_attempt(
    tier: MemoryTier, lineage: Lineage, commit: Commit
) -> None:
    commit(tier, 10, 1)
    lineage.record_resume(2, CheckpointId(10, 1))
    commit(tier, 9999, 2)
    lineage.record_resume(3, CheckpointId(10, 1))
    commit(tier, 20, 3)
    assert valid(lineage) == [(20, 3), (10, 1)]


def test_histories_against_the_words_of_the_format_page(commit: Commit) -> None:
    """Random attempts, resumes and commits, in random order."""
    rng = random.Random(5)
    for number in range(40):
        tier = MemoryTier(f"disk-{number}")
        lineage = Lineage([tier], LINEAGE)
        ensure_store(tier)
        commits = {(rng.randrange(6), rng.randrange(1, 5)) for _ in range(6)}
        resumes = {
            attempt: rng.choice([None, *range(6)])
            for attempt in rng.sample(range(1, 5), rng.randrange(4))
        }
        events = [*commits, *({"attempt": a, "step": s} for a, s in resumes.items())]
        rng.shuffle(events)
        for event in events:
            if isinstance(event, tuple):
                commit(tier, *event)
            else:
                step = event["step"]
                start = None if step is None else CheckpointId(step, 1)
                lineage.record_resume(event["attempt"], start)
        expected = {
            (step, attempt)
            for step, attempt in commits
            if not any(
                attempt < other and (limit is None or limit < step)
                for other, limit in resumes.items()
            )
        }
        assert valid(lineage) == sorted(expected, reverse=True)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b'{"attempt": 2}',
        b'{"attempt": 2, "step": "five", "manifest": null}',
        b'{"attempt": 2, "step": 1.5, "manifest": null}',
        b'{"attempt": 2, "step": true, "manifest": null}',
        b'{"attempt": 2, "step": 4, "manifest": "manifests/000000000005.00000001.ckpt"}',
        b'{"attempt": 2, "step": null, "manifest": "manifests/000000000005.00000001.ckpt"}',
        b'{"attempt": 2, "step": 5, "manifest": null}',
        b'{"attempt": 7, "step": 5, "manifest": "manifests/000000000005.00000001.ckpt"}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_resume_record_voids_nothing_and_is_noted(
    tier: MemoryTier, commit: Commit, record: bytes
) -> None:
    """It has no seal, but says everything twice."""
    notes: list[str] = []
    lineage = Lineage([tier], LINEAGE, note=notes.append)
    commit(tier, 9, 1)
    tier.put(f"{LINEAGE.prefix}/attempts/00000002.resume", [record])
    assert valid(lineage) == [(9, 1)]
    assert any("00000002.resume" in note and "'disk'" in note for note in notes)


def test_a_resume_record_that_cannot_be_read_now_stops_everything(
    tier: MemoryTier, lineage: Lineage, commit: Commit
) -> None:
    """Without it nobody knows what is void; a restore must not guess."""
    commit(tier, 5, 1)
    lineage.record_resume(2, None)

    def fail(operation: str, key: str) -> None:
        if operation == "get" and key.endswith(".resume"):
            raise TierUnavailable("try again")

    with pytest.raises(TierUnavailable, match="try again"):
        Lineage([FaultyTier(tier, fail)], LINEAGE).checkpoints()


def test_how_attempts_ended(lineage: Lineage) -> None:
    lineage.claim()
    lineage.record_resume(1, CheckpointId(5, 1))
    lineage.record_end(1, {"outcome": "finished"})
    (record,) = lineage.attempts()
    assert record.resume == {
        "attempt": 1,
        "step": 5,
        "manifest": "manifests/000000000005.00000001.ckpt",
    }
    assert record.end is not None
    assert record.end["outcome"] == "finished"


# --- what is there ---


def test_copies_are_found_on_every_tier_and_the_newest_comes_first(commit: Commit) -> None:
    near, far = MemoryTier("near"), MemoryTier("far", level=3)
    lineage = Lineage([near, far], LINEAGE)
    for step in (9, 10, 100):
        commit(near, step, 1)
    manifest = lineage.manifest(lineage.checkpoints()[0])
    copy_checkpoint([near], far, LINEAGE, manifest)
    assert lineage.checkpoints() == [
        Found(CheckpointId(100, 1), (near, far), void=False),
        Found(CheckpointId(10, 1), (near,), void=False),
        Found(CheckpointId(9, 1), (near,), void=False),
    ]


def test_an_unreadable_tier_is_noted_and_the_rest_is_found(commit: Commit) -> None:
    notes: list[str] = []
    far = MemoryTier("far", level=3)
    commit(far, 5, 1)
    tiers = [FaultyTier(MemoryTier("near"), dead), far]
    assert valid(Lineage(tiers, LINEAGE, note=notes.append)) == [(5, 1)]
    assert notes == ["Tier 'near' was skipped: nobody answers"]


def test_no_tier_can_be_listed() -> None:
    tiers = [FaultyTier(MemoryTier(name), dead) for name in ("near", "far")]
    with pytest.raises(TierUnavailable, match="nobody answers"):
        Lineage(tiers, LINEAGE).checkpoints()


def test_a_manifest_that_was_moved(tier: MemoryTier, commit: Commit) -> None:
    notes: list[str] = []
    lineage = Lineage([tier], LINEAGE, note=notes.append)
    commit(tier, 5, 1)
    (key,) = tier.iter_keys(f"{LINEAGE.prefix}/manifests")
    there = key.replace("000000000005", "000000000009")
    tier.put(there, [tier.get(key)])
    moved = lineage.checkpoints()[0]
    assert moved.id == CheckpointId(9, 1)
    with pytest.raises(
        CorruptionError, match=r"step 9 \(attempt 1\) has no sound copy"
    ) as caught:
        lineage.manifest(moved)
    (note,) = caught.value.__notes__
    assert "says that it is step 5 (attempt 1) of exp/task: it was moved there." in note
    assert notes == [note]


def test_a_manifest_of_another_lineage(tier: MemoryTier, commit: Commit) -> None:
    commit(tier, 5, 1)
    other = LineageId("exp", "other")
    for key, value in contents(tier).items():
        if key.startswith(LINEAGE.prefix):
            tier.put(key.replace(LINEAGE.prefix, other.prefix), [value])
    lineage = Lineage([tier], other)
    with pytest.raises(CorruptionError, match="has no sound copy"):
        lineage.manifest(lineage.checkpoints()[0])


def test_a_sound_copy_of_the_manifest_is_enough(commit: Commit) -> None:
    notes: list[str] = []
    near, far = MemoryTier("near"), MemoryTier("far", level=3)
    lineage = Lineage([near, far], LINEAGE, note=notes.append)
    commit(near, 5, 1)
    good = lineage.manifest(lineage.checkpoints()[0])
    copy_checkpoint([near], far, LINEAGE, good)
    (key,) = near.iter_keys(f"{LINEAGE.prefix}/manifests")
    near.put(key, [near.get(key)[:-1]])
    assert lineage.manifest(lineage.checkpoints()[0]) == good
    assert len(notes) == 1
    assert "'near'" in notes[0]


def test_keys_that_mean_nothing_here_are_ignored(
    tier: MemoryTier, lineage: Lineage, commit: Commit
) -> None:
    commit(tier, 5, 1)
    for key in (
        "manifests/README",
        "manifests/000000000009.00000001.ckpt.old",
        "manifests/sub/000000000009.00000001.ckpt",
        "attempts/notes.txt",
        "attempts/1.claim",
        "packs/other",
        "elsewhere/x",
    ):
        tier.put(f"{LINEAGE.prefix}/{key}", [b"junk"])
    assert valid(lineage) == [(5, 1)]
    assert lineage.claim() == 2


# --- lineages and stores ---


def test_lineages_are_found_on_all_tiers(tier: MemoryTier) -> None:
    other = MemoryTier("other")
    for name in ("a/x", "a/y", "b/x"):
        Lineage([tier], LineageId(*name.split("/"))).claim()
    Lineage([other], LineageId("c", "z")).claim()
    assert [str(one) for one in lineages([tier, other])] == ["a/x", "a/y", "b/x", "c/z"]
    assert [str(one) for one in lineages([tier, other], "a")] == ["a/x", "a/y"]
    assert lineages([MemoryTier()]) == []


def test_folders_that_cannot_be_lineages_are_ignored(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    Lineage([tier], LINEAGE).claim()
    for name in ("my notes", "x" * 150, "ünï", "task~"):
        folder = tmp_path / "lineages" / name / "task"
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        folder = tmp_path / "lineages" / "exp" / name
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    assert lineages([tier]) == [LINEAGE]


NOT_OURS = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"format": "restic", "version": 1}',
    b'{"format": "ckptflow-store", "version": "1"}',
    b'{"format": "ckptflow-store"}',
    b'{"format": "ckptflow-store", "version": 1, "store": "../etc"}',
    b"[" * 100_000,
    b"\xff",
]


@pytest.mark.parametrize("descriptor", NOT_OURS)
def test_a_place_that_does_not_describe_a_store(tier: MemoryTier, descriptor: bytes) -> None:
    tier.put(STORE_KEY, [descriptor])
    with pytest.raises(StoreDamaged, match=r"'ckptflow-store.json' on tier 'disk' does not"):
        check_store(tier)
    with pytest.raises(StoreDamaged, match=r"it is damaged.*`ckptflow repair` mends it"):
        ensure_store(tier)
    assert tier.get(STORE_KEY) == descriptor


def test_a_store_is_described_once(tier: MemoryTier) -> None:
    assert not check_store(tier)
    ensure_store(tier)
    before = contents(tier)
    ensure_store(tier)
    assert contents(tier) == before
    assert json.loads(before[STORE_KEY])["version"] == 1


def test_two_who_describe_a_store_at_once_agree(tier: MemoryTier) -> None:
    def first(operation: str, key: str) -> None:
        if operation == "create" and key == STORE_KEY:
            ensure_store(tier)

    ensure_store(FaultyTier(tier, first))
    assert len(json.loads(tier.get(STORE_KEY))["store"]) == 32


def _newer() -> MemoryTier:
    tier = MemoryTier("future", level=3)
    tier.put(STORE_KEY, [b'{"format": "ckptflow-store", "version": 2}'])
    return tier


USES: dict[str, Callable[[list[Tier]], Any]] = {
    "claim": lambda tiers: Lineage(tiers, LINEAGE).claim(),
    "list": lambda tiers: Lineage(tiers, LINEAGE).checkpoints(),
    "lineages": lineages,
    "restore": lambda tiers: Checkpointer(tiers).restore({"a": 1}),
    "save": lambda tiers: Checkpointer(tiers).save(1, {"a": 1}),
}


@pytest.mark.parametrize("use", USES)
def test_a_newer_store_is_refused_before_anything_is_touched(use: str) -> None:
    """Neither it nor a tier that comes before it."""
    near, far = MemoryTier("near"), _newer()
    before = contents(far)
    with pytest.raises(
        FormatError,
        match=r"Tier 'future' is a store of format version 2; this ckptflow knows version 1",
    ):
        USES[use]([near, far])
    assert contents(far) == before
    assert contents(near) == {}


def test_nothing_is_copied_to_a_newer_store(tier: MemoryTier, commit: Commit) -> None:
    commit(tier, 5, 1)
    lineage, far = Lineage([tier], LINEAGE), _newer()
    before = contents(far)
    with pytest.raises(FormatError, match="format version 2"):
        copy_checkpoint([tier], far, LINEAGE, lineage.manifest(lineage.checkpoints()[0]))
    assert contents(far) == before
