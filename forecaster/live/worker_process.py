"""What runs inside the worker process; imported there, so it stays light until the first forecast."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tocsin.config.settings import ForecastSettings
from tocsin.domain.heap import give_back
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.capacity.capacity import CapacityForecaster, PoolPast
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.forecaster.trend.protocol import Forecaster, GpuHistory, build_all
from tocsin.store.port import Store

if TYPE_CHECKING:
    from tocsin.forecaster.features.examples import Examples, Floats
    from tocsin.forecaster.lifecycle.model_registry import ModelVersion
    from tocsin.forecaster.live.risk import RiskWatch


Predictions = list[Prediction]
Part = TypeVar("Part")


CHUNK = 32
"""GPUs a call: `close` waits for the call under way, so that calls must be short."""
SCORED = 1000
"""Rows that a risk model scores at once."""
_NICE = 10
"""A forecast gives way to all that the brain does itself: an event is answered at once on two cores too."""


class Models:
    """All model families, or those named in `only`, the capacity of pools and, where a place is given, the risk."""

    def __init__(
        self,
        settings: ForecastSettings,
        only: Sequence[str] | None = None,
        place: RiskInputs | None = None,
        store: Store | None = None,
    ) -> None:
        self._families: list[Forecaster] = build_all(settings, only)
        self._capacity = CapacityForecaster(settings.coverage)
        self._place, self._store = place, store
        self._watch: RiskWatch | None = None

    def score(self, version: ModelVersion, rows: Examples) -> Floats:
        """The scores of `rows`, in parts that do not depend on who works on them: so every engine has the same ones."""
        import numpy as np

        bounds = [np.arange(i, min(i + SCORED, len(rows))) for i in range(0, len(rows), SCORED)]
        if len(bounds) < 2:
            return np.concatenate(self._score_parts(version, [rows]))
        return np.concatenate(self._score_parts(version, [rows.take(part) for part in bounds]))

    def _score_parts(self, version: ModelVersion, parts: Sequence[Examples]) -> list[Floats]:
        return [version.scorer.score(part) for part in parts]

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(metric for model in self._families for metric in model.metrics))

    def predict(self, history: Sequence[GpuHistory], now_ms: int) -> Predictions:
        return [prediction for model in self._families for prediction in model.predict(history, now_ms)]

    def predict_pools(self, pools: Sequence[PoolPast], now_ms: int) -> Predictions:
        return self._capacity.predict(pools, now_ms)

    def predict_risk(self, seen: SeenGpus, now_ms: int) -> Predictions:
        """The risk of every GPU; nothing where no place was given."""
        if self._place is None:
            return []
        if self._watch is None:
            from tocsin.forecaster.live.risk import RiskWatch

            self._watch = RiskWatch(self._place, self._store, score=self.score)
        return self._watch.predict(seen, now_ms)


def one_thread() -> None:
    """Let linear algebra that is loaded from now on use one thread: the fits are small, and threads that wait for each
    other cost more time than they save. What the environment says already stays."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


Engine = Callable[[ForecastSettings, Sequence[str] | None, RiskInputs | None], Models]
Work = Callable[[Models, Part, int], Predictions]

_models: list[Models] = []


def _follow_parent() -> None:
    """End this process when its parent is gone: a killed brain leaves no worker behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def start(make: Engine, settings: ForecastSettings, only: Sequence[str] | None, place: RiskInputs | None) -> None:
    """Build the models. Ctrl-C reaches the whole process group; ending is the parent's decision alone."""
    one_thread()
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, name="follow-parent", daemon=True).start()
    _models[:] = [make(settings, only, place)]


def ask(work: Work[Part], part: Part, now_ms: int) -> Predictions:
    """Do `work`, a method of `Models`, with the models of this process."""
    made: Predictions = getattr(_models[0], work.__name__)(part, now_ms)
    if work is Models.predict_risk:
        # The readings of a whole fleet went through.
        give_back()
    return made
