"""Train a small classifier on handwritten digits seen through a grainy film.

The data are the 1797 scanned digits of 8 x 8 pixels that scikit-learn carries (Alpaydin and
Kaynak, UCI Machine Learning Repository, 1998). Every image of a batch is dimmed by a patch of a
texture, cut out at random, so that a training depends on the simulation that grew the texture.
The network (64 inputs, one hidden layer of rectifiers, 10 classes) and Adam (Kingma and Ba,
2015, algorithm 1) are written out in NumPy. Every random draw comes from a generator that is
part of the state: who saves the state, and nothing else, gets the same batches back.

``tests/unit/test_workflow_science.py`` checks the gradients by finite differences, Adam against
PyTorch's, the accuracy reached, and the bits of an interrupted run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, Array]

SIDE, CLASSES, BATCH = 8, 10, 64
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
GRAIN = 0.6
"""How much of a pixel the darkest grain takes away."""
EVALUATE_EVERY = 250


class Digits(NamedTuple):
    """Images in [0, 1], float64 (n, 64), and labels, int64 (n,); every fifth is for testing."""

    train_images: Array
    train_labels: NDArray[np.int64]
    test_images: Array
    test_labels: NDArray[np.int64]


def use_one_thread() -> None:
    """Keep the linear algebra of this process on one thread from now on.

    How a matrix product is split among threads decides in which order it is summed, and the
    number of threads may differ between the run that was interrupted and the one that goes on.
    """
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1)


def load() -> Digits:
    """Read the digits from the installed scikit-learn; nothing is fetched."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.ascontiguousarray(data.data, dtype=np.float64) / 16.0
    labels = np.ascontiguousarray(data.target, dtype=np.int64)
    tested = np.arange(len(labels)) % 5 == 0
    return Digits(images[~tested], labels[~tested], images[tested], labels[tested])


def texture(pattern: Array) -> Array:
    """Return ``pattern`` (rows, columns) stretched to [0, 1]; a flat one gives zeros."""
    low, high = float(pattern.min()), float(pattern.max())
    if high == low:
        return np.zeros(pattern.shape)
    return (np.asarray(pattern, dtype=np.float64) - low) / (high - low)


def initial_state(
    seed: int, digits: Digits, *, steps: int, hidden: int = 128
) -> dict[str, Any]:
    """Return the state of step 0 for a training of ``steps`` steps.

    Returns:
        ``step`` int; ``rng`` the generator of all later draws; ``order`` int64 (images,), of
        this pass over the training images; ``parameters``, ``first_moment``, ``second_moment``
        and ``best``, each with ``w1`` (64, hidden), ``b1`` (hidden,), ``w2`` (hidden, 10),
        ``b2`` (10,); ``losses`` float64 (steps,) and ``accuracies`` float64 (evaluations,),
        zero where none was taken yet; ``best_accuracy`` float.
    """
    rng = np.random.default_rng([seed, hidden])
    parameters = {
        "w1": rng.standard_normal((SIDE * SIDE, hidden)) * np.sqrt(2.0 / (SIDE * SIDE)),
        "b1": np.zeros(hidden),
        "w2": rng.standard_normal((hidden, CLASSES)) * np.sqrt(2.0 / hidden),
        "b2": np.zeros(CLASSES),
    }
    return {
        "step": 0,
        "rng": rng,
        "order": np.arange(len(digits.train_labels), dtype=np.int64),
        "parameters": parameters,
        "first_moment": {name: np.zeros_like(value) for name, value in parameters.items()},
        "second_moment": {name: np.zeros_like(value) for name, value in parameters.items()},
        "best": {name: value.copy() for name, value in parameters.items()},
        "best_accuracy": 0.0,
        "losses": np.zeros(steps),
        "accuracies": np.zeros(steps // EVALUATE_EVERY),
    }


def advance(state: dict[str, Any], digits: Digits, grains: Array) -> None:
    """Take one step of training, in place, on the next batch seen through ``grains``."""
    batches = len(digits.train_labels) // BATCH
    position = state["step"] % batches
    if position == 0:
        state["rng"].shuffle(state["order"])
    chosen = state["order"][position * BATCH : (position + 1) * BATCH]
    images = speckle(digits.train_images[chosen], grains, state["rng"])
    parameters = state["parameters"]
    loss, gradients = loss_and_gradients(parameters, images, digits.train_labels[chosen])
    state["losses"][state["step"]] = loss
    state["step"] += 1
    adam(parameters, gradients, state["first_moment"], state["second_moment"], state["step"])
    if state["step"] % EVALUATE_EVERY == 0:
        _evaluate(state, digits, grains)


def speckle(images: Array, grains: Array, rng: np.random.Generator) -> Array:
    """Return ``images`` (n, 64), each dimmed by its own 8 x 8 patch of ``grains``."""
    rows, columns = grains.shape
    top = rng.integers(0, rows - SIDE + 1, size=len(images))
    left = rng.integers(0, columns - SIDE + 1, size=len(images))
    windows = np.lib.stride_tricks.sliding_window_view(grains, (SIDE, SIDE))
    return images * (1.0 - GRAIN * windows[top, left].reshape(len(images), -1))


def held_out_images(digits: Digits, grains: Array) -> Array:
    """Return the test images, each dimmed by a patch that is always the same."""
    return speckle(digits.test_images, grains, np.random.default_rng(0))


def scores(parameters: Parameters, images: Array) -> Array:
    """Return the score of every class, float64 (n, 10)."""
    hidden = np.maximum(images @ parameters["w1"] + parameters["b1"], 0.0)
    return hidden @ parameters["w2"] + parameters["b2"]


def loss_and_gradients(
    parameters: Parameters, images: Array, labels: NDArray[np.int64]
) -> tuple[float, Parameters]:
    """Return the mean cross entropy of a batch, and its gradient by every parameter."""
    count = len(labels)
    hidden = np.maximum(images @ parameters["w1"] + parameters["b1"], 0.0)
    logits = hidden @ parameters["w2"] + parameters["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    total = chances.sum(axis=1, keepdims=True)
    loss = float((np.log(total[:, 0]) - logits[np.arange(count), labels]).mean())
    chances /= total
    chances[np.arange(count), labels] -= 1.0
    chances /= count
    back = (chances @ parameters["w2"].T) * (hidden > 0.0)
    gradients = {
        "w1": images.T @ back,
        "b1": back.sum(axis=0),
        "w2": hidden.T @ chances,
        "b2": chances.sum(axis=0),
    }
    return loss, gradients


def adam(
    parameters: Parameters,
    gradients: Parameters,
    first: Parameters,
    second: Parameters,
    step: int,
) -> None:
    """Move ``parameters`` and both moments by one step of Adam, in place; ``step`` from 1."""
    rate = RATE / (1.0 - BETA1**step)
    scale = 1.0 / np.sqrt(1.0 - BETA2**step)
    for name, gradient in gradients.items():
        first[name] *= BETA1
        first[name] += (1.0 - BETA1) * gradient
        second[name] *= BETA2
        second[name] += (1.0 - BETA2) * np.square(gradient)
        parameters[name] -= rate * first[name] / (np.sqrt(second[name]) * scale + EPSILON)


def accuracy(parameters: Parameters, images: Array, labels: NDArray[np.int64]) -> float:
    """Return the share of images whose highest score is the label's."""
    return float((scores(parameters, images).argmax(axis=1) == labels).mean())


def _evaluate(state: dict[str, Any], digits: Digits, grains: Array) -> None:
    """Note the accuracy on the test images; keep the parameters if they are the best so far."""
    parameters = state["parameters"]
    reached = accuracy(parameters, held_out_images(digits, grains), digits.test_labels)
    state["accuracies"][state["step"] // EVALUATE_EVERY - 1] = reached
    if reached > state["best_accuracy"]:
        state["best_accuracy"] = reached
        for name, value in parameters.items():
            state["best"][name][...] = value
