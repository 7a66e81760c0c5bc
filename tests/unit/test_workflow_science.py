"""The example science is right, and its state holds all that the next step depends on.

Each method is compared with something written another way: a loop over cells, finite
differences, the formulas of the Adam paper, PyTorch. An interruption is played with a deep
copy, which is what a perfect checkpoint would give back.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the example trains on scikit-learn's digits")


@pytest.fixture
def science(repository, monkeypatch) -> Any:
    """Import a module of ``workflows/`` by name, as the tasks do."""
    monkeypatch.syspath_prepend(str(repository / "workflows"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in ("gray_scott", "digits", "report", "sim_train_analyse"):
        sys.modules.pop(name, None)


@pytest.fixture
def gray_scott(science):
    return science("gray_scott")


@pytest.fixture
def digits(science):
    return science("digits")


@pytest.fixture
def small_digits(digits, rng):
    """Random images under the real labels' rule, so that no test waits for a real training."""
    images, labels = rng.random((200, 64)), rng.integers(0, 10, 200)
    return digits.Digits(images[40:], labels[40:], images[:40], labels[:40])


# --- simulation -----------------------------------------------------------------------


def cell_by_cell(u, v, *, du, dv, feed, removal):
    """One explicit Euler step, one cell after the other, periodic by the modulus."""
    rows, columns = u.shape
    new_u, new_v = u.copy(), v.copy()
    for i in range(rows):
        for j in range(columns):
            near = [
                ((i - 1) % rows, j),
                ((i + 1) % rows, j),
                (i, j - 1),
                (i, (j + 1) % columns),
            ]
            lap_u = sum(u[k] for k in near) - 4 * u[i, j]
            lap_v = sum(v[k] for k in near) - 4 * v[i, j]
            react = u[i, j] * v[i, j] ** 2
            new_u[i, j] += du * lap_u - react + feed * (1 - u[i, j])
            new_v[i, j] += dv * lap_v + react - (feed + removal) * v[i, j]
    return new_u, new_v


def simulate(gray_scott, state, steps, chemistry):
    scratch = gray_scott.Scratch(state)
    for _ in range(steps):
        gray_scott.advance(state, scratch, chemistry)
    return state


def random_bath(gray_scott, rng, size=17):
    state = gray_scott.initial_state(0, size=size, frames=4)
    state["u"][...], state["v"][...] = (
        rng.random(state["u"].shape),
        rng.random(state["v"].shape),
    )
    return state


def test_a_step_agrees_with_a_loop_over_cells(gray_scott, rng):
    state = random_bath(gray_scott, rng)
    u, v = state["u"][1:-1, 1:-1].copy(), state["v"][1:-1, 1:-1].copy()
    for _ in range(3):
        u, v = cell_by_cell(u, v, du=0.16, dv=0.08, feed=0.055, removal=0.062)
    simulate(gray_scott, state, 3, gray_scott.Chemistry())
    np.testing.assert_allclose(state["u"][1:-1, 1:-1], u, rtol=1e-13)
    np.testing.assert_allclose(state["v"][1:-1, 1:-1], v, rtol=1e-13)


def test_a_bath_without_v_stays_exactly_as_it_is(gray_scott):
    state = gray_scott.initial_state(0, size=32, frames=4)
    state["u"][...], state["v"][...] = 1.0, 0.0
    simulate(gray_scott, state, 20, gray_scott.Chemistry())
    assert (state["u"] == 1.0).all()
    assert (state["v"] == 0.0).all()


def test_without_feed_and_removal_the_mass_is_conserved(gray_scott, rng):
    state = random_bath(gray_scott, rng, size=32)
    inside = np.s_[1:-1, 1:-1]
    before = state["u"][inside].sum() + state["v"][inside].sum()
    simulate(gray_scott, state, 50, gray_scott.Chemistry(feed=0.0, removal=0.0))
    assert state["u"][inside].sum() + state["v"][inside].sum() == pytest.approx(
        before, rel=1e-12
    )


def test_the_pattern_grows_and_stays_between_nothing_and_pure(gray_scott):
    state = gray_scott.initial_state(3, size=64, frames=4)
    disturbed = (state["v"] > 0.1).mean()
    simulate(gray_scott, state, 1500, gray_scott.Chemistry())
    assert (state["v"] > 0.1).mean() > 1.5 * disturbed
    for field in (state["u"], state["v"]):
        assert field.min() >= 0.0
        assert field.max() <= 1.0


def test_a_step_writes_into_the_same_buffers(gray_scott):
    state = gray_scott.initial_state(0, size=32, frames=4)
    u, v, film = state["u"], state["v"], state["film"]
    simulate(gray_scott, state, 2, gray_scott.Chemistry())
    assert (state["u"] is u, state["v"] is v, state["film"] is film) == (True, True, True)


def test_the_seed_decides_where_the_bath_is_disturbed(gray_scott):
    first, again, other = (gray_scott.initial_state(s, size=64, frames=4) for s in (0, 0, 1))
    assert first["v"].tobytes() == again["v"].tobytes() != other["v"].tobytes()


def test_the_film_has_one_frame_for_every_equal_part_of_the_run(gray_scott):
    state = gray_scott.initial_state(0, size=32, frames=4)
    scratch = gray_scott.Scratch(state)
    fields = {}
    for step in range(1, 23):
        gray_scott.advance(state, scratch, gray_scott.Chemistry())
        gray_scott.record(state, 22)
        fields[step] = state["v"][1:-1:2, 1:-1:2].astype(np.float32)
    for frame, step in enumerate((5, 10, 15, 20)):
        assert (state["film"][frame] == fields[step]).all()


# --- training -------------------------------------------------------------------------


def test_gradients_agree_with_finite_differences(digits, small_digits, rng):
    state = digits.initial_state(0, small_digits, steps=1, hidden=12)
    parameters = state["parameters"]
    for name in ("b1", "b2"):
        parameters[name] += 0.1 * rng.standard_normal(parameters[name].shape)
    images, labels = small_digits.train_images[:9], small_digits.train_labels[:9]
    _, gradients = digits.loss_and_gradients(parameters, images, labels)
    for name, value in parameters.items():
        for place in rng.choice(value.size, size=min(value.size, 20), replace=False):
            original, step = value.flat[place], 1e-6
            value.flat[place] = original + step
            above, _ = digits.loss_and_gradients(parameters, images, labels)
            value.flat[place] = original - step
            below, _ = digits.loss_and_gradients(parameters, images, labels)
            value.flat[place] = original
            slope = (above - below) / (2 * step)
            assert gradients[name].flat[place] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_the_loss_is_the_mean_negative_log_of_the_softmax(digits, small_digits):
    parameters = digits.initial_state(1, small_digits, steps=1, hidden=5)["parameters"]
    images, labels = small_digits.train_images[:6], small_digits.train_labels[:6]
    loss, _ = digits.loss_and_gradients(parameters, images, labels)
    logits = digits.scores(parameters, images)
    chance = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert loss == pytest.approx(-np.log(chance[np.arange(6), labels]).mean(), rel=1e-12)


def test_adam_follows_the_paper(digits, rng):
    parameters, first, second = (
        {"w": np.array([0.5, -2.0])},
        {"w": np.zeros(2)},
        {"w": np.zeros(2)},
    )
    expected, m, v = parameters["w"].copy(), np.zeros(2), np.zeros(2)
    for step in range(1, 6):
        gradient = rng.standard_normal(2)
        digits.adam(parameters, {"w": gradient}, first, second, step)
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        corrected_m, corrected_v = m / (1 - 0.9**step), v / (1 - 0.999**step)
        expected = expected - 0.001 * corrected_m / (np.sqrt(corrected_v) + 1e-8)
        np.testing.assert_allclose(parameters["w"], expected, rtol=1e-12)


def test_adam_agrees_with_torch(digits, rng):
    torch = pytest.importorskip("torch")
    start = rng.standard_normal((7, 3))
    parameters = {"w": start.copy()}
    first, second = {"w": np.zeros_like(start)}, {"w": np.zeros_like(start)}
    theirs = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    for step in range(1, 20):
        gradient = rng.standard_normal(start.shape)
        digits.adam(parameters, {"w": gradient}, first, second, step)
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
    np.testing.assert_allclose(parameters["w"], theirs.detach().numpy(), rtol=1e-10)


def test_the_digits_are_all_there_and_none_is_in_both_sets(digits):
    data = digits.load()
    assert len(data.train_images) + len(data.test_images) == 1797
    assert set(data.test_labels) == set(data.train_labels) == set(range(10))
    assert data.train_images.min() == 0.0
    assert data.train_images.max() == 1.0
    seen = {image.tobytes() for image in data.train_images}
    assert not any(image.tobytes() in seen for image in data.test_images)


def test_speckle_dims_each_image_by_a_patch_of_the_grains(digits, rng):
    grains = rng.random((20, 30))
    images = rng.random((5, 64))
    draws = np.random.default_rng(9)
    top, left = draws.integers(0, 13, size=5), draws.integers(0, 23, size=5)
    seen = digits.speckle(images, grains, np.random.default_rng(9))
    for index in range(5):
        patch = grains[top[index] : top[index] + 8, left[index] : left[index] + 8]
        expected = images[index].reshape(8, 8) * (1 - digits.GRAIN * patch)
        np.testing.assert_array_equal(seen[index].reshape(8, 8), expected)


def test_texture_stretches_a_pattern_and_takes_a_flat_one(digits):
    assert digits.texture(np.array([[2.0, 3.0], [4.0, 2.5]])).tolist() == [[0, 0.5], [1, 0.25]]
    assert (digits.texture(np.full((3, 3), 0.2)) == 0.0).all()


def test_training_through_a_grown_pattern_reads_most_digits(digits, gray_scott):
    pattern = gray_scott.initial_state(0, size=64, frames=1)
    simulate(gray_scott, pattern, 500, gray_scott.Chemistry())
    grains, data = digits.texture(pattern["v"][1:-1, 1:-1]), digits.load()
    state = digits.initial_state(0, data, steps=1000)
    for _ in range(1000):
        digits.advance(state, data, grains)
    assert state["best_accuracy"] > 0.9
    images = digits.held_out_images(data, grains)
    assert digits.accuracy(state["best"], images, data.test_labels) == state["best_accuracy"]
    assert state["accuracies"].max() == state["best_accuracy"]
    assert state["losses"][-50:].mean() < 0.2 * state["losses"][:50].mean()


def test_one_pass_over_the_images_uses_each_at_most_once(digits, small_digits, monkeypatch):
    monkeypatch.setattr(digits, "BATCH", 16)
    state = digits.initial_state(0, small_digits, steps=20)
    orders = []
    for _ in range(20):  # 160 images make 10 batches
        digits.advance(state, small_digits, np.ones((9, 9)))
        orders.append(state["order"].copy())
    assert all((order == orders[0]).all() for order in orders[:10])
    assert (orders[10] != orders[0]).any()
    assert sorted(orders[10]) == list(range(160))


# --- interrupted runs -----------------------------------------------------------------


@pytest.mark.parametrize("stops", [(1,), (24, 25), (13, 14, 40), (59,)])
def test_an_interrupted_simulation_ends_in_the_same_bits(gray_scott, science, stops):
    def run(stops=()):
        state, chemistry = (
            gray_scott.initial_state(5, size=48, frames=5),
            gray_scott.Chemistry(),
        )
        scratch = gray_scott.Scratch(state)
        while state["step"] < 60:
            gray_scott.advance(state, scratch, chemistry)
            gray_scott.record(state, 60)
            if state["step"] in stops:
                state = copy.deepcopy(state)
                scratch = gray_scott.Scratch(state)
                scratch.term[...] = scratch.change_u[...] = scratch.change_v[...] = np.nan
        return state

    digest = science("report").array_digests
    assert digest(run(stops)) == digest(run())


@pytest.mark.parametrize("stops", [(1,), (10, 11), (7, 249, 250, 251), (299,)])
def test_an_interrupted_training_ends_in_the_same_bits(
    digits, small_digits, science, rng, stops
):
    grains = rng.random((40, 40))

    def run(stops=()):
        state = digits.initial_state(5, small_digits, steps=300, hidden=16)
        while state["step"] < 300:
            digits.advance(state, small_digits, grains)
            if state["step"] in stops:
                state = copy.deepcopy(state)
                np.random.default_rng().random(3)
        return state

    whole, interrupted = run(), run(stops)
    digest = science("report").array_digests
    assert digest(interrupted) == digest(whole)
    assert interrupted["rng"].bit_generator.state == whole["rng"].bit_generator.state
    assert interrupted["best_accuracy"] == whole["best_accuracy"]


def test_a_lost_generator_shows_in_the_bits(digits, small_digits, rng):
    """The opposite of the test above: who does not save the generator does not get the bits."""
    grains = rng.random((40, 40))

    def run(*, forget):
        state = digits.initial_state(5, small_digits, steps=30, hidden=16)
        for step in range(30):
            if step == 15 and forget:
                state["rng"] = np.random.default_rng([5, 16])
            digits.advance(state, small_digits, grains)
        return state["parameters"]["w1"].tobytes()

    assert run(forget=True) != run(forget=False)


# --- report ---------------------------------------------------------------------------


@pytest.fixture
def final_states(gray_scott, digits):
    """Two seeds, hardly begun: the report does not care."""
    simulated = {seed: gray_scott.initial_state(seed, size=32, frames=6) for seed in (0, 1)}
    data = digits.load()
    trained = {seed: digits.initial_state(seed, data, steps=500) for seed in (0, 1)}
    for seed, state in trained.items():
        grains = digits.texture(simulated[seed]["v"][1:-1, 1:-1])
        for _ in range(60):
            digits.advance(state, data, grains)
    return simulated, trained


def test_one_changed_bit_changes_the_result(science, final_states):
    report = science("report")
    simulated, trained = final_states
    text = report.result(*copy.deepcopy(final_states))
    assert report.result(*copy.deepcopy(final_states)) == text
    changed = copy.deepcopy(trained)
    changed[1]["second_moment"]["w2"].view(np.uint8)[3, 5] ^= 1
    other = json.loads(report.result(copy.deepcopy(simulated), changed))
    ours = json.loads(text)
    assert other["sha256"] != ours["sha256"]
    differing = [
        name
        for name, digest in ours["seeds"]["1"]["training"]["sha256"].items()
        if other["seeds"]["1"]["training"]["sha256"][name] != digest
    ]
    assert differing == ["second_moment.w2"]


def test_a_generator_one_draw_ahead_changes_the_result(science, final_states):
    report = science("report")
    text = report.result(*copy.deepcopy(final_states))
    simulated, trained = copy.deepcopy(final_states)
    trained[0]["rng"].random()
    assert report.result(simulated, trained) != text


def test_the_digest_of_an_array_knows_its_shape_and_dtype(science):
    digest = science("report").array_digest
    numbers = np.arange(6, dtype=np.int64)
    assert digest(numbers) == digest(numbers.copy())
    assert (
        len({digest(numbers), digest(numbers.reshape(2, 3)), digest(numbers.view("u8"))}) == 3
    )


def test_the_figures_are_drawn_without_a_display(science, final_states, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("DISPLAY", raising=False)
    report = science("report")
    simulated, trained = final_states
    report.draw_patterns(simulated, tmp_path / "a.png")
    report.draw_training(simulated, trained, tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
