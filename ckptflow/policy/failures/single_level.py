"""How often to save when failures come at a known mean rate.

One level, failures without memory. The cost is the time for which a save holds the
application up; the interval is the computing time between two saves.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
FGCS 22 (2006). ``tests/unit/test_interval.py`` compares with the examples the latter prints.
"""

from __future__ import annotations

import math

from ckptflow.errors import ConfigError

_FAILURES_MIN = 3


def young_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return sqrt(2 · cost · MTBF), in seconds.

    Raises:
        ConfigError: the cost is negative, the MTBF is not positive, or one is not finite.
    """
    _check(cost_s, mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's higher-order interval in seconds (his equation 37).

    It stays right where the cost is no longer small against the MTBF; a cost of twice the
    MTBF or more gives the MTBF itself.

    Raises:
        ConfigError: the cost is negative, the MTBF is not positive, or one is not finite.
    """
    _check(cost_s, mtbf_s)
    ratio = cost_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    series = 1 + math.sqrt(ratio) / 3 + ratio / 9
    # A cost of less than 1e-300 s makes the product underflow.
    return max(0.0, young_interval_s(cost_s, mtbf_s) * series - cost_s)


def daly_wall_s(
    work_s: float, interval_s: float, cost_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Return the expected time, in seconds, of work that is saved at a fixed interval.

    Daly's total wall time: M · exp(R/M) · (exp((τ+δ)/M) − 1) · T/τ. Failures
    may come during saves and during restarts.

    Args:
        work_s: computing time of the whole.
        interval_s: computing time between two saves.
        cost_s: of a save.
        restart_s: from a failure until it computes again.
        mtbf_s: mean time between failures of all that runs together.

    Returns:
        Infinity if it is too long for a float: such work never ends.

    Raises:
        ConfigError: a time is negative or not finite, or the interval or the MTBF is 0.
    """
    _check(cost_s, mtbf_s)
    if not (0 <= work_s < math.inf and 0 <= restart_s < math.inf and 0 < interval_s < math.inf):
        raise ConfigError(
            f"A wall time needs work and a restart of 0 s or more and an interval above 0 s, "
            f"got work {work_s} s, restart {restart_s} s and interval {interval_s} s."
        )
    try:
        segment_s = mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s)
        return math.exp(restart_s / mtbf_s) * segment_s * work_s / interval_s
    except OverflowError:
        return math.inf


def estimated_mtbf_s(observed_s: float, failures: int) -> float | None:
    """Return the mean time between failures of what ran for ``observed_s`` and met so many.

    That is the maximum-likelihood estimate for failures without memory; with three of them its
    standard error is 58 %, and less than half of that of the interval that follows, which grows
    with the root. ``None``: fewer than three tell nothing.
    """
    if failures < _FAILURES_MIN or observed_s <= 0:
        return None
    return observed_s / failures


def _check(cost_s: float, mtbf_s: float) -> None:
    if not (0 <= cost_s < math.inf and 0 < mtbf_s < math.inf):
        raise ConfigError(
            f"An interval needs a cost of 0 s or more and an MTBF above 0 s, "
            f"got cost {cost_s} s and MTBF {mtbf_s} s."
        )
