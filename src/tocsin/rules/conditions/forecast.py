"""Kind ``forecast``: a metric that is predicted to cross its threshold soon."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.clock import MINUTE, to_minute
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Evidence
from tocsin.domain.prediction import Prediction
from tocsin.rules.conditions.base import Condition, Duration, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.levels import Number
from tocsin.rules.predictions import PredictionProbe, evidence_name
from tocsin.rules.sheet import MetricColumn
from tocsin.rules.table import Bools, SubjectTable
from tocsin.rules.units import show_duration

TARGET = "time_to_threshold:"
"""What a prediction's target starts with; the metric follows."""


class Forecast(Condition):
    """Holds while the newest prediction says that the metric crosses its threshold within `within`.

    A prediction that is older than `max_age` says nothing more, one whose time has passed says no, and so does one
    whose threshold lies behind: what has happened is no forecast.
    """

    words = frozenset({"eta", "probability", "said"})
    expects = True
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
        ref = self.metrics()[0]
        return ForecastProbe(self, world, world.frame.sheets[ref.sheet].table, world.column(ref))

    def meaning(self) -> str:
        which = {"eta": "expected", "eta_low": "early end of the interval"}[self.use]
        return f"{self.metric} predicted to cross its threshold within {show_duration(self.within)} ({which})"


class ForecastProbe(PredictionProbe):
    """Looks at how soon the newest prediction of each row says that the threshold is crossed."""

    def __init__(self, condition: Forecast, world: World, table: SubjectTable, column: MetricColumn) -> None:
        super().__init__(world, table, TARGET + condition.metric, condition.max_age)
        self._condition = condition
        self._column = column
        self._eta = table.vector(np.int64, 0)
        self._least = table.vector(np.float64, -np.inf)
        self._most = table.vector(np.float64, np.inf)

    def _take(self, row: int, prediction: Prediction) -> None:
        super()._take(row, prediction)
        self._eta.v[row] = self._instant(prediction) or 0
        limit, value = prediction.threshold, prediction.value
        falls = limit is not None and value is not None and value > limit
        self._least.v[row] = limit if limit is not None and falls else -np.inf
        self._most.v[row] = limit if limit is not None and not falls else np.inf

    def _instant(self, prediction: Prediction) -> int | None:
        if self._condition.use == "eta_low" and prediction.eta_low_ms is not None:
            return prediction.eta_low_ms
        return prediction.eta_ms

    def warns(self, prediction: Prediction) -> bool:
        likely = prediction.probability is None or prediction.probability >= self._condition.probability
        return likely and prediction.is_ahead

    def true(self) -> Bools:
        warned = super().true()
        if not warned.any():
            return warned
        values = self._column.v
        behind: Bools = (values <= self._least.v) | (values >= self._most.v)
        return warned & ~behind & (self._eta.v - self._frame.now_ms <= self._condition.within)

    def report(self, row: int) -> Report:
        prediction = self._said[row]
        words = {
            "eta": f"at {to_minute(int(self._eta.v[row]))}",
            "eta_zh": f"于 {to_minute(int(self._eta.v[row]))}",
            "probability": "unknown" if prediction.probability is None else f"{prediction.probability * 100:.0f} %",
            "said": prediction.sentence,
            "said_zh": prediction.sentence_zh,
        }
        said, at_ms, chance = prediction.sentence, prediction.at_ms, prediction.probability
        evidence = Evidence(evidence_name(prediction), said, at_ms, chance, prediction.sentence_zh)
        return Report(self._condition.metric, prediction.value, prediction.threshold, (evidence,), words)
