"""Ratios of two programs that were timed in turn: the median, and how sure it is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

RESAMPLES = 10_000


def median_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of `ratios`, and the ends of the 95 % interval of a bootstrap with a fixed seed: (median, lower,
    upper).

    >>> median_interval([1.0] * 5)
    (1.0, 1.0, 1.0)
    """
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return statistics.median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
