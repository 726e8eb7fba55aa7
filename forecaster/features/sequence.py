"""Values of the grid as a network takes them, the same from the live builder and from a recorded grid."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.features.arrays import Bools, Singles
from tocsin.forecaster.features.channels import OWN_CHANNELS, Kind
from tocsin.forecaster.features.plan import Plan

LARGEST = float(np.finfo(np.float16).max)
"""A value beyond it, which no sound GPU reports, stands as it."""

Halves = npt.NDArray[np.float16]


def shown_values(plan: Plan, values: Singles, here: Bools) -> Halves:
    """One step as sequences show it, float16[c, g], from `values` and `here` in the order of `plan.sequence`.

    The growth of a counter is given as log(1 + growth), a missing value as NaN; the builder's own channels are 0 where
    nothing came. Half precision is what recorded grids are kept in, so live sequences are rounded to it too.
    """
    counters, own = _masks(plan)
    shown = values.copy()
    shown[counters] = np.log1p(values[counters])
    shown[~(here | own[:, None])] = np.nan
    np.clip(shown, -LARGEST, LARGEST, out=shown)
    return np.asarray(shown.astype(np.float16))


@cache
def _masks(plan: Plan) -> tuple[Bools, Bools]:
    """Which channels of a sequence are counters, and which the builder's own."""
    kinds = {channel.name: channel.kind for channel in plan.channels} | dict(OWN_CHANNELS)
    own = {name for name, _ in OWN_CHANNELS}
    counters = np.array([kinds[name] is Kind.COUNTER for name in plan.sequence])
    return counters, np.array([name in own for name in plan.sequence])
