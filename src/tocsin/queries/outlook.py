"""What lies ahead, as the API shows it: risks, memory that runs full, fragmentation that grows, capacity of pools."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import structlog

from tocsin.client.models import HazardScore
from tocsin.client.models_forecast import (
    CourseOut,
    FillingOut,
    ForecastOut,
    HostRiskOut,
    RecordOut,
    RiskCalendar,
    RiskOut,
)
from tocsin.domain.clock import DAY, SECOND, to_iso
from tocsin.domain.errors import TocsinError
from tocsin.domain.identity import Gpu
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.subject import SubjectKind
from tocsin.forecaster.capacity.courses import Course
from tocsin.forecaster.capacity.filling_watch import FRAGMENTATION, OUT_OF_MEMORY
from tocsin.forecaster.live.risk import TARGET
from tocsin.queries.convert import instant, prediction_out

log = structlog.get_logger()

MEMORY_TARGETS = (OUT_OF_MEMORY, "time_to_threshold:gpu_memory_used_ratio")
COVERAGE = 0.8
_NORMAL = 1.2815515655446004
"""Standard normal quantile at 0.9: both ends together leave `COVERAGE` between them."""
OWNERS = 3
"""Owners that are named for one GPU."""


def forecast_out(
    predictions: Iterable[Prediction],
    readings: Sequence[Reading],
    record: Sequence[RecordOut],
    now_ms: int,
    limit: int,
) -> ForecastOut:
    """`predictions` in force, the most urgent `limit` of each kind; `readings` are the newest of each GPU."""
    by_target: defaultdict[str, list[Prediction]] = defaultdict(list)
    for one in predictions:
        if one.subject.kind is SubjectKind.GPU:
            by_target[one.target].append(one)
    newest = {one.gpu.uuid: one for one in readings}
    memory = [one for target in MEMORY_TARGETS for one in by_target[target]]
    warned = _warned(memory)
    growing = _warned(by_target[FRAGMENTATION])
    return ForecastOut(
        now=to_iso(now_ms),
        simulated=any(one.gpu.simulated for one in readings),
        risk=_calendar(by_target[TARGET], newest, record, limit),
        memory=[_filling(one, newest) for one in warned[:limit]],
        memory_statuses=dict(Counter(_per_gpu(memory).values())),
        fragmentation=[_filling(one, newest) for one in growing[:limit]],
        fragmentation_total=len(growing),
    )


def _warned(found: Iterable[Prediction]) -> list[Prediction]:
    """Crossings still to come, the soonest of each GPU, soonest first."""
    first: dict[str, Prediction] = {}
    for one in sorted(found, key=_when):
        if one.status is PredictionStatus.CROSSING:
            first.setdefault(one.subject.name, one)
    return list(first.values())


def _when(one: Prediction) -> tuple[float, str]:
    return (math.inf if one.eta_ms is None else one.eta_ms), one.subject.name


def _per_gpu(found: Iterable[Prediction]) -> dict[str, PredictionStatus]:
    """The most telling status of each GPU."""
    rank = list(PredictionStatus).index
    worst: dict[str, PredictionStatus] = {}
    for one in found:
        known = worst.get(one.subject.name)
        if known is None or rank(one.status) < rank(known):
            worst[one.subject.name] = one.status
    return worst


def _filling(one: Prediction, newest: Mapping[str, Reading]) -> FillingOut:
    reading = newest.get(one.subject.name)
    owners = dict.fromkeys(owner.label for owner in reading.owners) if reading else {}
    return FillingOut(
        prediction=prediction_out(one), index=reading.gpu.index if reading else None, owners=list(owners)[:OWNERS]
    )


# ---------------------------------------------------------------------- risk


def _calendar(
    found: Sequence[Prediction], newest: Mapping[str, Reading], record: Sequence[RecordOut], limit: int
) -> RiskCalendar:
    if not found:
        return RiskCalendar()
    last = max(found, key=lambda one: one.at_ms)
    known = [one for one in found if one.probability is not None and one.subject.name in newest]
    known.sort(key=lambda one: (-(one.probability or 0.0), one.subject.host, one.subject.name))
    silent = [one for one in found if one.status is PredictionStatus.NOT_ENOUGH_DATA]
    return RiskCalendar(
        model=f"{last.model} {last.model_version}",
        at=instant(last.at_ms),
        horizon_s=last.horizon_ms / SECOND,
        warn_from=next((one.threshold for one in known if one.threshold is not None), None),
        statuses=dict(Counter(one.status for one in found)),
        reasons=dict(Counter(one.reason for one in silent).most_common(5)),
        expected=_expected(known),
        gpus=[_risk(one, newest[one.subject.name].gpu) for one in known[:limit]],
        hosts=_hosts(known, newest)[:limit],
        record=list(record),
    )


def _expected(known: Sequence[Prediction]) -> list[tuple[float, float]]:
    sums: defaultdict[int, float] = defaultdict(float)
    for one in known:
        for ahead_ms, chance in one.curve:
            sums[ahead_ms] += chance
    return [(ahead_ms / SECOND, total) for ahead_ms, total in sorted(sums.items())]


def _risk(one: Prediction, gpu: Gpu) -> RiskOut:
    return RiskOut(
        gpu=gpu.uuid,
        host=gpu.host,
        index=gpu.index,
        pool=gpu.pool,
        model=gpu.model,
        status=one.status,
        probability=one.probability or 0.0,
        curve=[(ahead_ms / SECOND, chance) for ahead_ms, chance in one.curve],
        classes=list(one.classes),
        sentence=one.sentence,
        sentence_zh=one.sentence_zh,
    )


def _hosts(known: Sequence[Prediction], newest: Mapping[str, Reading]) -> list[HostRiskOut]:
    """Hosts, the riskiest first; `known` has the riskiest GPU first."""
    members: defaultdict[str, list[Prediction]] = defaultdict(list)
    for one in known:
        members[one.subject.host].append(one)
    made = [_host(host, mine, newest[mine[0].subject.name].gpu) for host, mine in members.items()]
    return sorted(made, key=lambda one: (-one.probability, one.host))


def _host(host: str, mine: Sequence[Prediction], worst: Gpu) -> HostRiskOut:
    survives: defaultdict[int, float] = defaultdict(lambda: 1.0)
    for one in mine:
        for ahead_ms, chance in one.curve:
            survives[ahead_ms] *= 1.0 - chance
    return HostRiskOut(
        host=host,
        pool=mine[0].subject.pool,
        gpus=len(mine),
        probability=1.0 - math.prod(1.0 - (one.probability or 0.0) for one in mine),
        curve=[(ahead_ms / SECOND, 1.0 - share) for ahead_ms, share in sorted(survives.items())],
        worst=worst.uuid,
        worst_index=worst.index,
    )


def record_of(scores: Iterable[HazardScore]) -> list[RecordOut]:
    """What came of the probabilities for the farthest horizon of the scoreboard, by bin.

    A situation is one GPU over one horizon: the same GPU a minute later tells nothing new. The interval is Wilson's
    (1927), with so many situations.
    """
    best = max(scores, key=lambda one: (one.horizon_s, one.gpu_days), default=None)
    if best is None:
        return []
    found = []
    for one in best.reliability:
        low, high = wilson(one.observed, one.gpu_days * DAY / SECOND / best.horizon_s)
        found.append(
            RecordOut(
                low=one.low,
                high=one.high,
                gpu_days=one.gpu_days,
                stated=one.stated,
                observed=one.observed,
                observed_low=low,
                observed_high=high,
                coverage=COVERAGE,
            )
        )
    return found


def wilson(share: float, trials: float) -> tuple[float, float]:
    """The score interval of `COVERAGE` around a `share` seen in `trials`; 0 to 1 without any."""
    if trials <= 0:
        return 0.0, 1.0
    squared = _NORMAL * _NORMAL
    centre = (share + squared / (2 * trials)) / (1 + squared / trials)
    spread = math.sqrt(share * (1 - share) / trials + squared / (4 * trials * trials))
    half = _NORMAL * spread / (1 + squared / trials)
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


# ---------------------------------------------------------------------- courses


def course_out(course: Course) -> CourseOut:
    """A course as the API shows it."""
    past, ahead = len(course.at_ms), len(course.ahead_ms)

    def coming(values: Sequence[float]) -> list[float | None]:
        return [None] * past + [float(value) for value in values]

    return CourseOut(
        at=[to_iso(int(at)) for at in (*course.at_ms, *course.ahead_ms)],
        known=[None if np.isnan(value) else float(value) for value in course.known] + [None] * ahead,
        expected=coming(course.middle.tolist()),
        low=coming(course.low.tolist()),
        high=coming(course.high.tolist()),
        coverage=course.coverage,
        weekly=course.weekly,
        reason=course.reason,
    )


class Remembered:
    """The record of the model, looked up in a thread of its own and again only after a while: it takes the whole past
    of predictions. Safe to use from several threads."""

    KEPT_S = 600.0
    WAIT_S = 0.5
    """How long a caller waits for it; small fleets have it by then."""

    def __init__(self, monotonic: Callable[[], float], look: Callable[[], Sequence[HazardScore]]) -> None:
        self._monotonic, self._look = monotonic, look
        self._record: list[RecordOut] = []
        self._at_s: float | None = None
        self._lock = threading.Lock()

    def record(self) -> list[RecordOut]:
        """Bins of probability with what came of them, as far as they are known by now."""
        with self._lock:
            now_s = self._monotonic()
            due = self._at_s is None or now_s - self._at_s >= self.KEPT_S
            if due:
                self._at_s = now_s
        if due:
            thread = threading.Thread(target=self._renew, name="forecast-record", daemon=True)
            thread.start()
            thread.join(self.WAIT_S)
        return self._record

    def _renew(self) -> None:
        try:
            self._record = record_of(self._look())
        except TocsinError as error:
            log.warning("what came of the risks is not known", error=str(error))
