"""Ranks that save together: complete sets, launches, restarts, elastic restores.

Ranks are objects in one process here, one after another: what they have in common is the
store, as for real ones, which `tests/process/test_ranks.py` starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.errors import (
    ConfigError,
    FencedError,
    NotFoundError,
    ReplicasDiffer,
    RestoreError,
    StateError,
)
from ckptflow.model import CheckpointId, LineageId, Shard
from ckptflow.store.sharding import search
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.tiers.memory import MemoryTier

REPLICATED = ["model/*", "step"]


def state(step: int, rank: int | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    model = {
        "w": rng.normal(size=(700, 301)).astype("f4"),
        "b": rng.normal(size=7),
        "columns": np.asfortranarray(rng.normal(size=(9, 5))),
        "gaps": rng.normal(size=(40, 6))[:, ::2],
        "empty": np.empty((0, 4)),
        "number": np.array(step, "i2"),
    }
    model["tied"] = model["w"]
    model["view"] = model["w"][3:5]
    own = {} if rank is None else {"own": {"seen": np.full(rank + 2, step), "rank": rank}}
    return {"model": model, "step": step, **own}


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, np.ndarray):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes()
    else:
        assert a == b


@contextmanager
def ranks(
    store: Any, world: int, launch: str, **options: Any
) -> Iterator[list[cf.ShardedCheckpointer]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                cf.ShardedCheckpointer(
                    store,
                    rank=rank,
                    world=world,
                    launch=launch,
                    **{"replicated": REPLICATED, "rng": False, "every": "never", **options},
                )
            )
            for rank in range(world)
        ]


def save(
    all_: list[cf.ShardedCheckpointer], step: int, make: Callable[[int, int], Any] = state
) -> None:
    for one in all_:
        one.save(step, make(step, one.rank))
    for one in all_:
        one.wait()


def run(store: Any, world: int, launch: str, *steps: int, **options: Any) -> list[Any]:
    """Let a launch restore, save some steps, and end; return what it restored."""
    own = options.pop("own", False)
    with ranks(store, world, launch, **options) as all_:
        start = [one.restore({}) or None for one in all_]
        for step in steps:
            save(all_, step, state if own else lambda step, _rank: state(step))
    return start


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier("store", level=3)


# --- sets ----------------------------------------------------------------------------------


def test_each_rank_gets_all_of_what_is_replicated_and_its_own_rest(tier: MemoryTier) -> None:
    run(tier, 3, "one", 5, own=True)
    restored = run(tier, 3, "two")
    for rank, one in enumerate(restored):
        same(one, state(5, rank))
        assert one["model"]["tied"] is not one["model"]["b"]
        assert np.shares_memory(one["model"]["tied"], one["model"]["w"])
        assert np.shares_memory(one["model"]["view"], one["model"]["w"])


def test_restored_in_place(tier: MemoryTier) -> None:
    run(tier, 2, "one", 5)
    for target in (state(1), state(2)):
        w = target["model"]["w"]
    with ranks(tier, 2, "two") as all_:
        for one in all_:
            target = state(1)
            w = target["model"]["w"]
            assert one.restore(target) is target
            assert target["model"]["w"] is w
            same(target, state(5))
            assert one.restored_step == one.last_step == 5


def test_shares_are_even_and_each_byte_is_stored_once(tier: MemoryTier) -> None:
    with ranks(tier, 4, "one") as all_:
        for one in all_:
            one.restore({})
        save(all_, 1, lambda step, _rank: state(step))
        saved = [one.written_bytes[0] for one in all_]
    whole = state(1)["model"]
    total = sum(whole[name].nbytes for name in ("w", "b", "columns", "gaps", "number"))
    assert sum(saved) == total
    assert max(saved) <= 1.05 * total / 4


@pytest.mark.parametrize("worlds", [(1, 2, 3, 1), (5, 1, 4)])
def test_any_number_of_ranks_goes_on(tier: MemoryTier, worlds: tuple[int, ...]) -> None:
    for number, world in enumerate(worlds):
        for one in run(tier, world, f"launch {number}", number + 1):
            same(one or None, state(number) if number else None)


def test_increments_go_on_for_each_rank(tier: MemoryTier) -> None:
    def changed(step: int, _rank: int) -> Any:
        one = state(0)
        one["model"]["w"][300, :40] = step  # In the share of one rank.
        return one

    run(tier, 2, "one", 1)
    with ranks(tier, 2, "two") as all_:
        for one in all_:
            one.restore({})
        save(all_, 2, changed)
        before = [one.written_bytes[1] for one in all_]
        save(all_, 3, changed)
        stored = [one.written_bytes[1] - b for one, b in zip(all_, before, strict=True)]
    assert max(stored) <= 2 * 4096  # Two chunks at most, of 400 KB a rank.
    assert min(stored) < 300
    with ranks(tier, 2, "three") as all_:
        same(all_[1].restore({})["model"], changed(3, 0)["model"])
        all_[0].restore({})
        save(all_, 4, changed)
        assert max(one.written_bytes[1] for one in all_) <= 2 * 4096  # Also after a restart.


def test_an_incomplete_set_does_not_exist(tier: MemoryTier) -> None:
    with ranks(tier, 2, "one") as all_:
        for one in all_:
            one.restore({})
        save(all_, 1, lambda step, _rank: state(step))
        all_[0].save(2, state(2))
        all_[0].wait()
        with pytest.raises(NotFoundError, match=r"of step 2; it has step 2 .*rank 1 of 2"):
            all_[0].read("step", step=2)
    same(run(tier, 2, "two")[1], state(1))
    with (
        ranks(tier, 2, "three") as all_,
        pytest.raises(NotFoundError, match="step 2; it has 1"),
    ):
        all_[1].restore(state(0), step=2)


def test_shards_of_two_lives_are_no_set(tier: MemoryTier) -> None:
    """Rank 0 saved step 2 in one life and rank 1 in the next."""
    run(tier, 2, "one", 1)
    for launch, rank in (("two", 0), ("three", 1)):
        with ranks(tier, 2, launch) as all_:
            for one in all_:
                one.restore({})
            all_[rank].save(2, state(2))
    same(run(tier, 2, "four")[0], state(1))


def test_all_ranks_go_on_from_what_the_first_one_chose(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1, 2)
    with ranks(tier, 2, "two") as all_:
        assert all_[1].restore(state(0), step=1)["step"] == 1
        assert all_[0].restore(state(0))["step"] == 1
        save(all_, 3, lambda step, _rank: state(step))
    assert [one.id.step for one in ShardSets([tier], LineageId("default", "main")).every()
            if one.complete and not one.void] == [3, 1]  # fmt: skip


def test_ranks_that_ask_for_different_steps(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1, 2)
    with ranks(tier, 2, "two") as all_:
        all_[0].restore(state(0))
        with pytest.raises(RestoreError, match=r"goes on from step 2.*rank 1 asks for step 1"):
            all_[1].restore(state(0), step=1)


def test_a_rank_that_does_not_see_what_was_chosen_says_so_in_time(
    tier: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FOLLOW_S", 0.05)
    run(tier, 2, "one", 1)
    with ranks(tier, 2, "two") as all_:
        all_[0].restore(state(0))
        lineage = Shard(LineageId("default", "main"), 1, 2).lineage
        tier.delete(f"{lineage.prefix}/{CheckpointId(1, 1).manifest_key}")
        with pytest.raises(
            RestoreError, match=r"within 0 s: the shards of rank 1 of 2 are not"
        ):
            all_[1].restore(state(0))


@pytest.mark.damaged_store
def test_a_damaged_set_is_passed_over_by_all(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1, 2, keep="all")
    lineage = Shard(LineageId("default", "main"), 1, 2).lineage
    pack = max(tier.iter_keys(f"{lineage.prefix}/packs"))
    tier.put(pack, [b"\0" * tier.size(pack)])
    with ranks(tier, 2, "two") as all_:
        for one in all_:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cf.CheckpointWarning)
                same(one.restore(state(0)), state(1))


# --- launches ------------------------------------------------------------------------------


def test_an_older_launch_may_not_commit_any_more(tier: MemoryTier) -> None:
    def overtaken() -> None:
        with ranks(tier, 2, "one") as all_:
            for one in all_:
                one.restore({})
            save(all_, 1, lambda step, _rank: state(step))
            assert run(tier, 3, "two", 2)[2]["step"] == 1
            save(all_, 2, lambda step, _rank: state(step))

    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        overtaken()


def test_the_same_token_again_is_another_launch(tier: MemoryTier) -> None:
    for step in (1, 2, 3):
        for one in run(tier, 2, "", step):
            assert (one["step"] if one else 0) == step - 1


def test_a_rank_that_comes_too_late(tier: MemoryTier) -> None:
    with ranks(tier, 2, "one") as old:
        old[0].restore({})
        run(tier, 2, "two", 1)
        with pytest.raises(
            FencedError, match=r"launch 2 has taken over from launch 1.*launch="
        ):
            old[1].restore({})


def test_nobody_goes_back_alone(tier: MemoryTier) -> None:
    with ranks(tier, 2, "one") as all_:
        all_[0].restore({})
        all_[0].save(1, state(1))
        with pytest.raises(ConfigError, match="rank 0 has saved already"):
            all_[0].restore({})


def test_what_nobody_looked_at_is_not_made_void(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1)
    with ranks(tier, 3, "two") as all_, pytest.raises(ConfigError, match="did not restore"):
        all_[0].save(2, state(2))


def test_a_plain_checkpointer_does_not_begin_anew_where_ranks_have_saved(
    tier: MemoryTier,
) -> None:
    run(tier, 2, "one", 1)
    with cf.Checkpointer(tier) as one:
        with pytest.raises(ConfigError, match=r"2 ranks.*ShardedCheckpointer"):
            one.restore(state(0))
        with pytest.raises(ConfigError, match=r"2 ranks.*ShardedCheckpointer"):
            one.save(2, state(2))


# --- own leaves and another number of ranks ------------------------------------------------


def test_own_leaves_have_no_heir(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1, own=True)
    with ranks(tier, 3, "two") as all_:
        target = state(0, 2)
        with pytest.raises(StateError, match=r"own/rank, own/seen.*has 3 ranks.*per_rank="):
            all_[2].restore(target)
        same(target, state(0, 2))


def test_the_application_says_whose_own_leaves_a_rank_gets(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1, own=True)
    got = run(tier, 3, "two", per_rank=lambda rank, world, saved: rank % saved)
    assert [one["own"]["rank"] for one in got] == [0, 1, 0]
    wrong = pytest.raises(StateError, match=r"returned 2; .* ranks 0 to 1")
    with ranks(tier, 3, "three", per_rank=lambda *_: 2) as all_, wrong:
        all_[0].restore({})


def test_random_states_stay_with_their_ranks(tier: MemoryTier) -> None:
    run(tier, 2, "one", 1, rng=True)
    np.random.seed(7)  # noqa: NPY002
    run(tier, 2, "two", rng=True)
    assert np.random.randint(1 << 30) != np.random.RandomState(7).randint(1 << 30)  # noqa: NPY002
    told = pytest.warns(cf.CheckpointWarning, match="random states belong to ranks")
    with ranks(tier, 3, "three", rng=True) as all_, told:
        same(all_[0].restore({}), state(1))


# --- replicas that are none ----------------------------------------------------------------


def test_what_is_not_alike_is_no_replica(tier: MemoryTier) -> None:
    def drifted(step: int, rank: int) -> Any:
        one = state(step)
        one["model"]["b"][0] += rank
        return one

    with ranks(tier, 2, "one") as all_:
        for one in all_:
            one.restore({})
        save(all_, 1, lambda step, _rank: state(step))
        first, second = (one.save(2, drifted(2, one.rank)) for one in all_)
        errors = []
        for ticket in (first, second):
            try:
                ticket.wait()
            except ReplicasDiffer as error:
                errors.append(error)
        assert errors
        assert "ranks" in str(errors[0])
        assert any("model/" in name for name in errors[0].mismatches)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cf.CheckpointWarning)
            save(all_, 3, lambda step, _rank: state(step))
    same(run(tier, 2, "two")[0], state(3))


def test_equal_names_do_not_make_replicas(tier: MemoryTier) -> None:
    """What nobody called replicated is stored by each rank, whatever its name."""
    run(tier, 2, "one", 1, own=True, replicated=None)
    for rank, one in enumerate(run(tier, 2, "two", replicated=None)):
        same(one, state(1, rank))


def test_plain_values_are_compared_too(tier: MemoryTier) -> None:
    errors = errors_of(tier, lambda rank: {"lr": 0.1 + rank})
    assert any("lr differ" in error for error in errors)


def errors_of(tier: MemoryTier, make: Callable[[int], Any]) -> list[str]:
    """Return what went wrong when all leaves are called replicated."""
    errors = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cf.CheckpointWarning)
        with ranks(tier, 2, "one", replicated="*") as all_:
            for one in all_:
                one.restore({})
            for ticket in [one.save(1, make(one.rank)) for one in all_]:
                try:
                    ticket.wait()
                except ReplicasDiffer as error:
                    errors.append(str(error))
    return errors


def test_other_arrays_on_another_rank(tier: MemoryTier) -> None:
    errors = errors_of(tier, lambda rank: {f"x{rank}": np.zeros(9)})
    assert any("names, sizes or types differ" in error for error in errors)


def test_compared_once_if_asked_for(tier: MemoryTier) -> None:
    with ranks(tier, 2, "one", check="first") as all_:
        for one in all_:
            one.restore({})
        for step in (1, 2):
            save(all_, step, lambda step, _rank: state(step))
    keys = list(tier.iter_keys("lineages/default/main/replicas"))
    assert all(f"/{1:012d}." in key for key in keys)
    same(run(tier, 3, "two")[2], state(2))
    with pytest.raises(ConfigError, match="'every' or 'first'"):
        cf.ShardedCheckpointer(tier, rank=0, world=1, check="never")  # type: ignore[arg-type]


def test_ranks_save_by_the_number_of_the_step(tier: MemoryTier) -> None:
    with pytest.raises(ConfigError, match=r"'60s' is decided by what each rank measures"):
        cf.ShardedCheckpointer(tier, rank=0, world=2, every="60s")
    with ranks(tier, 2, "one", every=None) as all_, pytest.raises(ConfigError, match="every="):
        all_[0].step(1, state(1))
    with ranks(tier, 2, "two", every=2) as all_:
        for one in all_:
            one.restore({})
            assert [one.step(step, state(step)) is not None for step in (1, 2, 3, 4)] == [
                False, True, False, True
            ]  # fmt: skip
    assert sets_of(tier)[0] == (4, 2, True)


# --- capture -------------------------------------------------------------------------------


def test_parts_of_parameters_are_captured_while_the_next_step_computes(
    tier: MemoryTier,
) -> None:
    torch = pytest.importorskip("torch")
    with ExitStack() as stack:
        for rank in range(2):
            torch.manual_seed(0)
            model = torch.nn.Linear(300, 300)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    tier, rank=rank, world=2, launch="a", replicated="*", model=model,
                    optim=optimizer, every="never",
                )
            )  # fmt: skip
            one.resume()
            for step in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 300)).sum().backward()
                optimizer.step()
                saved = model.weight.detach().clone()
                ticket = one.save(step)
            optimizer.step()  # Waits until the parts of this rank are captured.
            assert "lazy" in {one.mode for one in ticket.modes.values()}
    with cf.ShardedCheckpointer(tier, rank=0, world=1, launch="b") as alone:
        assert (alone.read("model/weight") == saved.numpy()).all()


def test_a_mode_is_asked_for_by_the_names_of_arrays(tier: MemoryTier) -> None:
    with ranks(tier, 2, "one", capture={"model/w": "copy"}) as all_:
        for one in all_:
            one.restore({})
            ticket = one.save(1, state(1))
            assert ticket.modes["model/w"].mode == "copy"


# --- what stays ----------------------------------------------------------------------------


def sets_of(tier: MemoryTier) -> list[tuple[int, int, bool]]:
    found = ShardSets([tier], LineageId("default", "main")).every()
    return [(one.id.step, one.world, one.complete) for one in found]


def test_the_last_complete_set_stays_however_far_one_rank_is_ahead(tier: MemoryTier) -> None:
    with ranks(tier, 2, "one", keep=1) as all_:
        for one in all_:
            one.restore({})
        save(all_, 1, lambda step, _rank: state(step))
        for step in (2, 3, 4, 5):
            all_[0].save(step, state(step))
            all_[0].wait()
        assert (1, 2, True) in sets_of(tier)
        for step in (2, 3):
            all_[1].save(step, state(step))
            all_[1].wait()
    assert (3, 2, True) in sets_of(tier)
    same(run(tier, 2, "two", 4, 5, 6, keep=1)[0], state(3))
    run(tier, 2, "three", 7, 8, keep=1)  # Step 3 was proven, and stayed until 6 was.
    assert all(step >= 6 for step, _, _ in sets_of(tier))


def test_sets_of_other_numbers_of_ranks_go_in_their_turn(tier: MemoryTier) -> None:
    run(tier, 3, "one", 1, 2, keep=2)
    run(tier, 2, "two", 3, keep=2)
    assert {2, 3} <= {step for step, _, complete in sets_of(tier) if complete}
    run(tier, 2, "three", 4, 5, 6, keep=2)
    assert all(world == 2 for _, world, _ in sets_of(tier))
    packs = [key for key in tier.iter_keys("lineages") if "of00003/" in key]
    assert packs == []


def test_a_set_is_complete_where_all_of_its_shards_are() -> None:
    inner, outer = MemoryTier("nvme", level=1), MemoryTier("pfs", level=3)
    with ranks([inner, outer], 2, "one", flush_every={"pfs": 2}) as all_:
        for one in all_:
            one.restore({})
        for step in (1, 2):
            save(all_, step, lambda step, _rank: state(step))
        for one in all_:
            one.save(3, state(3)).wait(level=3) if one.rank == 0 else one.save(
                3, state(3)
            ).wait()
    pfs = ShardSets([outer], LineageId("default", "main"))
    assert [one.id.step for one in pfs.newest_first()][-1] == 1
    other_node = [MemoryTier("nvme", level=1), outer]
    steps = {one["step"] for one in run(other_node, 2, "two")}
    assert steps == {next(pfs.newest_first()).id.step}


def test_ranks_on_nodes_of_their_own_prune_what_all_have() -> None:
    """No rank sees the inner tier of another one."""
    outer = MemoryTier("pfs", level=3)
    inner = [MemoryTier("nvme", level=1) for _ in range(2)]
    with ExitStack() as stack:
        all_ = [
            stack.enter_context(
                cf.ShardedCheckpointer(
                    [inner[rank], outer], rank=rank, world=2, launch="one", keep=2, rng=False,
                    replicated=REPLICATED, flush_every={"pfs": 100}, every="never",
                )
            )
            for rank in range(2)
        ]  # fmt: skip
        for one in all_:
            one.restore({})
        for step in range(1, 9):
            save(all_, step, lambda step, _rank: state(step))
        kept = [sorted(tier.iter_keys("lineages/default")) for tier in inner]
    for keys in kept:
        manifests = [key for key in keys if key.endswith(".ckpt")]
        assert 2 <= len(manifests) <= 5
        assert f"{8:012d}" in manifests[-1]
