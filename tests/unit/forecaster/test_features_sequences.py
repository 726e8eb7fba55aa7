"""One step as sequences show it."""

from __future__ import annotations

import numpy as np

from tocsin.forecaster.features.builder import LARGEST, shown_values
from tocsin.forecaster.features.plan import FeaturePlan

PLAN = FeaturePlan()


def test_a_value_beyond_half_precision_stands_as_its_largest() -> None:
    values = np.zeros((len(PLAN.sequence), 2), np.float32)
    power = PLAN.sequence.index("power")
    values[power] = (1e6, -1e6)
    shown = shown_values(PLAN, values, np.ones(values.shape, np.bool_))
    assert shown[power].tolist() == [LARGEST, -LARGEST]
    assert np.isfinite(shown).all()
