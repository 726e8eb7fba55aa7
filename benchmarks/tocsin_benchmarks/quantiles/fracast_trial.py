"""Fracast beside what ships: crossings of memory and temperature, and load of pools, on simulated fleets.

`pip install fracast` into the environment of the checkout, then `python -m tocsin_benchmarks.quantiles.fracast_trial`.
One fleet to calibrate on, another of another seed to judge by. Fracast stands behind a conformal layer: each quantile
is moved by what it lacked on the first fleet (Romano et al. 2019). The probabilities of both are calibrated there too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.reading import Gpu
from tocsin.forecaster.features.examples import Floats, Mask, Singles
from tocsin.forecaster.trend.model_threshold import ThresholdForecaster
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.forecaster.trend.seasonal import outlook
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.port import Series
from tocsin_benchmarks.quantiles.series import METRICS, PAST, STEP_MS, Fleet, series

START_MS = 1_750_032_000_000
LIMITS = {"gpu_memory_used_ratio": 0.9, "gpu_temperature_celsius": 80.0}
AHEAD = (12, 36)
"""Steps of ten minutes: 2 h and 6 h."""
EVERY = 12
"""Steps between two windows of a GPU."""
POOL_HOURS = (6, 24, 48)
SHARES = np.arange(1, 10) / 10

Model = Callable[[Floats, int], Floats]
"""Pasts [n, t] and steps ahead to quantiles [n, ahead, 9]."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Windows whose newest value lies below the limit: pasts [n, PAST], and when within the horizons it was crossed."""

    past: Floats
    power: Floats
    end_ms: Floats
    crossed: dict[int, Mask]


def cases_of(values: Singles, metric: str, every: int) -> Cases:
    """A window of every GPU each `every` steps."""
    column, limit = METRICS.index(metric), LIMITS[metric]
    ends = np.arange(PAST, values.shape[1] - max(AHEAD) + 1, every)
    found = []
    for end in ends.tolist():
        past = values[:, end - PAST : end, column].astype(np.float64)
        power = values[:, end - PAST : end, METRICS.index("gpu_power_watts")].astype(np.float64)
        keep = np.isfinite(past).all(axis=1) & np.isfinite(power).all(axis=1) & (past[:, -1] < limit)
        after = values[keep, end : end + max(AHEAD), column]
        crossed = [np.nan_to_num(after[:, :steps], nan=-np.inf).max(axis=1) >= limit for steps in AHEAD]
        found.append((past[keep], power[keep], np.full(int(keep.sum()), START_MS + end * STEP_MS), np.array(crossed).T))
    past, power, end_ms, hits = (np.concatenate([one[k] for one in found]) for k in range(4))
    return Cases(past, power, end_ms, {steps: hits[:, k] for k, steps in enumerate(AHEAD)})


def shipped(cases: Cases, metric: str) -> dict[int, Floats]:
    """Probability of a crossing within each horizon, as the service states it; 0 where it says nothing."""
    said = {steps: np.zeros(len(cases.past)) for steps in AHEAD}
    for steps in AHEAD:
        model = ThresholdForecaster(steps * STEP_MS / HOUR)
        for row, (past, power) in enumerate(zip(cases.past, cases.power, strict=True)):
            end_ms = int(cases.end_ms[row])
            at_ms = end_ms - STEP_MS * np.arange(PAST, dtype=np.int64)[::-1]
            limits = np.full(PAST, LIMITS["gpu_temperature_celsius"] + 7.0)
            names = (metric, "gpu_power_watts", "gpu_temperature_slowdown_celsius")
            columns = Series("g", names, at_ms, np.column_stack((past, power, limits)))
            made = model.predict([GpuHistory(Gpu("g", "h", index=0), columns)], end_ms)
            said[steps][row] = next((p.probability or 0.0 for p in made if p.metric == metric), 0.0)
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


def judge(stated: Floats, came: Mask, learned: Floats, known: Mask) -> tuple[float, float, float]:
    """AUC, Brier skill as stated, and Brier skill once calibrated on the other fleet."""
    calibrated = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(learned, known).predict(stated)
    base = float(came.mean() * (1 - came.mean()))
    skills = [1.0 - float(np.mean((one - came) ** 2)) / base for one in (stated, calibrated)]
    return float(roc_auc_score(came, stated)), skills[0], skills[1]


def crossings(gpus: int, days: int, model: Model, seeds: tuple[int, int]) -> list[str]:
    """A line of the table for each metric, horizon and model."""
    fleets = [series(Fleet(gpus, days, seed, START_MS, 20.0)) for seed in seeds]
    lines = []
    for metric, limit in LIMITS.items():
        first, second = (cases_of(values, metric, EVERY) for values in fleets)
        ships, took = [shipped(one, metric) for one in (first, second)], []
        begun = time.process_time()
        raw = [model(one.past, max(AHEAD)) for one in (first, second)]
        took.append((time.process_time() - begun) / (len(first.past) + len(second.past)))
        truth = _after(fleets[0], metric)
        moved = conformal(raw[0], truth)
        for steps in AHEAD:
            came, known = second.crossed[steps], first.crossed[steps]
            if came.all() or not came.any() or not known.any():
                lines.append(
                    f"| {metric} | {steps * STEP_MS // HOUR} h | {len(came)} | {int(came.sum())} | too few | | | |"
                )
                continue
            theirs = [above((one + moved)[:, :steps], limit) for one in raw]
            for name, (learned, stated) in {
                "ships": (ships[0][steps], ships[1][steps]),
                "fracast": (theirs[0], theirs[1]),
            }.items():
                auc, as_stated, calibrated = judge(stated, came, learned, known)
                lines.append(
                    f"| {metric} | {steps * STEP_MS // HOUR} h | {len(came)} | {int(came.sum())} | {name} | {auc:.3f} |"
                    f" {as_stated:.3f} | {calibrated:.3f} |"
                )
        lines.append(f"| {metric} | | | | fracast: {1000 * took[0]:.1f} ms of processor a forecast | | | |")
    return lines


def _after(values: Singles, metric: str) -> Floats:
    column, limit = METRICS.index(metric), LIMITS[metric]
    found = []
    for end in np.arange(PAST, values.shape[1] - max(AHEAD) + 1, EVERY).tolist():
        past = values[:, end - PAST : end, column]
        power = values[:, end - PAST : end, METRICS.index("gpu_power_watts")]
        keep = np.isfinite(past).all(axis=1) & np.isfinite(power).all(axis=1) & (past[:, -1] < limit)
        found.append(values[keep, end : end + max(AHEAD), column])
    return np.concatenate(found).astype(np.float64)


def pools(gpus: int, days: int, model: Model, seeds: Sequence[int]) -> list[str]:
    """Pinball loss and coverage of the interval of 0.8 of hourly load, by horizon, over the pools of some fleets."""
    rows: dict[tuple[str, int], list[tuple[float, bool]]] = {}
    for seed in seeds:
        load = _load(gpus, days, seed)
        for pool in load:
            for end in range(21 * 24, len(pool) - max(POOL_HOURS), 24):
                past = pool[end - 21 * 24 : end]
                paths = outlook(past, max(POOL_HOURS)).paths
                theirs = model(past[None], max(POOL_HOURS))[0]
                for ahead in POOL_HOURS:
                    mine = np.quantile(paths[ahead - 1], SHARES)
                    for name, found in (("ships", mine), ("fracast", theirs[ahead - 1])):
                        truth = pool[end + ahead - 1]
                        miss = truth - found
                        loss = float(np.maximum(SHARES * miss, (SHARES - 1) * miss).mean())
                        rows.setdefault((name, ahead), []).append((loss, bool(found[0] <= truth <= found[-1])))
    return [
        f"| load of pools | {ahead} h | {len(found)} | {name} | {np.mean([one for one, _ in found]):.4f} |"
        f" {np.mean([held for _, held in found]):.3f} |"
        for (name, ahead), found in sorted(rows.items(), key=lambda one: (one[0][1], one[0][0]))
    ]


def _load(gpus: int, days: int, seed: int) -> list[Floats]:
    """Hourly mean utilisation of each pool."""
    fleet = SimulatedFleet(FleetSpec(gpus=gpus, seed=seed, start_ms=START_MS, interval_ms=HOUR // 6))
    names = [reading.gpu.pool for reading in fleet.step().readings]
    places = {name: [k for k, one in enumerate(names) if one == name] for name in sorted(set(names))}
    ticks = [fleet.step_columns(("gpu_utilization_ratio",))[0].values[:, 0] for _ in range(days * DAY // (HOUR // 6))]
    table = np.array(ticks, np.float64).reshape(days * 24, 6, -1)
    return [np.nanmean(table[:, :, rows], axis=(1, 2)) for rows in places.values() if rows]


@click.command()
@click.option("--gpus", default=16, show_default=True)
@click.option("--days", default=3, show_default=True)
def main(gpus: int, days: int) -> None:
    """Print the two tables."""
    model = fracast()
    head = ("metric", "within", "cases", "crossed", "model", "AUC", "Brier skill as stated", "calibrated")
    click.echo(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for line in crossings(gpus, days, model, (3, 4)):
        click.echo(line)
    click.echo("\n| what | ahead | forecasts | model | pinball | within 0.8 |\n|---|---|---|---|---|---|")
    for line in pools(64, 30, model, (5,)):
        click.echo(line)


if __name__ == "__main__":
    main()
