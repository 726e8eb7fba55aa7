"""How a prediction is worded, one function for each kind of answer."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.clock import HOUR, MINUTE, to_iso
from tocsin.domain.metrics import METRICS
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu


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


def unknown(blank: Prediction, reason: str) -> Prediction:
    """Nothing is claimed, for `reason`."""
    sentence = f"{blank.sentence}: not enough data for a forecast: {reason}."
    return replace(blank, status=PredictionStatus.NOT_ENOUGH_DATA, reason=reason, sentence=sentence, coverage=None)


def no_crossing(made: Prediction) -> Prediction:
    """The limit is not reached within the horizon."""
    ahead, limit, now = hours(made.horizon_ms), *_levels(made)
    sentence = f"{made.sentence} is not expected to reach {limit} within {ahead} (now {now})."
    return replace(made, sentence=sentence, coverage=None)


def reached(made: Prediction, now_ms: int) -> Prediction:
    """The limit is reached already."""
    limit, now = _levels(made)
    return replace(
        made,
        status=PredictionStatus.CROSSING,
        probability=1.0,
        eta_ms=now_ms,
        eta_low_ms=now_ms,
        eta_high_ms=now_ms,
        sentence=f"{made.sentence} has reached {limit} (now {now}).",
    )


def crossing(made: Prediction, eta_ms: int, low_ms: int, high_ms: int | None) -> Prediction:
    """The limit is reached at `eta_ms`, within the horizon; `high_ms` is None where the late end lies beyond it."""
    late = f"to {hours(high_ms - made.at_ms)}" if high_ms is not None else f"to beyond {hours(made.horizon_ms)}"
    limit, now = _levels(made)
    sentence = (
        f"{made.sentence} is expected to reach {limit} in {hours(eta_ms - made.at_ms)}, at {to_iso(eta_ms)} "
        f"({made.coverage:.0%} interval {hours(low_ms - made.at_ms)} {late}, now {now})."
    )
    return replace(
        made,
        status=PredictionStatus.CROSSING,
        eta_ms=eta_ms,
        eta_low_ms=low_ms,
        eta_high_ms=high_ms,
        sentence=sentence,
    )
