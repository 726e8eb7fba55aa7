"""Hourly figures that follow the day and the week, days ahead: seasons by MSTL, what is left by damped ETS.

MSTL is Bandara, Hyndman and Bergmeir (arXiv 2107.13462), ETS(A, Ad, N) Hyndman et al. 2008; both by statsmodels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from tocsin.domain.errors import TocsinError
from tocsin.domain.phrase import Phrase, say
from tocsin.forecaster.trend.resample import Floats

DAY_HOURS, WEEK_HOURS = 24, 168
MIN_DAYS = 3
"""Days of hourly figures from which on the day's course can be told from chance."""
WEEKS_FOR_WEEK = 4
"""Weeks from which on the week's course can be."""
STEADY = 201
"""Cycles over which MSTL smooths a season: it hardly changes within five weeks, and a narrow window takes chance for
season, which makes the intervals too narrow."""
MAX_GAP_SHARE = 0.25
ORIGINS = 4
PATHS = 400
_SEED = 20_261_121


class TooShort(TocsinError):
    """Too few hours for a seasonal forecast; `said` says how many there are."""

    def __init__(self, said: Phrase) -> None:
        super().__init__(str(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class SeasonalOutlook:
    """Paths of the coming hours: `paths` is float64[hours, PATHS], the first row the hour after the last known one.

    `season` is the mean course of the coming hours without trend, `weekly` whether the week is in it.
    """

    paths: Floats
    season: Floats
    weekly: bool

    def quantile(self, share: float) -> Floats:
        """float64[hours]: the level that `share` of the paths stay below."""
        return np.asarray(np.quantile(self.paths, share, axis=1), dtype=np.float64)


def outlook(hourly: Floats, hours: int) -> SeasonalOutlook:
    """The next `hours` of `hourly`, float64[n], NaN where an hour is unknown; the same input, the same paths.

    Gaps are filled from the hours a day before or after. Raises TooShort.
    """
    known = int(np.isfinite(hourly).sum())
    needed = MIN_DAYS * DAY_HOURS
    if known < needed:
        raise TooShort(say("{n} hours of history, {needed} needed", n=known, needed=needed))
    if known < (1.0 - MAX_GAP_SHARE) * hourly.size:
        template = "{n} of {total} hours are unknown, a quarter is the most"
        raise TooShort(say(template, n=hourly.size - known, total=hourly.size))
    filled = _filled(hourly)
    made = _look(filled, hours)
    middle = made.paths.mean(axis=1, keepdims=True)
    return SeasonalOutlook(middle + _too_narrow(filled) * (made.paths - middle), made.season, made.weekly)


def _look(filled: Floats, hours: int) -> SeasonalOutlook:
    weekly = filled.size >= WEEKS_FOR_WEEK * WEEK_HOURS
    season, rest = _decompose(filled, (DAY_HOURS, WEEK_HOURS) if weekly else (DAY_HOURS,), hours)
    return SeasonalOutlook(season[:, None] + _paths(rest, hours), season, weekly)


def _too_narrow(filled: Floats) -> float:
    """How much wider the paths must be for their 80 % interval to hold what came in the last days, at least 1.

    The season takes part of the noise with it, and its own error is in no path. So the same is done from `ORIGINS`
    earlier instants, whose future is known: the 80th percentile of how far the truth lay out, in half-widths (split
    conformal, Vovk et al. 2005).
    """
    out: list[float] = []
    for day in range(1, ORIGINS + 1):
        known = filled.size - day * DAY_HOURS
        if known < MIN_DAYS * DAY_HOURS:
            break
        ahead = _look(filled[:known], DAY_HOURS)
        middle = ahead.paths.mean(axis=1)
        half = (ahead.quantile(0.9) - ahead.quantile(0.1)) / 2
        away = np.abs(filled[known : known + DAY_HOURS] - middle)
        out += (away[half > 0] / half[half > 0]).tolist()
    return max(1.0, float(np.quantile(out, 0.8))) if out else 1.0


def _filled(hourly: Floats) -> Floats:
    filled = hourly.copy()
    places = np.arange(filled.size)
    for shift in (-DAY_HOURS, DAY_HOURS, -2 * DAY_HOURS, 2 * DAY_HOURS):
        gaps = places[~np.isfinite(filled)]
        source = gaps + shift
        inside = (source >= 0) & (source < filled.size)
        filled[gaps[inside]] = hourly[source[inside]]
    gaps = ~np.isfinite(filled)
    if gaps.any():
        filled[gaps] = np.interp(places[gaps], places[~gaps], filled[~gaps])
    return filled


def _decompose(filled: Floats, periods: tuple[int, ...], hours: int) -> tuple[Floats, Floats]:
    """The seasons of the coming hours, and what is left of the past without them."""
    from statsmodels.tsa.seasonal import MSTL

    if filled.std() <= 1e-9:
        return np.zeros(hours), filled
    seasonal = np.asarray(
        MSTL(filled, periods=periods, windows=(STEADY,) * len(periods)).fit().seasonal, dtype=np.float64
    ).reshape(filled.size, -1)
    ahead = np.arange(hours)
    season = np.zeros(hours)
    for column, period in enumerate(periods):
        season += seasonal[filled.size - period + ahead % period, column]
    return season, filled - seasonal.sum(axis=1)


def _paths(rest: Floats, hours: int) -> Floats:
    """Simulated futures of what has no season, float64[hours, PATHS]."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    scale, centre = float(rest.std()), float(rest.mean())
    if scale <= 1e-9:
        return np.full((hours, PATHS), centre)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser stopped early: the state is usable then
        model = ETSModel((rest - centre) / scale, error="add", trend="add", damped_trend=True)
        result = model.fit(disp=False, maxiter=200)
        made = result.simulate(hours, anchor="end", repetitions=PATHS, rng=np.random.default_rng(_SEED))
    return np.asarray(made, dtype=np.float64).reshape(hours, PATHS) * scale + centre
