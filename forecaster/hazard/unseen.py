"""What the families for the unseen share: they learn from quiet rows, and need no onset at all.

Without onsets a score becomes a probability by its rank among quiet rows alone: the prior rate of onsets times
(1 - s)(1 - rank)^-s, whose mean over quiet rows is 1, so that the prior is kept on average. Own choice.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.features.examples import Codes, Examples, Floats, Ints, Mask, Singles
from tocsin.forecaster.hazard.calibration import Ranks, rank_table
from tocsin.forecaster.hazard.curves import Curves, prior_curves
from tocsin.forecaster.hazard.rows import LearningRows, Preparation, from_arrays, onsets, prepare
from tocsin.forecaster.hazard.scorer import Common, NotEnoughData, State
from tocsin.forecaster.hazard.tabular import Arrays, TabularScorer

LIFT = 0.5
"""The exponent s: the strangest row in ten thousand is 50 times as likely to fail as the prior says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenSettings(Common):
    """`prior_per_day` is the rate of onsets of a device that counts where fewer than `min_onsets` are known; its
    default is that of 3 GPU faults in a thousand GPU-weeks, own choice. At least `min_rows` quiet rows are needed, of
    which `max_rows` are used."""

    min_onsets: int = 10
    prior_per_day: float = 0.0004
    min_rows: int = 20
    max_rows: int = 50_000

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if not 0 < self.prior_per_day < 1:
            raise InputError("prior_per_day", self.prior_per_day, "not between 0 and 1", "give for example 0.0004")


UnseenT = TypeVar("UnseenT", bound=UnseenSettings)


class UnseenScorer(TabularScorer[UnseenT]):
    """A scorer of strangeness. Its risk is -log(1 - rank) among quiet rows of devices that it did not learn from."""

    def __init__(self, settings: UnseenT) -> None:
        super().__init__(settings)
        self._ranks: Ranks | None = None
        self._preparation: Preparation | None = None

    def _require(self, rows: LearningRows) -> None:
        quiet = int((~rows.onset).sum())
        if quiet < self.settings.min_rows:
            raise NotEnoughData(f"{self.name}: {quiet} rows without an onset, {self.settings.min_rows} needed")

    def _learn(self, rows: LearningRows) -> Floats:
        """Half of the devices for the ranks of the other half and the reverse; then all for the model that stays."""
        company = companies(rows.group, rows.at_ms)
        devices, of_row = np.unique(rows.device, return_inverse=True)
        half = np.random.default_rng(self.settings.seed).permutation(devices.size)[of_row] % 2 == 1
        strange = np.empty(len(rows))
        for out in (half, ~half):
            if out.any():
                learn = ~rows.onset & (~out if (~rows.onset & ~out).any() else out)
                self._fit_quiet(rows.x[learn])
                strange[out] = self._strange(rows.x[out], company[out])
        self._fit_quiet(rows.x[~rows.onset])
        self._ranks = rank_table(strange[~rows.onset], rows.weight[~rows.onset])
        return self._tail(strange)

    def _fit_quiet(self, x: Singles) -> None:
        thinned = x[:: max(1, -(-len(x) // self.settings.max_rows))]
        self._preparation = prepare(thinned)
        self._learn_quiet(self._even(thinned))

    def _even(self, x: Singles) -> Floats:
        """float64[n, columns]: the columns that vary, made even; a missing value counts as usual."""
        assert self._preparation is not None
        return self._preparation.apply(x)[:, : self._preparation.columns.size]

    def _fit_curves(self, risk: Floats, rows: LearningRows) -> Curves:
        if onsets(rows) >= self.settings.min_onsets:
            return super()._fit_curves(risk, rows)
        per_day = self.settings.prior_per_day * (1 - LIFT)
        return prior_curves(self.horizons_ms, per_day, LIFT, float(risk.min()), float(risk.max()))

    def _tail(self, strange: Floats) -> Floats:
        if self._ranks is None:
            raise Conflict(f"{self.name}: not fitted yet")
        return np.asarray(-np.log1p(-self._ranks.apply(strange)), np.float64)

    def risk(self, examples: Examples) -> Floats:
        company = companies(examples.group, examples.at_ms)
        return self._tail(self._strange(self._aligned(examples), company))

    def strangeness(self, examples: Examples) -> Floats:
        """float64[n]: 1 minus this is the share of quiet rows that are stranger than the row."""
        return -np.expm1(-self.risk(examples))

    def _parts(self) -> tuple[Arrays, dict[str, object]]:
        assert self._ranks is not None
        assert self._preparation is not None
        ranks = np.stack([self._ranks.scores, self._ranks.ranks])
        return {"ranks": ranks, **self._preparation.arrays()}, {}

    def _take_up(self, state: State) -> None:
        self._ranks = Ranks(*np.asarray(state.arrays["ranks"], np.float64))
        self._preparation = from_arrays(state.arrays)

    @abstractmethod
    def _learn_quiet(self, z: Floats) -> None:
        """Fit to quiet rows `z` float64[n, columns], made even."""

    @abstractmethod
    def _strange(self, x: Singles, company: Ints) -> Floats:
        """float64[n]: higher is stranger, in any unit; `company` int64[n] numbers those that are seen together."""


# How far a device is from its peers at the same instant. After Minder (Deng et al., NSDI 2025): machines that do the
# same work look alike, metric by metric, so that the one that differs is the faulty one. Here a metric's residual is
# compared with the median of the peers in units of their own spread, which one or two strange peers do not move.

LEAST_PEERS = 3
"""A company of fewer, the device itself among them, tells nothing: of three, two outvote a sick one."""
FLOOR = 0.5
"""The least spread of peers, in spreads of quiet rows."""
FAR = 10.0


def companies(group: Codes, at_ms: Ints) -> Ints:
    """int64[n]: rows of one group at one instant have the same number."""
    _, company = np.unique(np.stack([group.astype(np.int64), at_ms], axis=1), axis=0, return_inverse=True)
    return np.asarray(company.ravel(), np.int64)


def apart(values: Floats, company: Ints) -> tuple[Floats, Mask]:
    """float64[n, m]: distance of each of `values` float64[n, m] from the median of its company, in spreads of that
    company, NaN where the value is; and bool[n]: whether the company is large enough to tell."""
    made = np.full(values.shape, np.nan)
    told = np.zeros(len(values), np.bool_)
    order = np.argsort(company, kind="stable")
    starts = np.flatnonzero(np.diff(company[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if rows.size < LEAST_PEERS:
            continue
        here = values[rows]
        centre = _median(here)
        away = here - centre
        spread = np.maximum(1.4826 * _median(np.abs(away)), FLOOR)
        made[rows], told[rows] = np.clip(away / spread, -FAR, FAR), True
    return made, told


def _median(values: Floats) -> Floats:
    """Median of each column without NaN; 0 where there is nothing."""
    count = (~np.isnan(values)).sum(axis=0)
    ordered = np.sort(values, axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(count - 1, 0) // 2, columns]
    high = ordered[np.minimum(count // 2, len(values) - 1), columns]
    return np.where(count > 0, (low + high) / 2, 0.0)
