"""Intervals of shares."""

from __future__ import annotations

import math

Z95 = 1.959964
"""The two-sided 95 % point of the normal distribution."""
Z95_ONE_SIDED = 1.644854
"""The one-sided 95 % point."""


def wilson(share: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Interval of a share that was observed in so many trials (Wilson, JASA 22, 1927); 0 to 1 without any.

    `z` is the standard normal quantile of the interval's ends.
    """
    if trials < 1e-9:
        return 0.0, 1.0
    square = z**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
