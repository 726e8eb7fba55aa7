"""What lies ahead, as the API shows it: risks, memory that runs full, fragmentation that grows, capacity of pools.

Nothing is decided here, and nothing is done.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import structlog

from tocsin.client.models import HazardScore
from tocsin.client.models_capacity import (
    CapacityOut,
    CourseOut,
    FillingOut,
    ForecastOut,
    HostRiskOut,
    PoolOutlook,
    RecordOut,
    RiskCalendar,
    RiskOut,
)
from tocsin.domain.clock import DAY, HOUR, SECOND, optional_iso, to_iso
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import SubjectKind
from tocsin.domain.fragmentation import TaskClass
from tocsin.domain.grouping import grouped
from tocsin.domain.interval import wilson
from tocsin.domain.prediction import HARDWARE_FAULT, MODEL_GATE, Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.capacity.capacity import (
    HORIZON_MS,
    PENDING,
    UTILISATION,
    HourlyFigure,
    HourlyForecast,
    HourlyForecastRequest,
    PoolPast,
    courses,
)
from tocsin.forecaster.capacity.filling import FRAGMENTATION, OUT_OF_MEMORY
from tocsin.forecaster.capacity.leak import MEMORY_LEAK
from tocsin.queries.background import BackgroundTasks, Made
from tocsin.queries.cache import Cache
from tocsin.queries.cost_hours import BUDGET_S, CostHours, Hour
from tocsin.queries.fleet_state import live_state, mix_of
from tocsin.queries.live import LiveBrain
from tocsin.rules.fleet import fleet_fragmentation

log = structlog.get_logger()

MEMORY_TARGETS = (OUT_OF_MEMORY, MEMORY_LEAK, "time_to_threshold:gpu_memory_used_ratio")
COVERAGE = 0.8
Z80 = 1.2815515655446004
"""Standard normal quantile at 0.9: both ends together leave `COVERAGE` between them."""
RECORD_S = 600.0
"""How long the record of the model is kept."""
RECORD_WAIT_S = 0.5
"""How long a caller waits for it; small fleets have it by then."""
POOLS = 12
"""Pools whose capacity is forecast, the largest ones: each takes seconds."""
FRAGMENTED, FRAGMENTED_MS = "fragmented", 14 * DAY
"""How far back the fleet's fragmentation is looked at for its forecast."""
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
    predictions = list(predictions)
    of_gpus = [one for one in predictions if one.subject.kind is SubjectKind.GPU]
    newest = {one.gpu.uuid: one for one in readings}
    memory = [one for one in of_gpus if one.target in MEMORY_TARGETS]
    warned, growing = _warned(memory), _warned(one for one in of_gpus if one.target == FRAGMENTATION)
    return ForecastOut(
        now=to_iso(now_ms),
        simulated=any(one.gpu.simulated for one in readings),
        risk=_gated(
            _calendar([one for one in of_gpus if one.target == HARDWARE_FAULT], newest, record, limit),
            [one for one in predictions if one.target == MODEL_GATE],
        ),
        memory=[_filling(one, newest) for one in warned[:limit]],
        memory_statuses=dict(Counter(_per_gpu(one for one in memory if not one.muted).values())),
        fragmentation=[_filling(one, newest) for one in growing[:limit]],
        fragmentation_total=len(growing),
    )


def _warned(found: Iterable[Prediction]) -> list[Prediction]:
    """Crossings still to come, the soonest of each GPU, soonest first."""
    first: dict[str, Prediction] = {}
    for one in sorted(found, key=lambda one: (math.inf if one.eta_ms is None else one.eta_ms, one.subject.name)):
        if one.status is PredictionStatus.CROSSING and not one.muted:
            first.setdefault(one.subject.name, one)
    return list(first.values())


def _per_gpu(found: Iterable[Prediction]) -> dict[str, PredictionStatus]:
    """The most telling status of each GPU."""
    least_first = sorted(found, key=lambda one: list(PredictionStatus).index(one.status), reverse=True)
    return {one.subject.name: one.status for one in least_first}


def _filling(one: Prediction, newest: Mapping[str, Reading]) -> FillingOut:
    reading = newest.get(one.subject.name)
    owners = dict.fromkeys(owner.label for owner in reading.owners) if reading else {}
    return FillingOut(prediction=one, index=reading.gpu.index if reading else None, owners=list(owners)[:OWNERS])


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
    reasons = dict(Counter(one.reason for one in silent).most_common(5))
    return RiskCalendar(
        model=f"{last.model} {last.model_version}",
        at=optional_iso(last.at_ms),
        horizon_s=last.horizon_ms / SECOND,
        warn_from=next((one.threshold for one in known if one.threshold is not None), None),
        statuses=dict(Counter(one.status for one in found)),
        reasons=reasons,
        reasons_zh={one.reason: one.reason_zh for one in silent if one.reason in reasons and one.reason_zh},
        expected=_expected(known),
        gpus=[_risk(one, newest[one.subject.name].gpu) for one in known[:limit]],
        hosts=_hosts(known, newest)[:limit],
        record=list(record),
    )


def gate_verdict(predictions: Iterable[Prediction]) -> Prediction | None:
    """What the gate says of the risk model, of real GPUs before simulated ones; None where it has nothing to say."""
    said = (one for one in predictions if one.target == MODEL_GATE and one.sentence)
    return min(said, key=lambda one: (one.simulated, -one.at_ms), default=None)


def _gated(calendar: RiskCalendar, verdicts: Sequence[Prediction]) -> RiskCalendar:
    """`calendar` with what the gate says of the model: of real GPUs before simulated ones."""
    said = gate_verdict(verdicts)
    if said is None:
        return calendar
    update = {"sentence": said.sentence, "sentence_zh": said.sentence_zh, "because": said.reason}
    return calendar.model_copy(update=update)


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
    by_host = grouped((one.subject.host, one) for one in known)
    made = [_host(host, mine, newest[mine[0].subject.name].gpu) for host, mine in by_host.items()]
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
        low, high = wilson(one.observed, one.gpu_days * DAY / SECOND / best.horizon_s, Z80)
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


# ---------------------------------------------------------------------- courses


def course_out(course: HourlyForecast) -> CourseOut:
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
        reason_zh=course.reason_zh,
    )


class ForecastQueries:
    """Forecasts of a running brain. Safe to use from several threads.

    `scores` are those of the scoreboard, which takes the whole past of predictions: what came of probabilities is
    looked up only now and then, and no caller waits long for it.
    """

    def __init__(
        self,
        brain: LiveBrain,
        tasks: BackgroundTasks,
        hours: CostHours,
        scores: Callable[[], Sequence[HazardScore]],
        monotonic: Callable[[], float],
    ) -> None:
        self._brain = brain
        self._tasks = tasks
        self._hours = hours
        self._scores = scores
        self._records = Cache[str, list[RecordOut]](monotonic, lambda _took_s: RECORD_S, most=1)
        self._record: list[RecordOut] = []

    def forecast(self, limit: int) -> ForecastOut:
        """Risks, memory and fragmentation ahead, the most urgent `limit` of each."""
        brain, now = self._brain, self._brain.clock.now_ms()
        return forecast_out(brain.forecasts.current(now), brain.memory.latest(), self.record(), now, limit)

    def record(self, wait_s: float = RECORD_WAIT_S) -> list[RecordOut]:
        """Bins of probability with what came of them, as far as they are known within `wait_s`."""
        return self._records.get_soon("record", self._look_up, wait_s, self._record)

    def _look_up(self) -> list[RecordOut]:
        try:
            self._record = record_of(self._scores())
        except TocsinError as error:
            log.warning("the record of past risks is not available", error=str(error))
        return self._record

    def capacity(self) -> CapacityOut:
        """Pools and fragmentation a week ahead. Raises Unavailable while it is worked out."""
        made: Made[tuple[int, list[HourlyForecast]]] = self._tasks.ask(
            "the capacity forecast", _courses, self._course_ask
        )
        at_ms, found = made.value
        by_name = {one.name: one for one in found}
        sizes, now = self._sizes(), self._brain.clock.now_ms()
        state = live_state(self._brain, now)
        said = [one for one in self._brain.forecasts.current(now) if one.subject.kind is SubjectKind.POOL]
        pools = [
            PoolOutlook(
                pool=name,
                gpus=size,
                in_service=state.ready_gpus(name),
                utilisation=course_out(by_name[f"{UTILISATION} {name}"]),
                waiting=course_out(waiting) if (waiting := by_name.get(f"{PENDING} {name}")) else None,
                statements=[one for one in said if one.subject.name == name],
            )
            for name, size in sizes.items()
            if f"{UTILISATION} {name}" in by_name
        ]
        return CapacityOut(
            now=to_iso(now),
            at=to_iso(at_ms),
            simulated=any(gpu.simulated for gpu in self._brain.gpus),
            horizon_s=HORIZON_MS / SECOND,
            pools=pools,
            pools_total=len(sizes),
            fragmented=course_out(by_name[FRAGMENTED]) if FRAGMENTED in by_name else CourseOut(),
        )

    def _sizes(self) -> dict[str, int]:
        """Whole GPUs by pool, the largest pool first."""
        sizes = Counter(gpu.pool for gpu in self._brain.gpus if not gpu.is_mig)
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

    def _course_ask(self) -> HourlyForecastRequest:
        now = self._brain.clock.now_ms()
        largest = list(self._sizes())[:POOLS]
        pasts = {one.pool: one for one in self._brain.pool_pasts()}
        figures = [figure for name in largest if name in pasts for figure in _figures(pasts[name])]
        return HourlyForecastRequest([*figures, *self._fragmented(now)], now, self._brain.settings.forecast.coverage)

    def _fragmented(self, now: int) -> list[HourlyFigure]:
        """F by the hour, as far as the store was read: the jobs that come now are the measure of all hours."""
        pages = self._hours.pages(now - FRAGMENTED_MS, now, self._brain.gpus, BUDGET_S)
        if not pages.hours:
            return []
        mix, _ = mix_of(self._brain.settings.fragmentation.task_mix, self._brain.memory.latest())
        start = pages.hours[0].at_ms
        values = np.full((pages.hours[-1].at_ms - start) // HOUR + 1, np.nan)
        for hour in pages.hours:
            values[(hour.at_ms - start) // HOUR] = _mean_f(hour, mix)
        return [HourlyFigure(FRAGMENTED, start, values)]


def _courses(ask: HourlyForecastRequest) -> tuple[int, list[HourlyForecast]]:
    return ask.now_ms, courses(ask)


def _figures(past: PoolPast) -> list[HourlyFigure]:
    """Utilisation, and GPUs that work waits for where a scheduler tells."""
    start = int(past.at_ms[0])
    found = [HourlyFigure(f"{UTILISATION} {past.pool}", start, past.utilisation, most=1.0)]
    if np.isfinite(past.pending).any():
        found.append(HourlyFigure(f"{PENDING} {past.pool}", start, past.pending))
    return found


def _mean_f(hour: Hour, mix: Sequence[TaskClass]) -> float:
    """Mean of F over the cells of an hour."""
    values = [
        fleet_fragmentation(
            np.repeat([free for free, _ in spots], list(spots.values())),
            np.repeat([size for _, size in spots], list(spots.values())),
            mix,
        ).fragmented
        for spots in hour.account.spots
    ]
    return float(np.mean(values)) if values else float("nan")
