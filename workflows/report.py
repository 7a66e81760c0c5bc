"""Join the final states of all seeds in ``result.json`` and two figures.

``result.json`` holds nothing but what the science determines: digests of the final arrays, and
numbers in full precision. Two runs that agree to the last bit write the same bytes.

``tests/unit/test_workflow_science.py`` checks that one changed bit changes the file.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

import digits
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RESULT = "result.json"
FIGURES = ("patterns.png", "training.png")


def array_digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of the dtype, the shape and the bytes of ``array``, in hex."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()


def array_digests(state: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the digest of every array in a tree of dictionaries, by path, sorted."""
    found: dict[str, str] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= array_digests(value, f"{prefix}{name}.")
        elif isinstance(value, np.ndarray):
            found[prefix + name] = array_digest(value)
    return dict(sorted(found.items()))


def result(simulated: dict[int, dict[str, Any]], trained: dict[int, dict[str, Any]]) -> str:
    """Return the text of ``result.json`` for final states by seed."""
    seeds = {
        str(seed): {
            "simulation": {
                "steps": simulation["step"],
                "covered": float((simulation["v"][1:-1, 1:-1] > 0.1).mean()).hex(),
                "sha256": array_digests(simulation),
            },
            "training": {
                "steps": trained[seed]["step"],
                "best_accuracy": trained[seed]["best_accuracy"].hex(),
                "next_draw": int(copy.deepcopy(trained[seed]["rng"]).integers(1 << 62)),
                "sha256": array_digests(trained[seed]),
            },
        }
        for seed, simulation in sorted(simulated.items())
    }
    text = json.dumps(seeds, sort_keys=True)
    whole = {"seeds": seeds, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def draw_patterns(simulated: dict[int, dict[str, Any]], path: Path) -> None:
    """Draw how every pattern grew: four frames of its film and the final field."""
    figure, rows = _figure(len(simulated), 5, width=11.0, height=2.3)
    for axes, (seed, simulation) in zip(rows, sorted(simulated.items()), strict=True):
        film = simulation["film"]
        chosen = np.linspace(0, len(film) - 1, 5).astype(int)[:4]
        pictures = [film[frame] for frame in chosen] + [simulation["v"][1:-1, 1:-1]]
        titles = [f"seed {seed}, frame {frame + 1} of {len(film)}" for frame in chosen]
        titles.append(f"step {simulation['step']}")
        for axis, picture, title in zip(axes, pictures, titles, strict=True):
            axis.imshow(picture, cmap="magma", vmin=0.0, vmax=0.4)
            axis.set_title(title, fontsize=8)
            axis.set_axis_off()
    figure.savefig(path, dpi=110)


def draw_training(
    simulated: dict[int, dict[str, Any]], trained: dict[int, dict[str, Any]], path: Path
) -> None:
    """Draw loss and accuracy of every training, and test images with the class found."""
    data = digits.load()
    figure, rows = _figure(len(trained), 3, width=11.0, height=2.6)
    for (losses, accuracies, shown), (seed, training) in zip(
        rows, sorted(trained.items()), strict=True
    ):
        smooth = training["losses"][: training["step"] // 50 * 50].reshape(-1, 50).mean(axis=1)
        losses.semilogy(50 * np.arange(1, len(smooth) + 1), np.maximum(smooth, 1e-12))
        losses.set(xlabel="step", ylabel="loss", title=f"seed {seed}")
        steps = digits.EVALUATE_EVERY * np.arange(1, len(training["accuracies"]) + 1)
        accuracies.plot(steps, training["accuracies"])
        best = training["best_accuracy"]
        accuracies.set(xlabel="step", ylabel="accuracy", title=f"best {best:.1%}")
        grains = digits.texture(simulated[seed]["v"][1:-1, 1:-1])
        images = digits.held_out_images(data, grains)[:12]
        classes = digits.scores(training["best"], images).argmax(axis=1)
        mosaic = images.reshape(2, 6, 8, 8).transpose(0, 2, 1, 3).reshape(16, 48)
        shown.imshow(mosaic, cmap="gray")
        shown.set_title("read as " + " ".join(str(found) for found in classes), fontsize=9)
        shown.set_axis_off()
    figure.savefig(path, dpi=110)


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure that needs no display, and its axes, (rows, columns)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)
