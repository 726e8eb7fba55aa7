"""Kind ``acme_above``: the GPU's temperature is above a level."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tocsin.rules.conditions.base import Condition, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.sheet import MetricColumn
from tocsin.rules.table import Bools

TEMPERATURE = "gpu_temperature_celsius"


class AcmeAbove(Condition):
    """Holds where the GPU is hotter than `celsius`."""

    kind: Literal["acme_above"]
    celsius: float
    """The level, degrees Celsius."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return (metric_ref(TEMPERATURE, "celsius"),)

    def bind(self, world: World) -> Probe:
        return AboveProbe(self.celsius, world.column(self.metrics()[0]))

    def meaning(self) -> str:
        return f"GPU hotter than {self.celsius:g} C"


class AboveProbe(Probe):
    """Compares the newest temperature with the level."""

    def __init__(self, celsius: float, column: MetricColumn) -> None:
        self._celsius = celsius
        self._column = column

    def true(self) -> Bools:
        hot: Bools = self._column.v > self._celsius
        return hot

    def known(self) -> Bools:
        return ~np.isnan(self._column.v)

    def report(self, row: int) -> Report:
        return Report(TEMPERATURE, float(self._column.v[row]), self._celsius)
