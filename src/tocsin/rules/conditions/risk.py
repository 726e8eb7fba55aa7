"""Kind ``risk``: a model that warns of a hardware fault."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.finding import PREDICTION_EVIDENCE, Evidence
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.rules.conditions.base import Condition, Duration, MetricRef, Probe, Report, World
from tocsin.rules.levels import Number
from tocsin.rules.table import Bools, Table
from tocsin.rules.units import show_duration

_UNKNOWN, _NO, _YES = -1, 0, 1


class Risk(Condition):
    """Holds while the newest prediction of `target` warns: it is above its model's own level, or a crossing of its own
    threshold, and, where `probability` is given, as likely as that within `within`.

    A prediction that is older than `max_age` says nothing more, and one whose horizon has passed says no.
    """

    words = frozenset({"probability", "said"})
    kind: Literal["risk"]
    target: str = "hardware_fault"
    """What is predicted."""
    within: Duration = 48 * HOUR
    """The horizon whose probability counts; of the horizons of the model the longest within it."""
    probability: Number = Field(default=0.0, ge=0, le=1)
    """Least probability within it, beside the model's own level."""
    max_age: Duration = 30 * MINUTE
    """Age at which a prediction no longer counts."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return ()

    def bind(self, world: World) -> Probe:
        return RiskProbe(self, world, world.frame.gpus)

    def meaning(self) -> str:
        least = f" with a probability of at least {self.probability:.0%}" if self.probability else ""
        return f"a model warns of {self.target}{least} within {show_duration(self.within)}"


class RiskProbe(Probe):
    """Keeps the newest prediction of each row."""

    clocked = True

    def __init__(self, condition: Risk, world: World, table: Table) -> None:
        self._condition = condition
        self._frame = world.frame
        self._forecasts = world.forecasts
        self._said: dict[int, Prediction] = {}
        self._status = table.vector(np.int8, _UNKNOWN)
        self._made = table.vector(np.int64, 0)
        self._ends = table.vector(np.int64, 0)

    def update(self) -> None:
        for row, prediction in self._forecasts.fresh.get(self._condition.target, ()):
            self._said[row] = prediction
            self._status.v[row] = self._judge(prediction)
            self._made.v[row] = prediction.at_ms
            self._ends.v[row] = prediction.at_ms + prediction.horizon_ms

    def _judge(self, prediction: Prediction) -> int:
        if prediction.status is PredictionStatus.NOT_ENOUGH_DATA:
            return _UNKNOWN
        likely = prediction.status in (PredictionStatus.LIKELY, PredictionStatus.CROSSING)
        return _YES if likely and self._chance(prediction) >= self._condition.probability else _NO

    def _chance(self, prediction: Prediction) -> float:
        """The probability by the longest horizon of the prediction within `within`; 0 where it has none that short."""
        curve = prediction.curve or ((prediction.horizon_ms, prediction.probability or 0.0),)
        return max((chance for ahead, chance in curve if ahead <= self._condition.within), default=0.0)

    def _live(self) -> Bools:
        live: Bools = self._frame.now_ms - self._made.v <= self._condition.max_age
        return live

    def true(self) -> Bools:
        warned: Bools = (self._status.v == _YES) & self._live()
        return warned

    def known(self) -> Bools:
        over = (self._made.v > 0) & (self._frame.now_ms > self._ends.v)
        known: Bools = ((self._status.v != _UNKNOWN) & self._live()) | over
        return known

    def report(self, row: int) -> Report:
        prediction = self._said[row]
        chance = self._chance(prediction)
        sure = "unknown" if prediction.probability is None else f"{chance * 100:.0f} %"
        words = {"probability": sure, "said": prediction.sentence}
        model = f"{prediction.model} {prediction.model_version}"
        evidence = (
            Evidence(f"{PREDICTION_EVIDENCE}{model}", prediction.sentence, prediction.at_ms, chance),
            *prediction.evidence,
        )
        value = prediction.value if prediction.probability is None else chance
        return Report(prediction.metric, value, prediction.threshold, evidence, words)

    def forget(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._said.pop(row, None)
