"""How a prediction is worded, one function for each kind of answer. A sentence names instants: it may be read later."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.metrics import METRICS
from tocsin.domain.phrase import Phrase, in_chinese, say
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


def _told(made: Prediction, template: str, **values: object) -> Prediction:
    """`made`, whose sentence names so far what it is about, with the whole of it in both languages."""
    about = {"about": made.sentence, "limit": level(made.threshold, made.metric), "now": level(made.value, made.metric)}
    said = say(template, **about, **values)
    return replace(made, sentence=str(said), sentence_zh=in_chinese(said))


def unknown(blank: Prediction, reason: Phrase) -> Prediction:
    """Nothing is claimed, for `reason`."""
    made = _told(blank, "{about}: not enough data for a forecast: {reason}.", reason=reason)
    none = PredictionStatus.NOT_ENOUGH_DATA
    return replace(made, status=none, reason=str(reason), reason_zh=in_chinese(reason), coverage=None)


def no_crossing(made: Prediction) -> Prediction:
    """The limit is not reached within the horizon."""
    template = "{about} is not expected to reach {limit} within {ahead} of {at} (then {now})."
    made = _told(made, template, ahead=hours(made.horizon_ms), at=to_minute(made.at_ms))
    return replace(made, coverage=None)


def reached(made: Prediction) -> Prediction:
    """The limit is reached already: a matter of findings, and nothing to forecast."""
    made = _told(made, "{about} has reached {limit} ({now} at {at}): nothing to forecast.", at=to_minute(made.at_ms))
    return replace(made, coverage=None, reason=REACHED, reason_zh=in_chinese(say(REACHED)))


def crossing(made: Prediction, eta_ms: int, low_ms: int, high_ms: int | None) -> Prediction:
    """The limit is reached at `eta_ms`, within the horizon; `high_ms` is None where the late end lies beyond it."""
    made = _told(
        made,
        "{about} is expected to reach {limit} at {eta} ({share} interval {low} to {high}, {now} at {at}).",
        eta=to_minute(eta_ms),
        share=f"{made.coverage:.0%}",
        low=to_minute(low_ms),
        high=to_minute(high_ms) if high_ms is not None else "beyond the horizon",
        at=to_minute(made.at_ms),
    )
    return replace(made, status=PredictionStatus.CROSSING, eta_ms=eta_ms, eta_low_ms=low_ms, eta_high_ms=high_ms)
