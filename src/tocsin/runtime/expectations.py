"""What is expected of the fleet: models that are due, what fills up, and the record of what was not expected before."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tocsin.domain.clock import MINUTE, Clock
from tocsin.domain.errors import TocsinError
from tocsin.domain.identity import Gpu
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.subject import Subject
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.capacity.filling import PAST, STEP_MS
from tocsin.forecaster.capacity.filling_watch import NAME as FILLING
from tocsin.forecaster.capacity.filling_watch import RECALLED, FillingWatch
from tocsin.journal.journal import Journal
from tocsin.journal.kinds import EntryKind
from tocsin.queries.scoreboard import is_ahead
from tocsin.runtime.forecasts import Forecasts
from tocsin.runtime.model_watch import ModelWatch
from tocsin.runtime.pool_past import PoolPasts
from tocsin.store.port import Store, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

WARNINGS = (PredictionStatus.CROSSING, PredictionStatus.LIKELY)


class Expectations:
    """Predictions as the brain makes them; each that newly warns goes into the journal.

    `forecast` may run in a thread of its own beside the other methods.
    """

    def __init__(
        self,
        forecasts: Forecasts,
        models: ModelWatch,
        store: Store,
        journal: Journal,
        metrics: OwnMetrics,
        clock: Clock,
    ) -> None:
        self._forecasts = forecasts
        self._models = models
        self._store = store
        self._journal = journal
        self._metrics = metrics
        self._clock = clock
        self._failed_before = 0
        self._filling = FillingWatch()
        self._filled_minute = 0
        self._pool_pasts = PoolPasts()
        self._pasts: list[PoolPast] = []
        self._pools_recalled = False

    def recall(self, gpus: Sequence[Gpu], now_ms: int) -> None:
        """Read back from the store what was expected, and how things filled up. Raises StoreUnavailable."""
        self._forecasts.recall(now_ms)
        columns = self._store.columns(RECALLED, now_ms - PAST * STEP_MS, now_ms + 1)
        self._filling.recall(columns, gpus, now_ms)

    def take(self, readings: Sequence[Reading], now_ms: int) -> None:
        """Take in new readings, for what fills up."""
        self._filling.take(readings, now_ms)

    def look_at_filling(self, now_ms: int) -> None:
        """What fills up, once a minute; whatever goes wrong with it holds up no rule."""
        if now_ms // MINUTE == self._filled_minute:
            return
        self._filled_minute = now_ms // MINUTE
        before = self._ahead(now_ms)
        made = self._filling.predictions(now_ms)
        try:
            self._forecasts.put(made, FILLING)
            self._tell(made, before)
        except TocsinError as error:
            self._metrics.count("tocsin_forecast_failures_total")
            log.warning("what fills up was not put on record", error=str(error))

    def forecast(
        self, gpus: Sequence[Gpu], readings: Sequence[Reading], pools: Sequence[PoolState], now_ms: int
    ) -> None:
        """Run every model on `gpus`, and on the pools as `readings` and `pools` show them; blocks while they run."""
        before = self._ahead(now_ms)
        begun = self._clock.monotonic()
        made = [
            *self._forecasts.run_risk(gpus, now_ms),
            *self._forecasts.run(gpus, now_ms),
            *self._forecasts.run_pools(self._observe_pools(readings, pools, now_ms), now_ms),
        ]
        self._metrics.observe("tocsin_forecast_seconds", self._clock.monotonic() - begun, model="all")
        self._metrics.count("tocsin_forecast_failures_total", self._forecasts.failed - self._failed_before)
        self._failed_before = self._forecasts.failed
        self._tell(made, before)
        self._models.look(made, now_ms)

    def _observe_pools(
        self, readings: Sequence[Reading], pools: Sequence[PoolState], now_ms: int
    ) -> Sequence[PoolPast]:
        if not self._pools_recalled:
            try:
                self._pool_pasts.recall(self._store, now_ms)
                self._pools_recalled = True
            except StoreUnavailable as error:
                log.warning("the past of the pools waits for the store", error=str(error))
        self._pool_pasts.observe(readings, pools, now_ms)
        self._pasts = self._pool_pasts.take()
        return self._pasts

    def pool_pasts(self) -> Sequence[PoolPast]:
        """The hourly past of every pool, as of the last forecast."""
        return self._pasts

    def _ahead(self, now_ms: int) -> set[tuple[Subject, str]]:
        return {(p.subject, p.target) for p in self._forecasts.current(now_ms) if _warns(p)}

    def _tell(self, made: Sequence[Prediction], before: set[tuple[Subject, str]]) -> None:
        """Put on record what was not expected before."""
        for prediction in made:
            self._metrics.count("tocsin_predictions_total", status=prediction.status)
        fresh = [p for p in made if _warns(p) and (p.subject, p.target) not in before]
        self._journal.append_many([(EntryKind.PREDICTION, _told(p), p.simulated) for p in fresh])


def _warns(prediction: Prediction) -> bool:
    """Whether it tells of something still to come, with or without an instant."""
    return is_ahead(prediction) or (prediction.status in WARNINGS and prediction.eta_ms is None)


def _told(prediction: Prediction) -> dict[str, object]:
    return {
        "id": prediction.id,
        "subject": prediction.subject.key,
        "target": prediction.target,
        "sentence": prediction.sentence,
        "probability": prediction.probability,
        "eta_ms": prediction.eta_ms,
        "model": f"{prediction.model} {prediction.model_version}",
    }
