"""The gamma distribution: tails and quantiles, with the standard library alone.

Tails by the power series below the mean and by the continued fraction above it (Abramowitz
and Stegun, 6.5.29 and 6.5.31; DLMF 8.11.4 and 8.9.2, with Lentz's algorithm). Quantiles by
Newton's method on the logarithm, kept within a bracket, from the start of E. B. Wilson and
M. M. Hilferty, "The distribution of chi-square", PNAS 17 (1931).
``tests/property/test_failure_laws.py`` compares with SciPy.
"""

from __future__ import annotations

import math
from statistics import NormalDist

SHAPE_MAX = 1e6  # Of which the series takes some thousands of terms.
_TINY = 1e-300


def tails(shape: float, x: float) -> tuple[float, float]:
    """Return P(X <= x) and P(X > x) for a gamma variable of scale 1, each to full precision.

    Args:
        shape: above 0, up to 10**6.
        x: 0 or more.
    """
    assert 0 < shape <= SHAPE_MAX, f"shape {shape} is not in (0, {SHAPE_MAX:g}]"
    if x <= 0:
        return 0.0, 1.0
    if x == math.inf:
        return 1.0, 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        below = min(1.0, front * _series(shape, x))
        return below, 1 - below
    above = min(1.0, front * _fraction(shape, x))
    return 1 - above, above


def quantile(shape: float, chance: float) -> float:
    """Return x with P(X <= x) = ``chance`` for a gamma variable of scale 1.

    Args:
        shape: above 0, up to 10**6.
        chance: between 0 and 1, both excluded.

    Returns:
        To 11 digits or more; 0 where it is too small for a float.
    """
    assert 0 < chance < 1, f"chance {chance} is not between 0 and 1"
    low, high = -745.0, math.log(shape + 60 * math.sqrt(shape) + 1000)  # Logarithms.
    if tails(shape, math.exp(low))[0] >= chance:
        return 0.0
    log_x = min(high, max(low, _start(shape, chance)))
    for _ in range(200):
        below, above = tails(shape, math.exp(log_x))
        # The smaller tail is the precise one.
        excess = below - chance if chance < 0.5 else (1 - chance) - above
        low, high = (low, log_x) if excess > 0 else (log_x, high)
        slope = math.exp(shape * log_x - math.exp(log_x) - math.lgamma(shape))
        following = log_x - excess / slope if slope > _TINY else math.inf
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - log_x) <= 1e-14 * max(1.0, abs(log_x)):
            break
        log_x = following
    return math.exp(log_x)


def _start(shape: float, chance: float) -> float:
    """Return the logarithm of Wilson and Hilferty's quantile, or for small x the series'."""
    spread = 1 / (9 * shape)
    root = 1 - spread + NormalDist().inv_cdf(chance) * math.sqrt(spread)
    if root > 0.1:
        return math.log(shape) + 3 * math.log(root)
    return (math.log(chance) + math.lgamma(shape + 1)) / shape


def _series(shape: float, x: float) -> float:
    term = total = 1 / shape
    n = shape
    while term > total * 1e-17:
        n += 1
        term *= x / n
        total += term
    return total


def _fraction(shape: float, x: float) -> float:
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    product = d
    for i in range(1, 100_000):
        a = i * (shape - i)
        b += 2
        d = a * d + b
        c = b + a / c
        d = 1 / (d if abs(d) > _TINY else _TINY)
        c = c if abs(c) > _TINY else _TINY
        product *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return product
