"""Sliding retraining: every so often a challenger is trained on the newest past, in a process of its own."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import structlog

from tocsin.config.settings import Settings
from tocsin.domain.clock import DAY, HOUR, Clock, SystemClock, to_iso
from tocsin.domain.errors import TocsinError
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

ACTOR = "retraining"


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What a training came to, as it crosses the border of its process."""

    version: str
    promoted: bool
    because: tuple[str, ...]


def train_once(settings: Settings, version: str, start_ms: int, end_ms: int) -> TrialReport:
    """Train on the store's past in [`start_ms`, `end_ms`), and put the model into service if it wins."""
    from tocsin.forecaster.lifecycle.trial import TrialRecipe
    from tocsin.offline.train import TrainingRequest, run_training

    recipe = TrialRecipe(settings.forecast.retrain_model)
    wanted = TrainingRequest(recipe, version, start_ms=start_ms, end_ms=end_ms, promote=True, actor=ACTOR)
    outcome = run_training(settings, wanted, SystemClock())
    return TrialReport(version, outcome.promoted, outcome.trained.trial.because)


def _in_own_process(settings: Settings, version: str, start_ms: int, end_ms: int) -> TrialReport:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: Future[TrialReport] = pool.submit(train_once, settings, version, start_ms, end_ms)
        return waiting.result()


class Retrainer:
    """Level-triggered: a training is due where the newest version of the registry is older than the interval.

    A fleet with too few faults is tried again after the interval, not at every tick.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metrics: OwnMetrics,
        run: Callable[[Settings, str, int, int], TrialReport] = _in_own_process,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._run = run
        self._tried_ms = 0
        self._lock = threading.Lock()

    def tick(self) -> None:
        """Train if it is due; blocks while it trains, so it has a thread of its own."""
        forecast = self._settings.forecast
        now, every_ms = self._clock.now_ms(), int(forecast.retrain_hours * HOUR)
        if not every_ms or now - max(self._tried_ms, self._newest_ms()) < every_ms:
            return
        with self._lock:
            self._tried_ms = now
            version = f"{forecast.retrain_model}-{to_iso(now)[:19].replace(':', '')}"
            begin_ms = now - int(forecast.retrain_days * DAY)
            try:
                report = self._run(self._settings, version, begin_ms, now)
            except (TocsinError, BrokenProcessPool) as error:
                self._metrics.count("tocsin_model_trainings_total", outcome="failed")
                log.warning("model training failed", error=str(error))
                return
        self._metrics.count("tocsin_model_trainings_total", outcome="promoted" if report.promoted else "shelved")
        log.info("model trained", version=report.version, promoted=report.promoted, because=list(report.because))

    def _newest_ms(self) -> int:
        registry = ModelRegistry(self._settings.forecast.models)
        made = []
        for version in registry.versions():
            try:
                made.append(registry.card(version).created_ms)
            except TocsinError:
                continue  # a damaged version is no reason to train without end, nor never
        return max(made, default=0)
