"""What a snapshot lacks comes from wherever it is, if it has the digest that it should have."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.data.digest import chunk_digests
from ckptflow.errors import CheckpointError, IncompleteSnapshot, TierUnavailable
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.completion import Lack, Sources, absorb
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier

CHUNK, COUNT = 64, 10
LINEAGE = LineageId("run", "task")


def noise(seed: int, size: int = COUNT * CHUNK - 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def sparse(data: np.ndarray, held: list[int], name: str = "w") -> NamedRegion:
    """A region of which some chunks are there, and zeros elsewhere."""
    there, marks = np.zeros_like(data), np.zeros(-(-len(data) // CHUNK), np.bool_)
    marks[held] = True
    for number in held:
        place = slice(number * CHUNK, (number + 1) * CHUNK)
        there[place] = data[place]
    return NamedRegion(name, there.data, 1, chunk_digests(data, CHUNK), marks)


def lack(region: NamedRegion, chunks: list[int]) -> Lack:
    assert region.held is not None
    wanted = np.zeros(len(region.held), np.bool_)
    wanted[chunks] = True
    found = Lack.of(region, wanted)
    assert found is not None
    return found


def stored(data: np.ndarray) -> tuple[Base, MemoryTier]:
    tier = MemoryTier("far", level=3)
    ensure_store(tier)
    base = write_checkpoint(
        tier, LINEAGE, CheckpointId(1, 1), structure=None, base=None, chunk_bytes=CHUNK,
        regions=[NamedRegion("other", bytes(70)), NamedRegion("w", data.data)],
    )  # fmt: skip
    return base, tier


def test_from_a_snapshot_and_from_a_checkpoint() -> None:
    data = noise(0)
    region = sparse(data, [0, 1])
    base, tier = stored(data)
    counted: list[int] = []
    sources = Sources([[sparse(data, [3, 4])]], [(base, [tier])], counted.append)
    sources.complete([lack(region, [0, 3, 4, 9])], CHUNK)
    assert region.held is not None
    assert np.flatnonzero(region.held).tolist() == [0, 1, 3, 4, 9]
    assert sum(counted) == 3 * CHUNK
    for number in (0, 3, 4, 9):
        place = slice(number * CHUNK, (number + 1) * CHUNK)
        assert bytes(region.data[place]) == data[place].tobytes()


def test_only_what_has_the_digest_is_taken() -> None:
    data, other = noise(0), noise(1)
    other[3 * CHUNK : 4 * CHUNK] = data[3 * CHUNK : 4 * CHUNK]
    region = sparse(data, [0])
    whole = NamedRegion("w", other.data)
    with pytest.raises(IncompleteSnapshot, match=r"64 B of regions 'w' that it left"):
        Sources([[whole]]).complete([lack(region, [3, 4])], CHUNK)
    assert region.held is not None
    assert np.flatnonzero(region.held).tolist() == [0, 3]
    base, tier = stored(other)
    with pytest.raises(IncompleteSnapshot, match="the next one is captured as a whole"):
        Sources(checkpoints=[(base, [tier])]).complete([lack(region, [5])], CHUNK)


def test_a_snapshot_of_another_length_or_name_has_other_last_chunks() -> None:
    data = noise(0)
    longer = np.concatenate([data, noise(2)])
    for source in (NamedRegion("w", longer.data), NamedRegion("w", data[: 5 * CHUNK - 1].data)):
        region = sparse(data, [])
        taken = absorb([region], [source, NamedRegion("v", data.data)], CHUNK)
        assert region.held is not None
        same = min(len(source.data), len(data)) // CHUNK
        assert np.flatnonzero(region.held).tolist() == list(range(same))
        assert taken == same * CHUNK


def test_a_checkpoint_that_cannot_be_read_is_told() -> None:
    data = noise(0)
    base, tier = stored(data)

    def broken(operation: str, key: str) -> None:
        raise TierUnavailable(f"{operation} of {key} fails")

    region = sparse(data, [])
    with pytest.raises(IncompleteSnapshot) as failure:
        Sources(checkpoints=[(base, [FaultyTier(tier, broken)])]).complete(
            [lack(region, [2])], CHUNK
        )
    assert "has no sound copy" in "".join(failure.value.__notes__)


# --- as a task meets it ---


class Failing:
    """Lets puts of packs fail while it is on."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self, operation: str, key: str) -> None:
        if self.on and operation == "put":
            raise TierUnavailable(f"put of {key} fails")


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_saves_after_a_failed_one_have_what_only_that_one_held() -> None:
    disk, failing = MemoryTier("disk"), Failing()
    state = {"u": np.zeros(50_000), "v": np.zeros(50_000)}
    with Checkpointer(
        FaultyTier(disk, failing), every="never", capture="diff-first", rng=False, keep="all"
    ) as ckpt:
        ckpt.save(1, state).wait()
        failing.on = True
        for step in (2, 3, 4):  # Each changes another place, and holds only that.
            state["u"][step * 9000] = state["v"][step * 5000] = step
            with pytest.raises(CheckpointError, match="fails"):
                ckpt.save(step, state).wait()
        arenas = ckpt._capturing.capturer.arenas
        assert 0 < arenas.counted_bytes < 100_000
        failing.on = False
        state["u"][0] = 5
        ticket = ckpt.save(5, state)
        assert not ticket.modes["u"].whole
        ticket.wait()
        ckpt.save(6, state).wait()
        assert arenas.counted_bytes == 0
    with Checkpointer(disk, every="never", rng=False) as again:
        found = again.restore(step=5)
    assert all(np.array_equal(found[name], state[name]) for name in state)


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_a_tier_that_comes_back_gets_what_the_other_one_has() -> None:
    """Its own last checkpoint is older than the snapshot before; nothing is copied twice."""
    near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)
    failing, clock_s = Failing(), 0.0
    u = np.zeros(100_000)
    with Checkpointer(
        [FaultyTier(near, failing), far], every="never", capture="lazy", rng=False, u=u,
        keep="all", flush_every={"far": 1000},
    ) as ckpt:  # fmt: skip
        ckpt.health.clock_s = lambda: clock_s
        for step in range(6):
            failing.on = 2 <= step <= 3
            clock_s += 10_000
            ckpt.wait_captured()
            u[step * 10_000] = step + 1
            ticket = ckpt.save(step)
            ticket.wait()
            assert ticket.modes["u"].whole == (step == 0)
        assert [found.id.step for found in ckpt.lineage.valid()] == [5, 4, 3, 2, 1, 0]
    with Checkpointer(near, every="never", rng=False) as again:
        assert np.array_equal(again.restore(step=5)["u"], u)


def test_what_is_nowhere_fails_by_name_and_the_next_is_whole() -> None:
    disk, u = MemoryTier("disk"), np.random.default_rng(0).random(100_000)
    with Checkpointer(disk, every="never", capture="diff-first", rng=False, u=u) as ckpt:
        ckpt.save(1).wait()
        for key in list(disk.iter_keys("")):
            if key.endswith(".pack"):
                disk.delete(key)
        u[5] = 1
        with pytest.raises(IncompleteSnapshot, match="are not to be had any more"):
            ckpt.save(2).wait()
        with pytest.warns(CheckpointWarning, match="the next one is captured as a whole"):
            ticket = ckpt.save(3)
        assert ticket.modes["u"].whole
        ticket.wait()
    with Checkpointer(disk, every="never", rng=False) as again:
        assert np.array_equal(again.restore()["u"], u)
