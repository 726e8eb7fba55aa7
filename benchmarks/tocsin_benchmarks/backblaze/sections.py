"""Sections of the report on drives: figures with intervals by drive, paired differences, thresholds, first alarms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.evaluation.bootstrap import clusters, figure, ratio
from tocsin.forecaster.evaluation.figures import Panel, alarm_figures, population, with_bars
from tocsin.forecaster.evaluation.ranking import budget_name, precision_recall
from tocsin.forecaster.evaluation.reliability import reliability_curve, reliability_table
from tocsin.forecaster.evaluation.result import Figure, ReportSection, ReportTable
from tocsin.forecaster.features.examples import NEVER, Examples, Floats, Ints, Mask
from tocsin_benchmarks.backblaze.models import ENSEMBLE, HORIZON_MS, MODELS
from tocsin_benchmarks.backblaze.pool import TRIVIAL_RANKS, Pool

# First alarms of drives: whom they warn of, how long before, and how many healthy drives they name.

LEADS_H = (24, 48)


@dataclass(frozen=True, slots=True)
class First:
    """By drive: what it weighs, the days that it was watched, whether it fails, whether it is ever alarmed about, and
    the span in ms from its first alarm to its failure (0 without either)."""

    weight: Floats
    days: Floats
    fails: Mask
    alarmed: Mask
    lead_ms: Ints


def first_alarms(sweep: Examples, alarm: Mask) -> First:
    """Of `sweep`, every day of its drives, and `alarm` [n]."""
    drives, of_row = np.unique(sweep.device, return_inverse=True)
    weight, event_ms = np.zeros(drives.size), np.zeros(drives.size, dtype=np.int64)
    weight[of_row], event_ms[of_row] = sweep.weight, sweep.event_ms
    first_ms = np.full(drives.size, NEVER)
    np.minimum.at(first_ms, of_row[alarm], sweep.at_ms[alarm])
    fails, alarmed = event_ms != NEVER, first_ms != NEVER
    lead_ms = np.where(fails & alarmed, event_ms, first_ms) - first_ms
    return First(weight, np.bincount(of_row).astype(np.float64), fails, alarmed, lead_ms)


def alarm_draws(sweep: Examples, alarm: Mask, draws: int, seed: int) -> dict[str, Floats]:
    """float64[1 + draws], drives drawn: `hit`, the share of failing drives that fail within 48 h after their first
    alarm; `warned`, those with any alarm before, `warned_24h` and `warned_48h` with the first so long before;
    `precision`, the share of first alarms that a failure follows within 48 h; `false_per_1000_days`."""
    one = first_alarms(sweep, alarm)
    drawn = clusters(np.arange(one.weight.size), draws, seed)
    failing = drawn.total(one.weight * one.fails)
    warned = one.fails & one.alarmed
    hit = warned & (one.lead_ms <= HORIZON_MS)
    raised, right = drawn.total(one.weight * one.alarmed), drawn.total(one.weight * hit)
    days = drawn.total(one.weight * one.days)
    return {
        "hit": ratio(right, failing),
        "warned": ratio(drawn.total(one.weight * warned), failing),
        **{
            f"warned_{hours}h": ratio(drawn.total(one.weight * (warned & (one.lead_ms >= hours * HOUR))), failing)
            for hours in LEADS_H
        },
        "precision": ratio(right, raised),
        "false_per_1000_days": ratio(1000.0 * (raised - right), days),
    }


BARS = {"roc_auc": 0.89, "auprc_x_base": 330.0, "recall_at_1pct": 0.51}
"""What the ensemble must reach."""

PAIRS = ((ENSEMBLE, "boosting"), ("lstm", "boosting"))
WHOLE = "all decisions of the test folder"

Row = tuple[str | float | int | None, ...]
Draws = Mapping[str, Mapping[str, Floats]]


def sections(pool: Pool, draws: int, seed: int, *, given: bool) -> list[ReportSection]:
    """The strictest split first. Without a test folder there is but that one."""
    if not given:
        return [section("other drives, later time", pool, draws, seed)]
    masks = {
        "other drives, later time": (~pool.shared & pool.later, ~pool.sweep_shared & pool.sweep_later),
        "drives of the train folder, later time": (pool.shared & pool.later, pool.sweep_shared & pool.sweep_later),
        "other drives, same time": (~pool.shared & ~pool.later, ~pool.sweep_shared & ~pool.sweep_later),
    }
    made = [
        section(title, pool.part(rows, sweep), draws, seed)
        for title, (rows, sweep) in masks.items()
        if _judgeable(pool, rows)
    ]
    if not made or (len(made) > 1 and _judgeable(pool, np.ones(len(pool.rows), dtype=np.bool_))):
        made.append(section(WHOLE, pool, draws, seed))
    return made


def _judgeable(pool: Pool, rows: Mask) -> bool:
    label, _ = pool.rows.label(HORIZON_MS)
    return bool(label[rows].any())


def section(title: str, pool: Pool, draws: int, seed: int) -> ReportSection:
    """All figures of all models on the rows of `pool`."""
    panel = Panel(pool.rows, HORIZON_MS, draws=draws, seed=seed)
    drawn = {name: panel.draws(score, rank=name in TRIVIAL_RANKS) for name, score in pool.scores.items()}
    models = {name: _figures(values) for name, values in drawn.items()}
    for name in MODELS:
        models[name] |= _of_drives(pool, name, draws, seed)
    models[ENSEMBLE] = with_bars(models[ENSEMBLE], BARS)
    models |= {f"{one} minus {other}": _difference(drawn, one, other) for one, other in PAIRS}
    label, weight = panel.label, pool.rows.weight
    probable = {name: pool.scores[name] for name in MODELS}
    return ReportSection(
        title=f"Failure within 48 h: {title}",
        models=models,
        population={**population(pool.rows, HORIZON_MS), "silent_share": silent_share(pool)},
        tables=(
            _threshold_table(pool, panel),
            _drive_table(models),
            *(reliability_table(name, score, label, weight) for name, score in probable.items()),
        ),
        curves=(precision_recall(probable, label, weight), reliability_curve(probable, label, weight)),
        notes=_notes(models),
    )


def silent_share(pool: Pool) -> float:
    """Of the drives that fail, those without a sector counter above zero at the newest decision before; NaN without
    any."""
    label, _ = pool.rows.label(HORIZON_MS)
    rows = np.flatnonzero(label)
    rows = rows[np.lexsort((pool.rows.at_ms[rows], pool.rows.device[rows]))]
    newest = np.append(np.diff(pool.rows.device[rows]) != 0, True)[: rows.size]
    return float(pool.silent[rows[newest]].mean()) if rows.size else float("nan")


def _figures(values: Mapping[str, Floats]) -> dict[str, Figure]:
    return {name: figure(one) for name, one in values.items() if np.isfinite(one[0])}


def _of_drives(pool: Pool, name: str, draws: int, seed: int) -> dict[str, Figure]:
    out: dict[str, Figure] = {}
    for (model, budget), alarm in pool.sweep_alarms.items():
        if model == name and alarm.size:
            values = alarm_draws(pool.sweep, alarm, draws, seed)
            out |= {f"drives_{key}_at_{budget_name(budget)}": one for key, one in _figures(values).items()}
    return out


def _difference(drawn: Draws, one: str, other: str) -> dict[str, Figure]:
    """Paired: both models in the same draws."""
    return _figures({name: drawn[one][name] - drawn[other][name] for name in (*BARS, "recall_at_0.1pct")})


def _threshold_table(pool: Pool, panel: Panel) -> ReportTable:
    rows: list[Row] = []
    for (name, budget), alarm in pool.alarms.items():
        values = alarm_figures(alarm, panel.label, pool.rows.weight, panel.drawn)
        share = float(np.average(alarm, weights=pool.rows.weight))
        kinds = ("recall", "precision", "balanced_accuracy", "accuracy")
        rows.append((name, f"{budget * 100:g} %", share, *(_finite(values[kind][0]) for kind in kinds)))
    head = ("model", "budget", "windows alerted", "recall", "precision", "balanced accuracy", "accuracy")
    return ReportTable("Alerts at thresholds chosen on drives of the train part", head, rows)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


_OF_DRIVES = ("hit", "warned", "warned_24h", "warned_48h", "precision", "false_per_1000_days")


def _drive_table(models: Mapping[str, Mapping[str, Figure]]) -> ReportTable:
    rows: list[Row] = []
    for name in MODELS:
        for budget in ("0.1pct", "1pct"):
            found = [models[name].get(f"drives_{key}_at_{budget}") for key in _OF_DRIVES]
            rows.append((name, budget, *(None if one is None else one.value for one in found)))
    head = (
        "model",
        "budget",
        "fails within 48 h of the first alarm",
        "alarm at any time before",
        "24 h before",
        "48 h before",
        "first alarms that were right",
        "false first alarms per 1,000 drive-days",
    )
    return ReportTable("Failing drives and first alarms, at the same thresholds", head, rows)


def _notes(models: Mapping[str, Mapping[str, Figure]]) -> tuple[str, ...]:
    said = []
    for one, other in PAIRS:
        pair = models[f"{one} minus {other}"]
        above = [name for name, value in pair.items() if value.low is not None and value.low > 0]
        below = [name for name, value in pair.items() if value.high is not None and value.high < 0]
        text = f"The {one} is above {other} by more than the bootstrap noise in {', '.join(above) or 'no figure'}"
        said.append(f"{text} and below it in {', '.join(below)}." if below else f"{text}.")
    missed = [name for name, value in models[ENSEMBLE].items() if value.holds is False]
    if missed:
        said.append(f"Bars that the ensemble does not reach here: {', '.join(missed)}.")
    return tuple(said)
