"""What each kind of forecast is worth before a fleet has a record of its own: counted in simulated fleets.

`python -m tocsin.offline.statement_prior` writes the file that the package would ship; none ships yet.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import click
import numpy as np

from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu
from tocsin.forecaster.capacity.filling import FillingWatch
from tocsin.forecaster.live.recalibration import Recalibration, came_of
from tocsin.forecaster.trend.model_threshold import METRICS, ThresholdForecaster
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.port import Series

START_MS = 1_750_032_000_000
EVERY_MS = 30 * MINUTE
"""How often the trend model is asked: a window counts once however often it is."""


class SimulatedRecord:
    """The forecasters over one simulated fleet, and what came of all that they said."""

    def __init__(self, gpus: int, seed: int, scale: float) -> None:
        self._fleet = SimulatedFleet(FleetSpec(gpus=gpus, seed=seed, start_ms=START_MS, fault_rate_scale=scale))
        settings = ForecastSettings()
        self._keep = int(settings.history_hours * HOUR / MINUTE)
        self._trend = ThresholdForecaster(settings.horizon_hours, settings.coverage)
        self._filling = FillingWatch()
        self._past: deque[tuple[int, dict[str, dict[str, float]]]] = deque()
        self.kinds = Recalibration(0.0, {})

    def run(self, days: int) -> None:
        """Forecast for `days` and judge what the days themselves show."""
        horizon = round(ForecastSettings().horizon_hours * HOUR)
        for _ in range(days * DAY // MINUTE):
            batch = self._fleet.step()
            now_ms = batch.readings[0].at_ms
            self._past.append((now_ms, {one.gpu.uuid: dict(one.values) for one in batch.readings}))
            self._filling.take(batch.readings, now_ms)
            made = self._filling.predictions(now_ms)
            if now_ms % EVERY_MS == 0:
                made += self._trend.predict([self._history(one.gpu, now_ms) for one in batch.readings], now_ms)
            self.kinds.follow(made)
            due = self.kinds.take_due(now_ms, len(batch.readings) * 100)
            found = [(one, self._came(one)) for one in due]
            self.kinds.settle([(one, came) for one, came in found if came is not None])
            while self._past and self._past[0][0] < now_ms - horizon - HOUR:
                self._past.popleft()

    def _series(self, uuid: str, metrics: tuple[str, ...], from_ms: int) -> Series:
        rows = [(at_ms, every[uuid]) for at_ms, every in self._past if at_ms >= from_ms and uuid in every]
        values = np.array([[row.get(metric, np.nan) for metric in metrics] for _, row in rows], np.float64)
        at_ms = np.array([at for at, _ in rows], np.int64)
        return Series(uuid, metrics, at_ms, values.reshape(len(rows), len(metrics)))

    def _history(self, gpu: Gpu, now_ms: int) -> GpuHistory:
        return GpuHistory(gpu, self._series(gpu.uuid, METRICS, now_ms - self._keep * MINUTE))

    def _came(self, said: Prediction) -> bool | None:
        series = self._series(said.subject.name, (said.metric,), said.at_ms + 1)
        return came_of(said, series.at_ms.tolist(), series.values[:, 0])


@click.command()
@click.option("--gpus", default=32, show_default=True)
@click.option("--days", default=4, show_default=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(101, 102), show_default=True)
@click.option("--fault-scale", default=10.0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=None)
def main(gpus: int, days: int, seeds: tuple[int, ...], fault_scale: float, out: Path | None) -> None:
    """Count what the kinds of forecasts are worth, and print or write it."""
    total: dict[str, dict[str, object]] = {}
    for seed in seeds:
        record = SimulatedRecord(gpus, seed, fault_scale)
        record.run(days)
        for kind, found in record.kinds.counted().items():
            before = total.setdefault(kind, {})
            for name, value in found.items():
                added = np.asarray(value, np.float64) + np.asarray(before.get(name, 0.0), np.float64)
                before[name] = np.round(added, 3).tolist()
    made = f"{gpus} GPUs x {days} days, seeds {', '.join(map(str, seeds))}, fault scale {fault_scale:g}"
    text = json.dumps({"made": made, "kinds": total}, indent=1, sort_keys=True) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
