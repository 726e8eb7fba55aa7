"""What conditions on predictions share: a probe that keeps the newest prediction of each row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tocsin.domain.finding import PREDICTION_EVIDENCE
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.rules.conditions.base import Probe, World
from tocsin.rules.table import Bools, SubjectTable

_UNKNOWN, _NO, _YES = -1, 0, 1


class PredictionProbe(Probe):
    """Keeps the newest prediction of `target` for each row; a kind of condition says which of them warn.

    A prediction that is older than `max_age` says nothing more, and one whose time has passed says no: that of its
    crossing, the late end of the interval where it gives one, else its horizon.
    """

    clocked = True
    heeds_events = False

    def __init__(self, world: World, table: SubjectTable, target: str, max_age: int) -> None:
        self._frame = world.frame
        self._forecasts = world.forecasts
        self._table = table
        self._target = target
        self._max_age = max_age
        self._said: dict[int, Prediction] = {}
        self._status = table.vector(np.int8, _UNKNOWN)
        self._made = table.vector(np.int64, 0)
        self._ends = table.vector(np.int64, 0)

    def warns(self, prediction: Prediction) -> bool:
        """Whether `prediction`, which had enough data, is one on which the condition holds."""
        raise NotImplementedError

    def update(self) -> None:
        for (_, row), prediction in self._forecasts.fresh.get(self._target, {}).items():
            self._take(row, prediction)

    def update_ahead(self) -> None:
        self.update()

    def _take(self, row: int, prediction: Prediction) -> None:
        self._said[row] = prediction
        if prediction.status is PredictionStatus.NOT_ENOUGH_DATA:
            self._status.v[row] = _UNKNOWN
        else:
            self._status.v[row] = _YES if self.warns(prediction) and not prediction.muted else _NO
        self._made.v[row] = prediction.at_ms
        self._ends.v[row] = _end(prediction)

    def _live(self) -> Bools:
        return self._made.v >= self._frame.now_ms - self._max_age

    def true(self) -> Bools:
        warned: Bools = self._status.v == _YES
        return warned & self._live() if warned.any() else warned

    def known(self) -> Bools:
        said: Bools = self._status.v != _UNKNOWN
        over = (self._made.v > 0) & (self._ends.v < self._frame.now_ms)
        return (said & self._live()) | over

    def forget(self, rows: Iterable[int]) -> None:
        if self._table is self._frame.gpus:
            for row in rows:
                self._said.pop(row, None)


def _end(prediction: Prediction) -> int:
    """The instant after which what it says is past."""
    horizon = prediction.at_ms + prediction.horizon_ms
    if prediction.status is not PredictionStatus.CROSSING or prediction.eta_ms is None:
        return horizon
    if prediction.eta_low_ms is None:
        return min(horizon, prediction.eta_ms)
    # Where the late end is not known it lies beyond the horizon.
    return min(horizon, prediction.eta_high_ms or horizon)


def evidence_name(prediction: Prediction) -> str:
    """Name of the evidence that a prediction is: its model and the model's version."""
    return f"{PREDICTION_EVIDENCE}{prediction.model} {prediction.model_version}"
