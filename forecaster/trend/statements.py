"""How a prediction is worded, one function for each kind of answer. A sentence names instants: it may be read later."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.metrics import METRICS
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu

REACHED = "reached already"
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


def unknown(blank: Prediction, reason: str) -> Prediction:
    """Nothing is claimed, for `reason`."""
    sentence = f"{blank.sentence}: not enough data for a forecast: {reason}."
    return replace(blank, status=PredictionStatus.NOT_ENOUGH_DATA, reason=reason, sentence=sentence, coverage=None)


def no_crossing(made: Prediction) -> Prediction:
    """The limit is not reached within the horizon."""
    ahead, limit, now = hours(made.horizon_ms), *_levels(made)
    sentence = (
        f"{made.sentence} is not expected to reach {limit} within {ahead} of {to_minute(made.at_ms)} (then {now})."
    )
    return replace(made, sentence=sentence, coverage=None)


def reached(made: Prediction) -> Prediction:
    """The limit is reached already: a matter of findings, and nothing to forecast."""
    limit, now = _levels(made)
    sentence = f"{made.sentence} has reached {limit} ({now} at {to_minute(made.at_ms)}): nothing to forecast."
    return replace(made, sentence=sentence, coverage=None, reason=REACHED)


def crossing(made: Prediction, eta_ms: int, low_ms: int, high_ms: int | None) -> Prediction:
    """The limit is reached at `eta_ms`, within the horizon; `high_ms` is None where the late end lies beyond it."""
    late = f"to {to_minute(high_ms)}" if high_ms is not None else "to beyond the horizon"
    limit, now = _levels(made)
    sentence = (
        f"{made.sentence} is expected to reach {limit} at {to_minute(eta_ms)} "
        f"({made.coverage:.0%} interval {to_minute(low_ms)} {late}, {now} at {to_minute(made.at_ms)})."
    )
    return replace(
        made,
        status=PredictionStatus.CROSSING,
        eta_ms=eta_ms,
        eta_low_ms=low_ms,
        eta_high_ms=high_ms,
        sentence=sentence,
    )
