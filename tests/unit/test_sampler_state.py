"""What a sampler saves is plain, equal on all ranks, and refused where it does not belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.data import ResumableSampler, fingerprint
from ckptflow.errors import StateError


def sampler_at(batches: int, **options: Any) -> ResumableSampler:
    made = ResumableSampler(options.pop("samples", 20), **{"batch": 3, "seed": 5} | options)
    loop = made.batches()
    for _ in range(batches):
        next(loop)
    return made


def saved(batches: int = 2, **options: Any) -> dict[str, Any]:
    return sampler_at(batches, **options).state_dict()


def rest(sampler: ResumableSampler) -> list[int]:
    return [int(index) for indices in sampler.batches() for index in indices]


def test_a_state_is_a_few_plain_values() -> None:
    state = saved(fingerprint="abc")
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "version": 1,
        "seed": 5,
        "shuffle": True,
        "samples": 20,
        "fingerprint": "abc",
        "epoch": 0,
        "consumed": 6,
        "world": 1,
        "batch": 3,
        "tail": "short",
    }


def test_all_ranks_have_the_same_state_and_share_the_samples() -> None:
    states = [saved(rank=rank, world=3, samples=21) for rank in range(3)]
    assert states[0]["consumed"] == 18
    assert all(state == states[0] for state in states)


def test_batch_world_and_tail_may_change() -> None:
    all_of_it = rest(sampler_at(0))
    state = saved(2)
    other = ResumableSampler(20, batch=5, seed=5, tail="drop")
    other.load_state_dict(state)
    assert rest(other) == all_of_it[6:16]
    ranks = [ResumableSampler(20, batch=2, seed=5, rank=rank, world=2) for rank in range(2)]
    for one in ranks:
        one.load_state_dict(state)
    assert sorted(rest(ranks[0]) + rest(ranks[1])) == sorted(all_of_it[6:])


def test_the_last_of_two_loads_counts() -> None:
    sampler = ResumableSampler(20, batch=3, seed=5)
    for batches in (4, 1, 1):
        sampler.load_state_dict(saved(batches))
    assert sampler.consumed == 3
    assert rest(sampler) == rest(sampler_at(1))


def test_saved_at_once_after_loading_it_is_the_same_state() -> None:
    state = saved(2)
    sampler = ResumableSampler(20, batch=3, seed=5)
    sampler.load_state_dict(state)
    assert sampler.state_dict() == state


def test_another_data_set_is_refused() -> None:
    sampler = ResumableSampler(21, batch=3, seed=5)
    with pytest.raises(StateError, match="samples: 20 in what was saved, 21 here"):
        sampler.load_state_dict(saved())
    assert sampler.consumed == 0


def test_another_data_set_of_the_same_length_is_refused_by_its_fingerprint() -> None:
    state = saved(fingerprint=fingerprint(["a", "b"]))
    sampler = ResumableSampler(20, batch=3, seed=5, fingerprint=fingerprint(["b", "a"]))
    with pytest.raises(StateError, match="in another order"):
        sampler.load_state_dict(state)
    unknown = ResumableSampler(20, batch=3, seed=5)
    unknown.load_state_dict(state)
    assert unknown.consumed == 6


def test_another_seed_or_order_is_refused_and_all_is_told_at_once() -> None:
    with pytest.raises(StateError, match=r"seed: 5 .*, 6 here.*give the saved seed") as caught:
        ResumableSampler(20, batch=3, seed=6, shuffle=False).load_state_dict(saved())
    assert len(caught.value.mismatches) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2; this ckptflow reads up to 1"),
        ({"consumed": 21}, "21 samples are consumed, of 20"),
        ({"consumed": -1}, "consumed is -1, not a count"),
        ({"epoch": 1.0}, r"epoch is 1\.0, not a count"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        ResumableSampler(20, batch=3, seed=5).load_state_dict(saved() | change)


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, None, [1]])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="no state of a sampler"):
        ResumableSampler(20, batch=3, seed=5).load_state_dict(state)


def test_a_fingerprint_tells_names_their_order_and_their_limits_apart() -> None:
    lists = [["a", "bc"], ["bc", "a"], ["ab", "c"], ["abc"], [b"a", "bc"], [], [1], ["1"]]
    assert len({fingerprint(names) for names in lists}) == len(lists)
    assert fingerprint([Path("x/1.png")]) == fingerprint(["x/1.png"])
    assert len(fingerprint([])) == 32


# --- with a checkpointer --------------------------------------------------------------------


def test_a_checkpointer_saves_and_restores_the_position(tmp_path: Path) -> None:
    weights = np.zeros(3)
    sampler = ResumableSampler(20, batch=3, seed=5)
    with cf.Checkpointer(tmp_path / "store", w={"w": weights}, data=sampler, every=1) as ckpt:
        assert ckpt.resume() == 0
        for step, indices in zip(range(4), sampler.batches(), strict=False):
            weights += indices.sum()
            ckpt.step(step)
    again, weights_again = ResumableSampler(20, batch=3, seed=5), np.zeros(3)
    with cf.Checkpointer(tmp_path / "store", w={"w": weights_again}, data=again) as ckpt:
        assert ckpt.resume() == 4
    assert again.consumed == 12
    assert np.array_equal(weights, weights_again)
    assert rest(again) == rest(sampler_at(4))


def test_a_checkpointer_changes_nothing_if_the_data_set_is_another(tmp_path: Path) -> None:
    with cf.Checkpointer(tmp_path / "store", w={"w": np.ones(3)}, data=sampler_at(2)) as ckpt:
        ckpt.save(0)
    weights = np.zeros(3)
    other = ResumableSampler(21, batch=3, seed=5)
    with (
        cf.Checkpointer(tmp_path / "store", w={"w": weights}, data=other) as ckpt,
        pytest.raises(StateError, match="'state/data': samples: 20 in what was saved, 21 here"),
    ):
        ckpt.resume()
    assert not weights.any()
    assert other.consumed == 0


def test_a_checkpointer_does_not_go_back_under_a_running_loop(tmp_path: Path) -> None:
    sampler, weights = ResumableSampler(20, batch=3, seed=5), np.zeros(3)
    with cf.Checkpointer(tmp_path / "store", w={"w": weights}, data=sampler) as ckpt:
        for step, _ in enumerate(sampler.batches()):
            if step == 0:
                ckpt.save(0)
            if step == 3:
                weights += 1
                with pytest.raises(StateError, match="an iteration has begun"):
                    ckpt.restore()
                break
        assert weights.all()
        ckpt.restore()
        assert not weights.any()
        assert sampler.consumed == 3
