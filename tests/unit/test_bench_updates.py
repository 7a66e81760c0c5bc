"""Updates of `bench/updates.py` change as many bytes as they say; its floors move them all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

spec = importlib.util.spec_from_file_location(
    "updates", Path(__file__).resolve().parents[2] / "bench" / "updates.py"
)
updates = importlib.util.module_from_spec(spec)
sys.modules["updates"] = updates
spec.loader.exec_module(updates)

SHARES = {
    "unchanged": 0,
    "1 % contiguous": 0.01,
    "5 % of rows": 0.05,
    "1 % of words": 0.01,
    "all words": 1,
}


def changed_bytes(state, before):
    return 4 * sum(np.count_nonzero(state[name] != before[name]) for name in state)


@pytest.mark.parametrize("update", updates.UPDATES)
@pytest.mark.parametrize("kind", ["large", "small"])
def test_an_update_changes_the_bytes_that_it_says(kind, update):
    state = updates.make_state(kind, "tiny")
    updater = updates.Updater(state, seed=1)
    places = []
    for _ in range(3):
        before = {name: array.copy() for name, array in state.items()}
        said = updater.apply(update)
        # Half the words of normal numbers are never alike; one in ten millions may be.
        assert changed_bytes(state, before) == pytest.approx(said, rel=1e-3)
        places.append(np.concatenate([state[name] != before[name] for name in state]))
    # Rows are whole ones, so the ends of small arrays are never among them.
    assert said == pytest.approx(SHARES[update] * updates.size_bytes(state), rel=0.15)
    if update not in {"unchanged", "all words"}:
        assert not np.array_equal(places[0], places[1])


def test_equal_arguments_make_equal_states_of_arrays_that_are_not_alike():
    one, other = updates.make_state("small", "tiny"), updates.make_state("small", "tiny")
    assert all(np.array_equal(one[name], other[name]) for name in one)
    shortest = min(len(array) for array in one.values())
    assert len({array[:shortest].tobytes() for array in one.values()}) == len(one)


def test_a_state_negated_twice_has_its_bits_again():
    state = updates.make_state("small", "tiny")
    before = {name: array.copy() for name, array in state.items()}
    updates.negate(state)
    assert changed_bytes(state, before) == updates.size_bytes(state)
    updates.negate(state)
    assert changed_bytes(state, before) == 0


@pytest.mark.parametrize("call_bytes", [1000, 1 << 26])
@pytest.mark.parametrize("kind", ["large", "small"])
def test_the_plain_file_holds_the_state(tmp_path, monkeypatch, kind, call_bytes):
    monkeypatch.setattr(updates, "CALL_BYTES", call_bytes)
    monkeypatch.setattr(updates, "PIECES_A_CALL", 3)
    state = updates.make_state(kind, "tiny")
    updates.write_synced(tmp_path / "file", state)
    assert (tmp_path / "file").read_bytes() == b"".join(one.tobytes() for one in state.values())
    target = {name: np.zeros_like(array) for name, array in state.items()}
    updates.read_raw(tmp_path / "file", target)
    assert changed_bytes(target, state) == 0


def test_a_part_of_a_state_is_its_first_bytes(tmp_path):
    state = updates.make_state("small", "tiny")
    updates.write_synced(tmp_path / "file", state, 10_001)
    whole = b"".join(array.tobytes() for array in state.values())
    assert (tmp_path / "file").read_bytes() == whole[:10_001]


def test_a_file_that_is_too_short_is_refused(tmp_path):
    state = updates.make_state("small", "tiny")
    updates.write_synced(tmp_path / "file", state, 100)
    with pytest.raises(EOFError, match="is shorter than the state"):
        updates.read_raw(tmp_path / "file", state)
