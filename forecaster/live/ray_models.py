"""The models on actors of a Ray cluster, so that many cells score on more machines than one, with the same numbers.

This runs inside the worker process, never inside the brain: a Ray client that loses its cluster ends its process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tocsin import __version__
from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.errors import Unavailable
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.evaluation.engine import connect
from tocsin.forecaster.features.examples import Examples, Floats, HeldSequences
from tocsin.forecaster.live.risk_inputs import RiskInputs
from tocsin.forecaster.live.worker_process import CHUNK, Models, Part, Predictions, Work, one_thread
from tocsin.forecaster.trend.protocol import GpuHistory

if TYPE_CHECKING:
    from tocsin.forecaster.hazard.scorer import Scorer
    from tocsin.forecaster.lifecycle.model_registry import ModelVersion

AT_ONE_ACTOR = 2
"""Calls that an actor holds: one at work, one at hand. The rest waits here, so that no queue grows in the cluster."""
START_SECONDS = 60.0
"""Until a cluster must have given every shard its processor and its process (own choice)."""
RETRIES = 2
"""How often a call is made again whose actor or node died under it: a forecast depends on its arguments alone."""


class Shard:
    """What runs in an actor."""

    def __init__(self, settings: ForecastSettings, only: Sequence[str] | None) -> None:
        one_thread()
        self._models = Models(settings, only)

    def release(self) -> str:
        return __version__

    def ask(self, work: Work[Part], part: Part, now_ms: int) -> Predictions:
        return work(self._models, part, now_ms)

    def score(self, scorer: Scorer, rows: Examples) -> Floats:
        return scorer.score(rows)


class RayModels(Models):
    """As `Models`, answered by `settings.ray_shards` actors of the cluster at `settings.ray_address`.

    Trends, capacity and the rows of the risk model are shared out; the features of the risk stay in this process,
    beside their file and their store. What `Shards.spread` raises comes through; the next call connects anew.
    """

    def __init__(
        self, settings: ForecastSettings, only: Sequence[str] | None = None, place: RiskInputs | None = None
    ) -> None:
        super().__init__(settings, only, place)
        self.shards = Shards(settings, only)

    def predict(self, history: Sequence[GpuHistory], now_ms: int) -> Predictions:
        return self._asked(Models.predict, [history[i : i + CHUNK] for i in range(0, len(history), CHUNK)], now_ms)

    def predict_pools(self, pools: Sequence[PoolPast], now_ms: int) -> Predictions:
        return self._asked(Models.predict_pools, [[one] for one in pools], now_ms)

    def _asked(self, work: Work[Part], parts: Sequence[Part], now_ms: int) -> Predictions:
        answers = self.shards.spread(lambda shard, part: shard.ask.remote(work, part, now_ms), parts)
        return [prediction for made in answers for prediction in made]

    def _score_parts(self, version: ModelVersion, parts: Sequence[Examples]) -> list[Floats]:
        import ray

        self.shards.start()
        scorer = ray.put(version.scorer)
        return self.shards.spread(lambda shard, rows: shard.score.remote(scorer, _held(rows)), parts)


class Shards:
    """The actors of one brain: they start with the first call, and end with this process.

    An actor or node that dies is replaced, and its calls are made again.
    """

    def __init__(
        self, settings: ForecastSettings, only: Sequence[str] | None = None, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._only = only
        self._clock = clock or SystemClock()
        self._actors: list[Any] = []

    def spread(self, call: Callable[[Any, Part], Any], parts: Sequence[Part]) -> list[Any]:
        """What `call`, made on an actor, answers for each of `parts`, in their order.

        Raises what a call raised, and Unavailable where the cluster is away, has no room, runs another release of
        Tocsin, or answers later than the next forecast is due.
        """
        if not parts:
            return []
        import ray

        self.start()
        try:
            return self._spread(call, parts)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (ray.exceptions.RayError, Unavailable) as error:
            self._leave()
            raise _unavailable(error) from error

    def _spread(self, call: Callable[[Any, Part], Any], parts: Sequence[Part]) -> list[Any]:
        found: dict[int, Any] = {}
        under_way: dict[Any, tuple[int, Any]] = {}
        until = self._clock.monotonic() + self._settings.every_seconds
        free = self._actors * AT_ONE_ACTOR
        for place, part in enumerate(parts):
            actor = free.pop(0) if free else self._collect(under_way, found, until)
            under_way[call(actor, part)] = place, actor
        while under_way:
            self._collect(under_way, found, until)
        return [found[place] for place in range(len(parts))]

    def _collect(self, under_way: dict[Any, tuple[int, Any]], found: dict[int, Any], until: float) -> Any:
        """Wait until one call has answered, and no longer than `until`; its actor, which is free now."""
        import ray

        done, _ = ray.wait(list(under_way), num_returns=1, timeout=max(0.0, until - self._clock.monotonic()))
        if not done:
            raise Unavailable(f"not all answers within {self._settings.every_seconds:g} s (forecast.every_seconds)")
        place, actor = under_way.pop(done[0])
        found[place] = ray.get(done[0])
        return actor

    def start(self) -> None:
        """Join the cluster and start the actors, where that was not done. Raises Unavailable as `spread` does."""
        if self._actors:
            return
        import ray

        settings = self._settings
        if not ray.is_initialized():
            connect(settings.ray_address, settings.ray_shards)
            logging.getLogger("ray").setLevel(logging.ERROR)
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=RETRIES)(Shard)
        actors: list[Any] = [actor.remote(settings, self._only) for _ in range(settings.ray_shards)]
        try:
            releases = ray.get([one.release.remote() for one in actors], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            self._leave()
            raise Unavailable(
                f"forecasts on Ray: {settings.ray_address or 'this machine'} has no room for {len(actors)} actors of "
                f"one processor each within {START_SECONDS:g} s; add nodes or lower forecast.ray_shards"
            ) from error
        except ray.exceptions.RayError as error:
            self._leave()
            raise _unavailable(error) from error
        if others := set(releases) - {__version__}:
            self._leave()
            told = ", ".join(sorted(others))
            raise Unavailable(f"forecasts on Ray: its nodes run Tocsin {told}, this brain {__version__}; install that")
        self._actors = actors

    def _leave(self) -> None:
        """Forget the cluster; the actors end with that."""
        import ray

        self._actors = []
        ray.shutdown()


def _unavailable(error: BaseException) -> Unavailable:
    if isinstance(error, Unavailable):
        return Unavailable(f"forecasts on Ray: {error}")
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return Unavailable(f"forecasts on Ray: {type(error).__name__}: {first}")


def _held(rows: Examples) -> Examples:
    """`rows` with their own sequences alone, where they have any, and not those of the fleet they were taken from."""
    if rows.sequences is None:
        return rows
    every = np.arange(len(rows.at_ms), dtype=np.int64)
    return replace(rows, sequences=HeldSequences(rows.sequences.channels, rows.sequences.take(every)))
