"""The simulated fleet: faults with a precursor of days, all faults, and memory that runs full or to pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.evaluation.figures import population, standard, with_bars
from tocsin.forecaster.evaluation.reliability import reliability_curve, reliability_table
from tocsin.forecaster.evaluation.result import DataSet, ReportSection, Request, Result
from tocsin.forecaster.evaluation.trivial import BASE_RATES, RECENCY, base_rates, recency
from tocsin.forecaster.features.examples import Floats
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.sim.scenario import Scenario
from tocsin.sim.scenarios import scenario_of
from tocsin_benchmarks.simulator.filling import filling_section
from tocsin_benchmarks.simulator.fleet import EVERY_MS, Recipe, Simulated, lasts_days, simulate
from tocsin_benchmarks.simulator.models import HEADLINE, HORIZON_MS, best_threshold, learn
from tocsin_benchmarks.simulator.single import Single, single_table, single_thresholds

SOURCE = "Made up by the simulated fleet (docs/simulation.md) from a scenario file; nothing in it was measured."
PROTOCOL = (
    "Three fleets of different seeds, so of different devices and faults: one to learn from, one for calibration "
    "and thresholds, one to judge. Decisions fall every 6 h from day 7 on. A device is left out from a fault's "
    "onset until it is repaired and three days have passed. Of faults with a precursor of days (3 or more), the "
    "rows within 48 h before the onset are told from all rows without any fault in the next 48 h: benign "
    "precursors, and instants of a precursor more than 48 h before its onset, count as health. All faults: every "
    "hardware fault, abrupt ones among them. Rows before abrupt faults are not learned from, but calibrated and "
    "judged on. Hardware faults strike many times as often as the scenario says, so that there are enough to "
    "count; base rate, precision and false alarms belong to that rate."
)
SINGLE, SINGLE_OF_TRAIN = "best single threshold", "single threshold chosen on the train part"
BALANCED, MOST_SINGLE, MOST_ERROR = 0.92, 0.80, 0.03
DAYS = 45.0
SCALE = 50.0
SIZES = (1536, 768, 1024)
"""GPUs to learn from, to calibrate on, to judge."""
QUICK_SIZES, QUICK_DAYS, QUICK_SCALE = (128, 96, 96), 16.0, 600.0


@dataclass(frozen=True, slots=True)
class Fleets:
    """To learn from, to calibrate and choose thresholds on, to judge."""

    train: Simulated
    later: Simulated
    test: Simulated


@dataclass(frozen=True, slots=True)
class Judged:
    """Each model's scores of the fleet that is judged, and its threshold: that of the highest balanced accuracy on the
    fleet that was neither learned from nor judged."""

    scores: Mapping[str, Floats]
    limits: Mapping[str, float]


def run(request: Request) -> Result:
    """Simulate, learn, judge. Folders are not looked at. Raises InputError for a scenario that cannot be read."""
    scenario = scenario_of(request.scenario)
    fleets = _fleets(scenario, request)
    told = judge(learn(fleets.train, fleets.later.examples, request.seed, request.quick), fleets)
    sections = [days_section(fleets, told, request), every_section(fleets, told, request)]
    sections.append(filling_section(scenario, request.seed, request.quick))
    notes = (f"Scenario {scenario.name}: {scenario.about}",)
    return Result("simulator", PROTOCOL, SOURCE, sections, notes)


def _fleets(scenario: Scenario, request: Request) -> Fleets:
    sizes, days, scale = (QUICK_SIZES, QUICK_DAYS, QUICK_SCALE) if request.quick else (SIZES, DAYS, SCALE)
    seeds = (request.seed * 1000 + number for number in (11, 12, 13))
    made = [simulate(Recipe(gpus, days, seed, scale, scenario)) for gpus, seed in zip(sizes, seeds, strict=True)]
    return Fleets(*made)


def judge(scorers: Mapping[str, Scorer], fleets: Fleets) -> Judged:
    """What `scorers` say of the fleet that is judged, with thresholds from the one before."""
    rows = fleets.later.rows(HORIZON_MS)
    later = fleets.later.examples.take(rows)
    label = later.label(HORIZON_MS)[0]
    limits = {name: best_threshold(scorer.score(later)[:, -1], label)[0] for name, scorer in scorers.items()}
    return Judged({name: scorer.score(fleets.test.examples)[:, -1] for name, scorer in scorers.items()}, limits)


def days_section(fleets: Fleets, told: Judged, request: Request) -> ReportSection:
    """Faults with a precursor of days against health."""
    train, test, rows = fleets.train.judged(HORIZON_MS), fleets.test.judged(HORIZON_MS), fleets.test.rows(HORIZON_MS)
    found = single_thresholds(train, test, request.seed)
    singles = {SINGLE: found[0], SINGLE_OF_TRAIN: max(found, key=lambda one: (one.tuned, one.feature))}
    scores = {name: score[rows] for name, score in told.scores.items()}
    scores |= {name: one.score(test) for name, one in singles.items()}
    limits = {**told.limits, **dict.fromkeys(singles, 0.5)}
    figures = standard(
        scores, test, HORIZON_MS, draws=request.draws, seed=request.seed, thresholds=limits, ranks=tuple(scores),
        every_ms=EVERY_MS,
    )  # fmt: skip
    figures[HEADLINE] = with_bars(figures[HEADLINE], {"balanced_accuracy": BALANCED})
    figures[SINGLE] = with_bars(figures[SINGLE], {"balanced_accuracy": MOST_SINGLE}, least=False)
    tables = (single_table(train, test, found, request.seed),)
    return ReportSection(
        "Faults with a precursor of days, 48 h", figures, population(test, HORIZON_MS), tables, (), _words(found[0])
    )


def _words(single: Single) -> tuple[str, ...]:
    return (
        f"'{SINGLE}' is the best of all features by the test part itself, here {single.feature}; its threshold is "
        "tuned with full knowledge of the train part. Each feature tells of one class of faults only; the table has "
        "each class alone, where a threshold gets further.",
        "Scores are calibrated for every fault, so their calibration is judged there.",
    )


def every_section(fleets: Fleets, told: Judged, request: Request) -> ReportSection:
    """Every hardware fault, with the thresholds of the section before."""
    test = fleets.test.examples
    trivial = {BASE_RATES: base_rates(fleets.train.examples, test, HORIZON_MS), RECENCY: recency(test)}
    figures = standard(
        {**told.scores, **trivial}, test, HORIZON_MS, draws=request.draws, seed=request.seed, thresholds=told.limits,
        ranks=(RECENCY,), every_ms=EVERY_MS,
    )  # fmt: skip
    figures[HEADLINE] = with_bars(figures[HEADLINE], {"calibration_error": MOST_ERROR}, least=False)
    label, known = test.label(HORIZON_MS)
    stated = told.scores[HEADLINE][known]
    table = reliability_table(HEADLINE, stated, label[known], test.weight[known])
    curve = replace(
        reliability_curve({HEADLINE: stated}, label[known], test.weight[known]), title="Reliability, all faults"
    )
    return ReportSection(
        "All hardware faults, 48 h", figures, population(test, HORIZON_MS) | _shares(fleets.test), (table,), (curve,)
    )


def _shares(simulated: Simulated) -> dict[str, float | int | str]:
    """What the faults of the fleet that is judged were."""
    struck = [fault for fault in simulated.faults if fault.onset_ms is not None]
    warned = [fault for fault in simulated.faults if not fault.abrupt]
    return {
        "faults_that_struck": len(struck),
        "abrupt_share": float(np.mean([fault.abrupt for fault in struck])) if struck else float("nan"),
        "of_days_share": float(np.mean([lasts_days(fault) for fault in struck])) if struck else float("nan"),
        "benign_share_of_precursors": float(np.mean([fault.benign for fault in warned])) if warned else float("nan"),
        "decision_every_days": EVERY_MS / DAY,
    }


DATASET = DataSet(run, reads=False, scenarios=True)
