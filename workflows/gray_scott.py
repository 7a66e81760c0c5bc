"""Gray-Scott reaction and diffusion of two chemicals on a periodic square grid.

``u`` feeds ``v``: u_t = Du lap(u) - u v^2 + F (1 - u) and v_t = Dv lap(v) + u v^2 - (F + k) v
(Gray and Scott 1984; the patterns are Pearson's, Science 261, 1993). Explicit Euler steps of
length 1 on a grid of spacing 1 with the five-point Laplacian. The arrays carry one ring of
ghost cells, and every step writes into the same buffers, as a code does whose fields fill the
memory of a device; ``xp`` is NumPy, or CuPy to run there.

``tests/unit/test_workflow_science.py`` compares a step with a plain loop over cells, and
checks the fixed point, the conserved mass and the bits of an interrupted run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FRAME_CELLS = 2
"""Every so many cells of the grid, in each direction, one goes into the film."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chemistry:
    """Rates of diffusion (cells^2 per step), feed and removal (per step)."""

    diffusion_u: float = 0.16
    diffusion_v: float = 0.08
    feed: float = 0.055
    removal: float = 0.062


class Scratch:
    """Three buffers of the grid's interior that one step works in; no part of the state."""

    def __init__(self, state: dict[str, Any], xp: Any = np) -> None:
        interior = state["u"][1:-1, 1:-1].shape
        self.xp = xp
        self.change_u = xp.empty(interior)
        self.change_v = xp.empty(interior)
        self.term = xp.empty(interior)


def initial_state(seed: int, *, size: int, frames: int, xp: Any = np) -> dict[str, Any]:
    """Return the state of step 0: a still bath with some disturbed squares in it.

    Args:
        seed: chooses where the squares lie and the noise in them.
        size: cells along each side, at least 16.
        frames: how many frames the film will have.
        xp: array module that owns the arrays.

    Returns:
        ``step`` int, ``u`` and ``v`` float64 (size + 2, size + 2) with ghost cells, ``film``
        float32 (frames, size / 2, size / 2), zero where nothing was recorded yet.
    """
    rng = np.random.default_rng([seed, size])
    u = np.ones((size + 2, size + 2))
    v = np.zeros((size + 2, size + 2))
    side = size // 16
    for row, column in rng.integers(1, size - side, size=(12, 2)):
        patch = np.s_[row : row + side, column : column + side]
        u[patch] = 0.50 + 0.02 * rng.standard_normal((side, side))
        v[patch] = 0.25 + 0.02 * rng.standard_normal((side, side))
    film = np.zeros((frames, size // FRAME_CELLS, size // FRAME_CELLS), np.float32)
    return {"step": 0, "u": xp.asarray(u), "v": xp.asarray(v), "film": xp.asarray(film)}


def advance(state: dict[str, Any], scratch: Scratch, chemistry: Chemistry) -> None:
    """Take one step, in place."""
    xp, term = scratch.xp, scratch.term
    change_u, change_v = scratch.change_u, scratch.change_v
    u, v = state["u"][1:-1, 1:-1], state["v"][1:-1, 1:-1]
    _diffuse(state["u"], chemistry.diffusion_u, change_u, scratch)
    _diffuse(state["v"], chemistry.diffusion_v, change_v, scratch)
    xp.multiply(u, v, out=term)
    term *= v
    change_u -= term
    change_v += term
    xp.subtract(1.0, u, out=term)
    term *= chemistry.feed
    change_u += term
    xp.multiply(v, chemistry.feed + chemistry.removal, out=term)
    change_v -= term
    u += change_u
    v += change_v
    state["step"] += 1


def record(state: dict[str, Any], steps: int) -> None:
    """Write ``v`` into the film when the next of its frames, spread over ``steps``, is due."""
    film = state["film"]
    every = max(1, steps // len(film))
    frame, late = divmod(state["step"], every)
    if late == 0 and 1 <= frame <= len(film):
        film[frame - 1] = state["v"][1:-1:FRAME_CELLS, 1:-1:FRAME_CELLS]


def _diffuse(field: Any, rate: float, change: Any, scratch: Scratch) -> None:
    """Refresh the ghost cells; set ``change`` to ``rate`` times the Laplacian of ``field``."""
    field[0, :], field[-1, :] = field[-2, :], field[1, :]
    field[:, 0], field[:, -1] = field[:, -2], field[:, 1]
    xp = scratch.xp
    xp.add(field[:-2, 1:-1], field[2:, 1:-1], out=change)
    change += field[1:-1, :-2]
    change += field[1:-1, 2:]
    xp.multiply(field[1:-1, 1:-1], 4.0, out=scratch.term)
    change -= scratch.term
    change *= rate
