"""What becomes of models in service: promotions go on record, and how well they still fit is measured."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.features.onsets import onsets_of
from tocsin.forecaster.lifecycle.drift import calibration, silent
from tocsin.forecaster.lifecycle.model_registry import PRIOR, ModelRegistry
from tocsin.journal.journal import Journal
from tocsin.journal.kinds import EntryKind
from tocsin.store.port import Store, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

TARGET, DRIFT = "hardware_fault", "model_drift"
"""As `tocsin.forecaster.live.risk` names them; that module loads the models' libraries."""
EVERY_MS = HOUR
BACK_MS = 30 * DAY
"""How far back what was said is compared with what came."""


class ModelWatch:
    """Level-triggered: whatever put a model into service, be it another process, it is seen and recorded once."""

    def __init__(self, shelf: ModelRegistry, store: Store, journal: Journal, metrics: OwnMetrics) -> None:
        self._shelf = shelf
        self._store = store
        self._journal = journal
        self._metrics = metrics
        self._last_ms: int | None = None
        told = list(journal.entries(kinds={EntryKind.MODEL_IN_SERVICE}))
        self._told = {(str(entry.payload["version"]), int(str(entry.payload["served_ms"]))) for entry in told}

    def look(self, made: Sequence[Prediction], now_ms: int) -> None:
        """After a forecast: `made` is what it said."""
        try:
            self._record()
        except InputError as error:
            log.warning("the folder of models cannot be read", error=str(error))
        risks = [one for one in made if one.target == TARGET]
        if not risks:
            return
        self._metrics.set("tocsin_model_silent_gpus", silent(risks))
        for one in made:
            if one.target == DRIFT and one.value is not None:
                self._metrics.set("tocsin_model_shifted_features_ratio", one.value)
        if self._last_ms is None or not self._last_ms <= now_ms < self._last_ms + EVERY_MS:
            try:
                self._calibration(now_ms)
                self._last_ms = now_ms
            except StoreUnavailable as error:
                log.warning("how well probabilities fit waits for the store", error=str(error))

    def _record(self) -> None:
        before = PRIOR
        for served in self._shelf.history():
            if (served.version, served.at_ms) not in self._told:
                payload: dict[str, object] = {"version": served.version, "before": before, "served_ms": served.at_ms}
                payload |= self._about(served.version)
                self._journal.append(EntryKind.MODEL_IN_SERVICE, payload, actor=served.actor)
                self._told.add((served.version, served.at_ms))
            before = served.version

    def _about(self, version: str) -> dict[str, object]:
        """What the card says; nothing but why, where it is gone or damaged: a promotion goes on record all the same."""
        try:
            card = self._shelf.card(version)
        except InputError as error:
            return {"because": [str(error)]}
        return {
            "family": card.family,
            "data_hash": card.data_hash,
            "code_version": card.code_version,
            "report_digest": card.report_digest,
            "because": list(card.notes),
        }

    def _calibration(self, now_ms: int) -> None:
        said = [one for one in self._store.predictions(now_ms - BACK_MS, now_ms + 1) if one.target == TARGET]
        onsets = onsets_of(self._store.events(now_ms - BACK_MS, now_ms + 1), self._store.gpus())
        matured = calibration(said, onsets, now_ms)
        self._metrics.set("tocsin_model_matured_predictions", matured.predictions)
        if matured.error is not None:
            self._metrics.set("tocsin_model_calibration_error", matured.error)
