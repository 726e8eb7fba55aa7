"""Quantiles of memory, temperature and fragmentation ahead: the LSTM beside exponential smoothing and persistence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.deep.quantiles import SHARES, LstmQuantiles, QuantileSettings, Windows
from tocsin.forecaster.evaluation.bootstrap import clusters, figure, ratio
from tocsin.forecaster.evaluation.result import DataSet, Figure, ReportSection, ReportTable, Request, Result, researched
from tocsin.forecaster.features.examples import Floats, Ints, Singles
from tocsin.forecaster.trend.smoothing import quantiles
from tocsin_benchmarks.quantiles.series import AHEAD, STEP_MS, TARGETS, Fleet, series, windows

START_MS = 1_750_032_000_000
"""2025-06-16T00:00:00Z, a Monday."""
SHORT = {"gpu_memory_used_ratio": "memory", "gpu_temperature_celsius": "temperature"}
PERSISTENCE, ETS, BEST_ETS, LSTM = "persistence", "ets", "ets (chosen)", "lstm"
RIVALS = (ETS, BEST_ETS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to simulate and how many windows to ask all models about; smoothing takes most of the time."""

    train_gpus: int = 128
    test_gpus: int = 64
    days: int = 10
    every: int = 18
    asked: int = 240
    faults: float = 20.0
    epochs: int = 25


QUICK = Plan(train_gpus=16, test_gpus=16, days=4, every=24, asked=12, epochs=2)


def run(request: Request) -> Result:
    """The comparison as a report; there is no data folder to read, so `train` and `test` are not looked at."""
    section = compare_with_ets(QUICK if request.quick else Plan(), request.seed, request.draws)
    return Result(
        dataset="quantiles",
        protocol=(
            "A simulated fleet to learn from; another one of other GPUs, another seed and a later time to ask about. "
            "Each model sees a day of past in steps of ten minutes and names three quantiles of the value at five "
            "horizons."
        ),
        source="the simulator of this project",
        sections=researched([section]),
    )


def compare_with_ets(plan: Plan, seed: int = 0, draws: int = 200) -> ReportSection:
    """Pinball loss and coverage of the LSTM, of ETS(A, A, N), of the ETS with the least corrected Akaike criterion, and
    of persistence with the quantiles of all changes in the fleet that is learned from."""
    learned, known = _fleet(plan, plan.train_gpus, seed, START_MS, plan.every, 0)
    asked, truth = _fleet(plan, plan.test_gpus, seed + 1, START_MS + 30 * DAY, 5, 0)
    rows = _drawn(truth, plan.asked, seed)
    asked, truth = asked.take(rows), truth[rows]
    lstm = LstmQuantiles(QuantileSettings(targets=TARGETS, ahead=AHEAD, epochs=plan.epochs, seed=seed))
    lstm.fit(learned, known)
    found = {
        LSTM: lstm.forecast(asked),
        ETS: _smoothed(asked, select=False),
        BEST_ETS: _smoothed(asked, select=True),
        PERSISTENCE: _persistence(asked, learned, known),
    }
    return _section(found, truth, asked, plan, draws, seed)


def _fleet(plan: Plan, gpus: int, seed: int, start_ms: int, every: int, offset: int) -> tuple[Windows, Singles]:
    return windows(series(Fleet(gpus, plan.days, seed, start_ms, plan.faults)), start_ms, every, offset)


def _drawn(truth: Singles, count: int, seed: int) -> Ints:
    """Windows of which every target is known at some horizon."""
    whole = np.flatnonzero(np.isfinite(truth).any(axis=2).sum(axis=1) == len(TARGETS))
    return np.sort(np.random.default_rng(seed).permutation(whole)[:count])


def _each(asked: Windows, forecast: Callable[[Floats], Floats | None]) -> Floats:
    """float64[n, targets, ahead, shares] from a forecast of one series whose gaps are bridged by straight lines."""
    found = np.full((len(asked.past), len(TARGETS), len(AHEAD), len(SHARES)), np.nan)
    steps = np.arange(asked.past.shape[1])
    for row, past in enumerate(asked.past):
        for target in range(len(TARGETS)):
            there = np.isfinite(past[:, target])
            answer = forecast(np.interp(steps, steps[there], past[there, target].astype(np.float64)))
            if answer is not None:
                found[row, target] = answer
    return found


def _smoothed(asked: Windows, select: bool) -> Floats:
    """Where no fit succeeds, the last value without any spread."""
    still = np.ones((len(AHEAD), len(SHARES)))

    def forecast(values: Floats) -> Floats:
        found = quantiles(values, AHEAD, SHARES, select)
        return still * values[-1] if found is None else found

    return _each(asked, forecast)


def _persistence(asked: Windows, learned: Windows, known: Singles) -> Floats:
    """The last value and the quantiles of all changes."""
    before = _last(learned)
    change = np.nanquantile(known - before[:, :, None], SHARES, axis=0)
    return np.asarray(_last(asked)[:, :, None, None] + np.moveaxis(change, 0, -1), np.float64)


def _last(windows: Windows) -> Floats:
    """float64[n, targets]: the newest known value, NaN without any."""
    past = windows.past[:, :, : len(TARGETS)]
    newest = past.shape[1] - 1 - np.isfinite(past)[:, ::-1].argmax(axis=1)
    return np.asarray(np.take_along_axis(past, newest[:, None], axis=1)[:, 0], np.float64)


def loss(found: Floats, truth: Singles) -> Floats:
    """float64[n, targets, ahead]: pinball loss, mean over the quantiles."""
    miss = truth[..., None].astype(np.float64) - found
    share = np.array(SHARES)
    return np.asarray(np.maximum(share * miss, (share - 1) * miss).mean(axis=-1), np.float64)


def covered(found: Floats, truth: Singles) -> Floats:
    """float64[n, targets, ahead]: 1 where the value lies within the outer quantiles, up to rounding; NaN if unknown."""
    slack = 1e-6 * np.maximum(1.0, np.abs(truth))
    inside = (truth >= found[..., 0] - slack) & (truth <= found[..., -1] + slack)
    return np.where(np.isfinite(truth), inside, np.nan)


def _section(
    found: Mapping[str, Floats], truth: Singles, asked: Windows, plan: Plan, draws: int, seed: int
) -> ReportSection:
    group = clusters(asked.device, draws, seed)
    losses = {name: loss(one, truth) for name, one in found.items()}
    held = {name: covered(one, truth) for name, one in found.items()}

    def mean(values: Floats) -> Floats:
        there = np.isfinite(values)
        return ratio(group.total(np.where(there, values, 0.0)), group.total(there.astype(np.float64)))

    models: dict[str, dict[str, Figure]] = {}
    for name in found:
        models[name] = {
            **{f"pinball, {_short(t)}": figure(_relative(losses, name, i, mean)) for i, t in enumerate(TARGETS)},
            "coverage": figure(np.mean([mean(held[name][:, i, k]) for i, k in _cells()], axis=0)),
        }
    means = {name: {cell: float(mean(losses[name][:, *cell])[0]) for cell in _cells()} for name in found}
    return ReportSection(
        title="Quantiles ahead, against exponential smoothing",
        models=models,
        population={
            "windows": len(truth),
            "GPUs": int(np.unique(asked.device).size),
            "days": plan.days,
            "fault rate x": plan.faults,
        },
        tables=[_table(f"Pinball loss, {_short(t)}", i, means) for i, t in enumerate(TARGETS)]
        + [_coverage(i, t, held, mean) for i, t in enumerate(TARGETS)],
        notes=_notes(means),
    )


def _relative(losses: Mapping[str, Floats], name: str, target: int, mean: Callable[[Floats], Floats]) -> Floats:
    """Mean over horizons of the loss as a multiple of that of persistence."""
    every = range(len(AHEAD))
    parts = [ratio(mean(losses[name][:, target, k]), mean(losses[PERSISTENCE][:, target, k])) for k in every]
    return np.asarray(np.mean(parts, axis=0), np.float64)


def _cells() -> list[tuple[int, int]]:
    return [(i, k) for i in range(len(TARGETS)) for k in range(len(AHEAD))]


def _table(title: str, target: int, means: Mapping[str, Mapping[tuple[int, int], float]]) -> ReportTable:
    rows: list[list[str | float]] = [
        [name, *(round(means[name][target, k], 5) for k in range(len(AHEAD)))] for name in means
    ]
    return ReportTable(title, ["model", *_horizons()], rows)


def _coverage(target: int, metric: str, held: Mapping[str, Floats], mean: Callable[[Floats], Floats]) -> ReportTable:
    rows: list[list[str | float]] = [
        [name, *(round(float(mean(one[:, target, k])[0]), 3) for k in range(len(AHEAD)))] for name, one in held.items()
    ]
    return ReportTable(f"Share within the interval of 0.8, {_short(metric)}", ["model", *_horizons()], rows)


def _notes(means: Mapping[str, Mapping[tuple[int, int], float]]) -> list[str]:
    """Who wins where, in words."""
    notes = [
        "Pinball losses by metric are multiples of that of persistence, mean over the horizons: below 1 is better."
    ]
    for rival in (*RIVALS, PERSISTENCE):
        lost = [cell for cell in _cells() if means[LSTM][cell] >= means[rival][cell]]
        words = ", ".join(f"{_short(TARGETS[i])} {_horizons()[k]}" for i, k in lost)
        beaten = len(_cells()) - len(lost)
        notes.append(
            f"The LSTM has the lower loss than {rival} in {beaten} of {len(_cells())} cases"
            + (f"; {rival} is as good or better for {words}." if lost else ".")
        )
    return notes


def _short(metric: str) -> str:
    return SHORT.get(metric, "fragmentation")


def _horizons() -> list[str]:
    return [f"{k * STEP_MS // HOUR} h" if k * STEP_MS >= HOUR else f"{k * STEP_MS // 60_000} min" for k in AHEAD]


DATASET = DataSet(run, reads=False)
