"""What each kind of forecast is worth before a fleet has a record of its own: counted in simulated fleets.

The forecasters of a brain over a simulated fleet at live cadences, without the rest of the service, which adds nothing
to their record. `tocsin rehearse prior` writes the file that the package ships.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, from_iso
from tocsin.domain.metrics import split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.capacity.filling import WATCHED, FillingWatch
from tocsin.forecaster.features.examples import Floats
from tocsin.forecaster.live.news import is_news
from tocsin.forecaster.live.recalibration import Recalibration, came_of
from tocsin.forecaster.trend.model_threshold import METRICS, ThresholdForecaster
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.port import Series

START_MS = from_iso("2026-01-05T00:00:00Z")
STEPS_PER_DAY = DAY // MINUTE
MOST_DUE = 10_000
_KEPT = frozenset({*METRICS, *WATCHED})


@dataclass(frozen=True, slots=True)
class PriorPlan:
    """Fleets of `gpus` over `days`, one for each of `seeds`. The trend model, which costs most, is asked about one GPU
    in `trend_every`. `commit` is what made it, as the caller names it."""

    gpus: int
    days: float
    seeds: tuple[int, ...]
    fault_scale: float
    trend_every: int = 1
    commit: str = ""


@dataclass
class _Past:
    """Readings of a run by GPU and metric or variant, a value a minute, NaN where missing."""

    start_ms: int
    steps: int
    values: dict[tuple[str, str], Floats] = field(default_factory=dict)

    def take(self, readings: Sequence[Reading], at_ms: int) -> None:
        step = (at_ms - self.start_ms) // MINUTE - 1
        for reading in readings:
            for key, value in reading.values.items():
                if split_variant(key)[0] in _KEPT:
                    self._row(reading.gpu.uuid, key)[step] = value

    def _row(self, uuid: str, key: str) -> Floats:
        if (uuid, key) not in self.values:
            self.values[uuid, key] = np.full(self.steps, np.nan)
        return self.values[uuid, key]

    def between(self, uuid: str, metrics: tuple[str, ...], from_ms: int, until_ms: int) -> Series:
        """Of the instants after `from_ms` up to `until_ms`."""
        first, last = (max(0, (at - self.start_ms) // MINUTE) for at in (from_ms, until_ms))
        blank = np.full(self.steps, np.nan)
        columns = np.stack([self.values.get((uuid, metric), blank)[first:last] for metric in metrics], axis=1)
        at_ms = self.start_ms + MINUTE * np.arange(first + 1, first + 1 + len(columns), dtype=np.int64)
        known = np.isfinite(columns).any(axis=1)
        return Series(uuid, metrics, at_ms[known], columns[known])


class SimulatedRecord:
    """The forecasters over one simulated fleet, and what came of all that they said."""

    def __init__(self, plan: PriorPlan, seed: int) -> None:
        self._plan = plan
        self._steps = round(plan.days * STEPS_PER_DAY)
        scale = plan.fault_scale
        spec = FleetSpec(gpus=plan.gpus, seed=seed, start_ms=START_MS, fault_rate_scale=scale, under_way=True)
        self._fleet = SimulatedFleet(spec)
        settings = ForecastSettings()
        self._every_ms = round(settings.every_seconds * SECOND)
        self._history_ms = round(settings.history_hours * HOUR)
        self._trend = ThresholdForecaster(settings.horizon_hours, settings.coverage)
        self._filling = FillingWatch()
        self._past = _Past(START_MS, self._steps)
        self._newest: dict[tuple[str, str], Prediction] = {}
        self._stored_ms: dict[tuple[str, str], int] = {}
        self.kinds = Recalibration(0.0, {})

    def run(self, progress: Callable[[float], None] = lambda _steps: None) -> Recalibration:
        """Forecast to the end and judge what the days themselves show; the record."""
        for _ in range(self._steps):
            batch = self._fleet.step()
            now_ms = self._fleet.now_ms
            self._past.take(batch.readings, now_ms)
            self._filling.take(batch.readings, now_ms)
            made = self._filling.predictions(now_ms)
            if now_ms % self._every_ms == 0:
                asked = [reading.gpu for reading in batch.readings[:: self._plan.trend_every]]
                made += self._trend.predict([self._history(gpu, now_ms) for gpu in asked], now_ms)
            self.kinds.follow(self._news(self.kinds.restated(made)))
            found = [(one, self._came(one)) for one in self.kinds.take_due(now_ms, MOST_DUE)]
            self.kinds.settle([(one, came) for one, came in found if came is not None])
            progress(1.0)
        return self.kinds

    def _news(self, made: Iterable[Prediction]) -> list[Prediction]:
        """What a brain would store of it: cases begin with what is stored."""
        found = []
        for one in made:
            key = one.subject.key, one.target
            if is_news(one, self._newest.get(key), self._stored_ms.get(key, 0)):
                found.append(one)
                self._stored_ms[key] = one.at_ms
            self._newest[key] = one
        return found

    def _history(self, gpu: Gpu, now_ms: int) -> GpuHistory:
        return GpuHistory(gpu, self._past.between(gpu.uuid, METRICS, now_ms - self._history_ms, now_ms))

    def _came(self, said: Prediction) -> bool | None:
        series = self._past.between(said.subject.name, (said.metric,), said.at_ms, said.at_ms + said.horizon_ms)
        return came_of(said, series.at_ms.tolist(), series.values[:, 0])


def count(plan: PriorPlan, progress: Callable[[float], None] = lambda _steps: None) -> dict[str, Any]:
    """The document that ships: how it was made, and the counts of every kind over all seeds."""
    total: dict[str, Counter[str]] = {}
    cells: dict[str, dict[str, Floats]] = {}
    for seed in plan.seeds:
        for kind, found in SimulatedRecord(plan, seed).run(progress).counted().items():
            total.setdefault(kind, Counter()).update({name: found[name] for name in ("claims", "right")})
            mine = cells.setdefault(kind, {})
            for name in ("cases", "came"):
                mine[name] = np.asarray(found[name]) + mine.get(name, 0.0)
    kinds = {
        kind: {**total[kind], **{name: np.round(values, 3).tolist() for name, values in cells[kind].items()}}
        for kind in total
    }
    return {"made": {**asdict(plan), "seeds": list(plan.seeds)}, "kinds": kinds}


def document(made: Mapping[str, Any]) -> str:
    """As the file has it."""
    return json.dumps(made, indent=1, sort_keys=True) + "\n"
