"""What the running service would tell a person of the memory and fragmentation of a simulated fleet, minute by minute.

Its own watch over the readings, its record of each kind with the prior that ships, and its floor of precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.metrics import split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.forecaster.capacity.filling import HOLES, INSTANCE, LAYOUT, MEMORY, OUT_OF_MEMORY, FillingWatch
from tocsin.forecaster.capacity.leak import MEMORY_LEAK
from tocsin.forecaster.features.examples import Floats
from tocsin.forecaster.live.recalibration import CLAIMS, MOST_DUE, Recalibration, came_of
from tocsin.sim.fleet import SimulatedFleet

Bools = npt.NDArray[np.bool_]

METRICS = (MEMORY.metric, INSTANCE.metric, HOLES.metric, LAYOUT.metric)
KINDS = (OUT_OF_MEMORY, MEMORY_LEAK, HOLES.metric, LAYOUT.metric)
"""What is said: of memory by target, of fragmentation by metric."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Values by metric of `METRICS`, float64[GPU by UUID, minute], and by kind of `KINDS` whether a person has it,
    bool[GPU, minute]."""

    values: Mapping[str, Floats]
    told: Mapping[str, Bools]


def hear(fleet: SimulatedFleet, steps: int) -> Heard:
    """Move `fleet`, whose interval is a minute, on by `steps` and listen."""
    gpus = sorted(fleet.gpus, key=lambda gpu: gpu.uuid)
    rows = {gpu.uuid: row for row, gpu in enumerate(gpus)}
    values = np.full((len(METRICS), len(gpus), steps), np.nan)
    told = np.zeros((len(KINDS), len(gpus), steps), np.bool_)
    settings = ForecastSettings()
    watch, kinds = FillingWatch(), Recalibration(settings.least_precision)
    every_ms = round(settings.every_seconds * SECOND)
    start_ms = fleet.now_ms
    for step in range(steps):
        columns, _ = fleet.step_columns(METRICS)
        values[:, :, step] = columns.values.T
        now_ms = fleet.now_ms
        table = zip(gpus, columns.values.tolist(), strict=True)
        watch.take([Reading(gpu, now_ms, _known(row)) for gpu, row in table], now_ms)
        made = kinds.restated(watch.predictions(now_ms))
        kinds.follow(made)
        for one in made:
            if one.status in CLAIMS and not one.muted:
                told[KINDS.index(_kind(one)), rows[one.subject.name], step] = True
        if now_ms % every_ms == 0:
            due = kinds.take_due(now_ms, MOST_DUE)
            found = [(one, _came(one, values[:, rows[one.subject.name]], start_ms)) for one in due]
            kinds.settle([(one, came) for one, came in found if came is not None])
            kinds.judge(now_ms)
    return Heard(dict(zip(METRICS, values, strict=True)), dict(zip(KINDS, told, strict=True)))


def _known(row: list[float]) -> dict[str, float]:
    return {metric: value for metric, value in zip(METRICS, row, strict=True) if value == value}


def _kind(said: Prediction) -> str:
    return said.target if said.target in KINDS else split_variant(said.metric)[0]


def _came(said: Prediction, values: Floats, start_ms: int) -> bool | None:
    """By the `values` [metric, minute] of its GPU, the first a minute after `start_ms`."""
    first, end = ((at_ms - start_ms) // MINUTE for at_ms in (said.at_ms, said.at_ms + said.horizon_ms))
    at_ms = start_ms + MINUTE * np.arange(first + 1, end + 1)
    return came_of(said, at_ms.tolist(), values[METRICS.index(said.metric), first:end])
