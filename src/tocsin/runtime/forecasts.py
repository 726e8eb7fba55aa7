"""Forecasting beside the evaluation loop: an XID never waits for a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import structlog

from tocsin.config.settings import ForecastSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.errors import TocsinError
from tocsin.domain.identity import Gpu
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.protocol import History
from tocsin.forecaster.worker import ForecastWorker
from tocsin.store.port import Store

log = structlog.get_logger()


class Forecasts:
    """Runs the forecaster over the fleet when it is due and keeps the newest prediction of each subject and target."""

    def __init__(self, store: Store, worker: ForecastWorker, settings: ForecastSettings) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, str], Prediction] = {}
        self._last_ms: int | None = None
        self.made = 0
        self.failed = 0

    def due(self, now_ms: int) -> bool:
        """Whether the interval since the last forecast has passed; a clock that stepped back also makes it due."""
        if self._last_ms is None:
            return True
        return not self._last_ms <= now_ms < self._last_ms + self._settings.every_seconds * SECOND

    def run(self, gpus: Sequence[Gpu], now_ms: int) -> list[Prediction]:
        """Forecast `gpus` as of `now_ms`; blocks until the models have answered. A failure is counted and logged."""
        self._last_ms = now_ms
        start = now_ms - int(self._settings.history_hours * HOUR)
        try:
            history = [
                History(gpu, self._store.series(gpu.uuid, self._worker.metrics, start, now_ms + 1)) for gpu in gpus
            ]
            predictions = self._worker.submit(history, now_ms).result()
            self._store.write(Batch(predictions=predictions))
        except TocsinError as error:
            self.failed += 1
            log.warning("forecast failed", error=str(error))
            return []
        with self._lock:
            self.made += len(predictions)
            for prediction in predictions:
                self._newest[prediction.subject.key, prediction.target] = prediction
        return predictions

    def current(self, now_ms: int) -> list[Prediction]:
        """The newest prediction of each subject and target, less those that three intervals have outdated."""
        oldest = now_ms - int(3 * self._settings.every_seconds * SECOND) - 60 * SECOND
        with self._lock:
            self._newest = {key: p for key, p in self._newest.items() if p.at_ms >= oldest}
            return list(self._newest.values())
