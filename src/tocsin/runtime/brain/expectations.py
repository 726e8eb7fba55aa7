"""What is expected of the fleet: models that are due, what fills up, and the record of what was not expected before.

Beside it are what forecasts rest on: the models in service, with how well they still fit, and the hourly past of pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog

from tocsin.domain.clock import DAY, HOUR, MINUTE, Clock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.finding import Subject
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import HARDWARE_FAULT, MODEL_DRIFT, Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.capacity.filling import NAME as FILLING
from tocsin.forecaster.capacity.filling import PAST, RECALLED, STEP_MS, FillingWatch
from tocsin.forecaster.features.heat import stored_onsets
from tocsin.forecaster.lifecycle.drift import Maturing, silent
from tocsin.forecaster.lifecycle.model_registry import PRIOR, ModelRegistry
from tocsin.forecaster.live.risk_inputs import SeenGpus
from tocsin.journal.port import LiveJournal
from tocsin.runtime.brain.forecasts import FleetForecasts
from tocsin.store.port import Store, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

EVERY_MS = HOUR
BACK_MS = 30 * DAY
"""How far back what was said is compared with what came."""


class ModelWatch:
    """Level-triggered: whatever put a model into service, be it another process, it is seen and recorded once."""

    def __init__(self, registry: ModelRegistry, store: Store, journal: LiveJournal, metrics: OwnMetrics) -> None:
        self._registry = registry
        self._store = store
        self._journal = journal
        self._metrics = metrics
        self._last_ms: int | None = None
        self._maturing: Maturing | None = None
        recorded = list(journal.entries(kinds={EntryKind.MODEL_IN_SERVICE}))
        self._recorded = {(str(entry.payload["version"]), int(str(entry.payload["served_ms"]))) for entry in recorded}

    def look(self, made: Sequence[Prediction], now_ms: int) -> None:
        """After a forecast: `made` is what it said."""
        try:
            self._record()
        except InputError as error:
            log.warning("the folder of models cannot be read", error=str(error))
        risks = [one for one in made if one.target == HARDWARE_FAULT]
        if not risks:
            return
        self._metrics.set("tocsin_model_silent_gpus", silent(risks))
        for one in made:
            if one.target == MODEL_DRIFT and one.value is not None:
                self._metrics.set("tocsin_model_shifted_features_ratio", one.value)
        try:
            self._calibration(risks, now_ms)
        except StoreUnavailable as error:
            log.warning("calibration not computed: the store is unavailable", error=str(error))

    def _record(self) -> None:
        before = PRIOR
        for served in self._registry.history():
            if (served.version, served.at_ms) not in self._recorded:
                payload: dict[str, object] = {"version": served.version, "before": before, "served_ms": served.at_ms}
                payload |= self._about(served.version)
                self._journal.append(EntryKind.MODEL_IN_SERVICE, payload, actor=served.actor)
                self._recorded.add((served.version, served.at_ms))
            before = served.version

    def _about(self, version: str) -> dict[str, object]:
        """What the card says; nothing but why, where it is gone or damaged: a promotion goes on record all the same."""
        try:
            card = self._registry.card(version)
        except InputError as error:
            return {"because": [str(error)]}
        return {
            "family": card.family,
            "data_hash": card.data_hash,
            "code_version": card.code_version,
            "report_digest": card.report_digest,
            "because": list(card.notes),
        }

    def _calibration(self, risks: Sequence[Prediction], now_ms: int) -> None:
        """Take in `risks`; once an hour, compare what is over with what came."""
        if self._maturing is None:
            self._maturing = self._said_before(min((one.at_ms for one in risks), default=now_ms + 1))
        self._maturing.take(risks)
        if self._last_ms is not None and self._last_ms <= now_ms < self._last_ms + EVERY_MS:
            return
        self._maturing.forget(now_ms - BACK_MS)
        onsets = stored_onsets(self._store, now_ms - BACK_MS, now_ms + 1)
        matured = self._maturing.matured(onsets, now_ms)
        self._last_ms = now_ms
        self._metrics.set("tocsin_model_matured_predictions", matured.predictions)
        if matured.error is not None:
            self._metrics.set("tocsin_model_calibration_error", matured.error)

    def _said_before(self, end_ms: int) -> Maturing:
        """What the store has of the month before `end_ms`, day by day: of all that was said the risks are some. What a
        whole fleet was told just now is at hand."""
        found = Maturing()
        for start in range(end_ms - BACK_MS, end_ms, DAY):
            said = self._store.predictions(start, min(start + DAY, end_ms))
            found.take(one for one in said if one.target == HARDWARE_FAULT)
        return found


KEPT_MS = 35 * DAY
"""Five weeks: the week's course needs four."""
SAMPLE_MS = 2 * MINUTE
SAMPLE_AT_MS = 30 * MINUTE
"""At the start an hour is known by the readings of two minutes in its middle."""
UTILISATION = "gpu_utilization_ratio"


@dataclass
class _Hours:
    """Sums by hour; keys are starts of hours."""

    busy: dict[int, tuple[float, int]] = field(default_factory=dict)
    pending: dict[int, tuple[float, int]] = field(default_factory=dict)
    simulated: bool = False


def _add(sums: dict[int, tuple[float, int]], hour: int, value: float) -> None:
    total, count = sums.get(hour, (0.0, 0))
    sums[hour] = total + value, count + 1


class PoolPasts:
    """Means of utilisation and waiting GPUs by pool and hour. Whole GPUs count; MIG instances are parts of them."""

    def __init__(self) -> None:
        self._pools: dict[str, _Hours] = {}

    def observe(self, readings: Sequence[Reading], pools: Sequence[PoolState], now_ms: int) -> None:
        """Take in the present: the newest reading of each GPU, and what the scheduler says."""
        self._put([(one.gpu, one.values.get(UTILISATION)) for one in readings], now_ms)
        for pool in pools:
            if pool.pending_gpus is not None:
                _add(self._pools.setdefault(pool.name, _Hours()).pending, now_ms // HOUR * HOUR, pool.pending_gpus)
        self._forget(now_ms)

    def recall(self, store: Store, now_ms: int) -> None:
        """Read the past back from `store`; hours without readings stay unknown. Raises StoreUnavailable."""
        gpus = {gpu.uuid: gpu for gpu in store.gpus()}
        for hour in range((now_ms - KEPT_MS) // HOUR * HOUR, now_ms // HOUR * HOUR, HOUR):
            start = hour + SAMPLE_AT_MS
            found = store.columns([UTILISATION], start, start + SAMPLE_MS)
            newest = dict(zip(found.gpu.tolist(), found.values[:, 0].tolist(), strict=True))
            known = [(gpus[found.gpus[place]], value) for place, value in newest.items() if found.gpus[place] in gpus]
            self._put(known, hour)

    def _put(self, values: Sequence[tuple[Gpu, float | None]], at_ms: int) -> None:
        busy: dict[str, list[float]] = {}
        for gpu, value in values:
            if not gpu.is_mig and value is not None and np.isfinite(value):
                busy.setdefault(gpu.pool, []).append(value)
                self._pools.setdefault(gpu.pool, _Hours()).simulated |= gpu.simulated
        for pool, found in busy.items():
            _add(self._pools[pool].busy, at_ms // HOUR * HOUR, sum(found) / len(found))

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - KEPT_MS
        for hours in self._pools.values():
            hours.busy = {hour: value for hour, value in hours.busy.items() if hour >= oldest}
            hours.pending = {hour: value for hour, value in hours.pending.items() if hour >= oldest}
        self._pools = {name: hours for name, hours in self._pools.items() if hours.busy or hours.pending}

    def take(self) -> list[PoolPast]:
        """What is known, by pool."""
        return [_past(name, hours) for name, hours in sorted(self._pools.items())]


def _past(name: str, hours: _Hours) -> PoolPast:
    first = min([*hours.busy, *hours.pending])
    last = max([*hours.busy, *hours.pending])
    at_ms = np.arange(first, last + 1, HOUR, dtype=np.int64)
    return PoolPast(
        name, at_ms, _means(hours.busy, at_ms.tolist()), _means(hours.pending, at_ms.tolist()), hours.simulated
    )


def _means(sums: Mapping[int, tuple[float, int]], hours: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = [sums[hour][0] / sums[hour][1] if hour in sums else np.nan for hour in hours]
    return np.array(found, dtype=np.float64)


log = structlog.get_logger()

WARNINGS = (PredictionStatus.CROSSING, PredictionStatus.LIKELY)


class Expectations:
    """Predictions as the brain makes them; each that newly warns goes into the journal.

    `forecast` may run in a thread of its own beside the other methods.
    """

    def __init__(
        self,
        forecasts: FleetForecasts,
        models: ModelWatch,
        store: Store,
        journal: LiveJournal,
        metrics: OwnMetrics,
        clock: Clock,
        filling: FillingWatch | None = None,
    ) -> None:
        """`filling` is how things have filled up, where that is known."""
        self._forecasts = forecasts
        self._models = models
        self._store = store
        self._journal = journal
        self._metrics = metrics
        self._clock = clock
        self._failed_before = 0
        self._unjudged_before = 0
        self._unknown_before = 0
        self._must_recall = filling is None
        self.filling = filling or FillingWatch()
        self._filled_minute = 0
        self._pool_pasts = PoolPasts()
        self._pasts: list[PoolPast] = []
        self._pools_recalled = False

    def recall(self, gpus: Sequence[Gpu], now_ms: int) -> None:
        """Read back from the store what was expected, and how things filled up. Raises StoreUnavailable."""
        self._forecasts.recall(now_ms, self._muted())
        if self._must_recall:
            columns = self._store.columns(RECALLED, now_ms - PAST * STEP_MS, now_ms + 1)
            self.filling.recall(columns, gpus, now_ms)

    def _muted(self) -> set[tuple[str, bool]]:
        """The kinds of statements that the journal says are muted, and whether of simulated GPUs."""
        found: set[tuple[str, bool]] = set()
        for entry in self._journal.entries(kinds=(EntryKind.FORECAST_MUTED, EntryKind.FORECAST_HEARD)):
            kind = str(entry.payload.get("kind", "")), entry.simulated
            (found.add if entry.kind == EntryKind.FORECAST_MUTED else found.discard)(kind)
        return found

    def take(self, readings: Sequence[Reading], now_ms: int) -> None:
        """Take in new readings, for what fills up."""
        self.filling.take(readings, now_ms)

    def forget(self, gpus: Iterable[Gpu]) -> None:
        """These GPUs have left the fleet."""
        self.filling.forget(gpus)

    def look_at_filling(self, now_ms: int) -> None:
        """What fills up, once a minute; whatever goes wrong with it holds up no rule."""
        if now_ms // MINUTE == self._filled_minute:
            return
        self._filled_minute = now_ms // MINUTE
        before = self._ahead(now_ms)
        made = self.filling.predictions(now_ms)
        try:
            self._forecasts.put(made, FILLING)
            self._record_news(made, before)
        except TocsinError as error:
            self._metrics.count("tocsin_forecast_failures_total")
            log.warning("forecasts of memory and fragmentation not recorded", error=str(error))

    def forecast(self, seen: SeenGpus, readings: Sequence[Reading], pools: Sequence[PoolState], now_ms: int) -> None:
        """Run every model on what is `seen`, and on the pools as `readings` and `pools` show them; blocks meanwhile."""
        self._forecasts.catch_up(now_ms)
        before = self._ahead(now_ms)
        begun = self._clock.monotonic()
        made = [
            *self._forecasts.run_risk(seen, now_ms),
            *self._forecasts.run(seen.gpus, now_ms),
            *self._forecasts.run_pools(self._observe_pools(readings, pools, now_ms), now_ms),
        ]
        self._metrics.observe("tocsin_forecast_seconds", self._clock.monotonic() - begun, model="all")
        self._metrics.count("tocsin_forecast_failures_total", self._forecasts.failed - self._failed_before)
        self._failed_before = self._forecasts.failed
        self._record_news(made, before)
        self._record_kinds(now_ms)
        self._models.look(made, now_ms)

    def _record_kinds(self, now_ms: int) -> None:
        """Put on record which kinds of statements are muted, or heard again, from now on."""
        for one in self._forecasts.settle(now_ms):
            kind = EntryKind.FORECAST_MUTED if one.muted else EntryKind.FORECAST_HEARD
            payload = {"kind": one.kind, "settled": one.settled, "right": one.right, "precision": one.precision}
            self._journal.append(kind, payload | {"sentence": one.line}, simulated=one.simulated_gpus)
        self._metrics.count(
            "tocsin_dropped_total",
            self._forecasts.unjudged - self._unjudged_before,
            what="forecast",
            reason="not_judged",
        )
        self._unjudged_before = self._forecasts.unjudged
        self._metrics.count("tocsin_forecasts_unsettled_total", self._forecasts.unknown - self._unknown_before)
        self._unknown_before = self._forecasts.unknown

    def _observe_pools(
        self, readings: Sequence[Reading], pools: Sequence[PoolState], now_ms: int
    ) -> Sequence[PoolPast]:
        if not self._pools_recalled:
            try:
                self._pool_pasts.recall(self._store, now_ms)
                self._pools_recalled = True
            except StoreUnavailable as error:
                log.warning("history of the pools not read: the store is unavailable", error=str(error))
        self._pool_pasts.observe(readings, pools, now_ms)
        self._pasts = self._pool_pasts.take()
        return self._pasts

    def pool_pasts(self) -> Sequence[PoolPast]:
        return self._pasts

    def _ahead(self, now_ms: int) -> set[tuple[Subject, str]]:
        return {(p.subject, p.target) for p in self._forecasts.current(now_ms) if _warns(p)}

    def _record_news(self, made: Sequence[Prediction], before: set[tuple[Subject, str]]) -> None:
        """Put on record what was not expected before."""
        for prediction in made:
            self._metrics.count("tocsin_predictions_total", status=prediction.status)
        fresh = [p for p in made if _warns(p) and (p.subject, p.target) not in before]
        self._journal.append_many([(EntryKind.PREDICTION, _payload(p), p.simulated) for p in fresh])


def _warns(prediction: Prediction) -> bool:
    """Whether it tells of something still to come, with or without an instant, and may be heard."""
    if prediction.muted:
        return False
    return prediction.is_ahead or (prediction.status in WARNINGS and prediction.eta_ms is None)


def _payload(prediction: Prediction) -> dict[str, object]:
    return {
        "id": prediction.id,
        "subject": prediction.subject.key,
        "target": prediction.target,
        "sentence": prediction.sentence,
        "probability": prediction.probability,
        "eta_ms": prediction.eta_ms,
        "model": f"{prediction.model} {prediction.model_version}",
    }
