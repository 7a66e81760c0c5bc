"""The surrogate: the file that is shipped, one that is made here, and files that are none.

What NumPy makes of the exported network and trees is compared with what scikit-learn says.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.plan.train import Samples, random_system, sample, train
from ckptflow.policy.multilevel.closed_form import first_order_pattern
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiencies, efficiency, level_rows
from ckptflow.policy.multilevel.search import best_pattern, by_efficiency
from ckptflow.policy.multilevel.surrogate import (
    FEATURES,
    SHIPPED,
    Surrogate,
    feature_name,
    features,
    load,
    propose,
    save,
    shipped,
    target,
)
from ckptflow.policy.multilevel.system import Level, Pattern, System

SYSTEMS = 60

needs_core = pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not here")


@pytest.fixture(scope="module")
def samples() -> Samples:
    return sample(SYSTEMS, seed=3)


@dataclass(frozen=True)
class Trained:
    """A small surrogate, and scikit-learn's own models that it was made of."""

    surrogate: Surrogate
    network: Any
    trees: Any


@pytest.fixture(scope="module")
def trained(samples: Samples) -> Trained:
    ensemble = pytest.importorskip("sklearn.ensemble")
    neural_network = pytest.importorskip("sklearn.neural_network")
    models = []

    def remembered(kind):
        class Remembered(kind):
            def fit(self, *args, **kwargs):
                models.append(self)
                return super().fit(*args, **kwargs)

        return Remembered

    limited = pytest.importorskip("threadpoolctl").threadpool_limits(
        1
    )  # Tests run side by side.
    with limited, pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (neural_network, "MLPRegressor"), (ensemble, "HistGradientBoostingRegressor"),
        ):  # fmt: skip
            patch.setattr(module, name, remembered(getattr(module, name)))
        made = train(samples, seed=3)
    return Trained(made, *models)


# --- what is learned ---------------------------------------------------------------------


def test_what_is_learned_has_no_units() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        system = random_system(rng)
        rows = level_rows(system)
        pattern = first_order_pattern(system, [True] * len(system.levels))
        every = np.array([pattern.every])
        other = rows.copy()
        other[:, 0] /= 3600  # Rates, and times: blocked, latency, recovery.
        other[:, [1, 2, 4]] *= 3600
        one = features(rows, np.array([pattern.interval_s]), every)
        two = features(other, np.array([pattern.interval_s * 3600]), every)
        np.testing.assert_allclose(two[0], one[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(two[1], one[1], rtol=1e-9)
        assert one[0].shape == (1, FEATURES)


def test_every_feature_has_a_name_of_its_own() -> None:
    names = [feature_name(at) for at in range(FEATURES)]
    assert len(set(names)) == FEATURES
    assert (names[0], names[-1]) == ("work lost of level 1 of those used", "number of levels")


def test_a_target_of_zero_is_the_first_order_answer() -> None:
    waste = np.array([1e-4, 0.05, 2.0])
    assert target(np.exp(-waste), waste) == pytest.approx(np.zeros(3), abs=1e-9)


@needs_core
def test_labels_are_exact_efficiencies_of_many_systems(samples: Samples) -> None:
    assert len(np.unique(samples.system)) > 0.8 * SYSTEMS
    assert ((samples.efficiency > 0) & (samples.efficiency < 1)).all()
    assert samples.inputs.shape == (len(samples.waste), FEATURES)
    again = sample(5, seed=3)
    assert (again.efficiency == samples.efficiency[: len(again.efficiency)]).all()


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(ConfigError, match="0 systems are too few to learn from"):
        sample(0, seed=1)


# --- as scikit-learn has it --------------------------------------------------------------


@needs_core
def test_the_network_and_the_trees_are_as_scikit_learn_has_them(
    trained: Trained, samples: Samples
) -> None:
    made = trained.surrogate
    scaled = (samples.inputs - made.mean) / made.scale
    unseen = scaled + np.random.default_rng(0).normal(size=scaled.shape) / 4
    for inputs in (scaled, unseen):
        by_network, by_trees = trained.network.predict(inputs), trained.trees.predict(inputs)
        np.testing.assert_allclose(made.network.predict(inputs), by_network, atol=1e-4)
        wrong = np.abs(made.trees.predict(inputs) - by_trees)
        assert np.quantile(wrong, 0.99) < 1e-5
        assert wrong.max() < 0.02  # Thresholds have 32 bits, so a value may lie on one.
    assert made.about["systems"] == SYSTEMS


@needs_core
def test_a_surrogate_is_the_same_after_saving_it(
    trained: Trained, samples: Samples, tmp_path: Path
) -> None:
    made = trained.surrogate
    save(made, tmp_path / "made.npz")
    again = load(tmp_path / "made.npz")
    scaled = (samples.inputs - made.mean) / made.scale
    for learner in ("network", "trees"):
        expected = getattr(made, learner).predict(scaled)
        found = getattr(again, learner).predict(scaled)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert again.about["seed"] == 3
    save(again, tmp_path / "again.npz")
    for name, array in arrays_of(tmp_path / "made.npz").items():
        np.testing.assert_array_equal(arrays_of(tmp_path / "again.npz")[name], array)


# --- the file that is shipped ------------------------------------------------------------


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_the_shipped_file_is_small_and_of_plain_arrays() -> None:
    assert SHIPPED.stat().st_size < 200_000
    assert shipped() is shipped()
    assert shipped().about["systems"] >= 1000
    assert all(array.dtype.kind in "fiuU" for array in arrays_of(SHIPPED).values())


@needs_core
def test_the_shipped_surrogate_is_near_the_exact_efficiency() -> None:
    """Of patterns around the first-order optima, of systems that it was not trained with."""
    rng, wrong = np.random.default_rng(1234), []
    for _ in range(60):
        system = random_system(rng)
        middle = first_order_pattern(system, [True] * len(system.levels))
        if middle.every[-1] > 256:
            continue
        intervals = middle.interval_s * np.array([0.7, 1.0, 1.5])
        every = np.tile(middle.every, (3, 1))
        exact = efficiencies(system, middle.used, intervals, every)
        found = shipped().efficiencies(level_rows(system), intervals, every)
        assert ((found > 0) & (found <= 1)).all()
        wrong += np.abs(found - exact)[exact > 0.02].tolist()
    assert np.mean(wrong) < 0.015
    assert np.quantile(wrong, 0.95) < 0.06


@needs_core
def test_what_it_proposes_is_nearly_the_best() -> None:
    """The best of its proposals by exact evaluation, before any search goes on from there."""
    rng, regrets = np.random.default_rng(77), []
    while len(regrets) < 20:
        system = random_system(rng)
        try:
            best = best_pattern(system).efficiency
        except ConfigError:
            continue
        proposals = propose(system, shipped())
        assert 1 <= len(proposals) <= 8
        regrets.append(best - max(efficiency(system, one) for one in proposals))
    assert max(regrets) < 0.02
    assert np.mean(regrets) < 0.005


def test_proposals_are_what_the_score_prefers() -> None:
    system = usual()

    def rarely(_used, interval_s, every, found):
        return np.where(found > 0.5, interval_s * every[:, -1], -1.0)

    longest, best = (
        propose(system, shipped(), score=score, count=1)[0] for score in (rarely, by_efficiency)
    )
    assert longest.interval_s * longest.every[-1] > best.interval_s * best.every[-1]


def usual() -> System:
    nvme = Level(name="nvme", number=1, rate_per_s=1e-5, latency_s=8.0, recovery_s=60.0)
    pfs = Level(name="pfs", number=3, rate_per_s=3e-6, latency_s=90.0, recovery_s=300.0,
                interference=0.02)  # fmt: skip
    return System((nvme, pfs), blocked_s=5.0)


def test_no_level_with_room_is_no_proposal() -> None:
    one = Level(name="pfs", number=3, rate_per_s=1e-5, capacity=1)
    assert propose(System((one,), blocked_s=1.0), shipped()) == []


def test_what_lies_beyond_the_training_is_told_in_words() -> None:
    system = usual()
    rows, pattern = level_rows(system), first_order_pattern(system, [True, True])
    every = np.array([pattern.every])
    assert shipped().outside(rows, np.array([pattern.interval_s]), every) == []
    frantic = rows.copy()
    frantic[0, 0] = 10.0  # Ten failures a second.
    said = shipped().outside(frantic, np.array([pattern.interval_s]), every)
    assert "failures per segment" in said
    found = shipped().efficiencies(frantic, np.array([pattern.interval_s]), every)
    assert 0 <= found[0] < 0.01


# --- files that are none -----------------------------------------------------------------


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with pytest.raises(ConfigError, match=r"other\.npz is no surrogate"):
        load(path)
    for content in (b"", b"no zip", SHIPPED.read_bytes()[:5000], pickle.dumps({"a": 1})):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"other\.npz is no surrogate"):
            load(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match=r"one\.npy is no surrogate"):
        load(tmp_path / "one.npy")


def test_a_pickle_in_a_file_is_never_read(tmp_path: Path) -> None:
    executed = []

    class Hostile:
        def __reduce__(self):
            return executed.append, ("now",)

    path = tmp_path / "hostile.npz"
    with path.open("wb") as file:
        np.savez(file, about=np.array([Hostile()], dtype=object))
    with pytest.raises(ConfigError, match="is no surrogate: Object arrays cannot be loaded"):
        load(path)
    assert executed == []


def test_a_flipped_byte_is_refused_or_without_effect_on_the_form(tmp_path: Path) -> None:
    """Zip files have checksums; what gets past them is checked as any other file is."""
    whole, path = SHIPPED.read_bytes(), tmp_path / "flipped.npz"
    refused = 0
    for at in np.linspace(0, len(whole) - 1, 60).astype(int):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        path.write_bytes(flipped)
        try:
            load(path)
        except ConfigError:
            refused += 1
    assert refused > 45


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (100 << 20,)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("mean.npy", header.getvalue() + bytes(100 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ConfigError, match="it unpacks to too many bytes"):
        load(path)


NAN = np.float64("nan")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("about", lambda a: np.array("{"), "is no surrogate"),
        ("about", lambda a: np.array("[1]"), "is no surrogate"),
        (
            "about",
            lambda a: np.array(json.dumps({"format": 99})),
            "format 99, this version reads",
        ),
        ("mean", lambda a: None, "is no surrogate: 'mean"),
        ("mean", lambda a: a[:-1], r"mean has the shape \(40,\)"),
        ("mean", lambda a: a * NAN, "mean has what is no number"),
        ("scale", lambda a: a * 0, "features have no extent"),
        ("low", lambda a: a + 1e9, "features have no extent"),
        ("weight0", lambda a: a[:-1], "weight0 has the shape"),
        ("weight1", lambda a: a.T, "weight1 has the shape"),
        ("weight2", lambda a: np.concatenate([a, a], axis=1), "does not end in one number"),
        ("bias1", lambda a: a[:-1], "bias1 has the shape"),
        ("trees_root", lambda a: a + 10**6, "a tree leads out of the file"),
        ("trees_left", lambda a: a - 10**6, "a tree leads out of the file"),
        ("trees_right", lambda a: a.astype("U8"), "trees_right has what is no number"),
        ("trees_feature", lambda a: a + 41, "asks for a feature that there is not"),
        ("trees_threshold", lambda a: a[:-1], "trees_threshold has the shape"),
        ("trees_value", lambda a: a * np.inf, "trees_value has what is no number"),
        ("trees_depth", lambda a: a + 1000, "a tree is 10"),
        ("trees_base", lambda a: a[:0], "trees_base has the shape"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_arrays_that_do_not_fit_are_refused(name, change, message, tmp_path: Path) -> None:
    arrays = arrays_of(SHIPPED)
    changed = change(arrays[name])
    if changed is None:
        del arrays[name]
    else:
        arrays[name] = changed
    with (tmp_path / "changed.npz").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "changed.npz")


def test_training_without_scikit_learn_says_what_to_install(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    with pytest.raises(ConfigError, match=r"pip install 'ckptflow\[plan\]'"):
        train(samples, seed=1)


def test_a_pattern_of_the_surrogate_is_one() -> None:
    for pattern in propose(usual(), shipped()):
        assert Pattern(pattern.interval_s, pattern.every) == pattern
