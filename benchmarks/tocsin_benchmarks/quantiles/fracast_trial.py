"""Fracast beside what ships: crossings of memory and temperature, and load of pools, on simulated fleets.

`pip install fracast` into an environment beside the checkout's, then
`python -m tocsin_benchmarks.quantiles.fracast_trial --page docs/decisions/008-fracast.md`.
Some fleets to calibrate on, others of other seeds to judge by. Fracast stands behind a conformal layer: each quantile
is moved by what it lacked on the first fleets (Romano et al. 2019). Probabilities of a crossing, of both models, are
calibrated there too. What ships reads the minutes that the service reads, fracast the same day in steps of ten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Gpu
from tocsin.forecaster.evaluation.bootstrap import clusters, ratio
from tocsin.forecaster.evaluation.report import grid
from tocsin.forecaster.features.examples import Floats, Mask, Singles
from tocsin.forecaster.trend.model_threshold import ThresholdForecaster
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.forecaster.trend.seasonal import outlook
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.port import Series

START_MS = 1_750_032_000_000
MEMORY, TEMPERATURE, POWER = "gpu_memory_used_ratio", "gpu_temperature_celsius", "gpu_power_watts"
METRICS = (MEMORY, TEMPERATURE, POWER)
LIMITS = {MEMORY: 0.9, TEMPERATURE: 80.0}
FAULTS = 20.0
"""Multiplies the rates of spontaneous faults, so that there are crossings to count."""
PAST = DAY // MINUTE
COARSE = 10
"""Minutes between two values that fracast reads: its context and its 48 steps ahead then span days and hours."""
AHEAD_H = (2, 6)
EVERY = 120
"""Minutes between two windows of a GPU."""
POOL_PAST, POOL_HOURS = 21 * 24, (6, 24, 48)
SHARES = np.arange(1, 10) / 10
DRAWS = 500
SHIPS, FRACAST = "ships", "fracast"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"

Model = Callable[[Floats, int], Floats]
"""Pasts [n, t] and steps ahead to quantiles [n, ahead, 9]."""
Row = tuple[str | float | int | None, ...]


@dataclass(frozen=True, slots=True)
class Cases:
    """Windows whose newest value lies below the limit, by minute: pasts [n, PAST], what came at each coarse step
    [n, steps], whether the limit was reached within each horizon, and the GPU."""

    past: Floats
    power: Floats
    end_ms: npt.NDArray[np.int64]
    after: Floats
    crossed: dict[int, Mask]
    gpu: npt.NDArray[np.int64]


def minutes(gpus: int, days: int, seed: int) -> Singles:
    """float32[gpus, minutes, METRICS] of a simulated fleet, NaN where a reading has no value."""
    spec = FleetSpec(gpus=gpus, seed=seed, start_ms=START_MS, interval_ms=MINUTE, fault_rate_scale=FAULTS)
    fleet = SimulatedFleet(spec)
    rows = [fleet.step_columns(METRICS)[0].values for _ in range(days * DAY // MINUTE)]
    return np.stack(rows, axis=1).astype(np.float32)


def cases_of(values: Singles, metric: str) -> Cases:
    """A window of every GPU each `EVERY` minutes; without those of which fracast would see a gap."""
    column, most = METRICS.index(metric), max(AHEAD_H) * 60
    found = []
    for end in range(PAST, values.shape[1] - most + 1, EVERY):
        past, power = (values[:, end - PAST : end, one].astype(np.float64) for one in (column, METRICS.index(POWER)))
        keep = np.isfinite(past[:, COARSE - 1 :: COARSE]).all(axis=1) & (past[:, -1] < LIMITS[metric])
        after = values[keep, end : end + most, column].astype(np.float64)
        reached = [np.nan_to_num(after[:, : hours * 60], nan=-np.inf).max(axis=1) for hours in AHEAD_H]
        ends = np.full(int(keep.sum()), START_MS + end * MINUTE)
        coarse = after[:, COARSE - 1 :: COARSE]
        found.append((past[keep], power[keep], ends, coarse, np.array(reached).T, np.flatnonzero(keep)))
    past, power, end_ms, after, reached_at, gpu = (np.concatenate([one[k] for one in found]) for k in range(6))
    crossed = {hours: reached_at[:, k] >= LIMITS[metric] for k, hours in enumerate(AHEAD_H)}
    return Cases(past, power, end_ms, after, crossed, gpu)


def shipped(cases: Cases, metric: str) -> dict[int, Floats]:
    """Probability of a crossing within each horizon, as the service states it; 0 where it says nothing."""
    said = {hours: np.zeros(len(cases.past)) for hours in AHEAD_H}
    names = (metric, POWER, "gpu_temperature_slowdown_celsius")
    limits = np.full(PAST, LIMITS[TEMPERATURE] + 7.0)
    for hours in AHEAD_H:
        model = ThresholdForecaster(hours)
        for row, (past, power) in enumerate(zip(cases.past, cases.power, strict=True)):
            end_ms = int(cases.end_ms[row])
            at_ms = end_ms - MINUTE * np.arange(PAST, dtype=np.int64)[::-1]
            columns = Series("g", names, at_ms, np.column_stack((past, power, limits)))
            made = model.predict([GpuHistory(Gpu("g", "h", index=0), columns)], end_ms)
            said[hours][row] = next((p.probability or 0.0 for p in made if p.metric == metric), 0.0)
    return said


def fracast() -> Model:
    """The published model; raises ImportError where it is not installed."""
    from fracast import FracastModel  # type: ignore[import-not-found]

    model = FracastModel.from_pretrained()

    def ask(past: Floats, ahead: int) -> Floats:
        parts = [model.forecast_batch(part, horizon=ahead) for part in np.array_split(past, max(1, len(past) // 64))]
        return np.asarray(np.sort(np.concatenate(parts), axis=2), np.float64)

    return ask


def conformal(found: Floats, truth: Floats) -> Floats:
    """What to add to each quantile [ahead, 9] so that it holds its share of `truth` [n, ahead]."""
    rest = truth[:, :, None] - found
    return np.stack([np.nanquantile(rest[:, :, k], share, axis=0) for k, share in enumerate(SHARES)], axis=1)


def above(found: Floats, limit: float) -> Floats:
    """Chance that the level lies at `limit` or above at some step [n], from its quantiles [n, ahead, 9]."""
    chance = np.zeros(found.shape[:2])
    for row in range(found.shape[0]):
        for step in range(found.shape[1]):
            chance[row, step] = 1.0 - np.interp(limit, found[row, step], SHARES, left=0.0, right=1.0)
    return np.asarray(chance.max(axis=1))


@dataclass(frozen=True, slots=True)
class Stated:
    """What a model stated on the fleet to calibrate on and on the one to judge by, [n] each."""

    learned: Floats
    judged: Floats

    def calibrated(self, known: Mask) -> Floats:
        fit = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(self.learned, known)
        return np.asarray(fit.predict(self.judged))


def skill(chance: Floats, came: Mask) -> float:
    """Brier skill over the observed share: 1 knows all, 0 no more than the share."""
    return 1.0 - float(np.mean((chance - came) ** 2)) / float(came.mean() * (1 - came.mean()))


def crossing_rows(metric: str, hours: int, cases: tuple[Cases, Cases], stated: dict[str, Stated]) -> list[Row]:
    """A row for each model: AUC, Brier skill as stated and once calibrated, the latter with its interval by GPU."""
    known, came = (one.crossed[hours] for one in cases)
    head = (metric, f"{hours} h", len(came), int(came.sum()))
    if came.all() or not came.any() or not known.any():
        return [(*head, "too few", None, None, None)]
    rows: list[Row] = []
    for name, one in stated.items():
        calibrated = one.calibrated(known)
        skills = (skill(one.judged, came), _drawn(calibrated, came, cases[1].gpu))
        rows.append((*head, name, f"{roc_auc_score(came, one.judged):.3f}", f"{skills[0]:.3f}", skills[1]))
    return rows


def _drawn(chance: Floats, came: Mask, gpu: npt.NDArray[np.int64]) -> str:
    drawn = clusters(gpu, DRAWS, 0)
    errors, count = drawn.total((chance - came) ** 2), drawn.total(np.ones(len(came)))
    hits = drawn.total(came.astype(np.float64))
    share = ratio(hits, count)
    return _interval(1.0 - ratio(errors / count, share * (1.0 - share)), 3)


def _interval(values: Floats, digits: int) -> str:
    """The value of the sample with the 95 % interval of the draws."""
    low, high = np.nanpercentile(values[1:], [2.5, 97.5])
    return f"{values[0]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def crossings(gpus: int, days: int, model: Model, seeds: tuple[int, int]) -> tuple[list[Row], list[Row]]:
    """Rows for each metric, horizon and model; and what a forecast of each model costs, in ms of processor."""
    fleets = [minutes(gpus, days, seed) for seed in seeds]
    rows: list[Row] = []
    costs: list[Row] = []
    for metric, limit in LIMITS.items():
        first, second = (cases_of(values, metric) for values in fleets)
        begun = time.process_time()
        ships = [shipped(one, metric) for one in (first, second)]
        between = time.process_time()
        raw = [model(one.past[:, COARSE - 1 :: COARSE], max(AHEAD_H) * 60 // COARSE) for one in (first, second)]
        asked = len(first.past) + len(second.past)
        spent = (between - begun) / len(AHEAD_H) / asked, (time.process_time() - between) / asked
        costs += [(metric, name, f"{1000 * one:.1f}") for name, one in zip((SHIPS, FRACAST), spent, strict=True)]
        moved = conformal(raw[0], first.after)
        for hours in AHEAD_H:
            theirs = [above((one + moved)[:, : hours * 60 // COARSE], limit) for one in raw]
            stated = {SHIPS: Stated(ships[0][hours], ships[1][hours]), FRACAST: Stated(theirs[0], theirs[1])}
            rows += crossing_rows(metric, hours, (first, second), stated)
    return rows, costs


def windows_of(load: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Pasts [n, POOL_PAST] of pools once a day, and what came [n, hours]."""
    most = max(POOL_HOURS)
    cut = [(one, end) for one in load for end in range(POOL_PAST, len(one) - most, 24)]
    return np.stack([one[end - POOL_PAST : end] for one, end in cut]), np.stack([one[e : e + most] for one, e in cut])


def pools(gpus: int, days: int, model: Model, calibrate: Sequence[int], judge: Sequence[int]) -> list[Row]:
    """Pinball loss of hourly load and what the interval of 0.8 holds, by horizon; and the loss of fracast over that of
    what ships, with its interval by fleet."""
    most = max(POOL_HOURS)
    pasts, truth = windows_of([pool for seed in calibrate for pool in load_of(gpus, days, seed)])
    moved = conformal(model(pasts, most), truth)
    fleets = [windows_of(load_of(gpus, days, seed)) for seed in judge]
    pasts, truth = (np.concatenate([one[k] for one in fleets]) for k in (0, 1))
    fleet = np.repeat(np.arange(len(fleets)), [len(one) for one, _ in fleets])
    paths = [outlook(past, most).paths for past in pasts]
    found = {
        SHIPS: np.stack([np.quantile(one, SHARES, axis=1).T for one in paths]),
        FRACAST: model(pasts, most) + moved,
    }
    rows: list[Row] = []
    for hours in POOL_HOURS:
        here, losses = truth[:, hours - 1], {}
        for name, quantiles in found.items():
            at = quantiles[:, hours - 1]
            miss = here[:, None] - at
            losses[name] = np.maximum(SHARES * miss, (SHARES - 1) * miss).mean(axis=1)
            held = float(((at[:, 0] <= here) & (here <= at[:, -1])).mean())
            rows.append((f"{hours} h", len(here), name, f"{losses[name].mean():.4f}", f"{held:.3f}", None))
        drawn = clusters(fleet, DRAWS, 0)
        share = ratio(drawn.total(losses[FRACAST]), drawn.total(losses[SHIPS]))
        rows[-1] = (*rows[-1][:-1], _interval(share, 3))
    return rows


def load_of(gpus: int, days: int, seed: int) -> list[Floats]:
    """Hourly mean utilisation of each pool."""
    fleet = SimulatedFleet(FleetSpec(gpus=gpus, seed=seed, start_ms=START_MS, interval_ms=HOUR // 6))
    names = [reading.gpu.pool for reading in fleet.step().readings]
    places = {name: [k for k, one in enumerate(names) if one == name] for name in sorted(set(names))}
    ticks = [fleet.step_columns(("gpu_utilization_ratio",))[0].values[:, 0] for _ in range(days * DAY // (HOUR // 6))]
    table = np.array(ticks, np.float64).reshape(days * 24, 6, -1)
    return [np.nanmean(table[:, :, rows], axis=(1, 2)) for rows in places.values() if rows]


def put(page: Path, lines: Sequence[str]) -> None:
    """Write `lines` between the marks of `page`. Raises InputError where it has none."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError("--page", str(page), "has no place for what is generated", f"put {BEGIN} and {END} into it")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")


@click.command()
@click.option("--gpus", default=32, show_default=True, help="GPUs of each fleet whose crossings are foretold.")
@click.option("--days", default=3, show_default=True, help="Days of each of these.")
@click.option("--fleets", default=8, show_default=True, help="Fleets whose pools are judged; half as many calibrate.")
@click.option("--page", type=click.Path(path_type=Path, exists=True), help="Write the tables into this page too.")
def main(gpus: int, days: int, fleets: int, page: Path | None) -> None:
    """Print the tables."""
    model = fracast()
    rows, costs = crossings(gpus, days, model, (3, 4))
    judged = range(5, 5 + fleets)
    load = pools(64, 30, model, range(101, 101 + max(1, fleets // 2)), judged)
    lines = [
        *grid(("metric", "within", "cases", "crossed", "model", "AUC", "Brier skill as stated", "calibrated"), rows),
        "",
        *grid(("metric", "model", "ms of processor a forecast"), costs),
        "",
        *grid(("load of pools ahead", "forecasts", "model", "pinball", "within 0.8", "fracast / ships"), load),
    ]
    click.echo("\n".join(lines))
    if page is not None:
        put(page, lines)


if __name__ == "__main__":
    main()
