"""How a prediction is worded, one function for each kind of answer. A sentence names instants: it may be read later."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.metrics import METRICS
from tocsin.domain.phrase import Phrase, in_chinese
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu

BEYOND, BEYOND_ZH = "beyond the horizon", "预测范围之外"
"""In place of the late end of an interval that has none."""
REACHED, REACHED_ZH = "reached already", "已达到"
"""The reason of a statement that has nothing to say because the limit is behind."""


def where(gpu: Gpu) -> str:
    """``node-1 GPU 3``; a question mark where the index is not known."""
    return f"{gpu.host} GPU {'?' if gpu.index is None else gpu.index}"


def hours(milliseconds: int) -> str:
    """`milliseconds` in words: hours, or minutes below one hour."""
    return f"{milliseconds / HOUR:.1f} h" if milliseconds >= HOUR else f"{milliseconds / MINUTE:.0f} min"


def level(value: float | None, metric: str) -> str:
    """A value of `metric` for reading: shares as per cent, temperatures in degrees, others as they are."""
    if value is None:
        return "unknown"
    unit = METRICS[metric].unit if metric in METRICS else ""
    if unit == "ratio":
        return f"{100 * value:.3g} %"
    return f"{value:.3g} °C" if unit == "celsius" else f"{value:.4g}"


def _levels(made: Prediction) -> tuple[str, str]:
    return level(made.threshold, made.metric), level(made.value, made.metric)


def unknown(blank: Prediction, reason: Phrase) -> Prediction:
    """Nothing is claimed, for `reason`."""
    why, why_zh = str(reason), in_chinese(reason)
    return replace(
        blank,
        status=PredictionStatus.NOT_ENOUGH_DATA,
        reason=why,
        reason_zh=why_zh,
        sentence=f"{blank.sentence}: not enough data for a forecast: {why}.",
        sentence_zh=f"{blank.sentence}：数据不足，无法预测（{why_zh or why}）。",
        coverage=None,
    )


def no_crossing(made: Prediction) -> Prediction:
    """The limit is not reached within the horizon."""
    ahead, at, limit, now = hours(made.horizon_ms), to_minute(made.at_ms), *_levels(made)
    sentence = f"{made.sentence} is not expected to reach {limit} within {ahead} of {at} (then {now})."
    chinese = f"{made.sentence}：预计自 {at} 起 {ahead} 内不会达到 {limit}（当时 {now}）。"
    return replace(made, sentence=sentence, sentence_zh=chinese, coverage=None)


def reached(made: Prediction) -> Prediction:
    """The limit is reached already: a matter of findings, and nothing to forecast."""
    at, limit, now = to_minute(made.at_ms), *_levels(made)
    sentence = f"{made.sentence} has reached {limit} ({now} at {at}): nothing to forecast."
    chinese = f"{made.sentence}：已达到 {limit}（{at} 为 {now}）：无需预测。"
    told = replace(made, sentence=sentence, sentence_zh=chinese, coverage=None)
    return replace(told, reason=REACHED, reason_zh=REACHED_ZH)


def crossing(made: Prediction, eta_ms: int, low_ms: int, high_ms: int | None) -> Prediction:
    """The limit is reached at `eta_ms`, within the horizon; `high_ms` is None where the late end lies beyond it."""
    high, high_zh = BEYOND, BEYOND_ZH
    if high_ms is not None:
        high = high_zh = to_minute(high_ms)
    at, eta, low, share = to_minute(made.at_ms), to_minute(eta_ms), to_minute(low_ms), f"{made.coverage:.0%}"
    limit, now = _levels(made)
    sentence = (
        f"{made.sentence} is expected to reach {limit} at {eta} ({share} interval {low} to {high}, {now} at {at})."
    )
    chinese = f"{made.sentence}：预计于 {eta} 达到 {limit}（{share} 区间 {low} 至 {high_zh}，{at} 为 {now}）。"
    return replace(
        made,
        status=PredictionStatus.CROSSING,
        eta_ms=eta_ms,
        eta_low_ms=low_ms,
        eta_high_ms=high_ms,
        sentence=sentence,
        sentence_zh=chinese,
    )


def without_end(said: Prediction) -> Prediction:
    """What `crossing` made, where too much of the like never arrives for a late end."""
    if said.eta_high_ms is None:
        return said
    high = to_minute(said.eta_high_ms)
    return replace(
        said,
        eta_high_ms=None,
        sentence=said.sentence.replace(f" to {high},", f" to {BEYOND},"),
        sentence_zh=said.sentence_zh.replace(f" 至 {high}，", f" 至 {BEYOND_ZH}，"),
    )
