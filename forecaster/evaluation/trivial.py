"""Predictors that know next to nothing: what a model must beat before it is worth its keep."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR
from tocsin.forecaster.features.examples import NEVER, Examples, Floats

PRIOR_WINDOWS = 1000.0
"""Windows at the overall rate that each group of a base-rate table starts with (own choice), so that a group seen
seldom is not believed at once."""

ALWAYS_HEALTHY = "always healthy"
BASE_RATES = "base-rate table"
RECENCY = "recency rule"


def always_healthy(examples: Examples) -> Floats:
    """Probability 0 for every row: float64[n]."""
    return np.zeros(len(examples))


def base_rates(train: Examples, test: Examples, horizon_ms: int, column: str | None = None) -> Floats:
    """The share of windows with an onset that the row's group had in `train`, or the rows of the same value of
    `column`: float64[n of test]. A group never seen gets the overall rate."""
    label, known = train.label(horizon_ms)
    weight = np.where(known, train.weight, 0.0)
    keys, where = np.unique(_keys(train, column), return_inverse=True)
    overall = float((weight * label).sum() / weight.sum()) if weight.sum() > 0 else 0.0
    hits = np.bincount(where, weights=weight * label) + PRIOR_WINDOWS * overall
    rate = hits / (np.bincount(where, weights=weight) + PRIOR_WINDOWS)
    asked = _keys(test, column)
    at = np.minimum(np.searchsorted(keys, asked), keys.size - 1)
    return np.asarray(np.where(keys[at] == asked, rate[at], overall), dtype=np.float64)


def _keys(examples: Examples, column: str | None) -> npt.NDArray[np.str_]:
    if column is None:
        return np.asarray(examples.groups, dtype=np.str_)[examples.group]
    return np.char.mod("%g", examples.column(column).astype(np.float64))


def recency(test: Examples, past: Examples | None = None) -> Floats:
    """Score float64[n of test]: the more lately the device had an onset, the higher; 0 without one, at most 1.

    Onsets are those of `past` and of earlier rows of `test`; one at or after the row's instant is not looked at.
    """
    names = {name: code for code, name in enumerate(test.devices)}
    code, event_ms = [test.device.astype(np.int64)], [test.event_ms]
    if past is not None:
        own = np.asarray([names.get(name, -1) for name in past.devices], dtype=np.int64)
        code, event_ms = [*code, own[past.device]], [*event_ms, past.event_ms]
    pairs = np.stack((np.concatenate(code), np.concatenate(event_ms)), axis=1)
    pairs = np.unique(pairs[(pairs[:, 0] >= 0) & (pairs[:, 1] != NEVER)], axis=0)
    return _recency(test, pairs)


def _recency(test: Examples, onsets: npt.NDArray[np.int64]) -> Floats:
    score = np.zeros(len(test))
    if len(onsets) == 0:
        return score
    first = min(int(onsets[:, 1].min()), int(test.at_ms.min()))
    span = max(int(onsets[:, 1].max()), int(test.at_ms.max())) - first + 1
    keys = onsets[:, 0] * span + onsets[:, 1] - first
    last = np.searchsorted(keys, test.device * np.int64(span) + test.at_ms - first, "left") - 1
    ago_h = (test.at_ms - onsets[last, 1]) / HOUR
    seen = (last >= 0) & (onsets[last, 0] == test.device)
    score[seen] = 1.0 / (1.0 + ago_h[seen])
    return score
