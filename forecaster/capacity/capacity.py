"""When a pool will be too small or too large, up to a week ahead: utilisation, and GPUs that work waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin.domain.finding import Evidence, Subject, SubjectKind, evidence_of
from tocsin.domain.phrase import Phrase, in_chinese, say, word_in_chinese
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.trend.resample import Floats, Instants
from tocsin.forecaster.trend.seasonal import SeasonalOutlook, TooShort, outlook
from tocsin.forecaster.trend.statements import hours as in_words

UTILISATION, PENDING = "pool_utilization_ratio", "pool_pending_gpus"
HORIZON_MS = 7 * DAY
SUSTAINED_HOURS = 2
"""Hours in a row beyond the limit that count as sustained: one busy hour needs no new node."""
LIKELY = 0.5


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """`rising`: reached from below. `target` names the prediction, `words` what happens, in English and Chinese."""

    target: str
    metric: str
    value: float
    rising: bool
    words: str
    words_zh: str


LIMITS = (
    PoolLimit(f"time_to_threshold:{UTILISATION}", UTILISATION, 0.9, True, "is busier than", "利用率持续高于"),
    PoolLimit(f"time_below:{UTILISATION}", UTILISATION, 0.3, False, "is less busy than", "利用率持续低于"),
    PoolLimit(f"time_to_threshold:{PENDING}", PENDING, 1.0, True, "has more GPUs waited for than", "等待的 GPU 多于"),
)
"""Where the shipped rules scale out and in (utilisation above 0.9, below 0.3), and where work begins to wait."""


@dataclass(frozen=True, slots=True)
class PoolPast:
    """Hourly means of one pool, NaN where unknown: `at_ms` int64[n] is the start of each hour, even steps."""

    pool: str
    at_ms: Instants
    utilisation: Floats
    pending: Floats
    simulated: bool = False


class CapacityForecaster:
    """Says for each pool when a limit will be passed for `SUSTAINED_HOURS` hours on end, with an interval."""

    name = "capacity"
    version = "1"

    def __init__(self, coverage: float = 0.8) -> None:
        self._coverage = coverage

    def predict(self, pools: Sequence[PoolPast], now_ms: int) -> list[Prediction]:
        """One statement per pool and limit; hours that had not ended at `now_ms` are not looked at."""
        return [made for one in pools for made in self._pool(one, now_ms)]

    def _pool(self, past: PoolPast, now_ms: int) -> list[Prediction]:
        ended = past.at_ms + HOUR <= now_ms
        at_ms = past.at_ms[ended]
        made = []
        for metric, values in ((UTILISATION, past.utilisation[ended]), (PENDING, past.pending[ended])):
            limits = [limit for limit in LIMITS if limit.metric == metric]
            if metric == PENDING and not np.isfinite(values).any():
                continue  # no scheduler tells
            known = np.flatnonzero(np.isfinite(values))
            if not known.size:
                made += [self._unknown(past, limit, now_ms, say("no hour of history")) for limit in limits]
                continue
            values, instants = values[known[0] : known[-1] + 1], at_ms[known[0] : known[-1] + 1]
            try:
                ahead = outlook(values, round((now_ms + HORIZON_MS - int(instants[-1])) / HOUR))
            except TooShort as error:
                made += [self._unknown(past, limit, now_ms, error.said) for limit in limits]
                continue
            made += [self._judge(past, limit, ahead, float(values[-1]), int(instants[-1]), now_ms) for limit in limits]
        return made

    def _blank(self, past: PoolPast, limit: PoolLimit, now_ms: int) -> Prediction:
        return Prediction(
            subject=Subject(SubjectKind.POOL, past.pool),
            target=limit.target,
            at_ms=now_ms,
            horizon_ms=HORIZON_MS,
            status=PredictionStatus.NO_CROSSING,
            model=self.name,
            model_version=self.version,
            sentence="",
            metric=limit.metric,
            threshold=limit.value,
            simulated=past.simulated,
        )

    def _unknown(self, past: PoolPast, limit: PoolLimit, now_ms: int, reason: Phrase) -> Prediction:
        return replace(
            self._blank(past, limit, now_ms),
            status=PredictionStatus.NOT_ENOUGH_DATA,
            reason=str(reason),
            reason_zh=in_chinese(reason),
            sentence=f"Pool {past.pool}: not enough data for a forecast: {reason}.",
            sentence_zh=f"资源池 {past.pool}：数据不足，无法预测（{word_in_chinese(reason)}）。",
        )

    def _judge(
        self, past: PoolPast, limit: PoolLimit, ahead: SeasonalOutlook, value: float, last_ms: int, now_ms: int
    ) -> Prediction:
        starts = last_ms + HOUR * (1 + np.arange(len(ahead.paths)))
        first = first_sustained(ahead.paths, limit)
        eta = np.where(np.isfinite(first), first, np.inf)
        chance = float(np.isfinite(eta).mean())
        blank = replace(
            self._blank(past, limit, now_ms),
            value=value,
            probability=chance,
            curve=_curve(eta, starts, now_ms),
            evidence=(_extreme(limit, ahead, starts),),
        )
        if chance < LIKELY:
            far = in_words(HORIZON_MS)
            return replace(
                blank,
                sentence=f"Pool {past.pool} is not expected to pass {limit.value:g} within {far} (now {value:.3g}).",
                sentence_zh=f"资源池 {past.pool}：{far} 内预计不会越过 {limit.value:g}（当前 {value:.3g}）。",
            )
        return self._crossing(
            blank,
            past,
            limit,
            tuple(_instant(eta, starts, share) for share in ((1 - self._coverage) / 2, 0.5, (1 + self._coverage) / 2)),
        )

    def _crossing(
        self, blank: Prediction, past: PoolPast, limit: PoolLimit, instants: tuple[int | None, ...]
    ) -> Prediction:
        low, mid, high = instants
        value, now_ms, chance = blank.value, blank.at_ms, blank.probability
        return replace(
            blank,
            status=PredictionStatus.CROSSING,
            eta_ms=max(now_ms, mid or now_ms),
            eta_low_ms=max(now_ms, low or now_ms),
            eta_high_ms=high,
            coverage=self._coverage,
            sentence=(
                f"Pool {past.pool} {limit.words} {limit.value:g} from {to_iso(mid or now_ms)} on, "
                f"in {in_words(max(0, (mid or now_ms) - now_ms))} (probability {chance:.0%}, now {value:.3g})."
            ),
            sentence_zh=(
                f"资源池 {past.pool} 预计从 {to_iso(mid or now_ms)} 起{limit.words_zh} {limit.value:g}"
                f"(概率 {chance:.0%},当前 {value:.3g})。"
            ),
        )


def _extreme(limit: PoolLimit, ahead: SeasonalOutlook, starts: Instants) -> Evidence:
    middle = ahead.quantile(0.5)
    at = int(middle.argmax() if limit.rising else middle.argmin())
    peak_ms = int(starts[at])
    said = say("most likely peak at {at}" if limit.rising else "most likely low at {at}", at=to_iso(peak_ms))
    return evidence_of(limit.metric, said, peak_ms, middle.max() if limit.rising else middle.min())


def first_sustained(paths: Floats, limit: PoolLimit) -> Floats:
    """float64[paths]: the row from which on each path is beyond the limit for `SUSTAINED_HOURS`; infinite: never."""
    beyond = paths > limit.value if limit.rising else paths < limit.value
    lasting = beyond.copy()
    for step in range(1, SUSTAINED_HOURS):
        lasting[:-step] &= beyond[step:]
        lasting[-step:] = False
    return np.where(lasting.any(axis=0), lasting.argmax(axis=0).astype(np.float64), np.inf)


def _instant(eta: Floats, starts: Instants, share: float) -> int | None:
    """When `share` of the paths have arrived; None beyond the horizon."""
    step = float(np.quantile(eta, share, method="inverted_cdf"))
    return int(starts[int(step)]) if np.isfinite(step) else None


def _curve(eta: Floats, starts: Instants, now_ms: int) -> tuple[tuple[int, float], ...]:
    arrival = np.where(np.isfinite(eta), starts[np.where(np.isfinite(eta), eta, 0).astype(np.int64)], np.inf)
    return tuple((ahead, float((arrival <= now_ms + ahead).mean())) for ahead in range(DAY, HORIZON_MS + 1, DAY))


# Hourly figures a week ahead as curves: what was, what is expected, and the interval around it.

SHOWN_MS = 3 * DAY
"""How much of the past goes with a forecast."""
_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class HourlyFigure:
    """One figure by the hour: `values` is float64[n], NaN where unknown, from `start_ms` on.

    What is expected never leaves `least` to `most`; None where that has no bound.
    """

    name: str
    start_ms: int
    values: Floats
    least: float | None = 0.0
    most: float | None = None


@dataclass(frozen=True, slots=True)
class HourlyForecast:
    """The newest past, `at_ms` int64[k] and `known` float64[k], and the coming hours, `ahead_ms` int64[n] with the
    middle of what is expected and the interval of `coverage`, float64[n] each; empty where `reason` says why."""

    name: str
    at_ms: Instants
    known: Floats
    coverage: float
    ahead_ms: Instants = field(default_factory=lambda: np.empty(0, np.int64))
    middle: Floats = field(default_factory=lambda: _NONE)
    low: Floats = field(default_factory=lambda: _NONE)
    high: Floats = field(default_factory=lambda: _NONE)
    weekly: bool = False
    reason: str = ""
    reason_zh: str = ""


@dataclass(frozen=True, slots=True)
class HourlyForecastRequest:
    """What is asked for, fit to be sent to another process."""

    figures: Sequence[HourlyFigure]
    now_ms: int
    coverage: float = 0.8


def courses(ask: HourlyForecastRequest) -> list[HourlyForecast]:
    """A course for each figure; hours that had not ended at `now_ms` are not looked at."""
    return [_course(one, ask.now_ms, ask.coverage) for one in ask.figures]


def _silent(figure: HourlyFigure, at_ms: Instants, known: Floats, coverage: float, why: Phrase) -> HourlyForecast:
    """A past of which no future is said."""
    return HourlyForecast(figure.name, at_ms, known, coverage, reason=str(why), reason_zh=in_chinese(why))


def _course(figure: HourlyFigure, now_ms: int, coverage: float) -> HourlyForecast:
    at_ms = figure.start_ms + HOUR * np.arange(figure.values.size, dtype=np.int64)
    ended = at_ms + HOUR <= now_ms
    at_ms, values = at_ms[ended], figure.values[ended]
    shown = at_ms >= now_ms - SHOWN_MS
    found = np.flatnonzero(np.isfinite(values))
    if not found.size:
        return _silent(figure, at_ms[shown], values[shown], coverage, say("no hour of history"))
    last_ms = int(at_ms[found[-1]])
    try:
        ahead = outlook(values[found[0] : found[-1] + 1], round((now_ms + HORIZON_MS - last_ms) / HOUR) - 1)
    except TooShort as error:
        return _silent(figure, at_ms[shown], values[shown], coverage, error.said)
    tail = (1.0 - coverage) / 2
    middle, low, high = (_within(ahead, share, figure) for share in (0.5, tail, 1.0 - tail))
    return HourlyForecast(
        figure.name,
        at_ms[shown],
        values[shown],
        coverage,
        last_ms + HOUR * (1 + np.arange(len(ahead.paths), dtype=np.int64)),
        middle,
        low,
        high,
        weekly=ahead.weekly,
    )


def _within(ahead: SeasonalOutlook, share: float, figure: HourlyFigure) -> Floats:
    return np.asarray(np.clip(ahead.quantile(share), figure.least, figure.most), dtype=np.float64)
