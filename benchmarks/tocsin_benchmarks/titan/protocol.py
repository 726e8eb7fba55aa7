"""Titan: which of 18,688 GPUs has a double-bit error or drops off the bus within 48 h, from event histories alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.progress import track
from tocsin.forecaster.evaluation.figures import population, standard, with_bars
from tocsin.forecaster.evaluation.leak import leak_factor
from tocsin.forecaster.evaluation.reliability import reliability_curve, reliability_table
from tocsin.forecaster.evaluation.result import DataSet, ReportSection, Request, Result, researched
from tocsin.forecaster.evaluation.split import Split, SplitKind, by_time, check_parts
from tocsin.forecaster.features.examples import Examples, Floats, Mask
from tocsin_benchmarks.tables import joined
from tocsin_benchmarks.titan.data import Fleet, fleet_of, read_lives
from tocsin_benchmarks.titan.examples import examples
from tocsin_benchmarks.titan.models import BOOSTING, COUNTED, HAZARD, RANKS, RATE, Scored, fitted, learn
from tocsin_benchmarks.titan.snapshots import HORIZON_MS, snapshots
from tocsin_benchmarks.titan.walk import PACE, Pace

TIME_BARS = {"roc_auc": 0.84, "auprc_x_base": 8.0}
DEVICE_BARS = {"roc_auc": 0.82, "auprc_x_base": 7.0}
SETTLING_DAYS = 30
"""Instants sooner than this after the first line are not learned from: rates and recencies are empty there."""
LEAST_TEST_DAYS = 180
"""The test is the last calendar year of which at least so many days are there."""
FOLDS = 5
LEAST_ONSETS = 50
"""With fewer in the test a bar says nothing (own choice)."""

SOURCE = (
    "GPU lives of the Titan machine, Oak Ridge (Ostrouchov, Maxwell, Ashraf, Engelmann, Shankar and Rogers,"
    " GPU Lifetimes on Titan Supercomputer, SC 2020)"
)
PROTOCOL = (
    "Each GPU in place is asked at 00:00 UTC of every day whether a new onset (double-bit error or off the bus) follows"
    " within 48 h. The instant of an error is its remove; errors of one GPU within 7 days of each other are one onset;"
    " instants within 7 days after an error, and those whose 48 h are not observed, are left out. Rows without an onset"
    " near them are sampled, and weighted exactly. Intervals draw GPUs. Features are made of events up to the instant"
    " alone."
)
NOTES = (
    "The rate is counted, not trained: place effects by weekly Poisson regression on the past, shrunk ratios of blades,"
    " cages and serial-number lots, and a rate of repetition. It goes on counting through the test span, always from"
    " what has happened by then. Training fits how its probability reads and, from 200 onsets on, trees that say where"
    " it errs. All constants were chosen on 2015 from what came before 2015, July and October; there the trees hurt"
    " with 50 onsets to learn from and no more with 100.",
    "Tried on those folds of 2015: fixed place tables, one memory instead of three, priors of other weights, linear and"
    " multiplied own-history terms, recency of neighbours, weekday, distance to the last maintenance, age, boosted"
    " trees and logistic regression on all of them. None was better there than the counted rate. The test year was"
    " seen with the regressions, with the counted rate, and its second half with the trees.",
    "Most GPUs fail once and give no sign of their own before: what is foreseen is where and when failures gather.",
)

ALARM_NOTE = (
    "Figures of alarms: the threshold is that of 1 % of all windows in the last half year of train. The fleet's rate"
    " moves, and the share of alarms with it."
)


@dataclass(frozen=True, slots=True)
class _Effort:
    """How large a run is."""

    train_rows: int = 150_000
    test_rows: int = 250_000
    leak_rows: int = 60_000
    folds: int = FOLDS
    pace: Pace = PACE
    names: tuple[str, ...] = (RATE, COUNTED, HAZARD, BOOSTING)


QUICK = _Effort(12_000, 15_000, 8_000, 2, Pace(28 * DAY, (120.0,)), (RATE, COUNTED, HAZARD))


def run(request: Request) -> Result:
    """Without `request.test`, the last year against the years before it, with all GPUs and with GPUs of other folds
    alone. With it, what the test folder tells after the end of the train folder: all its GPUs; those of one fold by
    what was learned from the others, where it goes on with GPUs of train; and GPUs that train never names.

    Raises InputError for folders without usable lines.
    """
    effort = QUICK if request.quick else _Effort()
    if request.quick:
        request = replace(request, draws=min(request.draws, 20))
    sections = _own_folds(request, effort) if request.test is None else _two_folders(request, effort)
    return Result("titan", PROTOCOL, SOURCE, researched(sections), NOTES)


def _own_folds(request: Request, effort: _Effort) -> list[ReportSection]:
    fleet = fleet_of(read_lives(request.train))
    cut_ms = last_year(fleet.end_ms)
    everyone = np.ones(len(fleet.devices), dtype=np.bool_)
    train, test = _parts(fleet, cut_ms, everyone, everyone, request, effort)
    check_parts(train, test, HORIZON_MS, SplitKind.TIME)
    scored = learn(train, request.seed, effort.names).judge(test)
    year = f"train until {_day(cut_ms)}, test from then until {_day(fleet.end_ms)}"
    sections = [_section(f"Time-disjoint: {year}", scored, test, request, TIME_BARS)]
    sections.append(_device_folds(fleet, cut_ms, year, everyone, everyone, request, effort))
    if request.leak:
        sections.append(_leak(fleet, cut_ms, request, effort))
    return sections


def last_year(end_ms: int) -> int:
    """00:00 UTC of 1 January of the last year of which `LEAST_TEST_DAYS` are there."""
    year = datetime.fromtimestamp((end_ms - LEAST_TEST_DAYS * DAY) / 1000, UTC).year
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000)


def _parts(
    fleet: Fleet, cut_ms: int, teachers: Mask, tested: Mask, request: Request, effort: _Effort
) -> tuple[Examples, Examples]:
    """Train rows of `teachers` before the cut, test rows of `tested` after it; rates are learned from teachers."""
    start_ms = int(fleet.insert_ms.min()) + SETTLING_DAYS * DAY
    seed = request.seed
    before = snapshots(fleet, start_ms, cut_ms, effort.train_rows, seed, teachers[fleet.life_device])
    share = float(tested.mean())
    size = max(1, round(effort.test_rows * share))
    after = snapshots(fleet, cut_ms, fleet.end_ms, size, seed + 1, tested[fleet.life_device])
    return (
        examples(fleet, before, teachers, effort.pace),
        examples(fleet, after, teachers, effort.pace),
    )


def _device_folds(
    fleet: Fleet, cut_ms: int, year: str, teachers: Mask, tested: Mask, request: Request, effort: _Effort
) -> ReportSection:
    """GPUs dealt into folds; those `tested` of one fold are judged with rates and models of the `teachers` of the
    others, which never saw an event of theirs but as their own past."""
    fold = np.random.default_rng(request.seed).permutation(len(fleet.devices)) % effort.folds
    names = tuple(name for name in effort.names if name != BOOSTING)
    tests, parts = [], []
    for one in track(range(effort.folds), "folds"):
        train, test = _parts(fleet, cut_ms, teachers & (fold != one), tested & (fold == one), request, effort)
        check_parts(train, test, HORIZON_MS, SplitKind.TIME_AND_DEVICE)
        parts.append(learn(train, request.seed, names).judge(test))
        tests.append(test)
    scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in parts[0].scores}
    thresholds = {name: float(np.mean([part.thresholds[name] for part in parts])) for name in parts[0].thresholds}
    title = f"Time- and device-disjoint, {effort.folds} folds of GPUs: {year}"
    return _section(title, Scored(scores, thresholds), joined(tests), request, DEVICE_BARS)


def _two_folders(request: Request, effort: _Effort) -> list[ReportSection]:
    assert request.test is not None
    first, second = read_lives(request.train), read_lives(request.test)
    alone, both = fleet_of(first), fleet_of(first, second)
    end_ms = alone.end_ms
    everyone = np.ones(len(alone.devices), dtype=np.bool_)
    start_ms = int(alone.insert_ms.min()) + SETTLING_DAYS * DAY
    before = snapshots(alone, start_ms, end_ms, effort.train_rows, request.seed, everyone[alone.life_device])
    train = examples(alone, before, None, effort.pace)
    learned = learn(train, request.seed, effort.names)
    sections = []
    # A folder that goes on with the same machine names of new GPUs only the cards that were put in since: they are
    # young and few, and no sample of the machine.
    goes_on = bool((both.known & both.tested).any()) and end_ms < both.end_ms
    others = ("New cards", {}) if goes_on else ("Time- and device-disjoint", DEVICE_BARS)
    for title, from_ms, chosen, bars in (
        ("Time-disjoint: GPUs of the test folder after the end of train", end_ms, both.tested, TIME_BARS),
        (f"{others[0]}: GPUs that train never names, after its end", end_ms, ~both.known, others[1]),
        ("Device-disjoint: GPUs that train never names, at all instants", start_ms, ~both.known, {}),
    ):
        test = _test_rows(both, from_ms, chosen, request, effort)
        if test is None or (from_ms < end_ms <= test.at_ms.min()):
            continue
        judged = bars if _onsets(test) >= LEAST_ONSETS else {}
        sections.append(_section(title, learned.judge(test), test, request, judged))
    if goes_on and sections:
        span = f"train until {_day(end_ms)}, test from then until {_day(both.end_ms)}"
        sections.insert(1, _device_folds(both, end_ms, span, both.known, both.tested, request, effort))
    if not sections:
        remedy = "give a test folder with GPUs of its own, or with later events"
        raise InputError("test", str(request.test), "nothing in it that train does not tell", remedy)
    return sections


def _onsets(test: Examples) -> int:
    return int(population(test, HORIZON_MS)["onsets"])


def _test_rows(fleet: Fleet, start_ms: int, tested: Mask, request: Request, effort: _Effort) -> Examples | None:
    """Rows of the `tested` GPUs from `start_ms` on; None where no onset can be judged."""
    chosen = tested[fleet.life_device]
    try:
        rows = snapshots(fleet, start_ms, fleet.end_ms, effort.test_rows, request.seed + 1, chosen)
    except InputError:
        return None
    if not (rows.next_ms <= rows.at_ms + HORIZON_MS).any():
        return None
    return examples(fleet, rows, None, effort.pace)


def _section(title: str, scored: Scored, test: Examples, request: Request, bars: Mapping[str, float]) -> ReportSection:
    figures = standard(
        scored.scores, test, HORIZON_MS, draws=request.draws, seed=request.seed, thresholds=scored.thresholds,
        ranks=RANKS, every_ms=DAY,
    )  # fmt: skip
    figures[RATE] = with_bars(figures[RATE], bars)
    label, known = test.label(HORIZON_MS)
    shown = {name: score[known] for name, score in scored.scores.items() if name not in RANKS}
    tables = (reliability_table(RATE, shown[RATE], label[known], test.weight[known]),)
    curves = (reliability_curve(shown, label[known], test.weight[known]),)
    return ReportSection(title, figures, population(test, HORIZON_MS), tables, curves, (ALARM_NOTE,))


def _leak(fleet: Fleet, cut_ms: int, request: Request, effort: _Effort) -> ReportSection:
    """What boosting on the same features would claim on rows split at random."""
    everyone = np.ones(len(fleet.devices), dtype=np.bool_)
    small = replace(effort, train_rows=effort.leak_rows, test_rows=effort.leak_rows)
    whole = joined(_parts(fleet, cut_ms, everyone, everyone, request, small))
    name = BOOSTING if BOOSTING in effort.names else HAZARD

    def fit(train: Examples, test: Examples) -> Floats:
        return fitted(name, train, test, request.seed)

    honest: Sequence[Split] = [by_time(whole, cut_ms, HORIZON_MS)]
    return leak_factor(fit, whole, honest, HORIZON_MS, seed=request.seed, draws=request.draws)


def _day(at_ms: int) -> str:
    return to_iso(at_ms)[:10]


DATASET = DataSet(run)
