"""Which statements are kept: warnings, changes, and once a day that nothing is expected."""

from __future__ import annotations

from tocsin.domain.clock import DAY
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.evaluation.reliability import bin_of
from tocsin.forecaster.live.recalibration import CLAIMS


def is_news(said: Prediction, before: Prediction | None, stored_ms: int) -> bool:
    """Warnings, and changes of status or of what the scoreboard tells apart against what was said `before`: that
    nothing is expected, again, is worth a row a day since `stored_ms`, so that how often it was right can be told."""
    changed = before is None or before.status is not said.status or moved(before, said)
    return changed or said.at_ms - stored_ms >= DAY or said.status in CLAIMS


def moved(before: Prediction, after: Prediction) -> bool:
    """Whether a probability has gone into another bin of reliability; of a fault, the model's own: what no sign
    foretells changes for all GPUs at once."""
    stated = [None if (own := one.own_probability) is None else bin_of(own) for one in (before, after)]
    return stated[0] != stated[1]
