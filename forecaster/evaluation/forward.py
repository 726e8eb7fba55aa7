"""A backtest over the examples of a fleet: slide forward in time and over devices, judge what was foreseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.engine import Engine, Local
from tocsin.forecaster.evaluation.figures import DRAWS, population, standard
from tocsin.forecaster.evaluation.leads import lead_table, warned
from tocsin.forecaster.evaluation.leak import leak_factor
from tocsin.forecaster.evaluation.ranking import budget_threshold, lead_times, precision_recall
from tocsin.forecaster.evaluation.reliability import is_probability, reliability_curve, reliability_table
from tocsin.forecaster.evaluation.result import ReportSection, ReportTable, Result
from tocsin.forecaster.evaluation.split import Split, by_time, check_instants, forward_splits
from tocsin.forecaster.evaluation.trivial import BASE_RATES, RECENCY, base_rates, recency
from tocsin.forecaster.features.examples import Examples, Floats, Ints, Mask
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.scorer import NotEnoughData

DATASET = "fleet"
SOURCE = "telemetry and events of the fleet itself"
EARLIER = 0.7
"""Share of a train part's span that the threshold's own model learns from; its alarms on the rest set the threshold."""


@dataclass(frozen=True, slots=True)
class Forward:
    """How to slide: `folds` stretches of time are tested in turn, each on `devices` parts of the hosts. An alarm is on
    at most `budget` of the windows that the threshold is chosen on."""

    models: Sequence[str] = (registry.DEFAULT,)
    horizon_ms: int = 48 * HOUR
    folds: int = 3
    devices: int = 2
    budget: float = 0.01
    seed: int = 0
    draws: int = DRAWS
    leak: bool = False
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@dataclass(slots=True)
class _Answers:
    """Scores and alarm thresholds of all rows, NaN where a model had none."""

    score: Floats
    threshold: Floats
    refusals: list[str] = field(default_factory=list)


def forward(examples: Examples, wanted: Forward, source: str = SOURCE, engine: Engine | None = None) -> Result:
    """Judge every model of `wanted` on `examples`, sliding forward; folds are fitted on `engine`, here unless given.

    Raises InputError where the rows leak or span too little time, NotEnoughData where no fold of a model can be
    learned from.
    """
    check_instants(examples)
    _, known = examples.label(wanted.horizon_ms)
    if not known.any():
        remedy = "give a longer past"
        raise InputError("rows", len(examples), f"none is observed for {wanted.horizon_ms / HOUR:g} h after", remedy)
    whole = examples.take(known)
    splits, parts = forward_splits(whole, wanted.folds, wanted.horizon_ms, wanted.devices, wanted.seed)
    how = f"by time and by host, in {parts} parts of the hosts" if parts > 1 else "by time alone: there is one host"
    answers = _answers(whole, splits, wanted, engine or Local())
    tested = np.unique(np.concatenate([split.test for split in splits]))
    sections = [_section(whole, tested, splits, answers, wanted)]
    if wanted.leak:
        sections.append(_leak(whole, splits, wanted))
    notes = [f"{name}: {text}" for name, one in answers.items() for text in one.refusals]
    return Result(DATASET, _protocol(wanted, how), source, sections, notes)


def _protocol(wanted: Forward, how: str) -> str:
    hours = wanted.horizon_ms / HOUR
    return (
        f"A new hardware onset within {hours:g} h after each decision. The past is cut into {wanted.folds + 1} equal "
        f"stretches; each but the first is tested with models that learned from what lies {hours:g} h or more before "
        f"it, parted {how}. Alarms are set on the latest part of each train part, on at most {wanted.budget * 100:g} % "
        "of its windows, by a model that has not learned from it. Scores of all folds are ranked together."
    )


def _fitted(name: str, train: Examples, asked: Examples, wanted: Forward) -> Floats:
    shared: dict[str, object] = {"horizons_ms": (wanted.horizon_ms,), "seed": wanted.seed}
    scorer = registry.build(name, **{**shared, **wanted.settings.get(name, {})})
    scorer.fit(train)
    return scorer.score(asked)[:, 0]


@dataclass(frozen=True, slots=True)
class _FoldTask:
    """One fold of one model: all that it needs, so that it may run anywhere."""

    name: str
    train: Examples
    test: Examples
    wanted: Forward


@dataclass(frozen=True, slots=True)
class _Fold:
    """Scores of a test part and the threshold for it; `refusal` says why there are none."""

    score: Floats
    threshold: float = float("inf")
    refusal: str = ""


def _fold(task: _FoldTask) -> _Fold:
    try:
        score = _fitted(task.name, task.train, task.test, task.wanted)
    except NotEnoughData as error:
        begin = to_iso(int(task.test.at_ms.min()))
        return _Fold(np.full(len(task.test), np.nan), refusal=f"nothing learned before {begin}: {error}")
    return _Fold(score, _threshold(task.name, task.train, task.wanted))


def _answers(examples: Examples, splits: Sequence[Split], wanted: Forward, engine: Engine) -> dict[str, _Answers]:
    parts = [split.parts(examples, wanted.horizon_ms) for split in splits]
    tasks = [_FoldTask(name, train, test, wanted) for name in wanted.models for train, test in parts]
    folds = engine.map(_fold, tasks)
    found = {}
    for place, name in enumerate(wanted.models):
        out = _Answers(np.full(len(examples), np.nan), np.full(len(examples), np.inf))
        for split, fold in zip(splits, folds[place * len(splits) : (place + 1) * len(splits)], strict=True):
            out.score[split.test], out.threshold[split.test] = fold.score, fold.threshold
            out.refusals += [fold.refusal] if fold.refusal else []
        if len(out.refusals) == len(splits):
            raise NotEnoughData(f"{name}: no fold can be learned from; {out.refusals[-1]}")
        found[name] = out
    return found


def _threshold(name: str, train: Examples, wanted: Forward) -> float:
    """Infinity, so no alarm, where the train part is too short to hold some of it out."""
    first_ms, last_ms = int(train.at_ms.min()), int(train.at_ms.max())
    inner = by_time(train, first_ms + round(EARLIER * (last_ms - first_ms)), wanted.horizon_ms)
    if not inner.train.size or not inner.test.size:
        return float("inf")
    early, late = inner.parts(train, wanted.horizon_ms)
    try:
        return budget_threshold(_fitted(name, early, late, wanted), late.weight, wanted.budget)
    except NotEnoughData:
        return float("inf")


def _section(
    examples: Examples,
    tested: Ints,
    splits: Sequence[Split],
    answers: Mapping[str, _Answers],
    wanted: Forward,
) -> ReportSection:
    judged = examples.take(tested)
    label, _ = judged.label(wanted.horizon_ms)
    own = {name: one.score[tested] for name, one in answers.items()}
    trivial = {BASE_RATES: _base_rates(examples, splits, wanted)[tested], RECENCY: recency(judged, examples)}
    thresholds = {name: one.threshold[tested] for name, one in answers.items()}
    models = standard(
        {**own, **trivial},
        judged,
        wanted.horizon_ms,
        draws=wanted.draws,
        seed=wanted.seed,
        thresholds=thresholds,
        ranks=(RECENCY,),
    )
    stated = {name: score for name, score in own.items() if is_probability(score)}
    alarms = {name: _alarm(score, thresholds[name]) for name, score in own.items()}
    return ReportSection(
        title=f"Onsets within {wanted.horizon_ms / HOUR:g} h, walking forward",
        models=models,
        population=population(judged, wanted.horizon_ms),
        tables=[
            _folds(examples, splits, answers, wanted),
            *(lead_table(f"Lead of the alarms of {name}", warned(judged, alarm)) for name, alarm in alarms.items()),
            *(reliability_table(name, score, label, judged.weight) for name, score in stated.items()),
        ],
        curves=[
            reliability_curve(stated, label, judged.weight),
            precision_recall({**own, **trivial}, label, judged.weight),
            lead_times(own, judged, wanted.budget),
        ],
        notes=() if label.any() else ("No onset falls into a tested window: ranking figures do not exist.",),
    )


def _alarm(score: Floats, threshold: Floats) -> Mask:
    return np.asarray(~np.isnan(score) & (np.nan_to_num(score) >= threshold))


def _base_rates(examples: Examples, splits: Sequence[Split], wanted: Forward) -> Floats:
    out = np.full(len(examples), np.nan)
    for split in splits:
        train, test = split.parts(examples, wanted.horizon_ms)
        out[split.test] = base_rates(train, test, wanted.horizon_ms)
    return out


def _folds(
    examples: Examples, splits: Sequence[Split], answers: Mapping[str, _Answers], wanted: Forward
) -> ReportTable:
    rows = []
    for split in splits:
        test = examples.take(split.test)
        told = population(test, wanted.horizon_ms)
        span = (to_iso(int(test.at_ms.min()))[:16], to_iso(int(test.at_ms.max()))[:16])
        days = float(np.ptp(examples.at_ms[split.train])) / DAY
        found = (
            standard({name: one.score[split.test]}, test, wanted.horizon_ms, draws=0)[name].get("roc_auc")
            for name, one in answers.items()
        )
        scores = [None if one is None else one.value for one in found]
        rows.append((*span, days, split.train.size, told["rows"], told["devices"], told["onsets"], *scores))
    head = ("from", "to", "train days", "train rows", "rows", "devices", "onsets")
    return ReportTable("Folds", (*head, *(f"ROC-AUC {name}" for name in answers)), rows)


def _leak(examples: Examples, splits: Sequence[Split], wanted: Forward) -> ReportSection:
    first = wanted.models[0]

    def fit(train: Examples, test: Examples) -> Floats:
        try:
            return _fitted(first, train, test, wanted)
        except NotEnoughData:
            return np.full(len(test), np.nan)

    return leak_factor(fit, examples, splits, wanted.horizon_ms, seed=wanted.seed, draws=wanted.draws)
