"""Kind ``forecast``: a metric that is predicted to cross its threshold soon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Evidence
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.rules.conditions.base import Condition, Duration, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.levels import Number
from tocsin.rules.table import Bools, Table
from tocsin.rules.units import show_duration

TARGET = "time_to_threshold:"
"""What a prediction's target starts with; the metric follows."""

_UNKNOWN, _NO, _YES = -1, 0, 1


class Forecast(Condition):
    """Holds while the newest prediction says that the metric crosses its threshold within `within`.

    A prediction that is older than `max_age` says nothing more, and one whose horizon has passed says no.
    """

    words = frozenset({"eta", "probability", "said"})
    kind: Literal["forecast"]
    metric: str
    """The metric that is predicted."""
    within: Duration
    """How soon."""
    use: Literal["eta", "eta_low"] = "eta"
    """Which instant must be that soon: the expected one, or the early end of the interval."""
    probability: Number = Field(default=0.0, ge=0, le=1)
    """Least probability; predictions that give none are taken."""
    max_age: Duration = 30 * MINUTE
    """Age at which a prediction no longer counts."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return (metric_ref(self.metric, "metric"),)

    def check(self) -> None:
        ref = self.metrics()[0]
        if ref.key != ref.spec.name or ref.sheet != ref.spec.entity:
            raise InputError("metric", self.metric, "predictions are about plain metrics", f"write {ref.spec.name}")

    def bind(self, world: World) -> Probe:
        return ForecastProbe(self, world, world.frame.sheets[self.metrics()[0].sheet].table)

    def meaning(self) -> str:
        which = {"eta": "expected", "eta_low": "early end of the interval"}[self.use]
        return f"{self.metric} predicted to cross its threshold within {show_duration(self.within)} ({which})"


class ForecastProbe(Probe):
    """Keeps the newest prediction of each row."""

    clocked = True

    def __init__(self, condition: Forecast, world: World, table: Table) -> None:
        self._condition = condition
        self._frame = world.frame
        self._forecasts = world.forecasts
        self._table = table
        self._target = TARGET + condition.metric
        self._said: dict[int, Prediction] = {}
        self._status = table.vector(np.int8, _UNKNOWN)
        self._eta = table.vector(np.int64, 0)
        self._made = table.vector(np.int64, 0)
        self._ends = table.vector(np.int64, 0)

    def update(self) -> None:
        for row, prediction in self._forecasts.fresh.get(self._target, ()):
            self._said[row] = prediction
            self._status.v[row] = self._judge(prediction)
            self._eta.v[row] = self._instant(prediction) or 0
            self._made.v[row] = prediction.at_ms
            self._ends.v[row] = prediction.at_ms + prediction.horizon_ms

    def _instant(self, prediction: Prediction) -> int | None:
        if self._condition.use == "eta_low" and prediction.eta_low_ms is not None:
            return prediction.eta_low_ms
        return prediction.eta_ms

    def _judge(self, prediction: Prediction) -> int:
        if prediction.status is PredictionStatus.NOT_ENOUGH_DATA:
            return _UNKNOWN
        if prediction.status is not PredictionStatus.CROSSING or self._instant(prediction) is None:
            return _NO
        likely = prediction.probability is None or prediction.probability >= self._condition.probability
        return _YES if likely else _NO

    def _live(self) -> Bools:
        live: Bools = self._frame.now_ms - self._made.v <= self._condition.max_age
        return live

    def true(self) -> Bools:
        crossing: Bools = self._status.v == _YES
        if not crossing.any():
            return crossing
        soon: Bools = crossing & self._live() & (self._eta.v - self._frame.now_ms <= self._condition.within)
        return soon

    def known(self) -> Bools:
        said = self._status.v != _UNKNOWN
        over = (self._made.v > 0) & (self._frame.now_ms > self._ends.v)
        known: Bools = (said & self._live()) | over
        return known

    def report(self, row: int) -> Report:
        prediction = self._said[row]
        left = int(self._eta.v[row]) - self._frame.now_ms
        sure = "" if prediction.probability is None else f"{prediction.probability * 100:.0f} %"
        words = {
            "eta": f"in {show_duration(left)}" if left > 0 else "now",
            "probability": sure or "unknown",
            "said": prediction.sentence,
        }
        model = f"{prediction.model} {prediction.model_version}"
        evidence = (Evidence(f"prediction:{model}", prediction.sentence, prediction.at_ms, prediction.probability),)
        return Report(self._condition.metric, prediction.value, prediction.threshold, evidence, words)

    def forget(self, rows: Iterable[int]) -> None:
        if self._table is self._frame.gpus:
            for row in rows:
                self._said.pop(row, None)
