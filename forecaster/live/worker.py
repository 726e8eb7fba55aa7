"""Runs the models in a process of their own, so that nothing else waits for a fit."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tocsin.config.settings import ForecastEngine, ForecastSettings
from tocsin.domain.errors import TocsinError, Unavailable
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.live import worker_process
from tocsin.forecaster.live.ray_models import RayModels
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.forecaster.live.worker_process import CHUNK, Models, Part, Predictions, Work
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.store.port import Store


class ForecastFailed(TocsinError):
    """A model raised; the cause is chained."""


class _Gather:
    """Turns the answers of the calls of one request into one future."""

    def __init__(self, calls: Sequence[Future[Predictions]], on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self.future: Future[Predictions] = Future()
        self._calls = calls
        self._left = len(calls)
        self._lock = threading.Lock()
        if not calls:
            self.future.set_result([])
        for call in calls:
            call.add_done_callback(self._one)

    def _one(self, _: Future[Predictions]) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if any(call.cancelled() for call in self._calls):
            self.future.set_exception(Unavailable("the forecast worker was closed before it answered"))
            return
        errors = [error for call in self._calls if (error := call.exception()) is not None]
        if any(isinstance(error, BrokenProcessPool) for error in errors):
            self._on_death()
        if errors:
            self.future.set_exception(_translate(errors[0]))
        else:
            self.future.set_result([prediction for call in self._calls for prediction in call.result()])


def _translate(error: BaseException) -> TocsinError:
    if isinstance(error, TocsinError):
        return error
    failure: TocsinError = ForecastFailed(f"a forecast model failed: {type(error).__name__}: {error}")
    if isinstance(error, BrokenProcessPool):
        failure = Unavailable("the forecast worker process died; the next forecast starts a new one")
    failure.__cause__ = error
    return failure


class ForecastWorker:
    """All model families, or those named in `only`, behind `submit`.

    `place` says where the risk model finds store and models; without a process of its own it reads `store`.
    With `settings.worker` they run in one spawned process, which starts with the first request and is started again
    after it died (`deaths` counts that); without, `submit` computes before it returns. With engine "ray" that process
    shares the work out to `shards` actors. Safe to use from any thread.
    """

    def __init__(
        self,
        settings: ForecastSettings,
        only: Sequence[str] | None = None,
        place: RiskInputs | None = None,
        store: Store | None = None,
    ) -> None:
        self._settings = settings
        self._only = only
        self._place = place
        self._models = Models(settings, only, place, store)
        self._pool: ProcessPoolExecutor | None = None
        self._broken: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._closed = False
        self.metrics = self._models.metrics
        on_ray = settings.engine is ForecastEngine.RAY
        self._engine = RayModels if on_ray else Models
        self.shards = settings.ray_shards if on_ray else 1
        self.deaths = 0

    def submit(self, history: Sequence[GpuHistory], now_ms: int) -> Future[Predictions]:
        """Forecast every GPU of `history` as of `now_ms`.

        The future ends with the predictions of all models, with Unavailable where the process died or was closed
        first, or with ForecastFailed where a model raised.
        """
        size = CHUNK * self.shards
        chunks = [history[i : i + size] for i in range(0, len(history), size)]
        return self._submit(Models.predict, chunks, now_ms)

    def submit_pools(self, pools: Sequence[PoolPast], now_ms: int) -> Future[Predictions]:
        """Forecast the capacity of every pool as of `now_ms`; the future ends as that of `submit` does."""
        chunks = [pools[i : i + self.shards] for i in range(0, len(pools), self.shards)]
        return self._submit(Models.predict_pools, chunks, now_ms)

    def submit_risk(self, seen: SeenGpus, now_ms: int) -> Future[Predictions]:
        """The risk of what is `seen` as of `now_ms`; the future ends as that of `submit` does, empty where the worker
        was given no place or no model is in service."""
        return self._submit(Models.predict_risk, [seen], now_ms)

    def _submit(self, work: Work[Part], parts: Sequence[Part], now_ms: int) -> Future[Predictions]:
        if not self._settings.worker:
            return self._here(work, parts, now_ms)
        with self._lock:
            if self._closed:
                raise Unavailable("the forecast worker is closed")
            pool = self._start()
            try:
                calls = [pool.submit(worker_process.ask, work, part, now_ms) for part in parts]
            except BrokenProcessPool:
                self._died(pool)
                pool = self._start()
                calls = [pool.submit(worker_process.ask, work, part, now_ms) for part in parts]
        return _Gather(calls, lambda: self._died(pool)).future

    def close(self) -> None:
        """Drop what waits, let the call under way end, and leave no process; safe to repeat."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _here(self, work: Work[Part], parts: Sequence[Part], now_ms: int) -> Future[Predictions]:
        future: Future[Predictions] = Future()
        try:
            future.set_result([made for part in parts for made in work(self._models, part, now_ms)])
        except Exception as error:  # noqa: BLE001 - the same contract as across the process border
            future.set_exception(_translate(error))
        return future

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None or self._pool is self._broken:
            self._pool = ProcessPoolExecutor(
                max_workers=1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=worker_process.start,
                initargs=(self._engine, self._settings, self._only, self._place),
            )
        return self._pool

    def _died(self, pool: ProcessPoolExecutor) -> None:
        """Count the death of `pool` once. Called from the pool's own thread too, so it must not touch the pool or
        wait for whoever does."""
        with self._count_lock:
            if self._broken is not pool:
                self._broken = pool
                self.deaths += 1
