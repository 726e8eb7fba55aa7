"""Finds what is unusual in many metrics of one thing over time, without a single label.

Two views of the newest sample are joined: how far each metric is from where it usually is, and how far from where the
past few samples of all metrics say it should be (ridge regression on lags). The first sees levels never seen before,
the second sees jumps inside the usual range. Of each view the few largest metrics count, because a fault shows in few.
What a metric usually does is learnt from a past that may hold faults of its own: medians, quantiles and clipping keep
those from becoming the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Floats, Mask
from tocsin.forecaster.hazard.scorer import Json, NotEnoughData, State

NAME, VERSION = "anomaly", "1"

TAIL = 0.01
"""The usual range of a metric lies between this quantile and its mirror."""
FAR, JUMP, BENT = 20.0, 30.0, 5.0
"""Most that a level counts for, in usual ranges, a residual, in its own spreads, and a value in the regression: one
broken sensor is as strange as can be, not more."""
LEAST_SPREAD = 0.01
"""Least spread of a residual, in usual ranges: a metric that is told exactly would alarm at dust."""
LEAST_NORM = (0.3, 1.0)
"""Least that counts as the usual of each view, so that a past without any variation does not alarm at dust."""
ROWS_PER_LAG = 20
"""A past must hold so many rows for each step that the regression looks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSettings:
    """`lags` are the past samples of the regression, in steps; `ridge` its penalty in rows. The `top` largest metrics
    make the score. `pulse_ms` and `state_ms` are the spans of the two exponential means (`Scores`).
    `least` is the smallest usual range of a metric, in its own unit: a change far below it never matters."""

    lags: tuple[int, ...] = (1, 2, 3, 5, 10)
    ridge: float = 10.0
    top: int = 6
    pulse_ms: int = 3 * MINUTE
    state_ms: int = HOUR
    least: float = 0.01

    def __post_init__(self) -> None:
        if not self.lags or min(self.lags) < 1:
            raise InputError("lags", self.lags, "not past steps", "give for example [1, 2, 3]")
        for name in ("ridge", "top", "pulse_ms", "state_ms", "least"):
            if getattr(self, name) <= 0:
                raise InputError(name, getattr(self, name), "not above 0", "give a number above 0")


@dataclass(frozen=True, slots=True)
class Scores:
    """float64[n] each, in usual scores of the past that was learnt; NaN where every metric is missing.

    `pulse` follows the last minutes and is what alarms are made on. `state` follows the last hour: it says how unusual
    the time is as a whole, and ranks times.
    """

    pulse: Floats
    state: Floats


class Detector:
    """What is usual of the metrics of one thing, on an even grid of `step_ms`. Made by `learn` or `from_state`."""

    def __init__(self, settings: DetectorSettings, step_ms: int, arrays: Mapping[str, Floats]) -> None:
        self.settings = settings
        self.step_ms = step_ms
        self._arrays = dict(arrays)

    def score(self, values: Floats) -> Scores:
        """Judge float64[n, m] `values`, oldest first, NaN where missing; input is not changed. The first few rows, up
        to the longest lag, are judged by their level alone. Raises InputError for another number of metrics."""
        level, jump = self._views(values)
        norm = self._arrays["norm"]
        parts = [_largest(view, self.settings.top) for view in (level, jump)]
        raw = np.sqrt(((parts[0] / norm[0]) ** 2 + (parts[1] / norm[1]) ** 2) / 2)
        missing: Mask = np.asarray(np.isnan(values).all(axis=1))
        held = _held(raw, missing)
        pulse, state = (
            np.where(missing, np.nan, exponential_mean(held, span / self.step_ms))
            for span in (self.settings.pulse_ms, self.settings.state_ms)
        )
        return Scores(pulse, state)

    def blame(self, values: Floats) -> Floats:
        """float64[n, m]: how unusual each metric is by itself, as the larger of its two views; 0 where missing."""
        level, jump = self._views(values)
        return np.maximum(level, jump)

    def _views(self, values: Floats) -> tuple[Floats, Floats]:
        middle, spread = self._arrays["middle"], self._arrays["spread"]
        if values.ndim != 2 or values.shape[1] != middle.size:
            raise InputError("values", values.shape, f"not [n, {middle.size}]", "give the metrics that were learnt")
        z = (np.asarray(values, np.float64) - middle) / spread
        level = np.nan_to_num(np.minimum(np.abs(z), FAR))
        bent = np.clip(z, -BENT, BENT)
        told = _lagged(np.nan_to_num(bent), self.settings.lags) @ self._arrays["weights"]
        away = (bent - told) / self._arrays["jump"]
        away[: max(self.settings.lags)] = 0.0
        return level, np.nan_to_num(np.minimum(np.abs(away), JUMP))

    def state(self) -> State:
        settings: Json = {**asdict(self.settings), "name": NAME, "version": VERSION, "step_ms": self.step_ms}
        return State(settings, self._arrays)


def learn(values: Floats, step_ms: int, settings: DetectorSettings | None = None) -> Detector:
    """Learn what is usual from float64[n, m] `values`, oldest first, NaN where missing.

    Raises NotEnoughData for a past that is too short, InputError for one that is no table.
    """
    settings = settings or DetectorSettings()
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError("values", values.shape, "not [n, m]", "give a row per instant, a column per metric")
    needed = ROWS_PER_LAG * max(settings.lags)
    if len(values) < needed:
        raise NotEnoughData(f"{NAME}: {len(values)} rows, {needed} needed")
    values = np.asarray(values, np.float64)
    middle, spread = _usual(values, settings.least)
    z = np.clip(np.nan_to_num((values - middle) / spread), -BENT, BENT)
    weights = _regression(z, settings)
    past = max(settings.lags)
    away = (z - _lagged(z, settings.lags) @ weights)[past:]
    jump = np.sqrt((away**2).mean(axis=0)) + LEAST_SPREAD
    arrays = {"middle": middle, "spread": spread, "weights": weights, "jump": jump, "norm": np.ones(2)}
    level, jumps = Detector(settings, step_ms, arrays)._views(values)
    norm = [np.sqrt((_largest(view, settings.top) ** 2).mean()) for view in (level, jumps)]
    return Detector(settings, step_ms, {**arrays, "norm": np.maximum(norm, LEAST_NORM)})


def from_state(state: State) -> Detector:
    """The detector that gave `state`. Raises InputError for one of another kind or version."""
    settings = dict(state.settings)
    made = (settings.pop("name", ""), settings.pop("version", ""))
    if made != (NAME, VERSION):
        raise InputError("state", made, f"not {NAME} {VERSION}", "learn again")
    step_ms = int(str(settings.pop("step_ms")))
    lags = settings.pop("lags")
    assert isinstance(lags, list | tuple)
    arrays = {name: np.asarray(value, np.float64) for name, value in state.arrays.items()}
    return Detector(DetectorSettings(lags=tuple(lags), **settings), step_ms, arrays)  # type: ignore[arg-type]


def _usual(values: Floats, least: float) -> tuple[Floats, Floats]:
    """Median and usual range of each metric; one that was never there has the median 0."""
    known = ~np.isnan(values).all(axis=0)
    middle, spread = np.zeros(values.shape[1]), np.full(values.shape[1], least)
    middle[known] = np.nanmedian(values[:, known], axis=0)
    low, high = np.nanquantile(values[:, known], (TAIL, 1 - TAIL), axis=0)
    spread[known] = np.maximum(np.maximum(high - low, np.nanstd(values[:, known], axis=0)), least)
    return middle, spread


def _lagged(z: Floats, lags: tuple[int, ...]) -> Floats:
    """float64[n, m * lags + 1]: past rows beside each other, and a 1; 0 before the first row."""
    width = z.shape[1]
    out = np.zeros((len(z), width * len(lags) + 1))
    out[:, -1] = 1.0
    for place, lag in enumerate(lags):
        out[lag:, place * width : (place + 1) * width] = z[: len(z) - lag]
    return out


def _regression(z: Floats, settings: DetectorSettings) -> Floats:
    past = max(settings.lags)
    x = _lagged(z, settings.lags)[past:]
    matrix = x.T @ x + settings.ridge * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(matrix, x.T @ z[past:]), np.float64)


def _largest(view: Floats, top: int) -> Floats:
    """float64[n]: mean of the `top` largest of each row."""
    count = min(top, view.shape[1])
    return np.asarray(np.partition(view, view.shape[1] - count, axis=1)[:, -count:].mean(axis=1), np.float64)


def _held(raw: Floats, missing: Mask) -> Floats:
    """`raw` with the last known value in its gaps, 0 before the first."""
    place = np.maximum.accumulate(np.where(missing, -1, np.arange(raw.size)))
    return np.where(place >= 0, raw[place], 0.0)


def exponential_mean(values: Floats, span: float) -> Floats:
    """float64[n]: exponential mean of `values` [n] over `span` steps, begun at the first value."""
    from scipy.signal import lfilter

    keep: float = 1.0 - 2.0 / (max(span, 1.0) + 1.0)
    if keep <= 0 or values.size == 0:
        return values
    return np.asarray(lfilter([1.0 - keep], [1.0, -keep], values, zi=[keep * values[0]])[0], np.float64)
