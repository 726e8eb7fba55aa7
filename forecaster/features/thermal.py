"""Thermal resistance of each slot, fitted online from power and temperature.

In the steady state a die is hotter than its inlet by resistance times power (Newton's law of cooling), so temperature
is a line in power: its slope is the resistance, its intercept the inlet. The line is a least-squares fit with
exponential forgetting, kept as decayed moments, which gives what recursive least squares gives.
"""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.arrays import Arrays, Bools, Floats

HALF_LIVES_MS = (6 * HOUR, 7 * DAY)
"""Of the quick and of the slow fit (own choice): the first follows a drift, the second is what is usual."""
INLET_C = 25.0
"""Inlet that a fit without any spread of power assumes: the upper half of ASHRAE's recommended 18 to 27 C."""
PRIOR_W2 = 400.0
"""Spread of power, as a variance in W^2, below which the assumed inlet outweighs the fit (own choice: 20 W)."""
LEAST_STEPS = 6
"""Steps without which nothing is said."""
_MOMENTS = 5  # weight, power, temperature, power^2, power * temperature


class Thermal:
    """The two fits of each GPU."""

    def __init__(self, step_ms: int, arrays: Arrays) -> None:
        self._arrays = arrays
        self._keep = [0.5 ** (step_ms / life) for life in HALF_LIVES_MS]
        arrays.add("thermal", (len(HALF_LIVES_MS), _MOMENTS), np.float64)
        arrays.add("thermal_steps", (), np.int64)

    def take(self, power: Floats, temperature: Floats, here: Bools) -> None:
        """Take in the means of one closed step, float64[g], where `here`."""
        moments = self._arrays["thermal"]
        power, temperature = np.where(here, power, 0.0), np.where(here, temperature, 0.0)
        new = np.stack([here.astype(np.float64), power, temperature, power**2, power * temperature])
        for fit, keep in enumerate(self._keep):
            moments[fit] = np.where(here, keep, 1.0) * moments[fit] + new
        steps = self._arrays["thermal_steps"]
        steps += here

    def lines(self) -> tuple[Floats, Floats]:
        """Resistance float64[fits, g] in kelvin per watt and intercept in degrees Celsius; NaN where too little is
        known."""
        weight, power, heat, power2, both = np.moveaxis(self._arrays["thermal"], 1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_w, mean_c = power / weight, heat / weight
            spread = np.maximum(power2 / weight - mean_w**2, 0.0)
            together = both / weight - mean_w * mean_c
            assumed = (mean_c - INLET_C) / np.maximum(mean_w, 1.0)
            slope = (together + PRIOR_W2 * assumed) / (spread + PRIOR_W2)
        slope = np.where(self._arrays["thermal_steps"] >= LEAST_STEPS, slope, np.nan)
        return slope, mean_c - slope * mean_w
