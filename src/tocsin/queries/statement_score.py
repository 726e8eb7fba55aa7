"""What became of each kind of statement: stated against observed, intervals, by rule and by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from tocsin.client.models_pager import StatedBin, StatedInterval, StatementScore
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.live.recalibration import came_of, crossed
from tocsin.queries.pager_score import LATE_MS, PagerAlert, Truth
from tocsin.queries.scoreboard import SeriesOf

Numbers = npt.NDArray[np.float64]

EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
"""Ends of the ranges of stated probability (own choice)."""
RULE = "rule "
"""What the kind of a rule's statements begins with."""
LEAST_POINTS = 12
"""Readings of the last hour without which it has no slope (own choice)."""
_SPOKEN = frozenset({PredictionStatus.CROSSING, PredictionStatus.NO_CROSSING})
_EVENTS = frozenset({PredictionStatus.LIKELY, PredictionStatus.UNLIKELY})


@dataclass(frozen=True, slots=True)
class SlopeInterval:
    """Instants between which a straight line arrives."""

    low_ms: float
    high_ms: float

    def stretch(self, came_ms: int) -> float:
        """How many times as wide it would have to be about its middle to hold `came_ms`."""
        half = max(self.high_ms - self.low_ms, 1.0) / 2
        return abs(came_ms - (self.low_ms + self.high_ms) / 2) / half


@dataclass(frozen=True, slots=True)
class StatedCase:
    """One statement that opened a window, and what came: `came_ms` is None where nothing did within it.

    It is settled once its window is over, whatever came before: what comes soon must not be counted sooner.
    """

    said: Prediction
    came_ms: int | None
    settled: bool
    last_slope: SlopeInterval | None = None
    """The interval that a line through the last hour gives."""

    @property
    def held(self) -> bool:
        """Whether the crossing came within the interval, which has a finite end. One in which nothing came did not
        hold: what only claims that came true say would flatter it."""
        return (self.said.eta_low_ms or 0) <= (self.came_ms or -1) <= (self.said.eta_high_ms or 0)


def kind_of(prediction: Prediction) -> str:
    """The kind of statement: its target and the model that says it."""
    return f"{prediction.target} by {prediction.model}"


def cases_of(
    predictions: Sequence[Prediction], series_of: SeriesOf, now_ms: int, truth: Truth | None = None
) -> list[StatedCase]:
    """One case for each window of a subject and target: what is said again within it repeats it.

    A crossing is settled by the metric's own series, a fault by the onsets of `truth`, where there is one; what neither
    can settle, such as the load of a pool or a crossing of a GPU that stopped reporting, is left out. Series are asked
    for metric by metric, those of a metric by host and GPU.
    """
    opened = _opened(predictions, truth)
    found: dict[int, StatedCase] = {}
    for number in sorted(range(len(opened)), key=lambda one: _by_series(opened[one])):
        said = opened[number]
        end_ms = said.at_ms + said.horizon_ms
        came, known = _struck(said, truth, end_ms), True
        if said.metric:
            came, known = _crossed(said, series_of, min(end_ms, now_ms))
        if known or end_ms > now_ms:
            found[number] = StatedCase(said, came, end_ms <= now_ms, _last_slope(said, series_of))
    return [found[number] for number in sorted(found)]


def _opened(predictions: Sequence[Prediction], truth: Truth | None) -> list[Prediction]:
    """Those that open a window, the oldest first."""
    ends: dict[tuple[str, str, bool], int] = {}
    found = []
    for said in sorted(predictions, key=lambda one: (one.at_ms, one.subject.key, one.target)):
        if said.subject.kind is not SubjectKind.GPU or not _speaks(said, truth):
            continue
        key = (said.subject.key, said.target, is_claim(said))
        if said.at_ms >= ends.get(key, 0):
            ends[key] = said.at_ms + said.horizon_ms
            found.append(said)
    return found


def _by_series(said: Prediction) -> tuple[str, str, str, int]:
    return said.metric, said.subject.host, said.subject.name, said.at_ms


def _last_slope(said: Prediction, series_of: SeriesOf) -> SlopeInterval | None:
    """The interval of `said` by the least-squares line through the hour before it, its slope's standard error alone;
    None where that line might not rise towards the threshold."""
    if said.eta_high_ms is None or said.threshold is None or said.coverage is None:
        return None
    series = series_of(said.subject.name, said.metric, said.at_ms - HOUR, said.at_ms + 1)
    known = np.isfinite(series.values[:, 0]) if series.values.size else np.zeros(0, np.bool_)
    if known.sum() < LEAST_POINTS:
        return None
    at = (series.at_ms[known] - said.at_ms).astype(np.float64)
    values = series.values[known, 0].astype(np.float64)
    spread = ((at - at.mean()) ** 2).sum()
    slope = ((at - at.mean()) * (values - values.mean())).sum() / spread
    level = values.mean() - slope * at.mean()
    rest = values - level - slope * at
    error = NormalDist().inv_cdf((1 + said.coverage) / 2) * float(np.sqrt((rest**2).sum() / (at.size - 2) / spread))
    left = float(said.threshold - level)
    slowest = float(abs(slope)) - error
    if slope * left <= 0.0 or slowest <= 0.0:
        return None
    return SlopeInterval(said.at_ms + abs(left) / float(abs(slope) + error), said.at_ms + abs(left) / slowest)


def is_claim(said: Prediction) -> bool:
    """Whether it claims that something comes; that nothing does is claimed at a low probability."""
    return said.status in (PredictionStatus.CROSSING, PredictionStatus.LIKELY)


def _speaks(said: Prediction, truth: Truth | None) -> bool:
    if said.muted:
        return False  # it was told to nobody
    if said.metric:
        return said.status in _SPOKEN and said.threshold is not None and (said.lead_ms is None or said.lead_ms > 0)
    return said.status in _EVENTS and truth is not None


def _crossed(said: Prediction, series_of: SeriesOf, end_ms: int) -> tuple[int | None, bool]:
    """When it crossed, and whether the readings can tell."""
    series = series_of(said.subject.name, said.metric, said.at_ms + 1, end_ms + 1)
    if not series.values.size:
        return None, False
    at_ms, values = series.at_ms.tolist(), series.values[:, 0]
    return crossed(said, at_ms, values), came_of(said, at_ms, values) is not None


def _struck(said: Prediction, truth: Truth | None, end_ms: int) -> int | None:
    """When the GPU itself failed: what another of its rack or fabric has is no fault of its own."""
    around = truth.at({said.subject.name}) if truth is not None else []
    own = [one for one in around if one.own is None or said.subject.name in one.own]
    onsets = [one.onset_ms for one in own if one.hard and not one.benign and said.at_ms < one.onset_ms <= end_ms]
    return min(onsets, default=None)


def score_statements(cases: Sequence[StatedCase], muted: Mapping[str, float]) -> list[StatementScore]:
    """A score for each kind, those among it that were only muted; `muted` has the share of the time for each."""
    groups = grouped((kind_of(case.said), case) for case in cases)
    return [_score(kind, groups.get(kind, ()), muted.get(kind, 0.0)) for kind in sorted(groups.keys() | muted.keys())]


def _score(kind: str, cases: Sequence[StatedCase], muted: float) -> StatementScore:
    settled = [case for case in cases if case.settled]
    claims = [case for case in settled if is_claim(case.said)]
    with_chance = [case for case in settled if case.said.probability is not None]
    stated = np.array([case.said.probability for case in with_chance], dtype=np.float64)
    came = np.array([case.came_ms is not None for case in with_chance], dtype=np.float64)
    closed = [case for case in claims if case.said.eta_high_ms is not None]
    with_interval = [case for case in claims if case.said.eta_low_ms is not None]
    return StatementScore(
        kind=kind,
        settled=len(claims),
        pending=len(cases) - len(settled),
        right=sum(case.came_ms is not None for case in claims),
        stated=float(stated.mean()) if stated.size else None,
        observed=float(came.mean()) if came.size else None,
        brier_skill=_skill(stated, came),
        brier=float(np.mean((stated - came) ** 2)) if stated.size else None,
        coverage=float(np.mean([case.held for case in closed])) if closed else None,
        nominal_coverage=next((case.said.coverage for case in with_interval), None),
        open_intervals=float(np.mean([c.said.eta_high_ms is None for c in with_interval])) if with_interval else None,
        muted_share=muted,
        bins=_bins(stated, came),
        intervals=[_interval(case) for case in closed],
    )


def _interval(case: StatedCase) -> StatedInterval:
    said, last = case.said, case.last_slope
    return StatedInterval(
        held=case.held,
        minutes=((said.eta_high_ms or 0) - (said.eta_low_ms or 0)) / MINUTE,
        last_slope_minutes=None if last is None else (last.high_ms - last.low_ms) / MINUTE,
        last_slope_stretch=None if last is None or case.came_ms is None else last.stretch(case.came_ms),
    )


def _skill(stated: Numbers, came: Numbers) -> float | None:
    """1 - Brier / Brier of the observed share; None where everything ended alike."""
    if not stated.size or not 0.0 < came.mean() < 1.0:
        return None
    return float(1.0 - np.mean((stated - came) ** 2) / (came.mean() * (1.0 - came.mean())))


def _bins(stated: Numbers, came: Numbers) -> list[StatedBin]:
    place = np.clip(np.searchsorted(EDGES, stated, side="right") - 1, 0, len(EDGES) - 2)
    return [
        StatedBin(
            low=EDGES[index],
            high=EDGES[index + 1],
            cases=int((place == index).sum()),
            stated=float(stated[place == index].mean()),
            observed=float(came[place == index].mean()),
        )
        for index in np.unique(place).tolist()
    ]


def score_rules(
    alerts: Sequence[PagerAlert], truth: Truth, muted: Mapping[str, float] = MappingProxyType({})
) -> list[StatementScore]:
    """The alerts of each rule as statements: settled ones and how many of them were right. Those that the truth says
    nothing of are left out. `muted` has the share of the time for which a rule that foretells was told as notes."""
    told = (one for one in alerts if one.level is not AlertLevel.NOTE and truth.judge(one) is not None)
    groups = grouped((f"{RULE}{alert.rule}", alert) for alert in told)
    found = []
    for kind in sorted(groups.keys() | {kind for kind, share in muted.items() if share}):
        mine: Sequence[PagerAlert] = groups.get(kind, ())
        settled = [
            alert
            for alert in mine
            if alert.at_ms + (LATE_MS if alert.level is AlertLevel.PAGE else DAY) <= truth.end_ms
        ]
        rights = Counter(truth.judge(alert) for alert in settled)
        found.append(
            StatementScore(
                kind=kind,
                settled=len(settled),
                pending=len(mine) - len(settled),
                right=rights[True],
                muted_share=muted.get(kind),
            )
        )
    return found
